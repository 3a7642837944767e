"""Judges of foot/2 to foot/4: what a process holds while its store grows, after a release, after a reset.

Knows how a footprint at one mark compares with one at another, and what the store's own figures explain of
the difference (docs/requirements.md). Does not know how a footprint is measured (`footprint.py`), nor what
sharing saves (`foot.py`). Sizes are bytes in histories and MiB (2^20) in arguments and messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from conformance.history import Memory
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
    step_ref,
)
from conformance.judges.foot import MIB, noise_field, noise_mib, phase, readings_of
from conformance.spec import Name, Strict
from conformance.verdict import Status

KEPT = ("bytes_reserved", "bytes_in_use")
"""Gauges of what a store holds: what it took from the system, else what is written."""
STEADY = 0.15
"""By what part a pool that is called steady may still grow (foot/3)."""


def at_mark(case: Case, mark: str) -> float:
    """The footprint that a mark read, MiB. Stops as unobservable without, or with the workload's trouble."""
    found = [m for m in readings_of(case) if m.step == mark]
    if not found and case.workload.trouble:
        raise Stop(Status.ERROR, case.workload.trouble)
    need(bool(found), f"no footprint was read at the mark {mark!r}")
    return found[0].bytes / MIB


def peak_between(case: Case, before: str, after: str) -> float:
    """The highest footprint between two marks, MiB."""
    readings = readings_of(case)
    start, end = (_first(readings, mark).at for mark in (before, after))
    return max(m.bytes for m in readings if start <= m.at <= end) / MIB


def _first(readings: Sequence[Memory], mark: str) -> Memory:
    return next(m for m in readings if m.step == mark)


class FootprintReturned(Strict):
    of: Name = step_ref()
    before: Name = mark_ref()
    after: Name = mark_ref()
    noise_mib: int = noise_field()


@register("footprint_returned", "foot/2", FootprintReturned)
def footprint_returned(args: FootprintReturned, case: Case) -> Finding:
    """After a step the process holds what it held before, and what the store says it keeps (foot/2)."""
    case.requests(args.of)
    noise = noise_mib(case, args.noise_mib)
    before, after = at_mark(case, args.before), at_mark(case, args.after)
    kept, gauge = _kept(case, args)
    peak = peak_between(case, args.before, args.after)
    left = after - before - max(kept, 0.0)
    lines = [
        f"{args.before}  {before:.0f} MiB  peak {peak:.0f} MiB  {args.after}  {after:.0f} MiB",
        f"{gauge}  {kept:+.0f} MiB",
    ]
    if left <= noise:
        grown = f"{args.of!r} took {peak - before:.0f} MiB"
        guard(peak - before > 2 * noise, f"{grown}, not more than twice the noise of {noise:.0f} MiB", lines)
    return Finding(
        expected=f"{args.after} at most {args.before} plus what the store keeps and {noise:.0f} MiB of noise",
        observed=lines,
        witness=_left_over(left, kept) if left > noise else "",
    )


def _kept(case: Case, args: FootprintReturned) -> tuple[float, str]:
    """By how much what the store holds rose, MiB, and the gauge that says so."""
    before, after = case.mark(args.before), case.mark(args.after)
    gauge = next((name for name in KEPT if name in before and name in after), None)
    need(gauge is not None, f"the target does not expose {' or '.join(KEPT)}")
    assert gauge is not None
    return (after[gauge] - before[gauge]) / MIB, gauge


def _left_over(left: float, kept: float) -> str:
    return (
        f"every request has ended and the store says that it keeps {kept:.0f} MiB more, "
        f"but {left:.0f} MiB beyond that were not given back"
    )


class FootprintReset(Strict):
    reset: Name = Field(description="the named reset", json_schema_extra={"ref": "step"})
    warm: Name = step_ref()
    base: Name = mark_ref()
    before: Name = mark_ref()
    after: Name = mark_ref()
    percent: int = Field(15, ge=0, le=50, description="what part of the growth may stay")
    noise_mib: int = noise_field()


@register("footprint_reset", "foot/4", FootprintReset)
def footprint_reset(args: FootprintReset, case: Case) -> Finding:
    """After a reset that says done the process holds about what it did before the cache filled (foot/4)."""
    _guard_reset(args, case)
    noise = noise_mib(case, args.noise_mib)
    base, before, after = (at_mark(case, mark) for mark in (args.base, args.before, args.after))
    grown, left = before - base, after - base
    lines = [f"{args.base} {base:.0f} MiB  {args.before} {before:.0f} MiB  {args.after} {after:.0f} MiB"]
    reason = f"the cache grew by {grown:.0f} MiB, not more than twice the noise of {noise:.0f} MiB"
    guard(grown > 2 * noise, reason, lines)
    bound = max(noise, grown * args.percent / 100)
    witness = f"of {grown:.0f} MiB that the cache took, {left:.0f} MiB stayed after the reset that said done"
    return Finding(
        expected=f"{args.after} at most {bound:.0f} MiB above {args.base}",
        observed=lines,
        witness=witness if left > bound else "",
    )


def _guard_reset(args: FootprintReset, case: Case) -> None:
    """Warm before, and the reset was done: one that was refused promised nothing."""
    warm = case.requests(args.warm)
    guard(any(cached_of(o) > 0 for o in warm), f"no request of {args.warm!r} hit: nothing was cached")
    done = case.detail(args.reset).get("done")
    need(done is not None, "the target does not say whether a reset was done")
    guard(bool(done), f"the reset {args.reset!r} was refused")


class GrownInPlace(Strict):
    of: Name = step_ref()
    steady: Name = step_ref()
    percent: int = Field(15, ge=0, description="by how much the growing pool may exceed the steady one")
    noise_mib: int = noise_field()


@register("grown_in_place", "foot/3", GrownInPlace)
def grown_in_place(args: GrownInPlace, case: Case) -> Finding:
    """While the pool grows the peak is at most 1.15 times the need once it stands still (foot/3).

    `steady` does the same as `of` once more, in a pool that has its size by then: what it takes is the need.
    """
    case.requests(args.of), case.requests(args.steady)
    noise = noise_mib(case, args.noise_mib)
    first, second = phase(case, args.of), phase(case, args.steady)
    idle, lines = first.idle, [f"growing: {first}", f"steady: {second}"]
    settled, needed = second.idle - idle, second.peak - idle
    reason = f"the pool grew by {settled:.0f} MiB, not more than twice the noise of {noise:.0f} MiB"
    guard(settled > 2 * noise, reason, lines)
    bound = idle + needed * (1 + args.percent / 100) + noise
    over = first.peak > bound
    if not over:
        still = needed - settled <= max(noise, STEADY * settled)
        control(still, f"the pool went on growing in {args.steady!r}, so it never was steady", lines)
    witness = (
        f"while the pool grew the peak was {first.grown:.0f} MiB above idle, {first.grown / needed:.2f} times"
        f" the {needed:.0f} MiB that it needs once it stands still"
    )
    return Finding(
        expected=f"peak of {args.of} at most {bound:.0f} MiB: {100 + args.percent} % of the steady need",
        observed=lines,
        witness=witness if over else "",
    )
