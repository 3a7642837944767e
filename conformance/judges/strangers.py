"""Whether another client was served while a workload ran: its work shows in every figure of the whole server.

Knows what a server's counters and gauges say, against what this run sent. Does not know what is judged.
Only an endpoint has other clients; a server that was started here has none, and its figures are its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from conformance.history import Outcome, Sample, Workload
from conformance.verdict import Status, Verdict

SERVED = ("adopted_requests", "missed_requests")
"""Counters that together rise by one for each request that starts."""


def excused(verdict: Verdict, workload: Workload) -> Verdict:
    """What another client may have done is held against nobody, and shows nothing either."""
    doubtful = verdict.status in (Status.FAIL, Status.VACUOUS)
    if not doubtful or not (seen_by := strangers(workload)):
        return verdict
    reason = f"another client was served meanwhile: {seen_by}"
    was = f"without that: {verdict.status}, {verdict.witness or verdict.reason}"
    return replace(
        verdict, status=Status.INCONCLUSIVE, reason=reason, witness="", notes=(*verdict.notes, was)
    )


def strangers(workload: Workload) -> str:
    """What shows that somebody else was served; empty without a sign, and where nobody else can be."""
    main = workload.facts.get("main")
    if main is None or main.how != "endpoint":
        return ""
    readings = workload.readings()
    return _more_served(workload, readings) or _came_by_itself(workload, readings, main.settle)


def _more_served(workload: Workload, readings: Sequence[Sample]) -> str:
    counted = [s for s in readings if all(name in s.values for name in SERVED)]
    if len(counted) < 2:
        return ""
    first, last = counted[0], counted[-1]
    started = sum(last.values[name] - first.values[name] for name in SERVED)
    again = last.values.get("preemptions", 0) - first.values.get("preemptions", 0)
    ours = sum(o.choices_asked for o in _sent(workload) if o.ended >= first.at and o.sent <= last.at) + again
    if started <= ours:
        return ""
    return f"{started:g} requests were started, {started - ours:g} more than this run sent"


def _came_by_itself(workload: Workload, readings: Sequence[Sample], settle: float) -> str:
    """A gauge that rises while nothing of ours is on its way, or has been for the settle time."""
    shown = [s for s in readings if {"running", "waiting"} <= set(s.values)]
    for one, other in pairwise(shown):
        busy = any(o.sent <= other.at and o.ended >= one.at - settle for o in _sent(workload))
        if not busy and _busy(other) > _busy(one):
            return f"{_busy(other):g} requests ran or waited while this run had none on its way"
    return ""


def _busy(sample: Sample) -> float:
    return sample.values["running"] + sample.values["waiting"]


def _sent(workload: Workload) -> list[Outcome]:
    """All that this run sent to the server, in any arm and alone."""
    return [*workload.outcomes, *(o for some in workload.solos.values() for o in some)]
