"""One exchange: pieces with their times, every way it can go wrong as words, every wait bounded."""

from __future__ import annotations

import json
import re
import socket
import ssl
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from conformance import sse, wire
from conformance.carrying import carry
from conformance.connecting import Address, connect, connect_again, describe, parse_address
from conformance.launch import free_port
from conformance.leaving import Leaving
from conformance.sse import EventSplitter
from conformance.wire import Call, Exchange, RawReply
from tests.conformance.fakeserver import CERTIFICATE, Behaviour, FakeServer, Fault, fake_server
from tests.conformance.weather import Flood, raw_server, stream

TIMEOUT = 10.0


def call(url: str, **fields: Any) -> Call:
    body = {"prompt": [1, 2, 3], "max_tokens": 4, "stream": True, **fields}
    return Call(parse_address(url), "/v1/completions", json.dumps(body).encode(), {"X-Extra": "yes"})


def talk(
    server: FakeServer, leaving: Leaving | None = None, timeout: float = TIMEOUT, **fields: Any
) -> RawReply:
    return Exchange(call(server.url, **fields), time.monotonic, timeout, leaving).run()


def behind(exchange: Exchange, barrier: threading.Barrier) -> RawReply:
    carry([exchange], exchange.clock, exchange.timeout, barrier)
    return exchange.reply


def is_token(payload: bytes) -> bool:
    return b'"text"' in payload


def once_true(holds: Callable[[], bool]) -> bool:
    """Waits, bounded, for what another thread is about to do."""
    end = time.monotonic() + TIMEOUT
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000", Address("127.0.0.1", 8000)),
        ("http://localhost:8000/v1/", Address("localhost", 8000)),
        ("https://api.example.com/llm/v1", Address("api.example.com", 443, tls=True, prefix="/llm")),
        ("http://[::1]:81", Address("::1", 81)),
    ],
)
def test_an_address_may_end_in_v1(url: str, address: Address) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host", "http://", "http://host:port", "http://h:99999"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected http://HOST:PORT"):
        parse_address(url)


def test_a_password_in_the_url_is_refused() -> None:
    with pytest.raises(ValueError, match="must not carry a password"):
        parse_address("http://me:secret@host:80")


@pytest.mark.parametrize(
    ("address", "url"),
    [(Address("h", 1, prefix="/x"), "http://h:1/x"), (Address("::1", 2, tls=True), "https://[::1]:2")],
)
def test_an_address_reads_as_a_url(address: Address, url: str) -> None:
    assert address.url == url


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_found_however_the_bytes_are_cut(size: int) -> None:
    data = b": hello\n\ndata: one\r\n\r\nid: 3\ndata: two\ndata: lines\n\ndata: [DONE]\n\ndata: un"
    splitter = EventSplitter()
    found = [payload for at in range(0, len(data), size) for payload in splitter.feed(data[at : at + size])]
    assert found == [b"one", b"two\nlines", b"[DONE]"]
    assert splitter.rest == b"data: un"


def test_a_stream_comes_with_the_time_of_each_piece() -> None:
    with fake_server(Behaviour(token_delay=0.02)) as server:
        reply = talk(server)
    assert (reply.status, reply.error, reply.streamed, reply.left) == (200, None, True, None)
    assert [is_token(payload) for _, payload in reply.events] == [True] * 4 + [False] * 2
    times = [at for at, _ in reply.events]
    assert [reply.sent, *times, reply.ended] == sorted([reply.sent, *times, reply.ended])
    assert times[0] < times[3]


def test_a_plain_reply_comes_as_its_body() -> None:
    with fake_server() as server:
        reply = talk(server, stream=False)
        assert server.state.headers[0]["X-Extra"] == "yes"
    assert not reply.streamed
    assert len(json.loads(reply.body)["choices"][0]["text"]) == 4


