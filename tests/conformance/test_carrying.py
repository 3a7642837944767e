"""One thread for a burst: nobody waits for another, and each has its own moments."""

from __future__ import annotations

import json
import selectors
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from conformance.carrying import carry
from conformance.connecting import parse_address
from conformance.leaving import Leaving
from conformance.sending import Together
from conformance.wire import Call, Exchange, RawReply
from tests.conformance.fakeserver import Behaviour, fake_server
from tests.conformance.weather import raw_server

TIMEOUT = 10.0


def exchange(url: str, timeout: float = TIMEOUT, leaving: Leaving | None = None, **fields: Any) -> Exchange:
    body = {"prompt": [1, 2, 3], "max_tokens": 4, "stream": True, **fields}
    call = Call(replace(parse_address(url), verify=False), "/v1/completions", json.dumps(body).encode())
    return Exchange(call, time.monotonic, timeout, leaving, is_token)


def is_token(payload: bytes) -> bool:
    return b'"text"' in payload


def performed(exchanges: list[Exchange], stagger: float = 0.0) -> list[RawReply]:
    together = Together(exchanges, stagger)
    for thread in together.threads:
        thread.join(2 * TIMEOUT)
    return together.raws()


def test_one_thread_carries_a_burst() -> None:
    with fake_server(Behaviour(token_delay=0.01)) as server:
        together = Together([exchange(server.url, max_tokens=n + 1) for n in range(8)])
        [thread] = together.threads
        thread.join(TIMEOUT)
    raws = together.raws()
    assert [raw.error for raw in raws] == [None] * 8
    assert [sum(is_token(payload) for _, payload in raw.events) for raw in raws] == list(range(1, 9))


def test_who_leaves_has_a_thread_of_its_own() -> None:
    """It may ask the server whether its moment has come, or hold still: the others' times must not show."""
    others: list[Exchange] = []

    def until() -> bool:
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end and not all(other.over for other in others):
            time.sleep(0.01)
        return True

    with fake_server(Behaviour(token_delay=0.02)) as server:
        leaver = exchange(server.url, leaving=Leaving("rst", is_token, until=until, phase="queued"))
        others += [exchange(server.url) for _ in range(2)]
        raws = performed([others[0], leaver, others[1]])
    assert raws[1].left == "queued"
    assert all(raw.error is None and raw.ended < raws[1].ended for raw in (raws[0], raws[2]))


def test_a_silent_request_meets_its_timeout_and_no_other_waits_for_it() -> None:
    with fake_server(Behaviour(fault="hang", after=0, hits=lambda body: body["max_tokens"] == 1)) as server:
        raws = performed([exchange(server.url, timeout=1.0, max_tokens=1), exchange(server.url)])
    assert [raw.timed_out for raw in raws] == [True, False]
    assert raws[0].error == "no end of the reply within 1 s"
    assert raws[1].ended < raws[0].ended


def chatter(sock: socket.socket) -> None:
    """Sends comments without an end."""
    sock.recv(1 << 16)
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
    while True:
        sock.sendall(b": on and on\n\n" * 10_000)


def test_a_server_that_never_pauses_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.wire.MOST", 1 << 40)
    with raw_server(chatter) as endless, fake_server() as server:
        raws = performed([exchange(endless, timeout=3.0), exchange(server.url)])
    assert [raw.timed_out for raw in raws] == [True, False]
    assert raws[1].error is None
    assert raws[1].ended < raws[0].ended


def swallow(sock: socket.socket) -> None:
    """Reads a long request slowly at first, and answers."""
    length = 0
    time.sleep(0.1)
    while length < 8 << 20 and (data := sock.recv(1 << 16)):
        length += len(data)
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")


def test_long_requests_go_out_as_the_server_takes_them() -> None:
    with raw_server(swallow) as url:
        raws = performed([exchange(url, padding="x" * (8 << 20)) for _ in range(3)])
    assert [(raw.status, raw.body, raw.error) for raw in raws] == [(200, b"{}", None)] * 3


def test_a_burst_over_tls() -> None:
    with fake_server(Behaviour(token_delay=0.005), tls=True) as server:
        url = server.url.replace("http:", "https:") if server.url.startswith("http:") else server.url
        raws = performed([exchange(url, max_tokens=20, padding="x" * (1 << 20)) for _ in range(4)])
    assert [(raw.status, raw.error, raw.events[-1][1]) for raw in raws] == [(200, None, b"[DONE]")] * 4


def test_one_that_could_not_connect_does_not_stop_the_others() -> None:
    with fake_server() as server:
        broken = Exchange(
            Call(parse_address(server.url), "/", b""), time.monotonic, TIMEOUT, broken="cannot connect"
        )
        raws = performed([exchange(server.url), broken, exchange(server.url)])
    assert [raw.error for raw in raws] == [None, "cannot connect", None]


def test_a_staggered_burst_begins_apart() -> None:
    with fake_server() as server:
        start = time.monotonic()
        raws = performed([exchange(server.url) for _ in range(4)], stagger=0.1)
    assert [raw.error for raw in raws] == [None] * 4
    assert [raw.sent >= start + 0.1 * place for place, raw in enumerate(raws)] == [True] * 4


