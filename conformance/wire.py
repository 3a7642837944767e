"""One HTTP request over one socket, and when each piece of the reply arrived.

Knows sockets, HTTP/1.1 (through h11) and server-sent events. Does not know JSON, tokens or any server:
the bytes of a request are made before it is sent, and the reply is looked into after it has ended, so
that neither delays a burst. An exchange never waits for its server: it does what can be done at once, each
time that it is told to (`carrying.py`), so that one thread carries a whole burst. No exception leaves it:
what goes wrong is part of the reply. Time and memory are bounded whatever a server sends, or fails to take.
"""

from __future__ import annotations

import math
import selectors
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock

import h11

from conformance.carrying import carry
from conformance.connecting import Address, connect_again, describe
from conformance.leaving import Leaving, Phase, walk_away
from conformance.sse import EndlessEvent, EventSplitter

Clock = Callable[[], float]
_PIECE = 65536
"""Bytes read at once. More than a record of TLS has, so that none is left where no selector sees it."""
_AGAIN = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_LOOK = 0.02
"""Seconds between looks at whether the moment to leave has come, where no time or token says so."""
_LINGER = 10.0
"""Seconds for which a client that left by half still reads."""
_CONNECT = 10.0
"""Seconds to connect, where the timeout of the request is not shorter: no model is waited for yet."""
MOST = 32 << 20
"""Bytes of a reply: some times what the longest lawful one has."""
MOST_EVENTS = 500_000
"""Events of a stream; empty ones would fill the memory with nothing."""


@dataclass(frozen=True)
class Call:
    """A request, ready to be put on the wire."""

    address: Address
    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


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


class _TooMuch(Exception):
    """A reply that is longer than any that could be meant; the message says so."""


class _NotTaken(Exception):
    """The server did not read the whole request in time."""