def test_a_refusal_to_connect_is_an_error_in_words() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    reply = Exchange(call(url), time.monotonic, TIMEOUT).run()
    assert reply.error == f"cannot connect to {url}: connection refused"
    assert reply.status is None


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("reset", "connection reset after status 200 and 2 events"),
        ("no-http", "no valid HTTP"),
    ],
)
def test_a_broken_connection_is_an_error_in_words(fault: Fault, error: str) -> None:
    with fake_server(Behaviour(fault=fault)) as server:
        reply = talk(server)
    assert error in (reply.error or "")
    assert not reply.timed_out


def test_a_connection_closed_before_any_reply_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        exchange = Exchange(call(f"http://127.0.0.1:{listener.getsockname()[1]}"), time.monotonic, TIMEOUT)
        accepted, _ = listener.accept()
        # The request is read first: bytes left unread would turn the close into a reset.
        thread = threading.Thread(target=_read_and_close, args=(accepted,))
        thread.start()
        reply = exchange.run()
        thread.join()
    assert reply.error == "connection closed before any reply"


def _read_and_close(sock: socket.socket) -> None:
    sock.recv(65536)
    sock.close()


def test_a_body_that_ends_early_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        exchange = Exchange(call(f"http://127.0.0.1:{listener.getsockname()[1]}"), time.monotonic, TIMEOUT)
        accepted, _ = listener.accept()
        accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}")
        accepted.shutdown(socket.SHUT_WR)
        reply = exchange.run()
        accepted.close()
    assert reply.error == "connection closed after status 200 and 0 events"


def test_a_reply_that_never_ends_times_out() -> None:
    with fake_server(Behaviour(hold=threading.Event())) as server:
        reply = talk(server, timeout=0.2)
        assert server.state.behaviour.hold is not None
        server.state.behaviour.hold.set()
    assert reply.timed_out
    assert reply.error == "no end of the reply within 0.2 s"


def test_the_timeout_holds_for_the_whole_reply() -> None:
    with fake_server(Behaviour(token_delay=0.05)) as server:
        reply = talk(server, timeout=0.3, max_tokens=200)
    assert reply.timed_out
    assert 0 < len(reply.events) < 200


def test_a_server_that_never_pauses_meets_the_timeout_too() -> None:
    with fake_server() as server:
        reply = talk(server, timeout=0.2, max_tokens=10**7)
        assert once_true(lambda: server.state.gone == 1)
    assert reply.timed_out


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError(), "timed out"),
        (BrokenPipeError(), "connection reset"),
        (OSError(113, "No route to host"), "[Errno 113] No route to host"),
        (OSError(), "OSError"),
        (socket.gaierror(-2, "Name or service not known"), "no such host (Name or service not known)"),
    ],
)
def test_errors_of_the_connection_are_told_in_words(error: OSError, words: str) -> None:
    assert describe(error) == words


@pytest.mark.parametrize("how", ["rst", "fin"])
def test_a_client_leaves_after_so_many_tokens(how: Any) -> None:
    with fake_server(Behaviour(token_delay=0.02)) as server:
        reply = talk(server, Leaving(how, is_token, tokens=3), max_tokens=300)
        assert once_true(lambda: server.state.gone == 1)
    assert (reply.left, reply.error, len(reply.events)) == ("decoding", None, 3)


@pytest.mark.parametrize("how", ["rst", "fin"])
def test_a_client_leaves_before_the_first_token(how: Any) -> None:
    hold = threading.Event()
    with fake_server(Behaviour(hold=hold)) as server:
        reply = talk(server, Leaving(how, is_token, seconds=0.05))
        hold.set()
        assert once_true(lambda: server.state.ended == 1)
    assert (reply.left, reply.error, reply.events) == ("prefilling", None, [])


def test_the_phase_is_the_one_measured_not_the_one_asked_for() -> None:
    with fake_server(Behaviour(token_delay=0.02)) as server:
        reply = talk(server, Leaving("rst", is_token, seconds=1.0), max_tokens=300)
    assert reply.left == "decoding"
    assert reply.events


