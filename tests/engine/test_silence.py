"""Clients that leave in each phase, and a server that has not a word to say about it (life/1, life/5)."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engine.fakes import Address, Client, open_request
from tests.engine.test_exchange import LEAVES, leave_rst

PATIENCE = 30.0
ARGUMENTS = ("serve", "--port", "0", "--model", "digest", "--blas", "builtin", "--test-mode",
             "--block-size", "4", "--grid", "4", "--chunk", "8", "--max-batch", "16")  # fmt: skip
SERVE = f"import sys; from engine import cli; sys.exit(cli.main({ARGUMENTS!r}))"
HASTY = """
from engine import responses
class Hasty:
    async def sleep(seconds): pass
responses.asyncio = Hasty
"""
"""A stream that never lets the loop turn."""


class Server(Client):
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], address: Address, said: Path) -> None:
        super().__init__(address)
        self._process, self._said = process, said

    @property
    def said(self) -> str:
        """All that is on stderr so far."""
        return self._said.read_text(encoding="utf-8")

    def open(self, **fields: Any) -> socket.socket:
        body = {"prompt": list(range(65, 105)), "ignore_eos": True} | fields
        return open_request(self.address, json.dumps(body).encode())

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self.get("/v1/cache/stats").json()
        return stats

    def until(self, reached: Callable[[dict[str, Any]], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not reached(stats := self.stats()):
            assert time.monotonic() < end, stats
            time.sleep(0.005)

    def end(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE)


@contextmanager
def served(said: Path, before: str = "") -> Iterator[Server]:
    command = [sys.executable, "-c", before + SERVE]
    with (
        said.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            found = re.search(r":(\d+)\n$", process.stdout.readline())
            assert found is not None, said.read_text(encoding="utf-8")
            yield Server(process, ("127.0.0.1", int(found[1])), said)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("served") / "stderr") as made:
        yield made


def rested(server: Server) -> None:
    server.until(lambda stats: not stats["running"] + stats["waiting"])
    assert server.complete().status_code == 200


PHASES: dict[str, tuple[str, int]] = {
    "queued": ("queued", 0),
    "mid-prefill": ("prefill", 9),
    "first token": ("decode", 0),
    "mid-decode": ("decode", 3),
}


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_a_departure_is_no_news(
    server: Server, phase: str, stream: bool, leave: Callable[[socket.socket], None]
) -> None:
    held, after = PHASES[phase]
    cold = f"{phase} {stream} {leave.__name__}"  # what is stored already would leave too little to prefill
    before = server.stats()["cancelled_total"]
    server.post("/v1/test/hold", {"phase": held, "after": after})
    with server.open(stream=stream, n=8, max_tokens=8, cache_salt=cold) as connection:
        server.until(lambda stats: bool(stats["running"] + stats["waiting"]))
        leave(connection)
        server.until(lambda stats: stats["cancelled_total"] > before)
    server.post("/v1/test/hold", {})
    rested(server)
    assert server.said == ""


def leave_in_the_reply(server: Server, leave: Callable[[socket.socket], None]) -> None:
    """16 choices speak in each step: one turn of the loop has many pieces to send."""
    with server.open(stream=True, n=16, max_tokens=400) as connection:
        assert connection.recv(100)
        leave(connection)
        server.until(lambda stats: not stats["running"])


@pytest.mark.parametrize("leave", LEAVES)
def test_a_departure_from_a_talking_server_is_no_news(
    server: Server, leave: Callable[[socket.socket], None]
) -> None:
    for _ in range(10):
        leave_in_the_reply(server, leave)
    rested(server)
    assert server.said == ""


def test_a_stream_that_never_pauses_makes_news(tmp_path: Path) -> None:
    """The control: what asyncio says about writes to nobody would be seen."""
    with served(tmp_path / "stderr", HASTY) as server:
        end = time.monotonic() + PATIENCE
        while "socket.send() raised exception" not in server.said:
            assert time.monotonic() < end
            leave_in_the_reply(server, leave_rst)


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("sent", [b"", b"{", b'{"prompt": "hello"}', b"x" * 70_000])
def test_a_body_cut_short_is_no_news(
    server: Server, sent: bytes, leave: Callable[[socket.socket], None]
) -> None:
    with open_request(server.address, sent, length=100_000) as connection:
        rested(server)  # the head has been read by now
        leave(connection)
        rested(server)
    assert server.said == ""


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("head", [b"", b"POST /v1/comp", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_cut_short_is_no_news(
    server: Server, head: bytes, leave: Callable[[socket.socket], None]
) -> None:
    with socket.create_connection(server.address, timeout=PATIENCE) as connection:
        connection.sendall(head)
        rested(server)
        leave(connection)
        rested(server)
    assert server.said == ""


def test_the_end_is_as_silent(server: Server) -> None:
    assert (server.end(), server.said) == (0, "")
