"""When a fault counts as killed, and everything that does not count."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from conformance.mutation import Cell, Fate, examine, report
from conformance.verdict import Status, Verdict


@dataclass(frozen=True)
class Fault:
    name: str = "trims"
    symptom: str = "A short match trims the entry."
    breaks: tuple[str, ...] = ("store/2",)
    needs: str = ""


def cell(status: Status, requirement: str = "store/2", witness: str = "") -> Cell:
    return Cell("store/case", "entry_intact", Verdict(status, requirement, witness=witness))


def test_a_fail_on_a_broken_requirement_kills() -> None:
    autopsy = examine(Fault(), [cell(Status.PASS), cell(Status.FAIL, witness="the tail is gone")])
    assert autopsy.fate is Fate.KILLED
    assert autopsy.summary == "by store/2 (store/case)"
    assert "witness   store/2: the tail is gone" in report(Fault(), autopsy)


@pytest.mark.parametrize(
    ("cells", "fate"),
    [
        ([cell(Status.PASS)], Fate.SURVIVED),
        ([cell(Status.PASS), cell(Status.FAIL, "out/1", "another")], Fate.SURVIVED),
        ([cell(Status.FAIL)], Fate.SURVIVED),
        ([cell(Status.FAIL), cell(Status.ERROR)], Fate.ERROR),
        ([cell(Status.ERROR), cell(Status.PASS)], Fate.ERROR),
        ([cell(Status.TIMEOUT)], Fate.ERROR),
        ([cell(Status.VACUOUS)], Fate.VACUOUS),
        ([cell(Status.UNOBSERVABLE)], Fate.VACUOUS),
        ([cell(Status.FAIL, "out/1")], Fate.NOT_RUN),
        ([], Fate.NOT_RUN),
    ],
)
def test_nothing_else_kills(cells: list[Cell], fate: Fate) -> None:
    autopsy = examine(Fault(), cells)
    assert autopsy.fate is fate
    assert autopsy.killers == ()


def test_a_survivor_says_what_was_seen_instead() -> None:
    autopsy = examine(Fault(), [cell(Status.PASS)])
    assert autopsy.summary == "no judge of store/2 said fail: store/case store/2 pass"
    text = report(Fault(), autopsy)
    assert text.startswith("fault trims: survived")
    assert "A short match trims the entry." in text


def test_a_fault_that_nobody_judges_says_so() -> None:
    autopsy = examine(Fault(), [cell(Status.FAIL, "out/1")])
    assert autopsy.summary == "no spec that claims to kill it judges store/2"