def test_a_reply_that_ends_first_was_not_left() -> None:
    with fake_server() as server:
        reply = talk(server, Leaving("rst", is_token, tokens=50))
    assert reply.left is None
    assert reply.events[-1][1] == b"[DONE]"


def test_leaving_after_no_time_at_all_still_sends_the_request() -> None:
    with fake_server(Behaviour(first_delay=0.1)) as server:
        reply = talk(server, Leaving("fin", is_token, seconds=0.0))
        assert once_true(lambda: server.state.ended == 1)
    assert reply.left == "prefilling"


@pytest.mark.parametrize(
    ("phase", "tokens", "left"),
    [("first_token", 1, "first_token"), ("last_step", 3, "last_step"), ("decoding", 1, "decoding")],
)
def test_the_moment_that_was_meant_is_named_where_it_is_certain(phase: Any, tokens: int, left: str) -> None:
    with fake_server(Behaviour(token_delay=0.05)) as server:
        leaving = Leaving("rst", is_token, tokens=tokens, phase=phase, last=3)
        assert talk(server, leaving, max_tokens=4).left == left


def test_a_client_leaves_as_soon_as_it_is_seen_to_wait() -> None:
    hold, looks = threading.Event(), iter([False, False, True])
    with fake_server(Behaviour(hold=hold)) as server:
        leaving = Leaving("rst", is_token, tokens=1, until=lambda: next(looks), phase="queued")
        reply = talk(server, leaving)
        hold.set()
    assert (reply.left, reply.error) == ("queued", None)


def test_a_client_that_was_never_seen_to_wait_leaves_at_its_first_token() -> None:
    with fake_server(Behaviour(token_delay=0.02)) as server:
        leaving = Leaving("rst", is_token, tokens=1, until=lambda: False, phase="queued")
        assert talk(server, leaving, max_tokens=300).left == "decoding"


def test_looking_for_the_moment_ends_with_the_timeout() -> None:
    hold = threading.Event()
    with fake_server(Behaviour(hold=hold)) as server:
        reply = talk(server, Leaving("rst", is_token, until=lambda: False), timeout=0.2)
        hold.set()
    assert (reply.left, reply.timed_out) == (None, True)


def test_half_a_close_still_reads_to_the_end() -> None:
    with fake_server(Behaviour(token_delay=0.01)) as server:
        reply = talk(server, Leaving("half_close", is_token, tokens=2), max_tokens=8)
    assert (reply.left, reply.error, reply.events[-1][1]) == ("decoding", None, b"[DONE]")


def test_half_a_close_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.wire._LINGER", 0.1)
    hold = threading.Event()
    with fake_server(Behaviour(hold=hold)) as server:
        reply = talk(server, Leaving("half_close", is_token, seconds=0.05))
        hold.set()
    assert (reply.left, reply.error, reply.timed_out) == ("prefilling", None, False)


def test_a_client_stops_reading_before_it_closes() -> None:
    with fake_server(Behaviour(token_delay=0.02)) as server:
        reply = talk(server, Leaving("stop_reading", is_token, tokens=2, pause=0.2), max_tokens=300)
        assert once_true(lambda: server.state.gone == 1)
    assert (reply.left, reply.error) == ("decoding", None)
    assert reply.ended - reply.events[-1][0] >= 0.2


def test_an_abort_is_given_what_came_first() -> None:
    given: list[bytes] = []
    with fake_server(Behaviour(token_delay=0.02)) as server:
        reply = talk(server, Leaving("abort", is_token, tokens=2, abort=given.append), max_tokens=4)
    assert given == [reply.events[0][1]]
    assert (reply.left, reply.error) == ("decoding", None)


