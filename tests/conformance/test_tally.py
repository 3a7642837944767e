"""Reports add up to a table, and to the question whether enough was judged."""

from __future__ import annotations

from typing import Literal

import pytest

from conformance.tally import Tally

CALL = {
    "requirement": "count/1",
    "verdict": "pass",
    "spec": "area/case",
    "reason": "",
    "target": "fake",
    "history": "h",
}


def report(when: Literal["setup", "call", "teardown"] = "call", **changes: str) -> pytest.TestReport:
    found = list((CALL | changes).items())
    location = ("case.yaml", 1, "counted")
    return pytest.TestReport(
        "case.yaml::counted",
        location,
        {},
        "passed",
        None,
        when,
        user_properties=found,
    )


def tally(*reports: pytest.TestReport) -> Tally:
    made = Tally()
    for one in reports:
        made.add(one)
    return made


def test_an_item_counts_once() -> None:
    assert len(tally(report("setup"), report(), report("teardown")).entries) == 1


def test_reports_of_other_tests_do_not_count() -> None:
    other = report()
    other.user_properties = [("spec", "mine")]
    assert tally(other).entries == []


def test_the_end_names_each_target_and_history_once() -> None:
    lines = tally(report(), report(spec="area/b"), report(target="other", history="h2")).lines(110)
    assert lines[0].startswith("requirement")
    assert lines[-4:] == [
        "fake",
        "other",
        "judge again without a server: --replay=h",
        "judge again without a server: --replay=h2",
    ]


def test_what_never_reached_a_target_names_none() -> None:
    assert tally(report(target="", verdict="error")).targets == {}


def test_a_whole_run_must_have_judged_the_musts() -> None:
    assert tally(report()).missing(None, whole=True) == ["adopt/1", "out/1"]
    assert tally(report()).missing(None, whole=False) == []


def test_what_a_partial_run_looked_at_must_be_judged() -> None:
    assert tally(report(verdict="unobservable")).missing(None, whole=False) == ["count/1"]


def test_what_was_asked_for_goes_before_the_default() -> None:
    assert tally(report()).missing(["store/1"], whole=True) == ["store/1"]
    assert tally(report()).missing(["count/1"], whole=True) == []


def test_a_failed_item_under_a_passing_requirement_reaches_the_end() -> None:
    vacuous = report(spec="area/b", verdict="vacuous")
    vacuous.outcome = "failed"
    lines = tally(report(), vacuous).lines(110)
    assert "MUST: 1 of 1 pass, 1 vacuous item fails the run (count/1)" in lines
    vacuous.outcome = "skipped"
    assert "MUST: 1 of 1 pass" in tally(report(), vacuous).lines(110)
