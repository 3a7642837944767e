"""Judges of life/2, life/3, life/5 and life/6: what the end, or the silence, of one request means to others.

Knows the bounds in time of the law (ratios to a control of the same run, in the target's own steps where it
counts them) and whose failure a failure may be. Does not know how requests were made to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from conformance.history import Outcome
from conformance.judges.base import (
    Case,
    Finding,
    Stop,
    cached_of,
    control,
    guard,
    mark_ref,
    need,
    register,
    seen,
    step_ref,
)
from conformance.judges.life import how_it_ended, not_back
from conformance.judges.out import apart_from_solo, of_step
from conformance.law import shared_prefix
from conformance.spec import Name, Strict
from conformance.verdict import Status

FLOOR_SECONDS = 2.0
FLOOR_STEPS = 3.0
LEAKS = 20
FULL = 0.9
"""Share of the pool that the burst of life/2 must need."""


@dataclass(frozen=True)
class Took:
    """How long a step took: steps of the target's own where it counts them, else seconds."""

    value: float
    unit: str

    def bound(self, ratio: float) -> float:
        """What another run may take that is held against this one, never less than the law's floor."""
        return max(ratio * self.value, FLOOR_STEPS if self.unit == "steps" else FLOOR_SECONDS)

    def __str__(self) -> str:
        return f"{self.value:.4g} {self.unit}"


def took(case: Case, step: str) -> Took:
    """From the first request sent to the last one ended. The bundled engine counts its steps."""
    counted = [s.values["sequence"] for s in case.workload.during(step) if "sequence" in s.values]
    if case.facts.how == "engine" and len(counted) > 1:
        return Took(max(counted) - min(counted), "steps")
    return took_seconds(case, step)


def took_seconds(case: Case, step: str) -> Took:
    """The same by the clock: a server that stands still for a client takes no steps meanwhile (life/5)."""
    got = case.workload.of(step)
    return Took(max(o.ended for o in got) - min(o.sent for o in got), "seconds")


