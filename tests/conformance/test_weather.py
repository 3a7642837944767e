"""A whole run against servers that misbehave: what the user sees, in words, and never a traceback or a hang.

Each run has two cases. The weather strikes the burst of the first alone; the second must be judged as ever.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

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

PLAIN = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:schemathesis", "-p", "no:xdist")
CASE = """\
spec: 1
id: area/NAME
title: A case
proves: [count/1]
texts:
  system: {tokens: 40, seed: SEED}
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
STRUCK = 5
"""Tokens that the requests ask for which the weather strikes."""
Run = Callable[..., pytest.RunResult]


@pytest.fixture
def behaviour(monkeypatch: pytest.MonkeyPatch) -> Behaviour:
    monkeypatch.setattr("conformance.target.dialects", lambda: (dialect(),))
    monkeypatch.setattr("conformance.preflight._PATIENCE", 0.0)
    return Behaviour(hits=lambda body: body["max_tokens"] == STRUCK)


@pytest.fixture
def server(behaviour: Behaviour) -> Iterator[FakeServer]:
    with fake_server(behaviour) as running:
        yield running


@pytest.fixture
def run(pytester: pytest.Pytester, server: FakeServer) -> Run:
    """Run both cases on the server; the result holds what its user would see."""
    for seed, (name, tokens) in enumerate({"calm": 4, "storm": STRUCK}.items()):
        text = CASE.replace("NAME", name).replace("SEED", str(seed)).replace("TOKENS", str(tokens))
        (pytester.path / f"{name}.yaml").write_text(text)

    def result(*args: str, order: tuple[str, ...] = ("storm.yaml", "calm.yaml")) -> pytest.RunResult:
        target = ("--endpoint", server.url, "--history", "h.jsonl", "--scale", "ci")
        seen = pytester.runpytest_inprocess(*PLAIN, *target, *args, "-rs", *order)
        assert "Traceback" not in seen.stdout.str() + seen.stderr.str()
        assert "the harness failed" not in seen.stdout.str()
        return seen

    return result


