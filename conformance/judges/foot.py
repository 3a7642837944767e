"""Judges of foot/1: what sharing saves in process memory.

Knows the comparison of two arms' peaks, or of a peak with a recorded one (foot/1, docs/requirements.md), and
how readings become the phases of a step. Does not know how a footprint is measured. Sizes are bytes in
histories and MiB (2^20) in arguments and messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from conformance.baseline import Comparison
from conformance.history import Memory, Outcome
from conformance.judges.base import (
    Case,
    Finding,
    Stop,
    arm_ref,
    cached_of,
    control,
    guard,
    need,
    register,
    step_ref,
)
from conformance.spec import Name, Strict
from conformance.verdict import Status

MIB = 1 << 20
SAMPLES = 20
"""Readings that a phase needs before its peak means anything (foot/1)."""
NOISE = 16
_STRAY = 20
"""One in so many prompt tokens may hit in a control that shares nothing: templates, and salts as text."""


def noise_field() -> int:
    """The argument that every judge of memory has."""
    text = "readings closer than this are one, where no baseline of this machine tells its noise"
    found: int = Field(NOISE, ge=0, description=text)
    return found


class FootprintWithin(Strict):
    of: Name = step_ref()
    control: Name = arm_ref()
    apart_mib: int = Field(0, ge=0, description="how far below the no-sharing arm the sharing arm must stay")
    apart_percent: int = Field(
        0, ge=0, le=90, description="the same as a part of what the reported reuse was due to save"
    )
    noise_mib: int = noise_field()


@dataclass(frozen=True)
class Phase:
    """One arm's footprint: at rest before the step, and its peak during it, MiB."""

    arm: str
    idle: float
    peak: float
    samples: int
    device: float | None = None

    @property
    def grown(self) -> float:
        return self.peak - self.idle

    def __str__(self) -> str:
        device = f"  on GPUs {self.device:.0f} MiB" if self.device is not None else ""
        return (
            f"{self.arm}  idle {self.idle:.0f} MiB  peak {self.peak:.0f} MiB  {self.samples} samples{device}"
        )


@register("footprint_within", "foot/1", FootprintWithin)
def footprint_within(args: FootprintWithin, case: Case) -> Finding:
    """The warm burst's peak footprint stays below the no-sharing arm's, by what sharing saves (foot/1)."""
    shared, unshared = case.requests(args.of), case.requests(args.of, args.control)
    main, other = phase(case, args.of, "main"), phase(case, args.of, args.control)
    noise = noise_mib(case, args.noise_mib)
    lines = [str(main), str(other)]
    _control_shares_nothing(args, case, unshared, lines)
    apart = max(args.apart_mib, _due(case, shared, other) * args.apart_percent / 100)
    _guard_visible(args, other, apart, noise, lines)
    return Finding(
        expected=_expected(args, apart, noise),
        observed=lines,
        witness=_too_close(args, main, other, shared, apart, noise),
        notes=(f"the arms are {other.peak - main.peak:.0f} MiB apart",),
    )


def _control_shares_nothing(
    args: FootprintWithin, case: Case, unshared: Sequence[Outcome], lines: Sequence[str]
) -> None:
    reused, prompts = sum(map(cached_of, unshared)), sum(map(case.length, unshared))
    reason = f"the arm {args.control!r} reports {reused} cached tokens, so it shares as well"
    control(reused * _STRAY <= prompts, reason, lines)


def _due(case: Case, shared: Sequence[Outcome], other: Phase) -> float:
    """What the reported reuse should save, MiB: its part of what the same burst takes without."""
    return other.grown * sum(map(cached_of, shared)) / sum(map(case.length, shared))


def _expected(args: FootprintWithin, apart: float, noise: float) -> str:
    if args.apart_mib or args.apart_percent:
        return f"peak of {args.of} at least {apart:.0f} MiB below that of the arm {args.control}"
    return f"peak of {args.of} at most that of the arm {args.control} plus {noise:.0f} MiB"


def noise_mib(case: Case, usual: int) -> float:
    """By how much equal readings differ, MiB: as the baseline of this machine tells, else as usual."""
    found = comparison(case)
    if found is None or found.elsewhere(case.facts):
        return usual
    return found.recorded.noise / MIB


def comparison(case: Case) -> Comparison | None:
    """The baseline that the run was given; None without one."""
    given = case.workload.baseline
    return Comparison.model_validate(given) if given is not None else None