def broken(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The first request that did not end well."""
    return next((outcome for outcome in outcomes if not outcome.ok), None)


def present(case: Case, step: str) -> list[Outcome]:
    """A step's requests however they ended; stops with an error where there are none."""
    case.facts_of("main")
    got = case.workload.of(step)
    if not got:
        raise Stop(Status.ERROR, case.workload.trouble or f"no request of {step!r} is on record")
    return got


class Recovers(Strict):
    before: Name = step_ref()
    leavers: Name = step_ref()
    after: Name = step_ref()
    read: Name = step_ref()
    control: Name = step_ref()
    within: float = Field(3.0, gt=1)


@register("recovers", "life/2", Recovers, of_all=True)
def recovers(args: Recovers, case: Case) -> Finding:
    """A burst that fills the pool takes as long after twenty disconnects as before them (life/2).

    `read` and `control`: the same requests read to their end, and the burst after that.
    """
    before, control_took = (took_well(case, step) for step in (args.before, args.control))
    case.requests(args.read)
    after = present(case, args.after)
    bound = before.bound(args.within)
    stuck, late = broken(after), took(case, args.after)
    slow = late.value > bound
    lines = [
        f"{step}  {how}"
        for step, how in ((args.before, before), (args.control, control_took), (args.after, late))
    ]
    if stuck is None and not slow:
        _guard_leaks(args, case, lines)
    control(control_took.value <= bound, f"{args.control!r}, where nobody left, was slow as well", lines)
    return Finding(
        expected=f"{args.after} ends within {args.within:g} x {before} = {bound:.4g} {before.unit}",
        observed=lines,
        witness=_not_recovered(args, stuck, slow, late, bound),
        request=stuck.id if stuck else after[0].id if slow else None,
    )


def took_well(case: Case, step: str) -> Took:
    """How long a step took of which every request ended well."""
    case.requests(step)
    return took(case, step)


def _guard_leaks(args: Recovers, case: Case, lines: Sequence[str]) -> None:
    """What the leavers held must be more than the pool, and the burst must need nearly all of it."""
    left = [o for o in case.workload.of(args.leavers) if o.left is not None]
    guard(len(left) >= LEAKS, f"{len(left)} clients of {args.leavers!r} left, not {LEAKS}", lines)
    pool, block = case.facts.pool_blocks or 0, case.block()
    need(pool > 0, "the target does not tell the size of its pool")
    held = sum(-(-case.length(o) // block) for o in left)
    need(held > pool, f"{len(left)} leaks would be {held} blocks, which a pool of {pool} can bear")
    wanted = sum(-(-(case.length(o) + o.plan.max_tokens) // block) for o in case.workload.of(args.before))
    guard(wanted >= FULL * pool, f"{args.before!r} needs {wanted} of {pool} blocks, not {FULL:.0%}", lines)


def _not_recovered(args: Recovers, stuck: Outcome | None, slow: bool, late: Took, bound: float) -> str:
    if stuck is not None:
        return (
            f"{stuck.id} did not end well after the clients of {args.leavers} had gone, though the same "
            f"burst did before ({how_it_ended(stuck)}: {stuck.error or stuck.status})"
        )
    if slow:
        return f"{args.after} took {late}, over the bound of {bound:.4g}: what the leavers held is still held"
    return ""


class Survivors(Strict):
    of: Name = step_ref()
    left: Name = step_ref()


@register("survivors", "life/3", Survivors, solo_steps=of_step)
def survivors(args: Survivors, case: Case) -> Finding:
    """When a sibling's client leaves, those who share its blocks answer as when alone (life/3)."""
    got = case.requests(args.of)
    left = [o for o in case.workload.of(args.left) if o.left is not None]
    apart = apart_from_solo(case, got)
    lines = [f"{o.id}  cached {o.cached}  ended {o.ended:.3f}" for o in got]
    lines += [f"{o.id}  left while {o.left} at {o.ended:.3f}" for o in left]
    if apart is None:
        guard(bool(left), f"no client of {args.left!r} was seen to leave", lines)
        _guard_shared(args, case, got, left, lines)
    return Finding.about(
        apart,
        expected=f"each of {len(got)} survivors = its solo run",
        observed=lines,
    )


def _guard_shared(
    args: Survivors, case: Case, got: Sequence[Outcome], left: Sequence[Outcome], lines: Sequence[str]
) -> None:
    alone = case.facts.sharing in ("slots", "one_shot")
    need(not alone, "each slot, or taker, holds rows of its own, so siblings share no blocks")
    hit = all(cached_of(o) > 0 for o in got)
    guard(hit, f"not all of {args.of!r} adopted, so no blocks were shared", lines)
    shared = min(shared_prefix(case.workload, [a, b]) for a in got for b in left)
    granule = case.granule()
    guard(shared >= granule, f"those who left share {shared} tokens with those who stayed, no granule", lines)
    during = any(o.sent < leaver.ended < o.ended for o in got for leaver in left)
    guard(during, f"no client of {args.left!r} left while {args.of!r} ran", lines)


class Undelayed(Strict):
    of: Name = step_ref()
    alone: Name = step_ref()
    stalled: Name = step_ref()
    within: float = Field(3.0, gt=1)


@register("undelayed", "life/5", Undelayed, of_all=True)
def undelayed(args: Undelayed, case: Case) -> Finding:
    """Requests take at most 3 times as long beside a client that stops reading as without it (life/5)."""
    case.requests(args.alone)
    alone, stalled = took_seconds(case, args.alone), case.workload.of(args.stalled)
    got = present(case, args.of)
    beside, bound, stuck = took_seconds(case, args.of), alone.bound(args.within), broken(got)
    lines = [f"{args.alone}  {alone}", f"{args.of}  {beside}"]
    lines += [f"{o.id}  sent {o.sent:.3f}  ended {o.ended:.3f}  left {o.left}" for o in stalled]
    slow = beside.value > bound
    if stuck is None and not slow:
        silent = [
            o for o in stalled if (o.plan.leave or {}).get("how") == "stop_reading" and o.left is not None
        ]
        guard(bool(silent), f"no client of {args.stalled!r} stopped reading", lines)
        start, end = min(o.sent for o in got), max(o.ended for o in got)
        during = all(o.sent < start and end < o.ended for o in silent)
        guard(during, f"{args.stalled!r} did not stand by from the start of {args.of!r} to its end", lines)
    return Finding(
        expected=f"{args.of} ends within {args.within:g} x {alone} = {bound:.4g} {alone.unit}",
        observed=lines,
        witness=_delayed(args, stuck, slow, beside, bound),
        request=stuck.id if stuck else got[0].id if slow else None,
    )


def _delayed(args: Undelayed, stuck: Outcome | None, slow: bool, beside: Took, bound: float) -> str:
    if stuck is not None:
        return f"{stuck.id} did not end well beside a client that stopped reading: {how_it_ended(stuck)}"
    if slow:
        return f"{args.of} took {beside}, over the bound of {bound:.4g}, while {args.stalled} read nothing"
    return ""


class Contained(Strict):
    of: Name = step_ref()
    again: Name = step_ref()
    before: Name = mark_ref()
    after: Name = mark_ref()
    beside: Name | None = step_ref(None)
    at_most: int = Field(1, ge=1, description="requests of the failed forward")
    written: int = Field(0, ge=0, description="forwards of a request that succeeded before; each a chunk")


def _again(args: Contained) -> frozenset[str]:
    return frozenset({args.of, args.again, *([args.beside] if args.beside else [])})


@register("contained", "life/6", Contained, solo_steps=_again, of_all=True)
def contained(args: Contained, case: Case) -> Finding:
    """A forward that fails ends its own requests alone, publishes nothing and leaks nothing (life/6).

    `beside`: requests that run meanwhile, none of them in that forward.
    """
    own, again = present(case, args.of), case.requests(args.again)
    others = present(case, args.beside) if args.beside else []
    got, failed = [*own, *others], [o for o in own if not o.ok]
    witness, culprit = _spread(args, case, failed, others)
    if not witness:
        witness, culprit = _left_over(args, case, failed, again)
    if not witness:
        apart = apart_from_solo(case, [*(o for o in got if o.ok), *again])
        witness, culprit = (apart[1], apart[0].id) if apart else ("", None)
    lines = [f"{o.id}  {how_it_ended(o)}  cached {o.cached}" for o in [*got, *again]]
    if not witness:
        guard(bool(failed), f"no request of {args.of!r} failed", lines)
        during = all(o.sent < f.ended < o.ended for o in others for f in failed)
        guard(during, f"{args.beside!r} did not run while {args.of!r} failed", lines)
    return Finding(
        expected=f"at most {args.at_most} fail; the others and {args.again} = solo; nothing leaks",
        observed=lines,
        witness=witness,
        request=culprit,
    )


def _spread(
    args: Contained, case: Case, failed: Sequence[Outcome], others: Sequence[Outcome]
) -> tuple[str, str | None]:
    struck = broken(others)
    if struck is not None:
        return f"{struck.id} failed, though it was in no forward of {args.of}: {struck.error}", struck.id
    late = next((o for o in failed if o.timed_out or o.status is None), None)
    if late is not None:
        return f"{late.id} was never answered: {late.error}", late.id
    if len(failed) > args.at_most:
        last = failed[args.at_most]
        return (
            f"{len(failed)} failed, though the forward held {args.at_most}: {last.error}",
            last.id,
        )
    before, after = case.sample_at(args.before).values, case.sample_at(args.after).values
    return not_back(args.before, args.after, before, after), failed[0].id if failed else None


def _left_over(
    args: Contained, case: Case, failed: Sequence[Outcome], again: Sequence[Outcome]
) -> tuple[str, str | None]:
    """A request that is sent again after it failed adopts no more than was written before the failure."""
    written = args.written * (case.facts.chunk or 0)
    for outcome in again:
        twin = next((o for o in failed if o.plan.prompt_ids == outcome.plan.prompt_ids), None)
        if twin is not None and cached_of(outcome) > written:
            return (
                f"{outcome.id} adopts {cached_of(outcome)} tokens, but {twin.id}, which sent them before, "
                f"failed when {written} were written: {seen(outcome, case.lawful(outcome))}"
            ), outcome.id
    return "", None
