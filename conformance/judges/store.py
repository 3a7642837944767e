"""Judges of store/*: what is kept, and how often.

Knows the block arithmetic of store/1 to store/3 and store/6 (docs/requirements.md) and which gauges it needs.
Does not know how a target's gauges became blocks of B tokens (the dialect), nor the cached law (`law.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from conformance.history import Outcome, Sample
from conformance.judges.adopt import stored_for, unlawful
from conformance.judges.base import (
    Case,
    Finding,
    cached_of,
    gauge_reached,
    guard,
    held_together,
    in_flight_together,
    mark_ref,
    need,
    register,
    seen,
    step_ref,
    times,
)
from conformance.law import Lawful, generated_length
from conformance.spec import Name, Strict

TOLERANCE = 2
"""Blocks by which the bundled engine may stay below the store/1 bound (store/1, two-sided claim)."""


class StoredOnce(Strict):
    of: Name = step_ref()
    since: Name = mark_ref()
    slack_blocks: int = Field(0, ge=0)
    control: Name | None = step_ref(None)


@register("stored_once", "store/1", StoredOnce, of_all=True)
def stored_once(args: StoredOnce, case: Case) -> Finding:
    """Live blocks rise by no more than what each request needs beyond what it adopted (store/1)."""
    got = case.requests(args.of)
    own = own_blocks(case, got) + _newly_live(case, got)
    rise, bound = _rise_since(case, args), own + args.slack_blocks
    floor = own - TOLERANCE - _pinned_unreported(case, got) if case.facts.how == "engine" else 0
    too_much, too_little = rise > bound, rise < floor
    if too_little:
        guard(held_together(case, args.of, got), f"the requests of {args.of!r} took turns", times(got))
        guard(
            _all_held_all(case, got),
            f"one of {args.of!r} had ended before all had their last block",
            times(got),
        )
    found = Finding(
        expected=f"rise of live blocks {f'between {floor} and' if floor else 'at most'} {bound}",
        observed=[f"live blocks rose by {rise:g} during {args.of}", *_needs(case, got)],
        witness=_rise_witness(args, case, got, rise, own) if too_much or too_little else "",
        request=got[0].id if too_much or too_little else None,
    )
    if not found.witness:
        _guard_decoding(case, args.of, got)
        _guard_no_sharing(case, args.control, bound, floor)
    return found


def _all_held_all(case: Case, outcomes: Sequence[Outcome]) -> bool:
    """Whether each had begun its last block while all still ran: who ends gives an unfinished one back."""
    told = [outcome for outcome in outcomes if outcome.tokens_at]
    return not told or max(_last_block_at(case, o) for o in told) <= min(o.tokens_at[-1] for o in told)


def _last_block_at(case: Case, outcome: Outcome) -> float:
    """When a request's last block surely held a row: the token after the first that lies in it was there."""
    n, out = case.length(outcome), len(outcome.tokens_at)
    first = (n + out - 1) // case.block() * case.block() - n
    return outcome.tokens_at[min(max(first + 1, 0), out - 1)]


def own_blocks(case: Case, outcomes: Sequence[Outcome]) -> int:
    """Blocks of B tokens that these requests need beyond the blocks they adopted (the sum of store/1)."""
    return sum(need - adopted for need, adopted in (_blocks(case, outcome) for outcome in outcomes))


