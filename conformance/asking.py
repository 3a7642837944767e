"""Pages of a server, and small requests beside those under test: over kept connections, answered in time.

Knows HTTP/1.1 (through h11) over the sockets of `connecting.py`. Does not know what a page says. A timeout is
for the whole answer: a server that sends a byte now and then, or without end, is given up like one that is
silent. GET follows a redirect on the same server alone, since headers may be secrets; anything else is asked
once and follows none.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

import h11

from conformance.connecting import Address, connect

MOST = 16 << 20
"""Bytes of a page: a large server's metrics have some hundred thousand."""
_REDIRECTS = (301, 302, 303, 307, 308)
_HOPS = 3
_KEPT = 4
"""Connections that are kept open between two questions."""


@dataclass(frozen=True)
class Page:
    """An answer; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    text: str


class _Line:
    """One connection, with questions one after another."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.http = sock, h11.Connection(h11.CLIENT)

    def ask(self, head: h11.Request, body: bytes, end: float) -> Page:
        """Raises OSError or h11.ProtocolError for what is no answer in time."""
        sent = (self.http.send(head), self.http.send(h11.Data(data=body)), self.http.send(h11.EndOfMessage()))
        self.sock.settimeout(_left(end))
        self.sock.sendall(b"".join(part for part in sent if part))
        status, headers, text = 0, {}, bytearray()
        while not isinstance(event := self._next(end), (h11.EndOfMessage, h11.ConnectionClosed)):
            if isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode().lower(): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                text += event.data
            if len(text) > MOST:
                raise OSError(f"a page of more than {MOST / 2**20:g} MiB")
        return Page(status, headers, text.decode(errors="replace"))

    def _next(self, end: float) -> Any:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.sock.settimeout(_left(end))
            self.http.receive_data(self.sock.recv(65536))
        return event

    def is_reusable(self) -> bool:
        """Whether another question may follow; makes the connection ready for it."""
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        self.http.start_next_cycle()
        return True


class Asker:
    """Asks one server; may be used from several threads."""

    def __init__(self, address: Address, headers: Mapping[str, str]) -> None:
        self._address, self._headers = address, headers
        self._kept: list[_Line] = []

    def ask(self, method: str, route: str, body: Any = None, timeout: float = 5.0) -> Page | None:
        """The answer; None when no whole one came within `timeout` seconds. `body` goes as JSON."""
        end, path = time.monotonic() + timeout, self._address.prefix + route
        data = b"" if body is None else json.dumps(body).encode()
        for _ in range(_HOPS):
            page = self._once(method, path, data, end)
            onward = self._onward(path, page) if method == "GET" and page is not None else None
            if onward is None:
                return page
            path = onward
        return None

    def close(self) -> None:
        while self._kept:
            self._kept.pop().sock.close()

    def _once(self, method: str, path: str, data: bytes, end: float) -> Page | None:
        try:
            head = h11.Request(method=method, target=path, headers=self._head(method, data))
        except h11.LocalProtocolError:
            return None
        # A kept connection may be closed by now; only a GET may then be asked again, on a new one.
        kept = self._take() if method == "GET" else None
        page = self._on(kept, head, data, end) if kept is not None else None
        if page is not None or time.monotonic() > end:
            return page
        try:
            line = _Line(connect(self._address, _left(end)))
        except OSError:
            return None
        return self._on(line, head, data, end)

    def _head(self, method: str, data: bytes) -> list[tuple[str, str]]:
        kind = {"Content-Type": "application/json"} if data else {}
        length = {"Content-Length": str(len(data))} if data or method != "GET" else {}
        host = f"{self._address.host}:{self._address.port}"
        return list({"Host": host, "Accept": "*/*", **kind, **length, **self._headers}.items())

    def _on(self, line: _Line, head: h11.Request, data: bytes, end: float) -> Page | None:
        try:
            page = line.ask(head, data, end)
        except (OSError, h11.ProtocolError):
            line.sock.close()
            return None
        if line.is_reusable() and len(self._kept) < _KEPT:
            self._kept.append(line)
        else:
            line.sock.close()
        return page

    def _take(self) -> _Line | None:
        try:
            return self._kept.pop()
        except IndexError:
            return None

    def _onward(self, path: str, page: Page) -> str | None:
        """The path that a redirect leads to, on the same server; None for anything else."""
        if page.status not in _REDIRECTS or "location" not in page.headers:
            return None
        here = f"{self._address.url.removesuffix(self._address.prefix)}{path}"
        try:
            there = urlsplit(urljoin(here, page.headers["location"]))
        except ValueError:
            return None
        if there[:2] != urlsplit(here)[:2]:
            return None
        return f"{there.path}?{there.query}" if there.query else there.path


def _left(end: float) -> float:
    """Seconds to `end`; raises TimeoutError when there are none."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