def said(result: pytest.RunResult) -> str:
    """Everything on the terminal, without line breaks of the terminal's own."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.stdout.str()).split())


def test_in_fair_weather_both_cases_pass(run: Run) -> None:
    run().assert_outcomes(passed=2)


ERRORS: dict[str, tuple[Weather, str]] = {
    "reset in the middle": (reset_after(2), "failed: connection reset after status 200 and 2 events"),
    "cut off": (stream(lambda chunks: chunks[:3]), "the stream ended after 3 events without [DONE]"),
    "no JSON": (raw_stream(b"data: {oh\n\n", b"data: [DONE]\n\n"), "event 1 of the stream is no JSON: {oh"),
    "no events": (raw_stream(b"data {}\n\nevent: x\n\n"), "the stream ended after 0 events without [DONE]"),
    "no UTF-8": (raw_stream(b'data: {"a": "\xff"}\n\n'), "event 1 of the stream is no JSON"),
    "brackets": (raw_stream(b"data: " + b"[" * 10**5 + b"\n\n"), "event 1 of the stream is no JSON: [["),
    "odd index": (
        stream(lambda chunks: [{"choices": [{"index": "one", "text": "a"}]}, *chunks, DONE]),
        "a reply of an unexpected shape",
    ),
    "half a character": (
        stream(lambda chunks: [{"choices": [{"text": "\ud83d"}]}, *chunks, DONE]),
        "a reply with a wrong value for text",
    ),
    "half a character in an error": (
        stream(lambda chunks: [{"error": {"message": "no \ud83d"}}]),
        "the server reports: no ?",
    ),
    "after the end": (
        stream(lambda chunks: [*chunks, DONE, *chunks[:1]]),
        "the stream goes on after [DONE]",
    ),
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
    "a page": (whole(b"<html></html>", "text/html"), "the reply (text/html) is no JSON: an HTML page"),
    "another type": (
        stream(lambda chunks: [*chunks, DONE], kind="application/x-ndjson"),
        "the reply (application/x-ndjson) is no JSON: data: {",
    ),
    "no type": (whole(b"fine", None), "the reply (no content type) is no JSON: fine"),
    "a list": (whole(b"[]"), "a reply that is no JSON object: []"),
    "100 MB of JSON": (Flood("application/json", b'{"a": "'), "the reply is longer than 32 MiB (after"),
    "100 MB of events": (
        Flood("text/event-stream", piece=b"data: " + b"1" * 10**6 + b"\n\n"),
        "the reply is longer than 32 MiB (after status 200 and 33 events)",
    ),
    "an endless line": (
        Flood("text/event-stream", b"data: "),
        "an event of the stream has no end within 8 MiB (after status 200 and 0 events)",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_reply_that_is_none_is_an_error_in_words(
    run: Run, behaviour: Behaviour, server: FakeServer, name: str
) -> None:
    behaviour.instead, words = ERRORS[name]
    result = run()
    result.assert_outcomes(passed=1, failed=1)
    assert words in said(result)
    assert re.search(r"count/1 .*error", said(result))
    # Nothing that was sent is sent again.
    assert len([body for body in server.state.seen if body["max_tokens"] == STRUCK]) == 4


COUNTS: dict[str, tuple[Weather, dict[str, int], str]] = {
    "null": (usage_says(None), {"skipped": 1}, "reports no cached tokens"),
    "absent": (stream(lambda chunks: [*chunks[:-1], DONE]), {"skipped": 1}, "reports no cached tokens"),
    "words": (usage_says("many"), {"skipped": 1}, "reports no cached tokens"),
    "too many": (usage_says(10**9), {"failed": 1}, "reports 1000000000 of 44 prompt tokens cached"),
    "more than a number holds": (usage_says(10**400), {"failed": 1}, "the last is always computed"),
    "below 0": (usage_says(-4), {"failed": 1}, "a count is never below 0"),
    "twice": (stream(lambda chunks: [*chunks, chunks[-1], DONE]), {}, "count/1"),
    "first": (stream(lambda chunks: [chunks[-1], *chunks[:-1], DONE]), {}, "count/1"),
    "between": (stream(lambda chunks: [*chunks[:2], chunks[-1], *chunks[2:-1], DONE]), {}, "count/1"),
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_is_judged_as_it_came(run: Run, behaviour: Behaviour, name: str) -> None:
    behaviour.instead, others, words = COUNTS[name]
    result = run()
    result.assert_outcomes(**{"passed": 2 - sum(others.values()), **others})
    assert words in said(result)


def test_every_usage_of_a_stream_is_on_record(
    run: Run, behaviour: Behaviour, pytester: pytest.Pytester
) -> None:
    behaviour.instead = COUNTS["twice"][0]
    run()
    seen = read(pytester.path / "h.jsonl").workloads["area/storm", ""].of("four")
    assert [outcome.usages for outcome in seen] == [2] * 4


def test_text_keeps_the_order_in_which_it_came(
    run: Run, behaviour: Behaviour, pytester: pytest.Pytester
) -> None:
    behaviour.instead = stream(lambda chunks: [*reversed(chunks), DONE])
    run().assert_outcomes(passed=2)
    seen = read(pytester.path / "h.jsonl").workloads["area/storm", ""]
    outcome = seen.of("four")[0]
    told = [ord(letter) for letter in outcome.text]
    assert told == outcome.token_ids == sorted(told, reverse=True)
    assert (outcome.finish_reason, outcome.cached) == ("length", 40)


def test_a_server_that_is_silent_meets_the_timeout(run: Run, behaviour: Behaviour) -> None:
    behaviour.instead = lambda handler, chunks: time.sleep(1.0)
    start = time.monotonic()
    result = run("--request-timeout", "0.3")
    assert time.monotonic() - start < 2.0
    result.assert_outcomes(passed=1, failed=1)
    assert "no end of the reply within 0.3 s" in said(result)


def test_a_clock_that_jumps_changes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch, pytester: Any) -> None:
    real, jumps = time.time, iter(range(10**9))
    monkeypatch.setattr("time.time", lambda: real() + (-1) ** next(jumps) * 86400)
    monkeypatch.setattr("time.time_ns", lambda: int(real() * 1e9) - next(jumps) * 10**15)
    run().assert_outcomes(passed=2)
    outcomes = read(pytester.path / "h.jsonl").workloads["area/calm", ""].outcomes
    assert all(0 <= o.sent <= (o.first or 0) <= o.ended < 60 for o in outcomes)


def test_gauges_that_fall_or_are_no_numbers_end_nothing(
    run: Run, behaviour: Behaviour, server: FakeServer, pytester: pytest.Pytester
) -> None:
    def page() -> str:
        live: Any = [7, 3, "NaN", 10**400, -1, "many", None, [1]][server.state.readings % 8]
        return json.dumps({"live": live, "running": 0, "waiting": 0}).replace('"NaN"', "NaN")

    behaviour.pages = _Pages({"/stats": page})
    run().assert_outcomes(passed=2)
    samples = read(pytester.path / "h.jsonl").workloads["area/storm", ""].samples
    seen = [sample.values["live"] for sample in samples if "live" in sample.values]
    assert set(seen) <= {7.0, 3.0, -1.0, 1.0}
    assert any(after < before for before, after in zip(seen, seen[1:], strict=False))


class _Pages(dict[str, Any]):
    """Pages that are made when they are asked for."""

    def keys(self) -> Any:
        return dict(self).keys()

    def __getitem__(self, route: str) -> Any:
        return super().__getitem__(route)()


def test_an_endpoint_that_dies_between_two_cases_is_one_reason_for_all_others(
    run: Run, behaviour: Behaviour, server: FakeServer, pytester: pytest.Pytester
) -> None:
    names = _more_cases(pytester.path, 8)
    behaviour.hits = lambda body: body["max_tokens"] == STRUCK and _last_of(server, body)
    behaviour.instead = _answer_and_die(server)
    start = time.monotonic()
    result = run(order=("storm.yaml", *names))
    assert time.monotonic() - start < 4.0
    result.assert_outcomes(passed=1, failed=8)
    reason = f"nothing answers at {server.url} any more: connection refused"
    assert said(result).count(reason) >= 8


def _more_cases(folder: Path, count: int) -> list[str]:
    for number in range(count):
        text = CASE.replace("NAME", f"case-{number}").replace("SEED", "9").replace("TOKENS", "4")
        (folder / f"case-{number}.yaml").write_text(text)
    return [f"case-{number}.yaml" for number in range(count)]


def _last_of(server: FakeServer, body: dict[str, Any]) -> bool:
    return len([seen for seen in server.state.seen if seen["max_tokens"] == STRUCK]) == 4


def _answer_and_die(server: FakeServer) -> Weather:
    lawful = stream(lambda chunks: [*chunks, DONE])

    def weather(handler: Any, chunks: list[dict[str, Any]]) -> None:
        server.http.socket.close()
        lawful(handler, chunks)

    return weather
