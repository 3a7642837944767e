"""The hunt: what counts as found, how it is made smaller, and when it ends."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st

from conformance.explore.hunt import Judge, Judged
from conformance.explore.script import Json
from conformance.spec import Expect
from conformance.verdict import Status, Verdict
from tests.conformance.hunting import hunt

EXPECT = Expect(judge="counted", args={}, requirement="count/1", id="counted")
NUMBERS: st.SearchStrategy[Json] = st.builds(
    lambda steps: {"steps": steps}, st.lists(st.integers(0, 50), max_size=6)
)


def says(status: Status) -> Judged:
    return [(EXPECT, Verdict(status, "count/1", witness="too many", reason="because"))]


def when_large(status: Status) -> Judge:
    return lambda data: says(status if max(data["steps"], default=0) >= 20 else Status.PASS)


def test_a_failure_is_made_as_small_as_it_gets() -> None:
    found = hunt(NUMBERS, when_large(Status.FAIL), 500)
    assert found.failure is not None
    assert found.failure.data == {"steps": [20]}
    assert found.shrinking > 0
    assert found.failure.accusers[0][1].witness == "too many"
    assert found.by == ["count/1"]


def test_what_the_first_failure_broke_is_kept_when_a_smaller_one_breaks_less() -> None:
    shown: list[Json] = []

    def judge(data: Json) -> Judged:
        if max(data["steps"], default=0) < 20:
            return says(Status.PASS)
        shown.append(data)
        both = [*says(Status.FAIL), (EXPECT, Verdict(Status.FAIL, "out/1", witness="other"))]
        return both if data == shown[0] else both[:1]

    found = hunt(NUMBERS, judge, 500)
    assert found.failure is not None
    assert len(found.failure.accusers) == 1
    assert found.by == ["count/1", "out/1"]


def test_a_request_that_never_ends_is_a_failure() -> None:
    assert hunt(NUMBERS, when_large(Status.TIMEOUT), 500).failure is not None


def test_what_shows_nothing_is_no_failure() -> None:
    for status in (Status.VACUOUS, Status.UNOBSERVABLE, Status.INCONCLUSIVE, Status.ERROR):
        found = hunt(NUMBERS, when_large(status), 60)
        assert found.failure is None
        assert found.examples == 60
        assert found.statuses[str(status)] > 0


def test_reasons_of_errors_are_kept() -> None:
    assert hunt(NUMBERS, when_large(Status.ERROR), 60).errors == ["because"]


def test_what_the_healthy_engine_fails_as_well_is_an_alarm_and_no_find() -> None:
    found = hunt(NUMBERS, when_large(Status.FAIL), 60, healthy=when_large(Status.FAIL))
    assert found.failure is None
    assert found.alarms == ["counted: too many"]


def test_what_shows_nothing_on_the_healthy_engine_is_no_find() -> None:
    found = hunt(NUMBERS, when_large(Status.FAIL), 60, healthy=lambda data: says(Status.VACUOUS))
    assert (found.failure, found.alarms) == (None, [])


def test_what_the_healthy_engine_passes_is_a_find() -> None:
    found = hunt(NUMBERS, when_large(Status.FAIL), 500, healthy=lambda data: says(Status.PASS))
    assert found.failure is not None


def test_the_same_seed_makes_up_the_same() -> None:
    def seen(number: int) -> list[str]:
        shown: list[str] = []

        def judge(data: Json) -> Judged:
            shown.append(str(data))
            return says(Status.PASS)

        hunt(NUMBERS, judge, 30, number)
        return shown

    assert seen(1) == seen(1)
    assert seen(1) != seen(2)


def test_time_that_is_up_ends_it() -> None:
    ticks: Iterator[int] = iter(range(1000))
    found = hunt(NUMBERS, lambda data: says(Status.PASS), 500, seconds=20, clock=lambda: next(ticks))
    assert 1 <= found.examples <= 20


def test_a_failure_that_does_not_come_back_is_told() -> None:
    calls: Iterator[int] = iter(range(10_000))
    found = hunt(NUMBERS, lambda data: says(Status.FAIL if next(calls) == 3 else Status.PASS), 100)
    assert found.failure is not None
    assert found.is_flaky
