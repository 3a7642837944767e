"""Addresses of servers, and connections to them.

Knows URLs, sockets, TLS, and how to say in words why there is no connection. Does not know what is sent.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

import h11

_PAUSES = (0.05, 0.15)
"""Seconds before a connection is tried again."""
_NARROW_BYTES = 4096
_NARROW_SEGMENT = 536
"""The least that every host takes (RFC 9293); the system's buffers grow with it."""


@dataclass(frozen=True)
class Address:
    """Where a server is: host, port, and the path its routes stand under (no slash at the end)."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""
    verify: bool | str = True
    """Of a server with TLS: whether its certificate is checked, or the file of those to trust instead."""

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


def connect(address: Address, timeout: float, narrow: bool = False) -> socket.socket:
    """A connected socket (TLS shaken hands where asked); raises OSError.

    `narrow`: with room for a few kilobytes that were not read. Else both systems take megabytes for a client
    that reads nothing, and its server never notices.
    """
    make = _narrow if narrow else socket.create_connection
    sock = make((address.host, address.port), timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not address.tls:
        return sock
    try:
        return _context(address.verify).wrap_socket(sock, server_hostname=address.host)
    except OSError:
        sock.close()
        raise


def _narrow(where: tuple[str, int], timeout: float) -> socket.socket:
    """As `socket.create_connection`, for settings that count only before a connection is made."""
    problem = OSError(f"no address is known for {where[0]}")
    for family, kind, protocol, _, at in socket.getaddrinfo(*where, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(timeout)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _NARROW_BYTES)
            with suppress(OSError):  # a system may take none, and then the server's side has more room
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _NARROW_SEGMENT)
            sock.connect(at)
            return sock
        except OSError as error:
            sock.close()
            problem = error
    raise problem


def connect_again(address: Address, timeout: float, narrow: bool = False) -> socket.socket:
    """As `connect`, with a few tries: a full backlog is no fault of the server under test.

    Only the set-up of a connection is ever tried again; nothing was sent yet, so no prompt is sent twice.
    """
    for pause in _PAUSES:
        try:
            return connect(address, timeout, narrow)
        except (TimeoutError, ssl.SSLCertVerificationError, socket.gaierror):
            raise  # the first took all the time there is, the others stay as they are
        except OSError:
            time.sleep(pause)
    return connect(address, timeout, narrow)


@cache
def _context(verify: bool | str) -> ssl.SSLContext:
    if isinstance(verify, str):
        return ssl.create_default_context(cafile=verify)
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def describe(error: Exception) -> str:
    """An error of the connection in words a user knows."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return "connection reset"
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, socket.gaierror):
        return f"no such host ({error.strerror})"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}); see --cacert and --insecure"
    if isinstance(error, h11.RemoteProtocolError):
        return "connection closed" if "clos" in str(error).lower() else f"no valid HTTP ({error})"
    return str(error) or type(error).__name__