def readings_of(case: Case, arm: str = "main") -> list[Memory]:
    """An arm's readings, oldest first. Stops as unobservable without any."""
    found = [m for m in case.workload.memory if m.arm == arm]
    hint = "start it with --serve, or name the process of an endpoint on this machine with --pid"
    need(bool(found), f"the footprint of the arm {arm!r} cannot be read: its process is not known ({hint})")
    return sorted(found, key=lambda m: m.at)


def phase(case: Case, step: str, arm: str = "main") -> Phase:
    """Footprint of a step in one arm. Stops as unobservable without readings, as vacuous with too few."""
    readings = readings_of(case, arm)
    spans = case.workload.spans_of(step, arm)
    during = [m for m in readings if any(s.start <= m.at <= s.end for s in spans)]
    guard(
        len(during) >= SAMPLES,
        f"{len(during)} footprint readings during {step!r} of the arm {arm!r}, not {SAMPLES}",
    )
    device = max((m.device / MIB for m in during if m.device is not None), default=None)
    peak = max(m.bytes for m in during) / MIB
    return Phase(arm, _idle(readings, min(s.start for s in spans)), peak, len(during), device)


def _idle(readings: Sequence[Memory], start: float) -> float:
    """The last reading before the phase, or the lowest there is."""
    before = [m for m in readings if m.at < start]
    rest = before[-1] if before else min(readings, key=lambda m: m.bytes)
    return rest.bytes / MIB


def _guard_visible(
    args: FootprintWithin, other: Phase, apart: float, noise: float, lines: Sequence[str]
) -> None:
    grown = f"the no-sharing arm grew by {other.grown:.0f} MiB"
    guard(other.grown > 2 * noise, f"{grown}, not more than twice the noise of {noise:.0f} MiB", lines)
    reason = f"{grown}, and {apart:.0f} MiB less of it could not be told from the noise of {noise:.0f} MiB"
    guard(not args.apart_percent or apart == 0 or apart > noise, reason, lines)


def _too_close(
    args: FootprintWithin, main: Phase, other: Phase, shared: Sequence[Outcome], due: float, noise: float
) -> str:
    apart, reported = other.peak - main.peak, sum(map(cached_of, shared))
    if apart < -noise:
        return f"the sharing arm's peak is {-apart:.0f} MiB above that of the no-sharing arm"
    wanted = args.apart_mib or args.apart_percent
    if not wanted or (due and apart >= due):
        return ""
    guard(
        reported > 0,
        f"no request of {args.of!r} reports a hit, so nothing was due to be saved",
        (str(main), str(other)),
    )
    return (
        f"{reported} prompt tokens are reported as reused, which must save at least {due:.0f} MiB, "
        f"but the peaks are only {apart:.0f} MiB apart: what was reported as shared takes memory of its own"
    )


class WithinBaseline(Strict):
    of: Name = step_ref()


@register("within_baseline", "foot/1", WithinBaseline)
def within_baseline(args: WithinBaseline, case: Case) -> Finding:
    """The step's peak footprint is at most the recorded one plus noise, on the same machine (foot/1)."""
    given = comparison(case)
    if given is None:
        reason = "no baseline was given: --record-baseline NAME keeps one, --baseline NAME compares with it"
        raise Stop(Status.NOT_RUN, reason)
    need(case.facts.how != "endpoint", "a baseline is of fresh processes, and this server ran before")
    case.requests(args.of)
    now, recorded = phase(case, args.of), given.recorded
    then = recorded.scenarios.get(case.workload.spec_id)
    need(then is not None and args.of in then.steps, f"the baseline {given.name!r} holds no {args.of!r}")
    assert then is not None
    peak, noise = then.steps[args.of] / MIB, recorded.noise / MIB
    lines = [str(now), f"{given.name}  idle {then.idle / MIB:.0f} MiB  peak {peak:.0f} MiB"]
    differs = given.elsewhere(case.facts)
    control(not differs, f"the baseline {given.name!r} is of another run: {differs}", lines)
    over = now.peak - peak - noise
    witness = f"the peak is {over + noise:.0f} MiB above the recorded one, {noise:.0f} MiB are noise"
    return Finding(
        expected=f"peak of {args.of} at most the recorded {peak:.0f} MiB plus {noise:.0f} MiB of noise",
        observed=lines,
        witness=witness if over > 0 else "",
    )
