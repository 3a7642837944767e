"""Bars of a burst: what the record tells of waiting, prefill and decode, and no more than that."""

from __future__ import annotations

from typing import Any

from conformance.history import Outcome
from conformance.report.timeline import Bar, Timeline, timelines
from tests.conformance.builders import burst, sample, seed, workload


def drawn(*events: Any) -> Timeline:
    [found] = timelines(workload(*events))
    return found


def changed(outcomes: list[Outcome], **changes: Any) -> list[Outcome]:
    return [outcomes[0].model_copy(update=changes), *outcomes[1:]]


def test_a_step_of_one_request_is_no_timeline() -> None:
    assert list(timelines(workload(seed()))) == []


def test_times_start_with_the_first_request() -> None:
    found = drawn(seed(), *burst([192, 0]))
    assert (found.case, found.step, found.arm, found.left_out, found.seconds) == (
        "test/case",
        "eight",
        "main",
        0,
        2.0,
    )
    assert found.bars[0] == Bar("eight[0]", 0.0, None, 1.0, 2.0, "cached 192 of 224")


def test_the_scheduler_s_step_tells_how_long_a_request_waited() -> None:
    outcomes = changed(burst([192, 0]), trace={"step_admitted": 7})
    samples = [sample(at, "eight", sequence=n) for at, n in ((10.2, 6.0), (10.4, 7.0), (10.6, 9.0))]
    first, second = drawn(*outcomes, *samples).bars
    assert first.admitted is not None
    assert round(first.admitted, 6) == 0.4
    assert second.admitted is None


def test_waiting_never_ends_after_the_first_token() -> None:
    late = drawn(*changed(burst([0, 0]), trace={"step_admitted": 7}), sample(11.9, "eight", sequence=7.0))
    unseen = drawn(*changed(burst([0, 0]), trace={"step_admitted": 7}))
    assert [found.bars[0].admitted for found in (late, unseen)] == [1.0, 1.0]


def test_a_request_without_a_first_token_has_one_bar() -> None:
    bar = drawn(
        *changed(burst([0, 0]), first=None, cached=None, status=500, trace={"step_admitted": "x"})
    ).bars[0]
    assert (bar.first, bar.admitted) == (None, None)
    assert bar.says == "cached not told of 224, HTTP status 500"


def test_how_a_request_ended_is_said() -> None:
    assert drawn(*changed(burst([1, 0]), timed_out=True)).bars[0].says == "cached 1 of 224, timed out"
    said = drawn(*changed(burst([1, 0]), left="decoding", prompt_tokens=None)).bars[0].says
    assert said == "cached 1, left while decoding"


def test_a_long_series_is_cut_and_says_so() -> None:
    found = drawn(*burst([0] * 70))
    assert (len(found.bars), found.left_out) == (64, 6)
