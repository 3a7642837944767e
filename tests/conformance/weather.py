"""Replies that no server should give, and servers that break off, flood, or stop reading: made for tests.

Each weather is a function of (handler, chunks of the lawful reply) that writes the reply itself, for
`fakeserver.Behaviour.instead`.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

Json = dict[str, Any]
Weather = Callable[[BaseHTTPRequestHandler, list[Json]], None]
MIB = b"x" * (1 << 20)
DONE = "[DONE]"


def head(handler: BaseHTTPRequestHandler, kind: str | None, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in ({"Content-Type": kind} if kind else {}).items() | headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()


def events(*payloads: Json | str) -> bytes:
    told = (payload if isinstance(payload, str) else json.dumps(payload) for payload in payloads)
    return "".join(f"data: {payload}\n\n" for payload in told).encode()


def stream(change: Callable[[list[Json]], Sequence[Json | str]], kind: str = "text/event-stream") -> Weather:
    """A stream of other chunks than the lawful ones."""

    def weather(handler: BaseHTTPRequestHandler, chunks: list[Json]) -> None:
        head(handler, kind)
        handler.wfile.write(events(*change(chunks)))

    return weather


def raw_stream(*pieces: bytes) -> Weather:
    """These bytes in the place of events."""

    def weather(handler: BaseHTTPRequestHandler, chunks: list[Json]) -> None:
        head(handler, "text/event-stream")
        for piece in pieces:
            handler.wfile.write(piece)

    return weather


def whole(body: bytes, kind: str | None = "application/json", status: int = 200, **headers: str) -> Weather:
    """A reply that is no stream."""

    def weather(handler: BaseHTTPRequestHandler, chunks: list[Json]) -> None:
        head(handler, kind, status, **headers)
        handler.wfile.write(body)

    return weather


def refusal(status: int, **headers: str) -> Weather:
    return whole(b'{"error": {"message": "too busy"}}', status=status, **headers)


def reset_after(tokens: int) -> Weather:
    """A stream whose connection is reset in the middle."""

    def weather(handler: BaseHTTPRequestHandler, chunks: list[Json]) -> None:
        head(handler, "text/event-stream")
        handler.wfile.write(events(*chunks[:tokens]))
        handler.wfile.flush()
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()

    return weather


def usage_says(cached: Any) -> Weather:
    """The lawful reply but for its count of cached tokens."""

    def changed(chunks: list[Json]) -> list[Json | str]:
        usage = chunks[-1]["usage"] | {"prompt_tokens_details": {"cached_tokens": cached}}
        return [*chunks[:-1], {"choices": [], "usage": usage}, DONE]

    return stream(changed)


class Flood:
    """Sends `piece` again and again, up to `most` bytes; `sent` is how much each client let go out."""

    def __init__(self, kind: str, first: bytes = b"", piece: bytes = MIB, most: int = 100 << 20) -> None:
        self._kind, self._first, self._piece, self._most = kind, first, piece, most
        self.sent: list[int] = []

    def __call__(self, handler: BaseHTTPRequestHandler, chunks: list[Json]) -> None:
        head(handler, self._kind)
        handler.wfile.write(self._first)
        sent = 0
        try:
            while sent < self._most:
                handler.wfile.write(self._piece)
                sent += len(self._piece)
        finally:
            self.sent.append(sent)

    def taken(self, clients: int) -> int:
        """The most that any of the clients let go out, once all have been served."""
        end = time.monotonic() + 10
        while len(self.sent) < clients and time.monotonic() < end:
            time.sleep(0.01)
        assert len(self.sent) == clients
        return max(self.sent)


@contextmanager
def raw_server(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that does nothing but `talk` with each connection, in a thread of its own; gives its URL.

    Connections stay open until the block is left, so that a silent one is not a closed one.
    """
    listener, accepted, threads = socket.create_server(("127.0.0.1", 0)), [], []

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            accepted.append(sock)
            threads.append(threading.Thread(target=_quietly, args=(talk, sock), daemon=True))
            threads[-1].start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(5)
        for sock in accepted:
            _end(sock)
        for thread in threads:
            thread.join(5)


def _quietly(talk: Callable[[socket.socket], None], sock: socket.socket) -> None:
    try:
        talk(sock)
    except OSError:
        return  # the client has gone, as it should


def _end(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
