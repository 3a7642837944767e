"""Judges of foot/*: what sharing saves in process memory.

Knows the comparison of two arms' peaks of foot/1 (docs/requirements.md). Does not know how a footprint is
measured. Sizes are bytes in histories and MiB (2^20) in arguments and messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from conformance.history import Memory, Outcome
from conformance.judges.base import (
    Case,
    Finding,
    arm_ref,
    cached_of,
    control,
    guard,
    need,
    register,
    step_ref,
)
from conformance.spec import Name, Strict

MIB = 1 << 20
SAMPLES = 20
"""Readings that a phase needs before its peak means anything (foot/1)."""


class FootprintWithin(Strict):
    of: Name = step_ref()
    control: Name = arm_ref()
    apart_mib: int = Field(0, ge=0, description="how far below the no-sharing arm the sharing arm must stay")
    noise_mib: int = Field(16, ge=0, description="readings closer than this are one")


@dataclass(frozen=True)
class Phase:
    """One arm's footprint: at rest before the step, and its peak during it, MiB."""

    arm: str
    idle: float
    peak: float
    samples: int

    def __str__(self) -> str:
        return f"{self.arm}  idle {self.idle:.0f} MiB  peak {self.peak:.0f} MiB  {self.samples} samples"


@register("footprint_within", "foot/1", FootprintWithin)
def footprint_within(args: FootprintWithin, case: Case) -> Finding:
    """The warm burst's peak footprint stays below the no-sharing arm's, by what sharing saves (foot/1)."""
    shared, unshared = case.requests(args.of), case.requests(args.of, args.control)
    main, other = phase(case, args.of, "main"), phase(case, args.of, args.control)
    lines = [str(main), str(other)]
    reused = sum(map(cached_of, unshared))
    control(
        reused == 0, f"the arm {args.control!r} reports {reused} cached tokens, so it shares as well", lines
    )
    _guard_visible(args, main, other, lines)
    return Finding(
        expected=_expected(args),
        observed=lines,
        witness=_too_close(args, main, other, shared),
        notes=(f"the arms are {other.peak - main.peak:.0f} MiB apart",),
    )


def _expected(args: FootprintWithin) -> str:
    if args.apart_mib:
        return f"peak of {args.of} at least {args.apart_mib} MiB below that of the arm {args.control}"
    return f"peak of {args.of} at most that of the arm {args.control} plus {args.noise_mib} MiB"


def phase(case: Case, step: str, arm: str) -> Phase:
    """Footprint of a step in one arm. Stops as unobservable without readings, as vacuous with too few."""
    readings = [m for m in case.workload.memory if m.arm == arm]
    need(bool(readings), f"the footprint of the arm {arm!r} cannot be read: its process is not known")
    span = case.workload.span(step, arm)
    start, end = (span.start, span.end) if span else (0.0, 0.0)
    during = [m.bytes / MIB for m in readings if start <= m.at <= end]
    guard(
        len(during) >= SAMPLES,
        f"{len(during)} footprint readings during {step!r} of the arm {arm!r}, not {SAMPLES}",
    )
    return Phase(arm, _idle(readings, start), max(during), len(during))


def _idle(readings: Sequence[Memory], start: float) -> float:
    """The last reading before the phase, or the lowest there is."""
    before = [m for m in readings if m.at < start]
    rest = max(before, key=lambda m: m.at) if before else min(readings, key=lambda m: m.bytes)
    return rest.bytes / MIB


def _guard_visible(args: FootprintWithin, main: Phase, other: Phase, lines: Sequence[str]) -> None:
    grown = other.peak - other.idle
    reason = (
        f"the no-sharing arm grew by {grown:.0f} MiB, not more than twice the noise of {args.noise_mib} MiB"
    )
    guard(grown > 2 * args.noise_mib, reason, lines)


def _too_close(args: FootprintWithin, main: Phase, other: Phase, shared: Sequence[Outcome]) -> str:
    apart, reported = other.peak - main.peak, sum(map(cached_of, shared))
    if apart < -args.noise_mib:
        return f"the sharing arm's peak is {-apart:.0f} MiB above that of the no-sharing arm"
    if not args.apart_mib or apart >= args.apart_mib:
        return ""
    guard(
        reported > 0,
        f"no request of {args.of!r} reports a hit, so nothing was due to be saved",
        (str(main), str(other)),
    )
    return (
        f"{reported} prompt tokens are reported as reused, which must save at least {args.apart_mib} MiB, "
        f"but the peaks are only {apart:.0f} MiB apart: what was reported as shared takes memory of its own"
    )
