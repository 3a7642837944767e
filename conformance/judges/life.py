"""Judges of life/*: every way a request can end.

Knows which gauges must return to their idle baseline (life/1, docs/requirements.md). Does not know how a
client left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import model_validator

from conformance.history import Outcome
from conformance.judges.base import Case, Finding, guard, mark_ref, need, register, step_ref
from conformance.spec import Name, Strict

GAUGES = ("referenced", "running", "waiting")
PHASES: tuple[Literal["prefilling", "decoding"], ...] = ("prefilling", "decoding")


class Released(Strict):
    before: Name = mark_ref()
    after: Name = mark_ref()
    left: Name | None = step_ref(None)
    phase: Literal["prefilling", "decoding"] | None = None

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.left is None) != (self.phase is None):
            raise ValueError("`left` and `phase` belong together: who walked away, and when")
        return self


@register("released", "life/1", Released)
def released(args: Released, case: Case) -> Finding:
    """After clients left, referenced, running and waiting stand where they stood when idle (life/1).

    Without `left` nobody was meant to leave: whatever ran in between has ended.
    """
    before, after = case.sample_at(args.before).values, case.sample_at(args.after).values
    witness = _not_back(args, before, after)
    lines = [
        f"{name}  {_value(before, name)} at {args.before}, {_value(after, name)} at {args.after}"
        for name in GAUGES
    ]
    lines += _phases(args, case)
    if not witness:
        missing = [name for name in GAUGES if name not in before or name not in after]
        need(not missing, f"the target does not expose {', '.join(missing)}", lines)
        reached = args.left is None or bool(_leavers(args, case))
        guard(reached, f"no client of {args.left!r} was seen to leave while {args.phase}", lines)
    leavers = _leavers(args, case) if witness else []
    culprit = leavers[0].id if leavers else None
    return Finding(f"{', '.join(GAUGES)} return to the idle baseline", lines, witness, culprit)


def _leavers(args: Released, case: Case) -> list[Outcome]:
    left = case.workload.of(args.left) if args.left else []
    return [outcome for outcome in left if outcome.left == args.phase]


def _phases(args: Released, case: Case) -> list[str]:
    if args.left is None:
        return []
    phases = [outcome.left for outcome in case.workload.of(args.left)]
    counts = ", ".join(f"{phases.count(phase)} {phase}" for phase in PHASES)
    return [f"left: {counts} of {len(phases)}"]


def _value(values: Mapping[str, float], name: str) -> str:
    return f"{values[name]:g}" if name in values else "absent"


def _not_back(args: Released, before: Mapping[str, float], after: Mapping[str, float]) -> str:
    for name in GAUGES:
        if name in before and name in after and before[name] != after[name]:
            return (
                f"{name} was {before[name]:g} at {args.before} and is {after[name]:g} at {args.after}, "
                f"although every request in between has ended or was left by its client: "
                f"{after[name] - before[name]:+g} not released"
            )
    return ""
