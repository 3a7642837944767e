"""Whole runs against servers that misbehave: what the user sees, in words, and never a traceback or a hang.

A run has one case for each weather, which strikes its burst alone, and a last case in fair weather.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# Here, since an inner run would import anew what is not imported before it, for seconds.
from conformance import backend, session  # noqa: F401
from conformance.launch import free_port
from conformance.record import read
from tests.conformance.fakeserver import Behaviour, FakeServer, fake_server
from tests.conformance.targets import dialect
from tests.conformance.weather import (
    DONE,
    Flood,
    Weather,
    raw_stream,
    refusal,
    reset_after,
    stream,
    usage_says,
    whole,
)

PLAIN = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:xdist")
CASE = """\
spec: 1
id: area/NAME
title: A case
proves: [count/1]
texts:
  system: {tokens: 40, seed: TOKENS}
steps:
  - send: seed
    prompt: [system, {unique: 4}]
    max_tokens: 3
  - burst: four
    requests: 4
    prompt: [system, {unique: 4}]
    max_tokens: TOKENS
  - mark: after
expect:
  - counted: {of: four}
"""
FIRST = 5
"""Tokens that the burst of the first case asks for; one more in each case after it."""


@dataclass
class Seen:
    """How a run went for its user: all of the terminal, and outcome and failure text of each case."""

    terminal: str = ""
    outcomes: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            name = report.nodeid.partition(".")[0]
            text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            self.outcomes[name], self.texts[name] = report.outcome, " ".join(text.split())


Run = Callable[..., Seen]


@pytest.fixture
def behaviour(monkeypatch: pytest.MonkeyPatch) -> Behaviour:
    monkeypatch.setattr("conformance.target.dialects", lambda: (dialect(),))
    monkeypatch.setattr("conformance.preflight._PATIENCE", 0.0)
    return Behaviour(hits=lambda body: body["max_tokens"] >= FIRST)


@pytest.fixture
def server(behaviour: Behaviour) -> Iterator[FakeServer]:
    with fake_server(behaviour) as running:
        yield running


@pytest.fixture
def run(pytester: pytest.Pytester, server: FakeServer) -> Run:
    """Run a case in each weather, and one without."""

    def result(weathers: Mapping[str, Weather], *args: str) -> Seen:
        server.state.behaviour.instead = in_turn(list(weathers.values()))
        names = [name.replace(" ", "-") for name in weathers]
        files = [write(pytester.path, name, FIRST + place) for place, name in enumerate(names)]
        target = ("--endpoint", server.url, "--history", "h.jsonl", "--scale", "ci")
        seen, last = Seen(), write(pytester.path, "fair", 4)
        ran = pytester.runpytest_inprocess(*PLAIN, *target, *args, *files, last, plugins=[seen])
        seen.terminal = ran.stdout.str() + ran.stderr.str()
        assert "Traceback" not in seen.terminal
        assert "the harness failed" not in seen.terminal
        return seen

    return result


def in_turn(weathers: Sequence[Weather]) -> Weather:
    """The first weather for the burst of the first case, and so on; tokens tell which one asks."""
    return lambda handler, chunks: weathers[len(chunks) - 1 - FIRST](handler, chunks)


def write(folder: Path, name: str, tokens: int) -> str:
    (folder / f"{name}.yaml").write_text(CASE.replace("NAME", name).replace("TOKENS", str(tokens)))
    return f"{name}.yaml"


def lawful(chunks: list[dict[str, Any]]) -> list[dict[str, Any] | str]:
    return [*chunks, DONE]


def test_in_fair_weather_every_case_passes(run: Run) -> None:
    assert run({"plain": stream(lawful)}).outcomes == {"plain": "passed", "fair": "passed"}


BROKEN: dict[str, tuple[Weather, str]] = {
    "reset": (reset_after(2), "failed: connection reset after status 200 and 2 events"),
    "cut": (stream(lambda chunks: chunks[:3]), "the stream ended after 3 events without [DONE]"),
    "no events": (raw_stream(b"data {}\n\nevent: x\n\n"), "the stream ended after 0 events without [DONE]"),
    "past the end": (
        stream(lambda chunks: [*chunks, DONE, *chunks[:1]]),
        "the stream goes on after [DONE]",
    ),
    "a page": (whole(b"<html></html>", "text/html"), "the reply (text/html) is no JSON: an HTML page"),
    "another type": (stream(lawful, kind="text/plain"), "the reply (text/plain) is no JSON: data: {"),
    "no type": (whole(b"fine", None), "the reply (no content type) is no JSON: fine"),
}
MALFORMED: dict[str, tuple[Weather, str]] = {
    "no json": (raw_stream(b"data: {oh\n\n", b"data: [DONE]\n\n"), "event 1 of the stream is no JSON: {oh"),
    "no utf-8": (raw_stream(b'data: {"a": "\xff"}\n\n'), "event 1 of the stream is no JSON"),
    "brackets": (raw_stream(b"data: " + b"[" * 10**5 + b"\n\n"), "event 1 of the stream is no JSON: [["),
    "a list": (whole(b"[]"), "a reply that is no JSON object: []"),
    "odd index": (
        stream(lambda chunks: [{"choices": [{"index": "one", "text": "a"}]}, *chunks, DONE]),
        "a reply of an unexpected shape",
    ),
    "half a character": (
        stream(lambda chunks: [{"error": {"message": "no \ud83d"}}]),
        "the server reports: no \ufffd",
    ),
}
REFUSALS: dict[str, tuple[Weather, str]] = {
    "429": (refusal(429, Retry_After="7"), "status 429: too busy (Retry-After: 7;"),
    "503": (
        refusal(503, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"),
        "status 503: too busy (Retry-After: Wed, 21 Oct 2015 07:28:00 GMT;",
    ),
    "500": (whole(b"<html>oops</html>", "text/html", 500), "status 500: an HTML page"),
    "redirect": (
        whole(b"", status=307, Location="http://127.0.0.1:9/v1/completions"),
        "status 307: a redirect to http://127.0.0.1:9/v1/completions; no prompt goes to another address",
    ),
}


@pytest.mark.parametrize("weathers", [BROKEN, MALFORMED, REFUSALS], ids=["broken", "malformed", "refusals"])
def test_a_reply_that_is_none_is_an_error_in_words(
    run: Run, server: FakeServer, weathers: dict[str, tuple[Weather, str]]
) -> None:
    seen = run({name: weather for name, (weather, _) in weathers.items()})
    expected = {name.replace(" ", "-"): words for name, (_, words) in weathers.items()}
    assert seen.outcomes == {**dict.fromkeys(expected, "failed"), "fair": "passed"}
    assert {name: words for name, words in expected.items() if words not in seen.texts[name]} == {}
    # Nothing that was sent is sent again.
    asked = [body["max_tokens"] for body in server.state.seen if body["max_tokens"] >= FIRST]
    assert asked == [FIRST + place for place in range(len(weathers)) for _ in range(4)]


FLOODS: dict[str, tuple[Callable[[], Flood], str]] = {
    "json": (lambda: Flood("application/json", b'{"a": "'), "the reply is longer than 4 MiB"),
    "events": (
        lambda: Flood("text/event-stream", piece=b"data: " + b"1" * 10**6 + b"\n\n"),
        "the reply is longer than 4 MiB (after status 200 and 4 events)",
    ),
    "line": (
        lambda: Flood("text/event-stream", b"data: "),
        "an event of the stream has no end within 3 MiB (after status 200 and 0 events)",
    ),
    "small": (
        lambda: Flood("text/event-stream", piece=b"data: 1\n\n" * 1000),
        "the stream has more than 5000 events",
    ),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_hundred_megabytes_are_not_taken(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With smaller limits than the real ones, for speed."""
    monkeypatch.setattr("conformance.wire.MOST", 4 << 20)
    monkeypatch.setattr("conformance.wire.MOST_EVENTS", 5000)
    monkeypatch.setattr("conformance.sse.MOST_OF_ONE", 3 << 20)
    flood, words = FLOODS[name][0](), FLOODS[name][1]
    seen = run({"flood": flood})
    assert seen.outcomes == {"flood": "failed", "fair": "passed"}
    assert words in seen.texts["flood"]
    assert flood.taken(4) < 20 << 20


