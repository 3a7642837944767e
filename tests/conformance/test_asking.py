"""Pages are asked for in bounded time and size, over kept connections, and never of another server."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import IO

import pytest

from conformance.asking import Asker, Page
from conformance.connecting import parse_address
from conformance.launch import free_port
from tests.conformance.weather import raw_server

TIMEOUT = 10.0
SHORT = 0.3


def page(body: bytes = b"fine", status: str = "200 OK", **headers: str) -> bytes:
    lines = {"Content-Length": str(len(body))} | {k.replace("_", "-"): v for k, v in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


class Server:
    """Answers each question with what `answers` gives for its path, and notes what it was asked."""

    def __init__(self, answers: Callable[[str], bytes | None], close_after: int = 100) -> None:
        self._answers, self._close_after = answers, close_after
        self.asked: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0

    def __call__(self, sock: socket.socket) -> None:
        self.connections += 1
        with sock.makefile("rb") as reader:
            for _ in range(self._close_after):
                self._answer(sock, reader)
        sock.shutdown(socket.SHUT_RDWR)

    def _answer(self, sock: socket.socket, reader: IO[bytes]) -> None:
        method, _, rest = reader.readline().decode().partition(" ")
        if not method:
            raise OSError("the client has gone")
        path = rest.rpartition(" ")[0]
        headers = dict(line.split(b": ") for line in iter(reader.readline, b"\r\n"))
        self.bodies.append(reader.read(int(headers.get(b"Content-Length", b"0"))))
        self.asked.append(f"{method} {path}")
        sock.sendall(self._answers(path) or b"")


@contextmanager
def asker(talk: Callable[[socket.socket], None], prefix: str = "") -> Iterator[Asker]:
    with raw_server(talk) as url:
        made = Asker(replace(parse_address(url), prefix=prefix), {"X-Team": "s3cret"})
        try:
            yield made
        finally:
            made.close()


def test_a_page_is_its_status_headers_and_text() -> None:
    server = Server(lambda path: page("grün".encode(), "404 Not Found", X_Kind="odd"))
    with asker(server, "/base") as made:
        found = made.ask("GET", "/x")
    assert found == Page(404, {"content-length": "5", "x-kind": "odd"}, "grün")
    assert server.asked == ["GET /base/x"]


def test_a_connection_is_kept_for_the_next_question() -> None:
    server = Server(lambda path: page())
    with asker(server) as made:
        assert [made.ask("GET", "/a"), made.ask("GET", "/b")] == [made.ask("GET", "/c")] * 2
    assert (server.connections, server.asked) == (1, ["GET /a", "GET /b", "GET /c"])


def test_a_get_on_a_connection_that_has_closed_is_asked_again() -> None:
    server = Server(lambda path: page(), close_after=1)
    with asker(server) as made:
        assert all(made.ask("GET", "/a") for _ in range(3))
    assert server.connections == 3


def test_a_post_is_asked_once_on_a_connection_of_its_own() -> None:
    server = Server(lambda path: None if path == "/lost" else page(), close_after=2)
    with asker(server) as made:
        made.ask("GET", "/a")
        assert made.ask("POST", "/x", {"a": 1}) is not None
        assert made.ask("POST", "/lost", None, SHORT) is None
    assert server.asked == ["GET /a", "POST /x", "POST /lost"]
    assert server.bodies == [b"", b'{"a": 1}', b""]


def test_a_get_follows_a_redirect_on_the_same_server() -> None:
    server = Server(lambda path: page() if path == "/m/?a=1" else page(status="307 x", Location="/m/?a=1"))
    with asker(server) as made:
        found = made.ask("GET", "/m")
    assert found is not None
    assert (found.status, server.asked) == (200, ["GET /m", "GET /m/?a=1"])


@pytest.mark.parametrize("where", ["http://127.0.0.1:9/x", "https://elsewhere/x", "http://[bad"])
def test_no_redirect_leads_to_another_server(where: str) -> None:
    server = Server(lambda path: page(status="302 Found", Location=where))
    with asker(server) as made:
        found = made.ask("GET", "/m")
    assert found is not None
    assert (found.status, server.asked) == (302, ["GET /m"])


def test_a_post_follows_no_redirect() -> None:
    server = Server(lambda path: page(status="307 Temporary", Location="/other"))
    with asker(server) as made:
        found = made.ask("POST", "/reset")
    assert found is not None
    assert (found.status, server.asked) == (307, ["POST /reset"])


def test_redirects_in_a_circle_end() -> None:
    server = Server(lambda path: page(status="301 Moved", Location="/m"))
    with asker(server) as made:
        assert made.ask("GET", "/m") is None
    assert len(server.asked) == 3


def drip(sock: socket.socket) -> None:
    sock.recv(65536)
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
    while True:
        sock.sendall(b"x")
        time.sleep(0.02)


def drip_headers(sock: socket.socket) -> None:
    sock.recv(65536)
    sock.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        sock.sendall(b"a: b\r\n")
        time.sleep(0.02)


def silent(sock: socket.socket) -> None:
    """Takes the connection and nothing else."""


@pytest.mark.parametrize("talk", [drip, drip_headers, silent])
def test_the_time_is_that_of_the_whole_answer(talk: Callable[[socket.socket], None]) -> None:
    with asker(talk) as made:
        start = time.monotonic()
        assert made.ask("GET", "/x", timeout=SHORT) is None
    assert time.monotonic() - start >= SHORT


def endless(sock: socket.socket) -> None:
    sock.recv(65536)
    sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        sock.sendall(b"x" * 65536)


def endless_headers(sock: socket.socket) -> None:
    sock.recv(65536)
    sock.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        sock.sendall(b"a: " + b"b" * 65536)


def no_http(sock: socket.socket) -> None:
    sock.recv(65536)
    sock.sendall(b"this is no HTTP\r\n\r\n")


@pytest.mark.parametrize("talk", [endless, endless_headers, no_http])
def test_what_has_no_end_or_no_form_is_no_page(
    talk: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conformance.asking.MOST", 1 << 20)
    with asker(talk) as made:
        assert made.ask("GET", "/x", timeout=TIMEOUT) is None


def test_nobody_there_is_no_page() -> None:
    made = Asker(parse_address(f"http://127.0.0.1:{free_port()}"), {})
    assert made.ask("GET", "/x") is None


def test_a_route_that_no_request_can_name_is_no_page() -> None:
    with asker(silent) as made:
        assert made.ask("GET", "/a b", timeout=SHORT) is None