def test_others_see_how_far_a_reply_is() -> None:
    with fake_server() as server:
        exchange = Exchange(call(server.url), time.monotonic, TIMEOUT, is_token=is_token)
        assert (exchange.begun, exchange.tokens, exchange.over) == (None, 0, False)
        reply = exchange.run()
    assert (exchange.begun, exchange.tokens, exchange.over) == (reply.sent, 4, True)


def test_nothing_is_sent_before_the_barrier_opens() -> None:
    barrier = threading.Barrier(2)
    with fake_server() as server:
        exchanges = [Exchange(call(server.url), time.monotonic, TIMEOUT) for _ in range(2)]
        replies: list[RawReply] = []
        thread = threading.Thread(target=lambda: replies.append(behind(exchanges[0], barrier)))
        thread.start()
        assert once_true(lambda: barrier.n_waiting == 1)
        assert server.state.seen == []
        second = behind(exchanges[1], barrier)
        thread.join()
    assert [replies[0].status, second.status] == [200, 200]


def test_a_burst_that_never_gets_ready_does_not_hang() -> None:
    with fake_server() as server:
        reply = behind(Exchange(call(server.url), time.monotonic, 0.05), threading.Barrier(2))
        assert server.state.seen == []
    assert reply.error == "the other requests of the burst were never ready"


def test_tls_is_spoken_where_the_url_says_so() -> None:
    with fake_server() as server:
        address = parse_address(server.url.replace("http:", "https:"))
        with pytest.raises(OSError, match="SSL"):
            connect(address, TIMEOUT)


@pytest.mark.parametrize("verify", [False, str(CERTIFICATE)])
def test_a_certificate_is_trusted_where_the_user_says_so(verify: bool | str) -> None:
    with fake_server(tls=True) as server:
        address = replace(parse_address(server.url), verify=verify)
        reply = Exchange(replace(call(server.url), address=address), time.monotonic, TIMEOUT).run()
    assert (reply.status, reply.error) == (200, None)


def test_an_untrusted_certificate_is_refused_and_the_way_out_named() -> None:
    with fake_server(tls=True) as server:
        reply = talk(server)
        assert server.state.seen == []
    assert reply.error is not None
    assert "its certificate is not trusted" in reply.error
    assert "--cacert" in reply.error


@pytest.mark.parametrize("narrow", [False, True])
def test_a_narrow_connection_has_little_room(narrow: bool) -> None:
    with fake_server() as server, connect(parse_address(server.url), TIMEOUT, narrow) as sock:
        assert (sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < 2**14) is narrow


def test_a_narrow_connection_is_refused_like_any_other() -> None:
    with pytest.raises(ConnectionRefusedError):
        connect(Address("127.0.0.1", free_port()), TIMEOUT, narrow=True)


def test_an_exchange_is_narrow_where_it_will_stop_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def refused(address: Address, timeout: float, narrow: bool) -> socket.socket:
        asked.append(narrow)
        raise ConnectionRefusedError

    monkeypatch.setattr("conformance.wire.connect_again", refused)
    for leaving in (None, Leaving("rst", is_token), Leaving("stop_reading", is_token)):
        Exchange(call("http://127.0.0.1:1"), time.monotonic, TIMEOUT, leaving)
    assert asked == [False, False, True]


class Connections:
    """Stands for `connect`: fails as often as told, then gives a socket."""

    def __init__(self, failures: int, error: OSError) -> None:
        self.failures, self.error, self.tries = failures, error, 0

    def __call__(self, address: Address, timeout: float, narrow: bool) -> str:
        self.tries += 1
        if self.tries <= self.failures:
            raise self.error
        return "a socket"


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.connecting._PAUSES", (0.0, 0.0))


