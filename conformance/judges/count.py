"""Judges of count/*: what is reported.

Knows the bounds of count/1 (docs/requirements.md) and what a scenario must have recorded. Does not know the
law's arithmetic (`law.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.history import Outcome, Sample
from conformance.judges.base import (
    Case,
    Finding,
    cached_of,
    counting,
    guard,
    is_hit,
    need,
    register,
    seen,
    step_ref,
)
from conformance.law import Lawful
from conformance.spec import Name, Strict


class Counted(Strict):
    of: Name = step_ref()


@register("counted", "count/1", Counted)
def counted(args: Counted, case: Case) -> Finding:
    """0 <= cached <= min(n - 1, law_hi) for every request; absent is not 0 (count/1).

    A request whose client left before a count could come is noted, not judged.
    """
    got, gone = counting(case, args.of)
    judged = [(o, case.lawful(o)) for o in got]
    wrong = next(((o, law) for o, law in judged if not 0 <= cached_of(o) <= law.high), None)
    if wrong is None:
        warm = any(is_hit(o) for o in case.workload.outcomes if o.arm == "main")
        guard(warm, "no request of the case reports a hit, so 0 everywhere would pass")
    return Finding(
        expected="0 <= cached <= min(n - 1, law_hi) for every request",
        observed=[*(seen(o, law) for o, law in judged), *gone],
        witness=over_count(*wrong) if wrong else "",
        request=wrong[0].id if wrong else None,
    )


def over_count(outcome: Outcome, law: Lawful) -> str:
    """Why a reported count cannot be, in words."""
    cached = cached_of(outcome)
    if cached < 0:
        return f"{outcome.id} reports {cached} cached tokens; a count is never below 0"
    if cached > law.n - 1:
        return f"{outcome.id} reports {cached} of {law.n} prompt tokens cached; the last is always computed"
    return (
        f"{outcome.id} reports {cached} cached tokens, but nothing sent under its identity shares more than "
        f"{law.lcp.high} tokens with it: at most {law.high_arithmetic}"
    )


class Recorded(Strict):
    of: Name | None = step_ref(None)


@register("recorded", "count/1", Recorded)
def recorded(args: Recorded, case: Case) -> Finding:
    """A scenario's requests all ended with 200 and report cached tokens, and live blocks were sampled.

    Without `of` (a scenario that sends nothing) only the samples are asked for.
    """
    case.facts_of("main")
    got, gone = counting(case, args.of) if args.of else ([], [])
    silent = [o for o in got if o.cached is None]
    need(len(silent) < len(got) or not got, "no request reports cached tokens")
    need(case.facts.has_stats, "the target exposes no statistics, so live blocks cannot be seen")
    live = _live_readings(args, case)
    need(bool(live) or not _samples(args, case), "the statistics hold no live blocks")
    guard(bool(live), "live blocks were not sampled", [])
    return Finding(
        expected="every request reports cached tokens; live blocks were sampled",
        observed=[*_counts(got), *gone, f"live blocks  {min(live):g}..{max(live):g} in {len(live)} samples"],
        witness=f"{silent[0].id} reports no cached tokens, though {len(got) - len(silent)} others do"
        if silent
        else "",
        request=silent[0].id if silent else None,
    )


def _live_readings(args: Recorded, case: Case) -> list[float]:
    return [s.values["live"] for s in _samples(args, case) if "live" in s.values]


def _samples(args: Recorded, case: Case) -> list[Sample]:
    samples = case.workload.during(args.of) if args.of else case.workload.samples
    return [s for s in samples if s.arm == "main"]


def _counts(outcomes: Sequence[Outcome]) -> list[str]:
    return [f"{o.id}  cached {'absent' if o.cached is None else o.cached}" for o in outcomes]
