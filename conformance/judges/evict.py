"""Judges of evict/1 to evict/4: what goes first when the pool is full, and what must not go at all.

Knows how eviction and passing tokens are counted, and the guards of these requirements
(docs/requirements.md). Does not know how pressure was made, nor the order in which a target evicts beyond
what the law says of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from conformance.history import Outcome
from conformance.judges.adopt import unlawful
from conformance.judges.base import (
    Case,
    Finding,
    cached_of,
    guard,
    mark_ref,
    need,
    register,
    seen,
    step_ref,
)
from conformance.judges.out import apart_from_solo, of_step
from conformance.law import Lawful, generated_length
from conformance.spec import Name, Strict

LONG_CHURN = 2.0
"""Pools of tokens after which at least one pool was evicted, where nobody counts evictions."""


def risen(case: Case, gauge: str, since: float, until: float) -> float | None:
    """How far a counter rose between two moments, by the readings up to each; None if it is not read."""
    readings = sorted(
        (s.at, s.values[gauge]) for s in case.workload.samples if _counts(s.arm, s.values, gauge)
    )
    before = [value for at, value in readings if at <= since]
    upto = [value for at, value in readings if at <= until]
    return upto[-1] - before[-1] if before else None


def _counts(arm: str, values: dict[str, float], gauge: str) -> bool:
    return arm == "main" and gauge in values


def pool_blocks(case: Case) -> int:
    """Blocks of the target's pool; stops as unobservable where it does not tell."""
    pool = case.facts.pool_blocks or 0
    need(pool > 0, "the target does not tell the size of its pool")
    return pool


