"""A synthetic server for the clock and the CPU of the client: `python -m bench.streams` runs one.

Knows how to take requests in one thread, when the bytes of each came, and how to stream words at a steady
pace. Does not know models or caches. It is a process of its own, so that its work is not the client's.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_SSE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
)
_BACKLOG = 256
_CHUNK = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1, "model": "synthetic"}
_CHOICE: dict[str, Any] = {
    "index": 0,
    "text": "word ",
    "token_ids": [7],
    "logprobs": {
        "text_offset": [0],
        "tokens": ["word "],
        "token_logprobs": [-0.0123456789],
        "top_logprobs": [{"word ": -0.0123456789, "other": -4.5678901234}],
    },
}
_USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}}


@dataclass
class Stream:
    """One connection: the request as far as it has come, then the reply as far as it has gone."""

    sock: socket.socket
    got: bytes = b""
    arrived: float = 0.0
    """When the first bytes of the request came; seconds of the monotonic clock that processes share."""
    left: int = 0
    due: float = 0.0


@dataclass
class Server:
    """All connections of one listener; `pace` is the seconds between two tokens of a stream."""

    listener: socket.socket
    spread: bool
    """Whether streams give their tokens one after the other, instead of all in one step."""
    streams: list[Stream] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    pace: float = 0.02
    begun: float = 0.0

    def serve(self) -> None:
        """Until the process is ended."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.listener, selectors.EVENT_READ, None)
        while True:
            due = min((stream.due for stream in self.streams if stream.left), default=None)
            wait = None if due is None else max(0.0, due - time.monotonic())
            for key, _ in self._selector.select(wait):
                self._accept() if key.data is None else self._read(key.data)
            now = time.monotonic()
            for stream in [s for s in self.streams if s.left and s.due <= now]:
                self._step(stream)

    def _accept(self) -> None:
        sock, _ = self.listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(sock, selectors.EVENT_READ, Stream(sock))

    def _read(self, stream: Stream) -> None:
        now, data = time.monotonic(), stream.sock.recv(1 << 20)
        stream.arrived = stream.arrived or now
        stream.got += data
        head, end, body = stream.got.partition(b"\r\n\r\n")
        if not data:
            self._close(stream)
        elif end and head.startswith(b"GET"):
            self._page(stream, head.split()[1])
        elif end and len(body) >= _length(head):
            self._begin(stream, json.loads(body))

    def _page(self, stream: Stream, path: bytes) -> None:
        found: dict[bytes, Any] = {
            b"/v1/models": {"data": [{"id": "synthetic"}]},
            b"/stats": {"running": len(self.streams), "waiting": 0, "live": 0},
            b"/arrivals": self.arrivals,
        }
        if path == b"/arrivals":
            self.arrivals = []
        body = json.dumps(found.get(path, {})).encode()
        status = b"200 OK" if path in found else b"404 Not Found"
        length = str(len(body)).encode()
        stream.sock.sendall(
            b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\nContent-Length: " + length
            + b"\r\n\r\n" + body
        )  # fmt: skip
        stream.got, stream.arrived = b"", 0.0

    def _begin(self, stream: Stream, asked: dict[str, Any]) -> None:
        self.arrivals.append(stream.arrived)
        if not self.streams:
            self.begun = time.monotonic()
        stream.left = asked["max_tokens"]
        stream.due = self.begun + self.pace * (1 + (len(self.streams) / 64 if self.spread else 0))
        self.streams.append(stream)
        stream.sock.sendall(_SSE)

    def _step(self, stream: Stream) -> None:
        stream.left -= 1
        stream.due += self.pace
        last = stream.left == 0
        choice = _CHOICE | {"finish_reason": "length" if last else None}
        data = _piece(json.dumps(_CHUNK | {"choices": [choice]}))
        end = _piece(json.dumps(_USAGE)) + _piece("[DONE]") + b"0\r\n\r\n" if last else b""
        try:
            stream.sock.sendall(data + end)
        except OSError:
            last = True
        if last:
            self._close(stream)

    def _close(self, stream: Stream) -> None:
        self._selector.unregister(stream.sock)
        stream.sock.close()
        self.streams = [other for other in self.streams if other is not stream]


def _piece(payload: str) -> bytes:
    """An event as one piece of a chunked body, as most servers send it."""
    event = b"data: " + payload.encode() + b"\n\n"
    return f"{len(event):x}\r\n".encode() + event + b"\r\n"


def _length(head: bytes) -> int:
    lines = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    return next((int(value) for name, _, value in lines if name == b"content-length"), 0)


@contextmanager
def server(spread: bool = False) -> Iterator[str]:
    """A synthetic server in a process of its own, ended with the block; gives its URL."""
    command = [sys.executable, "-m", "bench.streams", *(["--spread"] if spread else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.wait(10)


def main() -> None:
    """Serves on a free port and prints its URL."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    Server(listener, "--spread" in sys.argv).serve()


if __name__ == "__main__":
    main()