@pytest.mark.usefixtures("no_pauses")
def test_the_set_up_of_a_connection_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Connections(2, ConnectionRefusedError())
    monkeypatch.setattr("conformance.connecting.connect", fake)
    assert connect_again(Address("h", 1), TIMEOUT) == "a socket"  # type: ignore[comparison-overlap]


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (ConnectionRefusedError(), 3),
        (TimeoutError(), 1),
        (ssl.SSLCertVerificationError(), 1),
        (socket.gaierror(), 1),
    ],
)
def test_the_tries_are_few(error: OSError, tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Connections(99, error)
    monkeypatch.setattr("conformance.connecting.connect", fake)
    with pytest.raises(type(error)):
        connect_again(Address("h", 1), TIMEOUT)
    assert fake.tries == tries


def test_a_prompt_that_was_sent_is_never_sent_again() -> None:
    with fake_server(Behaviour(fault="reset", after=0)) as server:
        reply = talk(server)
        assert len(server.state.seen) == 1
    assert reply.error is not None


def stop_reading(sock: socket.socket) -> None:
    """Takes the connection and reads nothing of what is sent."""


def test_a_server_that_does_not_take_the_request_meets_the_timeout() -> None:
    with raw_server(stop_reading) as url:
        big = replace(call(url), body=b"x" * (16 << 20))
        reply = Exchange(big, time.monotonic, 0.2).run()
    assert reply.timed_out
    assert re.fullmatch(r"the server took \d+ of 167\d+ bytes of the request within 0.2 s", reply.error or "")


def refuse_early(sock: socket.socket) -> None:
    """Answers before the request is over, reads no more of it, and closes its side."""
    sock.recv(1000)
    sock.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}")
    sock.shutdown(socket.SHUT_WR)


def test_a_refusal_before_the_end_of_a_request_is_read() -> None:
    with raw_server(refuse_early) as url:
        reply = Exchange(call(url), time.monotonic, TIMEOUT).run()
    assert (reply.status, reply.body, reply.error) == (413, b"{}", None)


def break_off(sock: socket.socket) -> None:
    """Resets the connection in the middle of a request."""
    sock.recv(1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def test_a_request_that_is_broken_off_says_so() -> None:
    with raw_server(break_off) as url:
        big = replace(call(url), body=b"x" * (16 << 20))
        reply = Exchange(big, time.monotonic, TIMEOUT).run()
    assert reply.error == "connection reset before any reply"


def test_what_a_flood_costs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.sse.MOST_OF_ONE", 1 << 20)
    flood = Flood("text/event-stream", b"data: ")
    with fake_server(Behaviour(instead=flood)) as server:
        exchange = Exchange(call(server.url), time.monotonic, TIMEOUT)
        tracemalloc.start()
        try:
            reply = exchange.run()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert flood.taken(1) < 16 << 20
    assert (reply.error or "").startswith("an event of the stream has no end within 1 MiB")
    assert peak < 16 << 20


def test_the_limits_leave_room_for_what_is_lawful() -> None:
    """The logprobs of a prompt of fifty thousand tokens come in one event, a hundred bytes each."""
    assert 50_000 * 100 < sse.MOST_OF_ONE < wire.MOST


def test_a_client_without_a_connection_says_why_it_was_not_tried() -> None:
    with fake_server() as server:
        exchange = Exchange(call(server.url), time.monotonic, TIMEOUT, broken="cannot connect to x: refused")
        assert exchange.broken == "cannot connect to x: refused"
        reply = exchange.run()
        assert server.state.seen == []
    assert reply.error == "cannot connect to x: refused"


def test_an_exchange_with_a_connection_is_not_broken() -> None:
    with fake_server(Behaviour(fault="reset")) as server:
        exchange = Exchange(call(server.url), time.monotonic, TIMEOUT)
        assert exchange.broken is None
        assert exchange.run().error is not None
        assert exchange.broken is None


def test_the_type_of_a_stream_may_be_written_in_capitals() -> None:
    weather = stream(lambda chunks: [*chunks, "[DONE]"], kind="Text/Event-Stream; charset=UTF-8")
    with fake_server(Behaviour(instead=weather)) as server:
        assert talk(server).streamed
