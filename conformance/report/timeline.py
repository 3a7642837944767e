"""When the requests of a step waited, were prefilled and decoded, as bars to draw.

Knows recorded times and the numbers of scheduler steps. Does not know how a bar is painted. Times are seconds
since the step's first request was sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conformance.history import Outcome, Workload

ROWS = 64
"""Requests of one step that are drawn; a burst has at most as many."""


@dataclass(frozen=True)
class Bar:
    """One request. `admitted` is None where the server does not tell when it was: the phases are one then."""

    id: str
    sent: float
    admitted: float | None
    first: float | None
    ended: float
    says: str
    """Cached tokens of how many, and how it ended if not well."""


@dataclass(frozen=True)
class Timeline:
    """One step of several requests in one arm."""

    case: str
    step: str
    arm: str
    bars: Sequence[Bar]
    left_out: int
    """Requests beyond ROWS."""

    @property
    def seconds(self) -> float:
        return max(bar.ended for bar in self.bars)


def timelines(workload: Workload) -> Iterator[Timeline]:
    """Every step that sent more than one request, in the order of the record."""
    case = f"{workload.spec_id}[{workload.rung}]" if workload.rung else workload.spec_id
    for step, arm in dict.fromkeys((o.step, o.arm) for o in workload.outcomes):
        found = workload.of(step, arm)
        if len(found) > 1:
            start = min(outcome.sent for outcome in found)
            bars = [_bar(workload, outcome, start) for outcome in found[:ROWS]]
            yield Timeline(case, step, arm, bars, max(0, len(found) - ROWS))


def _bar(workload: Workload, outcome: Outcome, start: float) -> Bar:
    admitted, first = _admitted(workload, outcome), outcome.first
    return Bar(
        outcome.id,
        outcome.sent - start,
        None if admitted is None else admitted - start,
        None if first is None else first - start,
        max(outcome.ended, outcome.sent) - start,
        _says(outcome),
    )


def _admitted(workload: Workload, outcome: Outcome) -> float | None:
    """When the scheduler took it in: the first reading that shows the step which the reply's trace names."""
    step = (outcome.trace or {}).get("step_admitted")
    if not isinstance(step, int | float):
        return None
    readings = [s for s in workload.samples if s.arm == outcome.arm and s.values.get("sequence", -1) >= step]
    seen = min((sample.at for sample in readings), default=outcome.ended)
    until = outcome.ended if outcome.first is None else outcome.first
    return max(outcome.sent, min(seen, until))


def _says(outcome: Outcome) -> str:
    cached = "cached not told" if outcome.cached is None else f"cached {outcome.cached}"
    of = f" of {outcome.prompt_tokens}" if outcome.prompt_tokens is not None else ""
    if outcome.timed_out:
        return f"{cached}{of}, timed out"
    bad = "" if outcome.ok else f", {outcome.error or f'HTTP status {outcome.status}'}"
    return f"{cached}{of}{f', left while {outcome.left}' if outcome.left else ''}{bad}"