def test_any_other_burst_may_begin_at_one_moment() -> None:
    with fake_server() as server:
        exchanges = [exchange(server.url) for _ in range(4)]
        together = Together(exchanges)
        for each in exchanges:
            each.wake = 0.0
        together._stand_apart()
        wakes = {each.wake for each in exchanges}
        for thread in together.threads:
            thread.join(TIMEOUT)
    assert len(wakes) == 1


def deaf(sock: socket.socket) -> None:
    """Takes the connection and reads nothing."""


def counted(exchange: Exchange, steps: list[None]) -> None:
    """Has the exchange note its turns."""
    step = exchange.step

    def noting() -> None:
        steps.append(None)
        step()

    exchange.step = noting  # type: ignore[method-assign]


def test_a_client_that_is_to_leave_while_it_still_sends_waits_like_any_other() -> None:
    """Its moment has come, but it cannot go yet: it must not ask for its turn again and again."""
    steps: list[None] = []
    with raw_server(deaf) as url:
        leaving = Leaving("rst", is_token, seconds=0.05)
        leaver = exchange(url, timeout=1.0, leaving=leaving, padding="x" * (16 << 20))
        counted(leaver, steps)
        [raw] = performed([leaver])
    assert raw.timed_out
    assert "bytes of the request within 1 s" in (raw.error or "")
    assert len(steps) < 100


def test_an_error_of_the_client_is_nobodys_reply() -> None:
    with fake_server(Behaviour(token_delay=0.05)) as server:
        one, two = exchange(server.url), exchange(server.url)
        step = one.step

        def failing() -> None:
            step()
            raise RuntimeError("a defect")

        one.step = failing  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="a defect"):
            performed([one, two])
    assert (one.over, two.over, one.sock, two.sock) == (True, True, None, None)


def test_a_system_that_has_no_selector_left_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> selectors.BaseSelector:
        raise OSError(24, "Too many open files")

    with fake_server() as server:
        exchanges = [exchange(server.url) for _ in range(2)]
        monkeypatch.setattr("conformance.carrying.selectors.DefaultSelector", refuse)
        raws = performed(exchanges)
        assert server.state.seen == []
    assert {raw.error for raw in raws} == {"nothing can be waited for: Too many open files"}


def test_a_timeout_may_be_as_long_as_anyone_likes() -> None:
    with fake_server(Behaviour(first_delay=0.05)) as server:
        [raw] = performed([exchange(server.url, timeout=1e9)])
    assert raw.error is None


class Turning:
    """A socket with TLS that wants the other direction first."""

    def __init__(self, *raised: Exception) -> None:
        self._raised = list(raised)

    def _next(self) -> None:
        if self._raised:
            raise self._raised.pop(0)

    def setblocking(self, flag: bool) -> None:
        """Of no matter here."""

    def send(self, data: memoryview) -> int:
        self._next()
        return len(data)

    def recv(self, size: int) -> bytes:
        self._next()
        return b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

    def close(self) -> None:
        """Of no matter here."""


def test_tls_may_want_the_other_direction() -> None:
    with fake_server() as server:
        asked = exchange(server.url)
        assert asked.sock is not None
        asked.sock.close()
    turning = Turning(ssl.SSLWantReadError(), BlockingIOError(), ssl.SSLWantWriteError())
    asked.sock = turning  # type: ignore[assignment]
    wanted = []
    while not asked.over:
        asked.step()
        wanted.append(asked.wants)
    read, write = selectors.EVENT_READ, selectors.EVENT_WRITE
    assert wanted == [read, write, write, read]
    assert (asked.reply.status, asked.reply.error) == (200, None)


class Scripted:
    """An exchange that notes when it is told to go on, and sets its wakes as it was told to."""

    def __init__(self, *wakes: float) -> None:
        self.sock: socket.socket | None
        self.sock, self.other = socket.socketpair()
        self.over, self.wake, self.wants = False, 0.0, selectors.EVENT_READ
        self._wakes = list(wakes)
        self.steps: list[float] = []

    def step(self) -> None:
        now = time.monotonic()
        self.steps.append(now)
        assert self.sock is not None
        self.sock.setblocking(False)
        with suppress(BlockingIOError):
            self.sock.recv(1)
        if len(self.steps) == 1:
            self.other.sendall(b"x")  # makes it ready once more
        if not self._wakes:
            self.give_up("")
            return
        self.wake = now + self._wakes.pop(0)

    def give_up(self, why: str) -> None:
        self.over = True
        assert self.sock is not None
        self.sock.close()
        self.other.close()


def test_an_end_that_was_set_earlier_is_met() -> None:
    """The first one waits long, is made ready once, and then wants its turn soon."""
    one, two = Scripted(60.0, 0.05), Scripted(60.0)
    start = time.monotonic()
    carry([one, two], time.monotonic, TIMEOUT)
    assert time.monotonic() - start < 30
    assert (len(one.steps), len(two.steps)) == (3, 2)


def test_nobody_steps_where_the_barrier_never_opens() -> None:
    one = Scripted()
    carry([one], time.monotonic, 0.05, threading.Barrier(2))
    assert one.over
    assert one.steps == []