def blocks_of(case: Case, outcomes: Sequence[Outcome]) -> int:
    """Blocks that requests took beyond what they adopted."""
    block = case.block()
    lengths = ((case.length(o) + generated_length(o), cached_of(o)) for o in outcomes)
    return sum(-(-whole // block) - cached // block for whole, cached in lengths)


def passed(case: Case, since: float, until: float) -> list[Outcome]:
    """Requests that were sent and had ended between two moments."""
    main = (o for o in case.workload.outcomes if o.arm == "main" and o.ok)
    return [o for o in main if since <= o.sent and o.ended <= until]


# ---- evict/1


class Stays(Strict):
    of: Name = step_ref()
    churn: Name = step_ref()
    within: float = Field(0.5, gt=0, le=1, description="pools that may pass between two uses")
    pools: float = Field(3.0, gt=0, description="pools of other prompts that must pass in all")


Use = tuple[Outcome, Lawful, float]
"""A use of the prefix, what it may report, and the pools that passed since the last use."""


@register("stays", "evict/1", Stays, of_all=True)
def stays(args: Stays, case: Case) -> Finding:
    """A prefix that is used again before half the pool has passed stays through three pools (evict/1).

    `of`: its uses, with requests of `churn` in between. A use that came later than that is not judged.
    """
    case.requests(args.churn)
    uses = _uses(case, case.requests(args.of))
    due = [use for use in uses if use[2] < args.within]
    lost = next(((o, law, pools) for o, law, pools in due if not law.allows(cached_of(o))), None)
    lines = [f"{seen(o, law)}  {pools:.2f} pools since its last use" for o, law, pools in uses]
    if lost is None:
        total = sum(pools for *_, pools in due)
        enough = f"{total:.2f} pools passed between uses, not {args.pools:g}"
        guard(total >= args.pools, enough, lines)
        guard(any(law.low > 0 for _, law, _ in due), "nothing was stored that a use could adopt", lines)
        _guard_evictions(case, uses, lines)
    return Finding(
        expected=f"each use within {args.within:g} pools of the last one adopts lawfully",
        observed=lines,
        witness=f"{unlawful(lost[0], lost[1])}; only {lost[2]:.2f} pools had passed" if lost else "",
        request=lost[0].id if lost else None,
    )


def _uses(case: Case, outcomes: Sequence[Outcome]) -> list[Use]:
    pool = pool_blocks(case)
    found: list[Use] = []
    for at, outcome in enumerate(outcomes):
        law = case.lawful(outcome)
        source = [o for o in case.workload.outcomes if o.id == law.lcp.source and o.arm == "main"]
        last = max((o.ended for o in (*outcomes[:at], *source)), default=outcome.sent)
        found.append((outcome, law, blocks_of(case, passed(case, last, outcome.sent)) / pool))
    return found


def _guard_evictions(case: Case, uses: Sequence[Use], lines: Sequence[str]) -> None:
    """Where evictions are not counted, the pools that passed have to do."""
    evicted = risen(case, "evictions", uses[0][0].sent, uses[-1][0].sent)
    guard(evicted is None or evicted > 0, "nothing was evicted, so nothing could be lost", lines)


# ---- evict/2


class TailFirst(Strict):
    of: Name = step_ref()
    since: Name = mark_ref()
    until: Name = mark_ref()


@register("tail_first", "evict/2", TailFirst, of_all=True)
def tail_first(args: TailFirst, case: Case) -> Finding:
    """After fewer evictions than a chain has blocks, its head is still adopted (evict/2).

    `since`: the chain is stored. `until`: others came. `of` asks for the chain again. Where evictions are not
    counted, each block that was taken may have been one.
    """
    need(case.facts.evict_unit != "entry", "the target evicts whole entries")
    again = case.requests(args.of)[0]
    law, cached, gone = case.lawful(again), cached_of(again), _evicted(args, case)
    due = (law.low - (gone + 1) * case.block()) // case.granule() * case.granule()
    line = f"{seen(again, law)}  {gone} blocks evicted, so at least {max(0, due)} are due"
    # A head that is found although its tail is gone shows the order by itself, however much may have gone.
    headed = 0 < cached < law.low
    guard(due > 0 or headed, f"{gone} evictions may have taken all {law.low} tokens of the chain", [line])
    if due <= cached <= law.high:
        need(case.facts.evict_unit == "block", "the target does not say whether it evicts by the block")
        guard(cached < law.low, "the chain is whole: nothing of it was evicted", [line])
    return Finding(
        expected=f"{args.of} adopts the head of its chain, {due} tokens at least",
        observed=[line],
        witness=_headless(again, law, gone, due),
        request=again.id if not due <= cached <= law.high else None,
    )


def _evicted(args: TailFirst, case: Case) -> int:
    """Blocks that went between the marks at most."""
    since, until = case.sample_at(args.since), case.sample_at(args.until)
    if "evictions" in since.values and "evictions" in until.values:
        return int(case.delta("evictions", args.since, args.until))
    return blocks_of(case, passed(case, since.at, until.at))


def _headless(again: Outcome, law: Lawful, gone: int, due: int) -> str:
    cached = cached_of(again)
    if cached > law.high:
        return unlawful(again, law)
    if cached >= due:
        return ""
    return (
        f"{again.id} reports {cached} cached tokens of the {law.low} that were stored, although only {gone} "
        f"blocks were evicted: the chain lost its head before its tail"
    )


# ---- evict/3


class Unrecycled(Strict):
    of: Name = step_ref()
    churn: Name = step_ref()
    fill: Name | None = step_ref(None)


def _decodes(args: Unrecycled) -> frozenset[str]:
    return frozenset({args.of, *([args.fill] if args.fill else [])})


@register("unrecycled", "evict/3", Unrecycled, solo_steps=_decodes)
def unrecycled(args: Unrecycled, case: Case) -> Finding:
    """A long decode = solo, though as many blocks as the pool has were taken meanwhile (evict/3).

    `fill`: a burst that fills the pool afterwards, each = solo: a block that stands twice in the free list
    would be given to two of them.
    """
    long, filling = case.requests(args.of), case.requests(args.fill) if args.fill else []
    apart = apart_from_solo(case, [*long, *filling])
    start, end = min(o.first if o.first is not None else o.ended for o in long), max(o.ended for o in long)
    taken = blocks_of(case, [o for o in case.requests(args.churn) if start <= o.sent and o.ended <= end])
    lines = [f"{o.id}  cached {o.cached}  first {o.first}  ended {o.ended:.3f}" for o in (*long, *filling)]
    lines.append(f"{taken} blocks were taken by {args.churn} while {args.of} decoded")
    if apart is None:
        pool = pool_blocks(case)
        guard(
            taken >= pool, f"{taken} blocks were taken during the decode, less than the pool of {pool}", lines
        )
    return Finding.about(
        apart,
        expected=f"{' and '.join([args.of, *([args.fill] if args.fill else [])])} = solo",
        observed=lines,
    )


# ---- evict/4


class Recycled(Strict):
    of: Name = step_ref()
    since: Name = mark_ref()
    until: Name = mark_ref()


@register("recycled", "evict/4", Recycled, solo_steps=of_step)
def recycled(args: Recycled, case: Case) -> Finding:
    """What was evicted and whose blocks were used again = solo; and nothing of it hits (evict/4).

    That nothing hits is asked of targets with one tier alone: elsewhere it may come back from another.
    """
    got = case.requests(args.of)
    laws = [(o, case.lawful(o)) for o in got]
    lines = [seen(o, law) for o, law in laws]
    wrong = next(((o, unlawful(o, law)) for o, law in laws if cached_of(o) > law.high), None)
    wrong = wrong or apart_from_solo(case, got)
    if wrong is None:
        _guard_recycled(args, case, lines)
        guard(all(law.low > 0 for _, law in laws), f"not all of {args.of!r} had been stored before", lines)
        wrong = next(((o, _undead(o)) for o in got if case.facts.one_tier and cached_of(o)), None)
    return Finding.about(
        wrong,
        expected=f"{args.of} = solo" + (" and adopts nothing" if case.facts.one_tier else ""),
        observed=lines,
    )


def _undead(outcome: Outcome) -> str:
    return (
        f"{outcome.id} reports {cached_of(outcome)} cached tokens, although more than the whole pool was "
        f"evicted since they were stored: their blocks belong to others by now"
    )


def _guard_recycled(args: Recycled, case: Case, lines: Sequence[str]) -> None:
    since, until, pool = case.sample_at(args.since), case.sample_at(args.until), pool_blocks(case)
    if "evictions" in since.values and "evictions" in until.values:
        gone = case.delta("evictions", args.since, args.until)
        guard(gone >= pool, f"{gone:g} blocks were evicted, less than the pool of {pool}", lines)
        return
    through = blocks_of(case, passed(case, since.at, until.at)) / pool
    guard(through >= LONG_CHURN, f"{through:.2f} pools passed, and evictions are not counted", lines)