COUNTS: dict[str, tuple[Weather, str, str]] = {
    "null": (usage_says(None), "skipped", "reports no cached tokens"),
    "absent": (stream(lambda chunks: [*chunks[:-1], DONE]), "skipped", "reports no cached tokens"),
    "words": (usage_says("many"), "skipped", "reports no cached tokens"),
    "too many": (usage_says(10**9), "failed", "reports 1000000000 of 44 prompt tokens cached"),
    "huge": (
        usage_says(10**400),
        "failed",
        "a reply whose cached tokens are no count",
    ),
    "negative": (usage_says(-4), "failed", "a count is never below 0"),
    "twice": (stream(lambda chunks: [*chunks, chunks[-1], DONE]), "passed", ""),
    "first": (stream(lambda chunks: [chunks[-1], *chunks[:-1], DONE]), "passed", ""),
    "between": (stream(lambda chunks: [*chunks[:2], chunks[-1], *chunks[2:-1], DONE]), "passed", ""),
    "backwards": (stream(lambda chunks: [*reversed(chunks), DONE]), "passed", ""),
}


def test_counts_and_chunks_are_judged_as_they_came(run: Run, pytester: pytest.Pytester) -> None:
    seen = run({name: weather for name, (weather, _, _) in COUNTS.items()})
    expected = {name.replace(" ", "-"): (how, words) for name, (_, how, words) in COUNTS.items()}
    assert seen.outcomes == {**{name: how for name, (how, _) in expected.items()}, "fair": "passed"}
    assert [name for name, (_, words) in expected.items() if words not in seen.texts[name]] == []
    workloads = read(pytester.path / "h.jsonl").workloads
    assert [outcome.usages for outcome in workloads["area/twice", ""].of("four")] == [2] * 4
    last = workloads["area/backwards", ""].of("four")[0]
    told = [ord(letter) for letter in last.text]
    assert told == last.token_ids
    assert told != [ord(letter) for letter in workloads["area/first", ""].of("four")[0].text]
    assert len(told) == last.plan.max_tokens


