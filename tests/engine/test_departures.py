"""Clients of a real engine that leave in each phase or stop reading, over real sockets (life/1, 3, 4, 5)."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, cast

import pytest
import requests

from engine.config import EngineConfig
from engine.messages import WorkerLike
from engine.testmode import RehearsalWorker
from tests.engine.fakes import PATIENCE, Address, open_request, serving
from tests.engine.test_exchange import LEAVES, leave_rst

PROMPT = list(range(65, 105))
"""40 tokens: five chunks of prefill."""


class Engine:
    """A live engine in test mode and what its statistics say."""

    def __init__(self, address: Address, worker: RehearsalWorker) -> None:
        self.address, self.worker = address, worker
        self.url = "http://{}:{}".format(*address)

    def hold(self, phase: str | None, after: int = 0) -> None:
        self.post("/v1/test/hold", {"phase": phase, "after": after})

    def post(self, path: str, body: object) -> Any:
        response = requests.post(self.url + path, json=body, timeout=PATIENCE)
        assert response.status_code == 200, response.text
        return response.json()

    def complete(self, **fields: Any) -> Any:
        return self.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True} | fields)

    def open(self, **fields: Any) -> socket.socket:
        body = {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True} | fields
        return open_request(self.address, json.dumps(body).encode())

    def until(self, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first snapshot seen in which this holds."""
        end = time.monotonic() + PATIENCE
        while not reached(stats := self.worker.stats()):
            assert time.monotonic() < end, stats
            time.sleep(0.001)
        return stats


@pytest.fixture(scope="module")
def started() -> Iterator[Engine]:
    config = EngineConfig(
        model="digest", block_size=4, grid=4, chunk=8, blocks=2048, max_batch=4, test_mode=True
    )
    worker = RehearsalWorker(config)
    worker.start()
    with serving(cast(WorkerLike, worker), config) as address:
        yield Engine(address, worker)
    worker.stop()


@pytest.fixture
def engine(started: Engine) -> Iterator[Engine]:
    started.post("/v1/cache/reset", {})
    yield started
    started.hold(None)
    started.until(lambda stats: not stats["running"] + stats["waiting"])
    assert started.worker.call("integrity").result(PATIENCE) == {"ok": True, "problems": []}


COUNTERS = ("computed_tokens_total", "generated_tokens_total")

PHASES = {
    "queued": ("queued", 0, 0, 0),
    "mid-prefill": ("prefill", 9, 16, 0),
    "first token": ("decode", 0, 40, 1),
    "mid-decode": ("decode", 1, 40, 2),
    "last step": ("decode", 2, 40, 3),
}
"""What is held, after how many tokens, and what a request has then computed and generated."""


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_leaves_gives_everything_back(
    engine: Engine, phase: str, stream: bool, leave: Callable[[socket.socket], None]
) -> None:
    held, after, computed, generated = PHASES[phase]
    before = engine.worker.stats()
    engine.hold(held, after)
    with closing(engine.open(stream=stream)) as connection:
        engine.until(_did(before, computed, generated, waiting=held == "queued"))
        leave(connection)
        after_it = engine.until(lambda stats: stats["cancelled_total"] > before["cancelled_total"])
    assert (after_it["running"], after_it["waiting"], after_it["paged_blocks_referenced"]) == (0, 0, 0)
    engine.hold(None)
    engine.complete(prompt=[70], max_tokens=1, cache_salt="poke")
    rest = engine.worker.stats()
    rise = [rest[name] - before[name] for name in COUNTERS]
    assert rise == [computed + 1, generated + 1], "work went on after the client had left"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_an_abort_gives_everything_back_and_is_told(engine: Engine, phase: str, stream: bool) -> None:
    held, after, computed, generated = PHASES[phase]
    before = engine.worker.stats()
    engine.hold(held, after)
    with closing(engine.open(stream=stream, request_id="mine")) as connection:
        engine.until(_did(before, computed, generated, waiting=held == "queued"))
        assert engine.post("/v1/abort", {"request_id": "mine"}) == {"aborted": "mine"}
        rest = engine.until(lambda stats: stats["cancelled_total"] > before["cancelled_total"])
        assert (rest["running"], rest["waiting"], rest["paged_blocks_referenced"]) == (0, 0, 0)
        assert "the request was aborted" in _until_closed(connection)


def _until_closed(connection: socket.socket) -> str:
    """All that comes until an error body or event has come whole."""
    data = b""
    while b"the request was aborted" not in data:
        piece = connection.recv(65536)
        assert piece, data
        data += piece
    return data.decode()


def _did(
    before: dict[str, Any], computed: int, generated: int, waiting: bool
) -> Callable[[dict[str, Any]], bool]:
    goal = [before[name] + extra for name, extra in zip(COUNTERS, (computed, generated), strict=True)]

    def reached(stats: dict[str, Any]) -> bool:
        there = stats["waiting"] if waiting else stats["running"]
        return bool(there) and [stats[name] for name in COUNTERS] == goal

    return reached


def test_a_client_that_stays_gets_its_reply(engine: Engine) -> None:
    """The control: the same hold, nobody leaves."""
    alone = engine.complete()["choices"][0]["text"]
    engine.post("/v1/cache/reset", {})
    before = engine.worker.stats()
    engine.hold("decode", 1)
    with closing(engine.open()) as connection:
        engine.until(_did(before, 40, 2, waiting=False))
        engine.hold(None)
        body = _read_to_end(connection)
    assert json.loads(body)["choices"][0]["text"] == alone


def test_survivors_of_a_departure_end_as_alone(engine: Engine) -> None:
    """Siblings share the prompt's blocks; one leaves in mid-decode (life/3)."""
    alone = engine.complete(max_tokens=12)["choices"][0]["text"]
    before = engine.worker.stats()
    engine.hold("decode", 4)
    with closing(engine.open(max_tokens=12)) as staying, closing(engine.open(max_tokens=12)) as leaving:
        engine.until(lambda stats: stats["generated_tokens_total"] == before["generated_tokens_total"] + 10)
        leave_rst(leaving)
        engine.until(lambda stats: stats["running"] == 1)
        engine.hold(None)
        body = _read_to_end(staying)
    assert json.loads(body)["choices"][0]["text"] == alone


def _read_to_end(connection: socket.socket) -> bytes:
    """The body of a reply with a length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:])
    while len(body) < int(fields[b"content-length"]):
        body += connection.recv(65536)
    return body


def test_a_client_that_stops_reading_delays_nobody(engine: Engine) -> None:
    """Its reply is far larger than its window; the engine ends it, others come and go, then it reads on."""
    before = engine.worker.stats()
    with closing(socket.socket()) as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.settimeout(PATIENCE)
        stalled.connect(engine.address)
        body = json.dumps(
            {"prompt": PROMPT, "max_tokens": 1000, "n": 2, "ignore_eos": True, "stream": True, "logprobs": 20}
        ).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        stalled.sendall(head.encode() + body)
        engine.until(lambda stats: stats["generated_tokens_total"] > before["generated_tokens_total"])
        assert engine.complete(prompt=[80, 81], max_tokens=8)["usage"]["completion_tokens"] == 8
        engine.until(lambda stats: stats["finished_total"] == before["finished_total"] + 2)
        received = b""
        while b"[DONE]" not in received[-200:]:
            received += stalled.recv(1 << 20)
    assert len(received) > 1_000_000
    assert received.count(b"data: {") == 2 * 1001
