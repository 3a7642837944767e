"""Verdicts: what a judge says, and how several merge into one.

Knows the vocabulary of outcomes and their order. Does not know requirements, targets or pytest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    """Outcomes, worst first within one spec. Only `pass` counts as a pass (requirements, Verdicts)."""

    FAIL = "fail"
    ERROR = "error"
    TIMEOUT = "timeout"
    VACUOUS = "vacuous"
    INCONCLUSIVE = "inconclusive"
    UNOBSERVABLE = "unobservable"
    NOT_CLAIMED = "not-claimed"
    NOT_RUN = "not-run"
    PASS = "pass"


_ORDER = list(Status)
_LOUD = {Status.FAIL, Status.ERROR, Status.TIMEOUT}


@dataclass(frozen=True)
class Verdict:
    """One judge's word on one expectation.

    `expected` and `reason` are one line each, `observed` one line per request or sample, `witness`
    the argument in prose that names the first thing that went wrong and why it should not have.
    """

    status: Status
    requirement: str
    expected: str = ""
    observed: tuple[str, ...] = ()
    witness: str = ""
    reason: str = ""
    request: str | None = None
    """Id of the request the failure footer's curl line repeats."""
    notes: tuple[str, ...] = field(default=())


def worst(statuses: Iterable[Status]) -> Status:
    """The worst of one spec's verdicts; `not-run` when there is none."""
    return min(statuses, key=_ORDER.index, default=Status.NOT_RUN)


def for_requirement(statuses: Iterable[Status]) -> Status:
    """One requirement over several specs: a loud one wins, else any pass, else the worst."""
    seen = list(statuses)
    loud = [status for status in seen if status in _LOUD]
    if loud:
        return worst(loud)
    return Status.PASS if Status.PASS in seen else worst(seen)
