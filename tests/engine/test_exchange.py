"""Clients that leave or stop reading, and an engine that dies (life/1, life/4, life/5)."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import pytest

from engine import exchange, serving
from engine.messages import Done, Event, Finished, Request, Started, Token
from tests.engine.fakes import (
    PATIENCE,
    Client,
    FakeWorker,
    Gate,
    error_of,
    letters,
    live,
    open_request,
)

# ---- clients that leave


def leave_rst(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def leave_fin(connection: socket.socket) -> None:
    connection.close()


def leave_half_close(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


LEAVES = [leave_rst, leave_fin, leave_half_close]


@pytest.mark.parametrize("events", [[], [Started(0), Token(0, 97, "a")]])
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_ended_by_the_name_that_its_client_gave(
    client: Client, worker: FakeWorker, stream: bool, events: list[Event]
) -> None:
    gate = Gate()
    worker.script = lambda request: [*events, gate]
    body = json.dumps({"prompt": "x", "stream": stream, "request_id": "mine"}).encode()
    with closing(open_request(client.address, body)) as connection:
        assert worker.arrived.acquire(timeout=PATIENCE)
        connection.settimeout(PATIENCE)
        assert client.post("/v1/abort", {"request_id": "mine"}).json() == {"aborted": "mine"}
        assert worker.cancelling.acquire(timeout=PATIENCE)
        reply = b""
        while b"the request was aborted" not in reply:
            piece = connection.recv(65536)
            assert piece, reply
            reply += piece
    gate.set()
    assert client.post("/v1/abort", {"request_id": "mine"}).status_code == 404


def test_nothing_is_ended_that_does_not_go_on(client: Client) -> None:
    response = client.post("/v1/abort", {"request_id": "nobody"})
    assert response.status_code == 404
    assert "no request 'nobody' goes on here" in response.text


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("events", [[], [Started(0)], [Started(0), Token(0, 97, "a")]])
def test_a_client_that_leaves_is_cancelled(
    client: Client, worker: FakeWorker, leave: Any, stream: bool, events: list[Event]
) -> None:
    """Queued, in prefill and in decode; the gate holds the engine there until the cancel has come."""
    gate = Gate()
    worker.script = lambda request: [*events, gate]
    body = json.dumps({"prompt": "x", "stream": stream}).encode()
    with closing(open_request(client.address, body)) as connection:
        assert worker.arrived.acquire(timeout=PATIENCE)
        if stream and events:
            assert connection.recv(1)
        leave(connection)
        assert worker.cancelling.acquire(timeout=PATIENCE)
    gate.set()
    assert worker.cancelled == [worker.submitted[0].id]


def test_a_client_that_leaves_cancels_all_its_prompts(client: Client, worker: FakeWorker) -> None:
    gate = Gate()
    worker.script = lambda request: [gate]
    connection = open_request(client.address, b'{"prompt": ["x", "y"]}')
    for _ in range(2):
        assert worker.arrived.acquire(timeout=PATIENCE)
    leave_rst(connection)
    for _ in range(2):
        assert worker.cancelling.acquire(timeout=PATIENCE)
    gate.set()
    assert worker.cancelled == [request.id for request in worker.submitted]


def test_a_client_that_stays_is_not_cancelled(client: Client, worker: FakeWorker) -> None:
    """The negative control: the same wait, another client leaving, and the reply arrives."""
    gate = Gate()
    worker.script = lambda request: [gate, *letters(request)]
    with closing(open_request(client.address, b'{"prompt": "stay"}')) as staying:
        assert worker.arrived.acquire(timeout=PATIENCE)
        leave_rst(open_request(client.address, b'{"prompt": "go"}'))
        assert worker.cancelling.acquire(timeout=PATIENCE)
        gate.set()
        assert b" 200 " in staying.recv(4096).split(b"\r\n")[0]
    assert worker.cancelled == [next(r.id for r in worker.submitted if r.prompt == tuple(b"go"))]


def torrent(request: Request) -> Iterator[Event]:
    """Far more than socket buffers hold, for one prompt; the usual for others."""
    if request.prompt != tuple(b"stall"):
        yield from letters(request)
        return
    yield Started(0)
    for _ in range(32):
        yield Token(0, 97, "x" * 2**20)
    yield Finished(0, "length")
    yield Done(5, 0, 32)


def test_a_client_that_stops_reading_delays_neither_engine_nor_others(
    client: Client, worker: FakeWorker
) -> None:
    worker.script = torrent
    body = b'{"prompt": "stall", "stream": true}'
    with closing(open_request(client.address, body)) as stalled:
        assert worker.emitted.acquire(timeout=PATIENCE)
        assert client.complete().json()["choices"][0]["text"] == "abc"
        leave_rst(stalled)
    assert worker.cancelling.acquire(timeout=PATIENCE)


def test_a_client_that_stops_reading_and_leaves_is_cancelled(client: Client, worker: FakeWorker) -> None:
    gate = Gate()
    worker.script = lambda request: [*list(torrent(request))[:-2], gate]
    stalled = open_request(client.address, b'{"prompt": "stall", "stream": true}')
    assert stalled.recv(1)
    leave_rst(stalled)
    assert worker.cancelling.acquire(timeout=PATIENCE)
    gate.set()
    assert worker.cancelled == [worker.submitted[0].id]


def test_stopping_the_server_cancels_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "GRACE_SECONDS", 0)
    gate = Gate()
    worker = FakeWorker(lambda request: [Started(0), gate])
    with live(worker) as address:
        connection = open_request(address, b'{"prompt": "x", "stream": true}')
        assert worker.arrived.acquire(timeout=PATIENCE)
    gate.set()
    connection.close()
    assert worker.cancelled == [worker.submitted[0].id]


def test_an_event_for_a_loop_that_closes_meanwhile_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is open when it is asked, and closed when it is called."""

    async def opened() -> exchange.Exchange:
        return exchange.Exchange(cast(Any, FakeWorker()))

    gone = asyncio.run(opened())
    monkeypatch.setattr(gone._loop, "is_closed", lambda: False)
    with pytest.raises(RuntimeError, match="closed"):
        gone._loop.call_soon_threadsafe(print)
    gone._deliver(0, Started(0))
    assert gone._queue.empty()


# ---- an engine that is silent


def test_a_dead_engine_ends_waiting_requests(
    client: Client, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "CHECK_SECONDS", 0.05)
    worker.script = lambda request: []
    worker.alive = False
    response = client.complete()
    assert (response.status_code, error_of(response)["message"]) == (503, "the engine has stopped")


def test_a_silent_engine_that_lives_is_waited_for(
    client: Client, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "CHECK_SECONDS", 0.01)
    gate = Gate()
    worker.script = lambda request: [gate, *letters(request)]
    checks: list[bool] = []

    def alive(_: FakeWorker) -> bool:
        checks.append(True)
        if len(checks) == 3:
            gate.set()
        return True

    monkeypatch.setattr(FakeWorker, "alive", property(alive, lambda self, value: None), raising=False)
    assert client.complete().status_code == 200
    assert len(checks) >= 3
