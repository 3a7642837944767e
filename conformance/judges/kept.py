"""Judges of store/4, store/5, store/7, store/8 and store/9: what stays stored when requests have gone.

Knows how many different blocks a set of prompts and replies holds, and which gauges show what is kept
(docs/requirements.md). Does not know how a target names or finds its blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import Field

from conformance.history import Outcome, Sample
from conformance.judges.adopt import unlawful
from conformance.judges.base import (
    Case,
    Finding,
    below_zero,
    cached_of,
    guard,
    in_flight_together,
    is_hit,
    mark_ref,
    need,
    register,
    seen,
    step_ref,
    times,
)
from conformance.judges.chosen import need_exact
from conformance.judges.out import (
    cold_equals_cold,
    compare,
    effective_grade,
    guard_distinct,
    of_step,
    solo_of,
)
from conformance.judges.store import own_blocks
from conformance.law import common_prefix, generated_length
from conformance.spec import Name, Strict

Chain = tuple[object, ...]


class KeptOnce(Strict):
    of: Name = step_ref()
    again: Name = step_ref()
    since: Name = mark_ref()
    until: Name = mark_ref()
    slack_blocks: int = Field(0, ge=0)
    control: Name | None = step_ref(None)


@register("kept_once", "store/4", KeptOnce, of_all=True)
def kept_once(args: KeptOnce, case: Case) -> Finding:
    """Entries that branch from one prefix, stored one after another, keep it once (store/4).

    `again` sends the prompts once more and must find each of them; `control` stored them under private salts.
    """
    got = case.requests(args.of)
    low, high = _bounds(case, got, args.slack_blocks)
    rise = _kept(case, case.sample_at(args.until)) - _kept(case, case.sample_at(args.since))
    if low <= rise <= high:
        _guard_stored(case, args, got)
        _guard_control(case, args.control, got, high)
    return Finding(
        expected=f"kept blocks rise by {_span(low, high)}",
        observed=[f"kept blocks rose by {rise:g} over {args.of}", *_sizes(case, got)],
        witness=_kept_witness(rise, low, high, len(got)),
        request=None if low <= rise <= high else got[-1].id,
    )


def _bounds(case: Case, got: Sequence[Outcome], slack: int) -> tuple[int, int]:
    """Blocks that must and that may be kept for these requests; the lower one on the bundled engine alone."""
    whole, parts = _new_blocks(case, got, tails=False), _new_blocks(case, got, tails=True)
    if whole is None or parts is None:
        return 0, own_blocks(case, got) + slack
    return (whole if case.facts.how == "engine" else 0), parts + slack


def _new_blocks(case: Case, got: Sequence[Outcome], tails: bool) -> int | None:
    """Different blocks of these requests that no earlier one of their identity stored; None without ids."""
    earlier = [o for o in case.workload.outcomes if o.arm == "main" and o.ended <= got[0].sent and o.ok]
    if any(o.plan.prompt_ids is None or o.token_ids is None for o in got):
        return None
    known = {key for o in earlier for key in _blocks_of(case, o, tails)}
    return len({key for o in got for key in _blocks_of(case, o, tails)} - known)


def _blocks_of(case: Case, outcome: Outcome, tails: bool) -> Iterable[Chain]:
    """A key for each block of prompt and reply: equal exactly where all tokens up to its end are."""
    tokens, size = _stored_tokens(case, outcome, tails), case.block()
    key: Chain = (outcome.plan.salt, outcome.plan.adapter)
    for at in range(0, len(tokens) if tails else len(tokens) - size + 1, size):
        key = (hash(key), *tokens[at : at + size])
        yield key


def _stored_tokens(case: Case, outcome: Outcome, tails: bool) -> list[int]:
    """What may be stored (with tails), and what certainly is: the last generated token is never fed back."""
    prompt, reply = outcome.plan.prompt_ids or [], outcome.token_ids or []
    if tails:
        return [*prompt, *reply]
    return [*prompt, *(reply[:-1] if case.facts.generated_reusable else [])]


def _kept(case: Case, sample: Sample) -> float:
    """Blocks that hold something, idle cached ones included."""
    values = sample.values
    need("live" in values, f"the statistics at {sample.step!r} hold no live blocks")
    if case.facts.idle_blocks_live:
        return values["live"]
    need("cached_idle" in values, "live blocks leave out idle ones, and those are not exposed")
    return values["live"] + values["cached_idle"]


def _span(low: int, high: int) -> str:
    return f"{low} to {high}" if low else f"at most {high}"


def _sizes(case: Case, got: Sequence[Outcome]) -> list[str]:
    return [
        f"{o.id}  n {case.length(o)} + {generated_length(o)} generated  cached {o.cached}  salt {o.plan.salt}"
        for o in got
    ]


def _kept_witness(rise: float, low: int, high: int, count: int) -> str:
    if rise > high:
        return (
            f"{rise - high:g} blocks more are kept than the different blocks of {count} requests: "
            "tokens that they share are stored more than once"
        )
    if rise < low:
        return f"{low - rise:g} blocks of {count} requests are not kept, although all of them ended well"
    return ""


def _guard_stored(case: Case, args: KeptOnce, got: Sequence[Outcome]) -> None:
    again = case.requests(args.again)
    guard(len(again) >= len(got), f"{len(again)} of {len(got)} prompts were sent again")
    lost = next((o for o in again if not case.lawful(o).low <= cached_of(o)), None)
    lines = [seen(o, case.lawful(o)) for o in again]
    guard(lost is None, f"{lost.id if lost else ''} did not find its prompt, so not all were stored", lines)
    case.granule()
    guard(min(case.lawful(o).low for o in again) > 0, "no prompt has a whole granule to be found by", lines)


def _guard_control(case: Case, step: str | None, got: Sequence[Outcome], high: int) -> None:
    """What is not shared must break the bound; on the bundled engine the claim has two sides already."""
    if step is None:
        guard(case.facts.how == "engine", "the case has no no-sharing arm (control)")
        return
    rise = _idle_rise(case, case.requests(step))
    guard(
        rise > high,
        f"the no-sharing arm {step!r} keeps {rise:g} blocks, within the bound of {high}",
        [got[0].id],
    )


def _idle_rise(case: Case, got: Sequence[Outcome]) -> float:
    """Rise of kept blocks over a step, from the last idle reading before it to the last before another."""
    start, end = min(o.sent for o in got), max(o.ended for o in got)
    later = [o.sent for o in case.workload.outcomes if o.arm == "main" and o.sent > end]
    idle = [s for s in case.workload.samples if s.arm == "main" and not s.values.get("running")]
    before = [s for s in idle if s.at <= start]
    after = [s for s in idle if end <= s.at <= min(later, default=s.at)]
    need(bool(before and after), "no statistics were read before and after the no-sharing arm")
    return _kept(case, max(after, key=lambda s: s.at)) - _kept(case, max(before, key=lambda s: s.at))


class TwinsOnce(Strict):
    of: Name = step_ref()
    since: Name = mark_ref()
    until: Name = mark_ref()
    slack_blocks: int = Field(0, ge=0)


@register("twins_once", "store/9", TwinsOnce, of_all=True)
def twins_once(args: TwinsOnce, case: Case) -> Finding:
    """Simultaneous identical cold prompts, computed more than once, end stored once (store/9)."""
    got, block = case.requests(args.of), case.block()
    guard(len({o.plan.key for o in got}) == 1, f"the requests of {args.of!r} are not identical")
    low, high = _bounds(case, got, args.slack_blocks)
    rise = _kept(case, case.sample_at(args.until)) - _kept(case, case.sample_at(args.since))
    if low <= rise <= high:
        both = sum(case.length(o) // block * block - cached_of(o) >= block for o in got)
        guard(both > 1, f"{both} of {len(got)} computed a whole block, so nothing was computed twice")
        guard(in_flight_together(got), f"the requests of {args.of!r} took turns", times(got))
    return Finding(
        expected=f"kept blocks rise by {_span(low, high)}, as for one request",
        observed=[f"kept blocks rose by {rise:g} over {args.of}", *_sizes(case, got)],
        witness=_kept_witness(rise, low, high, len(got)),
        request=None if low <= rise <= high else got[-1].id,
    )


class Branches(Strict):
    of: Name = step_ref()


@register("branches", "store/5", Branches, solo_steps=of_step)
def branches(args: Branches, case: Case) -> Finding:
    """Requests that part inside a partly filled block write none that others read: each = solo (store/5)."""
    got = case.requests(args.of)
    solos = [solo_of(case, o) for o in got]
    need_exact(case, got)
    grade = effective_grade(case, [*got, *solos], "target")
    found = [compare(case, grade, o, solo) for o, solo in zip(got, solos, strict=True)]
    wrong = next(((o, d) for o, d in zip(got, found, strict=True) if d), None)
    if wrong is not None:
        cold_equals_cold(case, got, grade)
    else:
        need(case.block() > 1, "a block of one token is never partly filled")
        guard_distinct(got, solos)
        guard(in_flight_together(got), f"the branches of {args.of!r} took turns", times(got))
        _guard_inside_block(case, got)
    return Finding(
        expected=f"each of {len(got)} branches = its solo run, grade {grade}",
        observed=[
            f"{o.id}  cached {o.cached}  {d.text if d else 'equal'}" for o, d in zip(got, found, strict=True)
        ],
        witness=f"{wrong[0].id} parts from its solo run: {wrong[1].text}; rows that it shares with its "
        f"{len(got) - 1} siblings are not what it wrote"
        if wrong
        else "",
        request=wrong[0].id if wrong else None,
    )


def _guard_inside_block(case: Case, got: Sequence[Outcome]) -> None:
    """At least two branches must part where a block is partly filled, and share something before it."""
    ids = [o.plan.prompt_ids for o in got]
    need(all(ids), "the prompts are text, so where they part in a block is not known")
    block, first = case.block(), ids[0] or []
    parts = [common_prefix(first, other or []) for other in ids[1:]]
    inside = any(at % block for at in parts)
    guard(inside, f"the branches part after {parts} tokens, at the edge of a block of {block}")
    guard(any(is_hit(o) for o in got), f"no branch of {got[0].step!r} adopted anything")


class Declined(Strict):
    of: Name = step_ref()
    again: Name = step_ref()
    since: Name = mark_ref()
    until: Name = mark_ref()


@register("declined", "store/7", Declined, solo_steps=of_step)
def declined(args: Declined, case: Case) -> Finding:
    """What cannot be cloned declines to a cold prefill, counted; the entry stays as it was (store/7)."""
    got, again = case.requests(args.of), case.requests(args.again)
    laws = [case.lawful(o) for o in got]
    due = min(law.low for law in laws)
    guard(due > 0, "nothing was stored that the requests could have been offered")
    missed = case.delta("missed_requests", args.since, args.until)
    reasons = {str((o.trace or {}).get("missed")) for o in got}
    witness, culprit = _declined_witness(case, got, again, missed)
    return Finding(
        expected=f"{args.of} computes all of it and is counted as missed; {args.again} adopts as before",
        observed=[
            *map(seen, got, laws),
            f"missed requests rose by {missed:g}, reasons {', '.join(sorted(reasons))}",
            *(seen(o, case.lawful(o)) for o in again),
        ],
        witness=witness,
        request=culprit,
    )


def _declined_witness(
    case: Case, got: Sequence[Outcome], again: Sequence[Outcome], missed: float
) -> tuple[str, str | None]:
    taker = next((o for o in got if cached_of(o) > 0), None)
    if taker is not None:
        return (
            f"{taker.id} cannot be served from stored rows, but reports {cached_of(taker)} cached",
            taker.id,
        )
    if (wrong := below_zero(got)) is not None:
        return wrong[0], wrong[1].id
    harmed = next((o for o in again if not case.lawful(o).allows(cached_of(o))), None)
    if harmed is not None:
        return f"{unlawful(harmed, case.lawful(harmed))}; {got[0].id} was declined in between", harmed.id
    if missed < len(got):
        return f"{len(got)} requests declined what was stored, {missed:g} are counted as missed", got[0].id
    return "", None


class IndexBounded(Strict):
    of: Name = step_ref()
    pools: float = Field(3, gt=0, description="so many pools of unique prompts must have passed")


@register("index_bounded", "store/8", IndexBounded, of_all=True)
def index_bounded(args: IndexBounded, case: Case) -> Finding:
    """The index never holds more entries than there are blocks, however many prompts pass (store/8)."""
    got, block = case.requests(args.of), case.block()
    readings = [s for s in case.workload.during(args.of) if "index_entries" in s.values]
    need(bool(readings), "the target does not expose the size of its index")
    blocks = [s.values.get("total", case.facts.pool_blocks or 0) for s in readings]
    need(min(blocks) > 0, "the target does not tell how many blocks it has")
    over = next((s for s, n in zip(readings, blocks, strict=True) if s.values["index_entries"] > n), None)
    passed = sum(case.length(o) - cached_of(o) for o in got) / (block * blocks[0])
    most = max(s.values["index_entries"] for s in readings)
    lines = [f"{passed:.1f} pools passed", f"at most {most:g} entries in {len(readings)} readings"]
    if over is None:
        guard(
            passed >= args.pools,
            f"only {passed:.1f} pools of prompts passed, {args.pools:g} are asked for",
            lines,
        )
    return Finding(
        expected=f"index entries <= {blocks[0]:g} blocks",
        observed=lines,
        witness=f"{over.values['index_entries']:g} entries name {blocks[0]:g} blocks: those of recycled "
        f"blocks are still there after {_sent_by(got, over)} of {len(got)} prompts"
        if over
        else "",
        request=got[_sent_by(got, over) - 1].id if over else None,
    )


def _sent_by(got: Sequence[Outcome], sample: Sample) -> int:
    return max(1, sum(o.sent <= sample.at for o in got))