def _blocks(case: Case, outcome: Outcome) -> tuple[int, int]:
    tokens = case.length(outcome) + generated_length(outcome) + case.facts.lookahead
    return -(-tokens // case.block()), cached_of(outcome) // case.block()


def _pinned_unreported(case: Case, outcomes: Sequence[Outcome]) -> int:
    """Blocks that adopters may share beyond what they report, where the granule spans several blocks."""
    spare = max(0, case.granule() // case.block() - 1)
    return spare * sum(cached_of(outcome) > 0 for outcome in outcomes)


def _newly_live(case: Case, outcomes: Sequence[Outcome]) -> int:
    """Where idle cached blocks are not in the gauge, the adopted ones enter it once."""
    return 0 if case.facts.idle_blocks_live else max(map(cached_of, outcomes)) // case.block()


def _needs(case: Case, outcomes: Sequence[Outcome]) -> list[str]:
    lines = []
    for outcome in outcomes:
        total, adopted = _blocks(case, outcome)
        lines.append(f"{outcome.id}  blocks {total} - adopted {adopted} = {total - adopted}")
    return lines


def _rise_since(case: Case, args: StoredOnce) -> float:
    need(case.facts.has_stats, "the target exposes no statistics, so live blocks cannot be seen")
    return _peak(case.workload.during(args.of), case.sample_at(args.since)) - _live(
        case.sample_at(args.since)
    )


def _live(sample: Sample) -> float:
    need("live" in sample.values, f"the statistics at {sample.step!r} hold no live blocks")
    return sample.values["live"]


def _peak(samples: Sequence[Sample], base: Sample) -> float:
    """Highest live reading; the target's own peak gauge counts only if it moved since `base`.

    A gauge that stands where it stood may tell of an older peak; one that moved was reset or outdone since.
    """
    live = [s.values["live"] for s in samples if "live" in s.values]
    need(bool(live), "live blocks were not sampled during the step")
    before = base.values.get("peak_live")
    peaks = [s.values["peak_live"] for s in samples if s.values.get("peak_live", before) != before]
    return max(live + peaks)


def _rise_witness(args: StoredOnce, case: Case, got: Sequence[Outcome], rise: float, own: int) -> str:
    bound = own + args.slack_blocks
    if rise > bound:
        return (
            f"{rise - bound:g} blocks more than {len(got)} requests need that keep what they report as "
            f"adopted once: sum of ceil((n + out) / {case.block()}) - floor(cached / {case.block()}) = "
            f"{own}, slack {args.slack_blocks}; blocks reported as adopted were stored again"
        )
    return (
        f"{own - rise:g} blocks less than the requests need beyond what they report as adopted ({own}): "
        f"more was shared than reported, or live blocks are not all counted"
    )


def _guard_decoding(case: Case, step: str, got: Sequence[Outcome]) -> None:
    samples = case.workload.during(step)
    firsts = [o.first for o in got if o.first is not None]
    ends = min(o.ended for o in got)
    decoding = len(firsts) == len(got) and any(max(firsts) <= s.at <= ends for s in samples)
    reached = decoding or gauge_reached(samples, "running", len(got))
    guard(reached, f"no sample was taken while all {len(got)} requests were decoding", times(got))


def _guard_no_sharing(case: Case, step: str | None, bound: int, floor: int) -> None:
    """The control must break the bound, or the bound shows nothing; a two-sided claim needs no control."""
    if step is None:
        guard(floor > 0, "the case has no no-sharing arm (control), so the bound may hold without sharing")
        return
    case.requests(step)
    rise = _own_rise(case, step)
    guard(rise > bound, f"the no-sharing arm {step!r} rose by {rise:g} blocks, within the bound of {bound}")


def _own_rise(case: Case, step: str) -> float:
    samples, span = case.workload.during(step), case.workload.span(step)
    before = [s for s in case.workload.samples if s.arm == "main" and span and s.at <= span.start]
    base = max(before, key=lambda s: s.at, default=samples[0] if samples else None)
    need(base is not None, f"live blocks were not sampled during {step!r}")
    assert base is not None
    return _peak(samples, base) - _live(base)


class EntryIntact(Strict):
    first: Name = step_ref()
    short: Name = step_ref()
    again: Name = step_ref()
    below: Name | None = step_ref(None)


@register("entry_intact", "store/2", EntryIntact)
def entry_intact(args: EntryIntact, case: Case) -> Finding:
    """A request that shares only a short head adopts that head and leaves the long entry whole (store/2).

    `below` may name requests whose shared head is less than a granule: they adopt nothing, and harm nothing.
    """
    case.requests(args.first)
    short, again = case.requests(args.short), case.requests(args.again)
    below = case.requests(args.below) if args.below else []
    judged = [(o, case.lawful(o)) for o in (*short, *below, *again)]
    wrong = _first_unlawful(judged)
    found = Finding(
        expected=f"{args.short} adopts its head, {args.again} then adopts the whole entry again",
        observed=[seen(o, law) for o, law in judged],
        witness=_entry_witness(args, *wrong) if wrong else _live_fell(args, case),
        request=(wrong[0] if wrong else again[0]).id,
    )
    if not found.witness:
        case.granule()
        deepest = min(case.lawful(o).low for o in again)
        hit = any(0 < cached_of(o) < deepest for o in short)
        guard(
            hit,
            f"no request of {args.short!r} hit a head shorter than the entry of {deepest}",
            found.observed,
        )
    return found


def _first_unlawful(judged: Sequence[tuple[Outcome, Lawful]]) -> tuple[Outcome, Lawful] | None:
    return next(((o, law) for o, law in judged if not law.allows(cached_of(o))), None)


def _entry_witness(args: EntryIntact, outcome: Outcome, law: Lawful) -> str:
    lost = outcome.step == args.again and cached_of(outcome) < law.low
    blame = f"; {args.short} matched only its head in between, and the entry did not survive that"
    return unlawful(outcome, law) + (blame if lost else "")


def _live_fell(args: EntryIntact, case: Case) -> str:
    """Where idle blocks are counted, live must not fall over a short match; empty when it did not."""
    before, after = _between(case, args.first, args.short), _between(case, args.short, args.again)
    if not case.facts.idle_blocks_live or before is None or after is None or after >= before:
        return ""
    return f"live blocks fell from {before:g} to {after:g} over {args.short}: part of what was stored is gone"


def _between(case: Case, earlier: str, later: str) -> float | None:
    """The last reading of live blocks after one step and before another, while nothing ran; None without one.

    A request that runs still holds the tail block that it will give back.
    """
    ended = max(o.ended for o in case.requests(earlier))
    began = min(o.sent for o in case.requests(later))
    readings = [s for s in case.workload.samples if s.arm == "main" and ended <= s.at <= began]
    idle = [s for s in readings if not s.values.get("running")]
    last = max(idle, key=lambda s: s.at, default=None)
    return last.values.get("live") if last else None


class Returned(Strict):
    of: Name = step_ref()
    again: Name = step_ref()
    before: Name = mark_ref()
    after: Name = mark_ref()


@register("returned", "store/3", Returned, of_all=True)
def returned(args: Returned, case: Case) -> Finding:
    """N borrowers come and go: nothing stays referenced, only tails are added, P adopts again (store/3)."""
    borrowers, again = case.requests(args.of), case.requests(args.again)
    wrong = _first_unlawful([(o, case.lawful(o)) for o in again])
    witness = unlawful(*wrong) if wrong else _not_given_back(args, case, borrowers)
    adopted = sum(cached_of(o) > 0 for o in borrowers)
    if not witness:
        guard(adopted >= 4, f"only {adopted} of {len(borrowers)} borrowers adopted; the law asks for 4")
    return Finding(
        expected=f"{args.again} adopts lawfully; at {args.after} referenced is 0, idle grew by tails",
        observed=[
            f"{adopted} of {len(borrowers)} borrowers adopted",
            *_readings(case, args),
            *(seen(o, case.lawful(o)) for o in again),
        ],
        witness=witness,
        request=again[0].id if witness else None,
    )


def _readings(case: Case, args: Returned) -> list[str]:
    samples = [s for s in map(case.workload.at_mark, (args.before, args.after)) if s is not None]
    return [
        f"at {s.step}  referenced {_reading(s, 'referenced')}  idle {_reading(s, 'cached_idle')}"
        for s in samples
    ]


def _reading(sample: Sample, name: str) -> str:
    return f"{sample.values[name]:g}" if name in sample.values else "absent"


def _not_given_back(args: Returned, case: Case, borrowers: Sequence[Outcome]) -> str:
    before, after = case.sample_at(args.before).values, case.sample_at(args.after).values
    need("referenced" in after, "the target does not expose referenced blocks")
    if after["referenced"]:
        return (
            f"{after['referenced']:g} blocks are still referenced at {args.after}, though every request ended"
        )
    need("cached_idle" in before and "cached_idle" in after, "the target does not expose idle cached blocks")
    grown, tails = after["cached_idle"] - before["cached_idle"], own_blocks(case, borrowers)
    if grown > tails:
        return f"idle stored blocks grew by {grown:g}, but the borrowers' tails are {tails} blocks"
    return ""


class OneShot(Strict):
    of: Name = step_ref()
    again: Name = step_ref()


@register("one_shot", "store/6", OneShot)
def one_shot(args: OneShot, case: Case) -> Finding:
    """Dense storage: one borrower takes the entry, siblings prefill cold until it is back (store/6)."""
    declared = case.facts.sharing
    guard(declared == "one_shot", f"the target's storage is {declared!r}, not one-shot")
    case.granule()
    burst, again = case.requests(args.of), case.requests(args.again)
    laws = [case.lawful(o) for o in burst]
    guard(min(law.low for law in laws) > 0, "nothing was stored that the burst could have taken")
    takers = [o for o in burst if cached_of(o) > 0]
    witness, culprit = _one_shot_witness(burst, laws, takers, again, case)
    if not witness:
        guard(in_flight_together(burst), f"the requests of {args.of!r} took turns", times(burst))
    return Finding(
        expected=f"exactly one of {len(burst)} adopts, its siblings report 0; {args.again} adopts again",
        observed=[seen(o, law) for o, law in zip(burst, laws, strict=True)]
        + [f"{o.id}  cached {cached_of(o)}" for o in again],
        witness=witness,
        request=culprit,
    )


def _one_shot_witness(
    burst: Sequence[Outcome],
    laws: Sequence[Lawful],
    takers: Sequence[Outcome],
    again: Sequence[Outcome],
    case: Case,
) -> tuple[str, str | None]:
    if not takers:
        return f"none of {len(burst)} took the entry, although {stored_for(laws[0])}", burst[0].id
    if len(takers) > 1:
        return _two_takers(takers, case)
    taken = case.lawful(takers[0])
    if cached_of(takers[0]) > taken.high:
        return unlawful(takers[0], taken), takers[0].id
    missed = next((o for o in again if cached_of(o) == 0), None)
    if missed is not None:
        return (
            f"{missed.id} adopted nothing, although {takers[0].id} had ended and given the entry back",
            missed.id,
        )
    return "", None


def _two_takers(takers: Sequence[Outcome], case: Case) -> tuple[str, str]:
    first, second = sorted(takers, key=lambda o: o.ended)[:2]
    running = [s.values["running"] for s in case.workload.during(first.step) if "running" in s.values]
    # A client on a busy machine may read the end of one reply later than the start of the next.
    guard(not running or max(running) > 1, f"{first.step!r} never had two requests running: they took turns")
    # A sibling that began after the entry was given back took its turn lawfully.
    guard(
        second.first is None or second.first <= first.ended, f"{second.id} began after {first.id} had ended"
    )
    return f"{first.id} and {second.id} both adopted one entry that only one of them can hold", second.id