def test_a_server_that_is_silent_meets_the_timeout(run: Run) -> None:
    over = threading.Event()

    def silent(handler: Any, chunks: list[dict[str, Any]]) -> None:
        over.wait(30)

    try:
        seen = run({"silent": silent}, "--request-timeout", "0.4")
    finally:
        over.set()
    assert seen.outcomes == {"silent": "failed", "fair": "passed"}
    assert "did not end in time" in seen.texts["silent"]
    assert "timed out: no end of the reply within 0.4 s" in seen.texts["silent"]


def test_an_endpoint_that_was_never_there_is_told_once(pytester: pytest.Pytester) -> None:
    files = [write(pytester.path, name, 4) for name in ("one", "two", "three")]
    seen, url = Seen(), f"http://127.0.0.1:{free_port()}"
    ran = pytester.runpytest_inprocess(*PLAIN, "--endpoint", url, "--history", "h", *files, plugins=[seen])
    assert seen.outcomes == {"one": "failed"}
    assert f"no target: nothing answers at {url}: connection refused" in ran.stdout.str()
    assert "Traceback" not in ran.stdout.str() + ran.stderr.str()


def test_a_clock_that_jumps_changes_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester
) -> None:
    real, jumps = time.time, itertools.count()
    monkeypatch.setattr("time.time", lambda: real() + (-1) ** next(jumps) * 86400)
    monkeypatch.setattr("time.time_ns", lambda: int(real() * 1e9) - next(jumps) * 10**15)
    assert run({}).outcomes == {"fair": "passed"}
    outcomes = read(pytester.path / "h.jsonl").workloads["area/fair", ""].outcomes
    assert all(0 <= o.sent <= (o.first or 0) <= o.ended < 60 for o in outcomes)
    assert next(jumps) > 0


def test_gauges_that_fall_or_are_no_numbers_end_nothing(
    run: Run, behaviour: Behaviour, pytester: pytest.Pytester
) -> None:
    told = itertools.cycle([7, 3, "NaN", 10**400, -1, "many", None, [1]])

    def page() -> str:
        return json.dumps({"live": next(told), "running": 0, "waiting": 0}).replace('"NaN"', "NaN")

    behaviour.made = {"/stats": page}
    assert run({"plain": stream(lawful)}).outcomes == {"plain": "passed", "fair": "passed"}
    samples = read(pytester.path / "h.jsonl").workloads["area/plain", ""].samples
    seen = [sample.values["live"] for sample in samples if "live" in sample.values]
    assert set(seen) <= {7.0, 3.0, -1.0, 1.0}
    assert any(after < before for before, after in itertools.pairwise(seen))


def test_a_counter_that_falls_fails_its_expectation_and_ends_nothing(
    run: Run, behaviour: Behaviour, pytester: pytest.Pytester
) -> None:
    counter = itertools.count(1000, -1)

    def page() -> str:
        return json.dumps({"live": 0, "running": 0, "waiting": 0, "sequence": next(counter)})

    behaviour.made = {"/stats": page}
    text = CASE.replace("NAME", "falling").replace("TOKENS", "3").replace("[count/1]", "[count/1, count/3]")
    (pytester.path / "falling.yaml").write_text(f"{text}  - never_fall: {{}}\n")
    seen = run({"plain": stream(lawful)}, "falling.yaml")
    assert seen.outcomes == {"falling": "failed", "plain": "passed", "fair": "passed"}
    assert "witness sequence fell from" in seen.texts["falling"]


def test_an_endpoint_that_dies_between_two_cases_is_one_reason_for_all_others(
    run: Run, server: FakeServer
) -> None:
    def die(handler: Any, chunks: list[dict[str, Any]]) -> None:
        if sum(body["max_tokens"] == FIRST for body in server.state.seen) == 4:
            server.http.socket.close()
        stream(lawful)(handler, chunks)

    seen = run({"last": die, **{f"later {number}": die for number in range(6)}})
    assert seen.outcomes.pop("last") == "passed"
    assert set(seen.outcomes.values()) == {"failed"}
    reason = f"nothing answers at {server.url} any more: connection refused"
    texts = [text for name, text in seen.texts.items() if name != "last"]
    assert [text for text in texts if reason not in text] == []
    assert len(texts) == 7
