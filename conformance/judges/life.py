"""Judges of life/1 and life/4: what a request that ended leaves behind.

Knows which gauges must return to their idle baseline, in which phases a request can end, and which counters
must stand still once nobody reads (docs/requirements.md). Does not know how a client left, nor what the end
of one request means to others (`beside.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Self, get_args

from pydantic import model_validator

from conformance.history import Outcome
from conformance.judges.base import Case, Finding, Stop, guard, mark_ref, need, register, step_ref
from conformance.spec import Name, Strict
from conformance.verdict import Status

GAUGES = ("referenced", "running", "waiting")
Phase = Literal["queued", "prefilling", "first_token", "decoding", "last_step"]
PHASES: tuple[Phase, ...] = get_args(Phase)
End = Literal["length", "stop", "error", "rejected"]
NOTICE_SECONDS = 2.0
"""Servers look once a second or so whether a client is still there: less than this accuses none of them. The
bundled engine is judged by its counters alone."""
WORK = {"computed_tokens": "prompt tokens computed", "generated_tokens": "tokens generated"}
"""Counters that rise while the target works for a client, and what they count."""


class Released(Strict):
    before: Name = mark_ref()
    after: Name = mark_ref()
    left: Name | None = step_ref(None)
    phase: Phase | None = None
    ended: Name | None = step_ref(None)
    by: End | None = None

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.left is None) != (self.phase is None):
            raise ValueError("`left` and `phase` belong together: who walked away, and when")
        if (self.ended is None) != (self.by is None):
            raise ValueError("`ended` and `by` belong together: which request ended, and how")
        return self


@register("released", "life/1", Released, of_all=True)
def released(args: Released, case: Case) -> Finding:
    """After requests ended, referenced, running and waiting stand where they stood when idle (life/1).

    `left` and `phase`: clients that walked away. `ended` and `by`: requests that came to an end of that kind.
    """
    before, after = case.sample_at(args.before).values, case.sample_at(args.after).values
    witness = not_back(args.before, args.after, before, after)
    lines = [
        f"{name}  {_value(before, name)} at {args.before}, {_value(after, name)} at {args.after}"
        for name in GAUGES
    ]
    lines += _phases(args, case) + _ends(args, case)
    if not witness:
        missing = [name for name in GAUGES if name not in before or name not in after]
        need(not missing, f"the target does not expose {', '.join(missing)}", lines)
        if args.left is not None:
            reason = f"no client of {args.left!r} was seen to leave while {args.phase}"
            _guard_left(case, args.left, _leavers(args, case), reason, lines)
        ended = args.ended is None or bool(_enders(args, case))
        guard(ended, f"no request of {args.ended!r} ended by {args.by}", lines)
    culprits = [*_leavers(args, case), *_enders(args, case)] if witness else []
    culprit = culprits[0].id if culprits else None
    return Finding(f"{', '.join(GAUGES)} return to the idle baseline", lines, witness, culprit)


def _guard_left(
    case: Case, step: str, left: Sequence[Outcome], reason: str, lines: Sequence[str] = ()
) -> None:
    """Somebody left. Where nobody did because a request never came so far, that is what there is to say."""
    hung = next((outcome for outcome in case.workload.of(step) if outcome.timed_out), None)
    if not left and hung is not None:
        raise Stop(Status.TIMEOUT, f"{hung.id} did not end in time", tuple(lines), hung.id)
    guard(bool(left), reason, lines)


def _leavers(args: Released, case: Case) -> list[Outcome]:
    left = case.workload.of(args.left) if args.left else []
    return [outcome for outcome in left if outcome.left == args.phase]


def _enders(args: Released, case: Case) -> list[Outcome]:
    ended = case.workload.of(args.ended) if args.ended else []
    return [outcome for outcome in ended if how_it_ended(outcome) == args.by]


def how_it_ended(outcome: Outcome) -> str:
    """A word for the end of a request whose client stayed: a finish reason, or what came instead."""
    if outcome.timed_out:
        return "timeout"
    if outcome.rejected:
        return "rejected"
    return (outcome.finish_reason or "no finish") if outcome.ok else "error"


def _phases(args: Released, case: Case) -> list[str]:
    if args.left is None:
        return []
    phases = [outcome.left for outcome in case.workload.of(args.left)]
    counts = ", ".join(f"{phases.count(phase)} {phase}" for phase in PHASES if phase in phases)
    return [f"left: {counts or 'none'} of {len(phases)}"]


def _ends(args: Released, case: Case) -> list[str]:
    if args.ended is None:
        return []
    ends = [how_it_ended(outcome) for outcome in case.workload.of(args.ended)]
    counts = ", ".join(f"{ends.count(end)} {end}" for end in dict.fromkeys(ends))
    return [f"ended: {counts or 'none'}"]


def _value(values: Mapping[str, float], name: str) -> str:
    return f"{values[name]:g}" if name in values else "absent"


def not_back(
    before_mark: str, after_mark: str, before: Mapping[str, float], after: Mapping[str, float]
) -> str:
    """The first gauge that did not return to where it stood when idle, in words; empty when all did."""
    for name in GAUGES:
        if name in before and name in after and before[name] != after[name]:
            return (
                f"{name} was {before[name]:g} at {before_mark} and is {after[name]:g} at {after_mark}, "
                f"although every request in between has ended or was left by its client: "
                f"{after[name] - before[name]:+g} not released"
            )
    return ""


class WorkStops(Strict):
    left: Name = step_ref()
    before: Name = mark_ref()
    since: Name = mark_ref()
    until: Name = mark_ref()


@register("work_stops", "life/4", WorkStops, of_all=True)
def work_stops(args: WorkStops, case: Case) -> Finding:
    """After clients left, the counters of work stand still from `since` to `until`, short of all (life/4)."""
    before, since, until = (case.sample_at(mark).values for mark in (args.before, args.since, args.until))
    shown = [name for name in WORK if all(name in values for values in (before, since, until))]
    need(bool(shown), f"the target counts neither {' nor '.join(WORK.values())}")
    left = [o for o in case.workload.of(args.left) if o.left is not None]
    _guard_left(case, args.left, left, f"no client of {args.left!r} was seen to leave")
    asked = {"computed_tokens": sum(map(case.length, left)), "generated_tokens": _replies(left)}
    lines = [
        f"{WORK[name]}  {since[name] - before[name]:g} by {args.since}, "
        f"{until[name] - since[name]:+g} by {args.until}, {asked[name]} asked"
        for name in shown
    ]
    moved = next((name for name in shown if until[name] != since[name]), None)
    work = "generated_tokens" if any(o.first is not None for o in left) else "computed_tokens"
    whole = work in shown and until[work] - before[work] >= asked[work]
    if whole and moved is None and work == "computed_tokens":
        _guard_seen_early(case, left, before[work] + asked[work])
    if moved is None and not whole:
        need(work in shown, f"the target does not count {WORK[work]}, which these clients left behind", lines)
        _guard_long(left, case)
    return Finding(
        expected="work counters stand still, and short of all that was asked",
        observed=lines,
        witness=_worked_on(args, moved, until, since, whole, left),
        request=left[0].id if moved or whole else None,
    )


def _replies(left: list[Outcome]) -> int:
    return sum(outcome.plan.max_tokens for outcome in left)


def _guard_seen_early(case: Case, left: list[Outcome], end: float) -> None:
    """A whole prefill was computed: after its client had gone, or before? On a busy machine a client may
    leave later than it meant to; the first reading after that shows what was left to do."""
    gone = max(outcome.ended for outcome in left)
    counted = [(s.at, s.values.get("computed_tokens")) for s in case.workload.samples if s.arm == "main"]
    done = min((at, value) for at, value in counted if value is not None and at >= gone)[1]
    reason = (
        f"of the prefill {end - done:g} tokens were left when its client was first seen gone, not two chunks"
    )
    guard(end - done >= 2 * (case.facts.chunk or 1), reason)
    if case.facts.how != "engine":
        took = min(at for at, value in counted if value is not None and value >= end) - gone
        guard(
            took >= NOTICE_SECONDS, f"the prefill was done {took:.3f} s after its client had gone, too soon"
        )


def _guard_long(left: list[Outcome], case: Case) -> None:
    """The clients must have left long before the end, or nothing was there to stop."""
    short = next((o for o in left if 2 * len(o.tokens_at) > o.plan.max_tokens), None)
    guard(short is None, f"{short.id if short else ''} had most of its reply when its client left")
    chunk = case.facts.chunk or 0
    early = next((o for o in left if o.first is None and case.length(o) <= 2 * chunk), None)
    guard(
        early is None, f"{early.id if early else ''} is no longer than two chunks, so nothing can be stopped"
    )


def _worked_on(
    args: WorkStops,
    moved: str | None,
    until: Mapping[str, float],
    since: Mapping[str, float],
    whole: bool,
    left: list[Outcome],
) -> str:
    if moved is not None:
        return (
            f"{until[moved] - since[moved]:g} more {WORK[moved]} between {args.since} and {args.until}, "
            f"though the {len(left)} clients had gone before and nothing else ran"
        )
    if whole:
        return f"all that the {len(left)} clients had asked for was computed to its end after they had gone"
    return ""
