"""One HTTP request over one socket, and when each piece of the reply arrived.

Knows sockets, HTTP/1.1 (through h11) and server-sent events. Does not know JSON, tokens or any server:
the bytes of a request are made before it is sent, and the reply is looked into after it has ended, so
that neither delays a burst. No exception leaves `Exchange.run`: what goes wrong is part of the reply.
"""

from __future__ import annotations

import math
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Barrier, BrokenBarrierError
from typing import Literal
from urllib.parse import urlsplit

import h11

Clock = Callable[[], float]
_PIECE = 65536
_TICK = 0.001
"""Seconds; a timeout of 0 would mean not to wait for anything already under way."""
_LOOK = 0.02
"""Seconds between looks at whether the moment to leave has come, where no time or token says so."""
_LINGER = 10.0
"""Seconds for which a client that left by half still reads."""

How = Literal["rst", "fin", "half_close", "stop_reading", "abort"]
Phase = Literal["queued", "prefilling", "first_token", "decoding", "last_step"]


@dataclass(frozen=True)
class Address:
    """Where a server is: host, port, and the path its routes stand under (no slash at the end)."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.prefix}"


def parse_address(url: str) -> Address:
    """Reads a base URL, with or without `/v1` at its end; ValueError says what is wrong with it."""
    wanted = f"{url!r} is no address of a server: expected http://HOST:PORT"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(wanted) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(wanted)
    if parts.username or parts.password:
        raise ValueError("a URL must not carry a password: histories keep it; use CONFORMANCE_API_KEY")
    tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Address(parts.hostname, port or (443 if tls else 80), tls, prefix)


@dataclass(frozen=True)
class Call:
    """A request, ready to be put on the wire."""

    address: Address
    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Leaving:
    """When to walk away, and how.

    After `tokens` pieces that `is_token` accepts, `seconds` after sending, or once `until` holds: the first
    of those that are given. `phase` is the one meant, `last` the tokens after which one step is left.
    """

    how: How
    is_token: Callable[[bytes], bool]
    tokens: int | None = None
    seconds: float | None = None
    until: Callable[[], bool] | None = None
    phase: Phase = "decoding"
    last: int | None = None
    pause: float = 1.0
    """stop_reading: seconds for which nothing is read before the connection is closed."""
    abort: Callable[[bytes], None] | None = None
    """abort: ends the request by other means; is given the first event of the stream, if any came."""


@dataclass
class RawReply:
    """A reply as it came. `events` are the payloads of a stream with their times of arrival."""

    sent: float
    ended: float = 0.0
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    events: list[tuple[float, bytes]] = field(default_factory=list)
    streamed: bool = False
    error: str | None = None
    timed_out: bool = False
    left: Phase | None = None


class EventSplitter:
    """Cuts server-sent events out of a stream of bytes; `rest` is what has no end yet."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that `data` completes; comments (keep-alives) are passed over."""
        *whole, self.rest = (self.rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        payloads = [_payload(event) for event in whole]
        return [payload for payload in payloads if payload]


def _payload(event: bytes) -> bytes:
    fields = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(fields)


def connect(address: Address, timeout: float) -> socket.socket:
    """A connected socket (TLS shaken hands where asked); raises OSError."""
    sock = socket.create_connection((address.host, address.port), timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not address.tls:
        return sock
    return ssl.create_default_context().wrap_socket(sock, server_hostname=address.host)


class Exchange:
    """One request and its reply, over a connection of its own that is made beforehand."""

    def __init__(
        self,
        call: Call,
        clock: Clock,
        timeout: float,
        leaving: Leaving | None = None,
        is_token: Callable[[bytes], bool] | None = None,
    ) -> None:
        """`is_token` lets others see how far the reply is: `tokens` counts what it accepts."""
        self._http = h11.Connection(h11.CLIENT)
        self._bytes = _render(self._http, call)
        self._clock, self._timeout, self._leaving = clock, timeout, leaving
        self._is_token = leaving.is_token if leaving is not None else is_token
        self._splitter = EventSplitter()
        self.tokens = 0
        self.begun: float | None = None
        """When the request was put on the wire; None before."""
        self.over = False
        self._left_at = 0.0
        self._reply = RawReply(sent=clock())
        self._sock: socket.socket | None = None
        try:
            self._sock = connect(call.address, timeout)
        except OSError as error:
            self._fail(f"cannot connect to {call.address.url}: {describe(error)}")

    def run(self, barrier: Barrier | None = None) -> RawReply:
        """Waits at the barrier, sends, reads to the end; bounded by the timeout, raises nothing."""
        if not _pass(barrier, self._timeout):
            self._fail("the other requests of the burst were never ready")
        if self._sock is not None and self._reply.error is None:
            self._talk(self._sock)
        self._reply.ended = self._clock()
        self.over = True
        self.close()
        return self._reply

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _talk(self, sock: socket.socket) -> None:
        self._reply.sent = self.begun = self._clock()
        try:
            sock.settimeout(self._timeout)
            sock.sendall(self._bytes)
            self._read(sock)
        except TimeoutError:
            self._reply.timed_out = self._reply.left is None
            self._fail(f"no end of the reply within {self._timeout:g} s")
        except (OSError, h11.RemoteProtocolError) as error:
            self._fail(f"{describe(error)} {self._so_far()}")

    def _read(self, sock: socket.socket) -> None:
        while not self._leave_now(sock):
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._receive(sock)
            elif isinstance(event, h11.Response):
                self._begin(event)
            elif isinstance(event, h11.Data):
                self._take(bytes(event.data))
            elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
                return

    def _receive(self, sock: socket.socket) -> None:
        """Reads a piece; a timeout is an error unless it is the moment to walk away, or to look for it."""
        left = min(self._end(), self._leave_time()) - self._clock()
        if left <= 0 and not self._due():
            # A server that never pauses would otherwise never meet the timeout of a single read.
            raise TimeoutError
        looks = self._reply.left is None and self._leaving is not None and self._leaving.until is not None
        sock.settimeout(max(min(left, _LOOK) if looks else left, _TICK))
        try:
            self._http.receive_data(sock.recv(_PIECE))
        except TimeoutError:
            if not (looks or self._due()):
                raise

    def _end(self) -> float:
        """When nobody reads any longer."""
        last = self._reply.sent + self._timeout
        return min(last, self._left_at + _LINGER) if self._reply.left is not None else last

    def _begin(self, response: h11.Response) -> None:
        self._reply.status = response.status_code
        self._reply.headers = {
            name.decode().lower(): value.decode("latin-1") for name, value in response.headers
        }
        kind = self._reply.headers.get("content-type", "")
        self._reply.streamed = response.status_code == 200 and kind.startswith("text/event-stream")

    def _take(self, data: bytes) -> None:
        if not self._reply.streamed:
            self._reply.body += data
            return
        now = self._clock()
        payloads = self._splitter.feed(data)
        self._reply.events += [(now, payload) for payload in payloads]
        if self._is_token is not None:
            self.tokens += sum(map(self._is_token, payloads))

    def _leave_time(self) -> float:
        leaving = self._leaving
        if leaving is None or leaving.seconds is None or self._reply.left is not None:
            return math.inf
        return self._reply.sent + leaving.seconds

    def _due(self) -> bool:
        return self._clock() >= self._leave_time()

    def _leave_now(self, sock: socket.socket) -> bool:
        """Whether the client has gone for good; one that left by half reads on."""
        leaving = self._leaving
        if leaving is None or self._reply.left is not None:
            return False
        enough = leaving.tokens is not None and self.tokens >= leaving.tokens
        seen = not enough and not self._due() and leaving.until is not None and leaving.until()
        if not (enough or seen or self._due()):
            return False
        self._reply.left, self._left_at = self._phase(leaving, seen), self._clock()
        if leaving.how == "abort" and leaving.abort is not None:
            leaving.abort(self._reply.events[0][1] if self._reply.events else b"")
        return _walk_away(sock, leaving)

    def _phase(self, leaving: Leaving, seen: bool) -> Phase:
        """The phase as measured: the one that was meant only where it is certain."""
        if self.tokens == 0:
            return "queued" if seen and leaving.phase == "queued" else "prefilling"
        if leaving.phase == "first_token" and self.tokens == 1:
            return "first_token"
        return "last_step" if leaving.phase == "last_step" and self.tokens == leaving.last else "decoding"

    def _fail(self, text: str) -> None:
        """Notes what went wrong; nothing does once the client has left."""
        if self._reply.left is None:
            self._reply.error = self._reply.error or text

    def _so_far(self) -> str:
        if self._reply.status is None:
            return "before any reply"
        return f"after status {self._reply.status} and {len(self._reply.events)} events"


def _render(http: h11.Connection, call: Call) -> bytes:
    address = call.address
    host = f"{address.host}:{address.port}"
    headers = {
        "Host": host,
        "Content-Type": "application/json",
        "Connection": "close",
        "Content-Length": str(len(call.body)),
        **call.headers,
    }
    head = h11.Request(method="POST", target=address.prefix + call.path, headers=list(headers.items()))
    parts = [http.send(head), http.send(h11.Data(data=call.body)), http.send(h11.EndOfMessage())]
    return b"".join(part for part in parts if part)


def _pass(barrier: Barrier | None, timeout: float) -> bool:
    if barrier is None:
        return True
    try:
        barrier.wait(timeout)
    except BrokenBarrierError:
        return False
    return True


def _walk_away(sock: socket.socket, leaving: Leaving) -> bool:
    """Leaves; returns whether that closed the connection.

    `rst`: a reset, as a killed client sends it. `fin`: an orderly end, as a closed tab sends it.
    `half_close`: says that nothing more will be sent, and reads on. `abort` reads on as well.
    """
    if leaving.how in ("half_close", "abort"):
        if leaving.how == "half_close":
            sock.shutdown(socket.SHUT_WR)
        return False
    if leaving.how == "stop_reading":
        time.sleep(leaving.pause)
    elif leaving.how == "rst":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    else:
        # Data that was not read turns a plain close into a reset, a shutdown beforehand does not.
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
    return True


def describe(error: Exception) -> str:
    """An error of the connection in words a user knows."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return "connection reset"
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, h11.RemoteProtocolError):
        return "connection closed" if "clos" in str(error).lower() else f"no valid HTTP ({error})"
    return str(error) or type(error).__name__