class Exchange:
    """One request and its reply, over a connection of its own that is made beforehand."""

    def __init__(
        self,
        call: Call,
        clock: Clock,
        timeout: float,
        leaving: Leaving | None = None,
        is_token: Callable[[bytes], bool] | None = None,
        broken: str | None = None,
    ) -> None:
        """`is_token` lets others see how far the reply is: `tokens` counts what it accepts.

        `broken` says why no connection need be tried: another one of the same burst could not be made.
        """
        self._http = h11.Connection(h11.CLIENT)
        self._bytes = _render(self._http, call)
        self._unsent = memoryview(self._bytes)
        self._cut: ConnectionError | None = None
        self._reverse = False
        """TLS may have to read before it can write, and the other way round."""
        self.clock, self.timeout, self._leaving = clock, timeout, leaving
        self._progress = _Progress(leaving.is_token if leaving is not None else is_token)
        self._splitter, self._body, self._size = EventSplitter(), bytearray(), 0
        self.begun: float | None = None
        """When the request was put on the wire; None before."""
        self.over = False
        self.wake = 0.0
        """When `step` is to be called whatever the socket does, on the clock. The first may be put off."""
        self._left_at = 0.0
        self.reply = RawReply(sent=clock(), error=broken)
        self.sock = self._connect(call.address) if broken is None else None

    def _connect(self, address: Address) -> socket.socket | None:
        try:
            narrow = self._leaving is not None and self._leaving.how == "stop_reading"
            return connect_again(address, min(self.timeout, _CONNECT), narrow)
        except OSError as error:
            self._fail(f"cannot connect to {address.url}: {describe(error)}")
            return None

    @property
    def broken(self) -> str | None:
        """Why there is no connection, before anything is sent; None where there is one."""
        return self.reply.error if self.begun is None else None

    @property
    def waits(self) -> bool:
        """Whether a step may wait for something: a client that leaves asks the server, or holds still."""
        return self._leaving is not None

    @property
    def tokens(self) -> int:
        """Tokens that have come so far. Counted when asked: most replies are never asked."""
        return self._progress.count(self.reply.events)

    @property
    def wants(self) -> int:
        """What the socket is to be ready for: `selectors.EVENT_READ` or `EVENT_WRITE`."""
        return selectors.EVENT_WRITE if bool(self._unsent) != self._reverse else selectors.EVENT_READ

    def run(self) -> RawReply:
        """Sends and reads to the end; bounded by the timeout, raises nothing."""
        carry([self], self.clock, self.timeout)
        return self.reply

    def step(self) -> None:
        """Does what can be done at once: when the socket is ready, or `wake` has come. Raises nothing."""
        if self.sock is None or self.reply.error is not None or self._talk(self.sock):
            self._finish()

    def give_up(self, why: str) -> None:
        """Ends it where it is."""
        self._fail(why)
        self._finish()

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def _finish(self) -> None:
        self.reply.ended = self.clock()
        self.reply.body = bytes(self._body)
        self.over = True
        self.close()

    def _talk(self, sock: socket.socket) -> bool:
        """Whether the exchange has ended."""
        if self.begun is None:
            sock.setblocking(False)
            self.reply.sent = self.begun = self.clock()
        try:
            return self._converse(sock)
        except (TimeoutError, _NotTaken) as late:
            self.reply.timed_out = self.reply.left is None
            self._fail(str(late) or f"no end of the reply within {self.timeout:g} s")
        except h11.RemoteProtocolError as error:
            # A server that refuses a request before its end has often said why, so the reply was read.
            self._fail(f"{describe(self._cut or error)} {self._so_far()}")
        except OSError as error:
            self._fail(f"{describe(error)} {self._so_far()}")
        except (_TooMuch, EndlessEvent) as error:
            self._fail(f"{error} ({self._so_far()})")
        return True

    def _converse(self, sock: socket.socket) -> bool:
        """Whether the exchange has ended; sets `wake` where it has not."""
        self._reverse = False
        if self._unsent:
            self._send(sock)
        ended = not self._unsent and self._read(sock)
        self.wake = self._end()
        if not self._unsent:  # nobody leaves before everything is sent
            self.wake = min(self.wake, self._leave_time(), self._next_look())
        return ended

    def _send(self, sock: socket.socket) -> None:
        """As many bytes as the server takes now, in the time of the whole request; keeps what broke it."""
        if self.clock() >= self._end():
            raise self._not_taken()
        try:
            while self._unsent:
                self._unsent = self._unsent[sock.send(self._unsent) :]
        except _AGAIN as error:
            self._reverse = isinstance(error, ssl.SSLWantReadError)
        except TimeoutError:  # of the system's own: nothing was acknowledged for minutes
            raise self._not_taken() from None
        except ConnectionError as error:
            self._cut, self._unsent = error, memoryview(b"")

    def _not_taken(self) -> _NotTaken:
        size = f"{len(self._bytes) - len(self._unsent)} of {len(self._bytes)} bytes"
        return _NotTaken(f"the server took {size} of the request within {self.timeout:g} s")

    def _read(self, sock: socket.socket) -> bool:
        """Takes one piece if one is there, so that none keeps the others waiting; whether that was all."""
        if self._leave_now(sock):
            return True
        if self.clock() >= self._end():
            raise TimeoutError
        try:
            self._http.receive_data(sock.recv(_PIECE))
        except _AGAIN as error:
            self._reverse = isinstance(error, ssl.SSLWantWriteError)
            return False
        except TimeoutError:
            raise TimeoutError from None  # without the system's own words
        while (event := self._http.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Response):
                self._begin(event)
            elif isinstance(event, h11.Data):
                self._take(bytes(event.data))
            elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
                return True
            if self._leave_now(sock):
                return True
        return False

    def _next_look(self) -> float:
        """When to look again whether to leave, where no time and no token says it."""
        looks = self._leaving is not None and self._leaving.until is not None and self.reply.left is None
        return self.clock() + _LOOK if looks else math.inf

    def _end(self) -> float:
        """When nobody reads any longer."""
        last = self.reply.sent + self.timeout
        return min(last, self._left_at + _LINGER) if self.reply.left is not None else last

    def _begin(self, response: h11.Response) -> None:
        self.reply.status = response.status_code
        self.reply.headers = {
            name.decode().lower(): value.decode("latin-1") for name, value in response.headers
        }
        kind = self.reply.headers.get("content-type", "").lower()
        self.reply.streamed = response.status_code == 200 and kind.startswith("text/event-stream")

    def _take(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MOST:
            raise _TooMuch(f"the reply is longer than {MOST / 2**20:g} MiB")
        if not self.reply.streamed:
            self._body += data
            return
        now = self.clock()
        self.reply.events += [(now, payload) for payload in self._splitter.feed(data)]
        if len(self.reply.events) > MOST_EVENTS:
            raise _TooMuch(f"the stream has more than {MOST_EVENTS} events")

    def _leave_time(self) -> float:
        leaving = self._leaving
        if leaving is None or leaving.seconds is None or self.reply.left is not None:
            return math.inf
        return self.reply.sent + leaving.seconds

    def _due(self) -> bool:
        return self.clock() >= self._leave_time()

    def _leave_now(self, sock: socket.socket) -> bool:
        """Whether the client has gone for good; one that left by half reads on."""
        leaving = self._leaving
        if leaving is None or self.reply.left is not None:
            return False
        enough = leaving.tokens is not None and self.tokens >= leaving.tokens
        seen = not enough and not self._due() and leaving.until is not None and leaving.until()
        if not (enough or seen or self._due()):
            return False
        self.reply.left, self._left_at = self._phase(leaving, seen), self.clock()
        if leaving.how == "abort" and leaving.abort is not None:
            leaving.abort(self.reply.events[0][1] if self.reply.events else b"")
        return walk_away(sock, leaving)

    def _phase(self, leaving: Leaving, seen: bool) -> Phase:
        """The phase as measured: the one that was meant only where it is certain."""
        if self.tokens == 0:
            return "queued" if seen and leaving.phase == "queued" else "prefilling"
        if leaving.phase == "first_token" and self.tokens == 1:
            return "first_token"
        return "last_step" if leaving.phase == "last_step" and self.tokens == leaving.last else "decoding"

    def _fail(self, text: str) -> None:
        """Notes what went wrong; nothing does once the client has left."""
        if self.reply.left is None:
            self.reply.error = self.reply.error or text

    def _so_far(self) -> str:
        if self.reply.status is None:
            return "before any reply"
        return f"after status {self.reply.status} and {len(self.reply.events)} events"


class _Progress:
    """Counts the tokens among events, each looked at once; more than one thread may ask."""

    def __init__(self, is_token: Callable[[bytes], bool] | None) -> None:
        self._is_token, self._lock, self._looked, self._tokens = is_token, Lock(), 0, 0

    def count(self, events: list[tuple[float, bytes]]) -> int:
        if self._is_token is None:
            return 0
        with self._lock:
            new = events[self._looked :]
            self._tokens += sum(self._is_token(payload) for _, payload in new)
            self._looked += len(new)
            return self._tokens


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
