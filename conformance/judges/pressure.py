"""Judges of evict/5 to evict/8: what a target owes its clients when it has less room than they ask for.

Knows the bounds of these requirements on size and time, and their guards (docs/requirements.md). Does not
know how room is made, or in what order.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from conformance.history import Outcome, Sample
from conformance.judges.base import (
    Case,
    Finding,
    cached_of,
    guard,
    in_flight_together,
    mark_ref,
    need,
    register,
    step_ref,
    times,
)
from conformance.judges.beside import FLOOR_SECONDS, present
from conformance.judges.evict import pool_blocks, risen
from conformance.judges.life import how_it_ended
from conformance.judges.out import apart_from_solo, of_step, solo_of
from conformance.law import generated_length
from conformance.spec import Name, Strict

BUDGETS = {"bytes_in_use": "bytes_budget", "live": "total"}
"""Gauges of what is resident, and of what it must stay within."""
SPARE_SECONDS = 10.0
RATIO = 3.0


# ---- evict/5


class InBudget(Strict):
    churn: Name = step_ref()


@register("in_budget", "evict/5", InBudget)
def in_budget(args: InBudget, case: Case) -> Finding:
    """What is resident never exceeds the declared budget, while more than a pool passes (evict/5)."""
    case.requests(args.churn)
    readings = [s for s in case.workload.samples if s.arm == "main"]
    told = [name for name, most in BUDGETS.items() if any({name, most} <= s.values.keys() for s in readings)]
    need(bool(told), "the target declares no budget, or does not tell what is resident")
    over = next(((s, name) for name in told for s in readings if _over(s, name) > 0), None)
    lines = [
        f"{name}  at most {_most(readings, name):g} of {_most(readings, BUDGETS[name]):g}" for name in told
    ]
    if over is None:
        tokens = case.detail(args.churn).get("tokens", 0)
        pool = pool_blocks(case) * case.block()
        guard(tokens > pool, f"{tokens} tokens passed, which a pool of {pool} can bear", lines)
    return Finding(
        expected=f"{', '.join(told)} within {', '.join(BUDGETS[name] for name in told)} in every reading",
        observed=lines,
        witness=_overrun(*over) if over else "",
    )


def _over(reading: Sample, name: str) -> float:
    values = reading.values
    return values.get(name, 0) - values.get(BUDGETS[name], float("inf"))


def _most(readings: Sequence[Sample], name: str) -> float:
    return max(s.values[name] for s in readings if name in s.values)


def _overrun(reading: Sample, name: str) -> str:
    return (
        f"{name} is {reading.values[name]:g} at {reading.at:.3f} s (during {reading.step}), "
        f"{_over(reading, name):g} over the declared {BUDGETS[name]}"
    )


class NoGrowth(Strict):
    of: Name = step_ref()
    since: Name = mark_ref()
    until: Name = mark_ref()
    least: int = Field(35, ge=2, description="repeats that must have run between the marks")


@register("no_growth", "evict/5", NoGrowth, of_all=True)
def no_growth(args: NoGrowth, case: Case) -> Finding:
    """Repeats of one prompt grow what is resident by less than a block each (evict/5)."""
    got = case.requests(args.of)
    since, until = case.sample_at(args.since), case.sample_at(args.until)
    gauge = next((name for name in BUDGETS if {name} <= since.values.keys() & until.values.keys()), None)
    need(gauge is not None, "the target does not tell what is resident")
    grew = case.delta(str(gauge), args.since, args.until)
    unit = 1 if gauge == "live" else case.facts.bytes_per_block or 0
    need(unit > 0, "the target does not tell the size of a block")
    blocks, line = grew / unit, f"{gauge}  {grew:+g} over {len(got)} repeats: {grew / unit:g} blocks"
    if blocks < len(got):
        _guard_repeats(args, case, got, since.at, until.at)
    return Finding(
        expected=f"less than {len(got)} blocks more after {len(got)} repeats",
        observed=[line],
        witness=_grew(got, blocks) if blocks >= len(got) else "",
        request=got[-1].id if blocks >= len(got) else None,
    )


def _guard_repeats(args: NoGrowth, case: Case, got: Sequence[Outcome], since: float, until: float) -> None:
    guard(len({o.plan.key for o in got}) == 1, f"{args.of!r} does not send one prompt again and again")
    guard(len(got) >= args.least, f"{len(got)} repeats, {args.least} are asked for")
    inside = all(since <= o.sent and o.ended <= until for o in got)
    guard(inside, f"not all of {args.of!r} ran between {args.since!r} and {args.until!r}")
    guard(any(cached_of(o) > 0 for o in got), "no repeat hits, so a cache that is off would pass")


def _grew(got: Sequence[Outcome], blocks: float) -> str:
    return (
        f"{len(got)} repeats of one prompt added {blocks:g} blocks, {blocks / len(got):.2f} each: every "
        f"repeat was stored once more"
    )


# ---- evict/6


class AllEnd(Strict):
    of: Name = step_ref()


@register("all_end", "evict/6", AllEnd, solo_steps=of_step)
def all_end(args: AllEnd, case: Case) -> Finding:
    """Under pressure every request ends in time, by a reply or an explicit refusal (evict/6)."""
    got = present(case, args.of)
    bad = next((o for o in got if not (o.ok or o.rejected)), None)
    lines = [f"{line}  {how_it_ended(o)}" for line, o in zip(times(got), got, strict=True)]
    if bad is not None:
        witness = (
            f"{bad.id} came to neither a reply nor a refusal: {how_it_ended(bad)}, {bad.error or bad.status}"
        )
        return Finding("every request ends, by a reply or an explicit refusal", lines, witness, bad.id)
    alone = sum(o.ended - o.sent for o in (solo_of(case, o) for o in got))
    bound = RATIO * alone + SPARE_SECONDS
    late = next((o for o in got if o.ended - o.sent > bound), None)
    if late is None:
        _guard_pressure(args, case, got, lines)
    return Finding(
        expected=f"each ends within {RATIO:g} x {alone:.3f} s alone + {SPARE_SECONDS:g} s = {bound:.3f} s",
        observed=lines,
        witness=f"{late.id} took {late.ended - late.sent:.3f} s, over the bound of {bound:.3f} s"
        if late
        else "",
        request=late.id if late else None,
    )


def _guard_pressure(args: AllEnd, case: Case, got: Sequence[Outcome], lines: Sequence[str]) -> None:
    pool, block = pool_blocks(case), case.block()
    wanted = sum(-(-(case.length(o) + o.plan.max_tokens) // block) for o in got)
    guard(wanted > pool, f"{args.of!r} needs {wanted} blocks, which a pool of {pool} can bear", lines)
    guard(in_flight_together(got), f"the requests of {args.of!r} were not in flight together", lines)


class RefusedAtOnce(Strict):
    of: Name = step_ref()
    control: Name = step_ref()


@register("refused_at_once", "evict/6", RefusedAtOnce)
def refused_at_once(args: RefusedAtOnce, case: Case) -> Finding:
    """A prompt above the whole budget is refused at once, and says so (evict/6).

    `control`: an ordinary request. A refusal may take three times as long, and at least two seconds.
    """
    got, ordinary = present(case, args.of), case.requests(args.control)
    bound = max(RATIO * max(o.ended - o.sent for o in ordinary), FLOOR_SECONDS)
    wrong = next(((o, w) for o in got if (w := _not_refused(o, bound))), None)
    lines = [f"{line}  {how_it_ended(o)}" for line, o in zip(times(got), got, strict=True)]
    pool = pool_blocks(case) * case.block()
    small = next((o for o in got if len(o.plan.prompt_ids or []) <= pool), None)
    guard(
        small is None, f"{small.id if small else ''} is not known to exceed the pool of {pool} tokens", lines
    )
    return Finding.about(
        wrong,
        expected=f"a refusal within {bound:.3f} s",
        observed=lines,
    )


def _not_refused(outcome: Outcome, bound: float) -> str:
    if not outcome.rejected:
        return f"{outcome.id}, which can never fit, was not refused: {how_it_ended(outcome)}, {outcome.error}"
    took = outcome.ended - outcome.sent
    return (
        f"{outcome.id} was refused after {took:.3f} s, over the bound of {bound:.3f} s"
        if took > bound
        else ""
    )


# ---- evict/7


class Resumed(Strict):
    of: Name = step_ref()
    since: Name = mark_ref()
    until: Name = mark_ref()


@register("resumed", "evict/7", Resumed, solo_steps=of_step)
def resumed(args: Resumed, case: Case) -> Finding:
    """Requests that were preempted = solo, with no token lost or repeated, and usage as solo (evict/7)."""
    got = case.requests(args.of)
    wrong = next(((o, w) for o in got if (w := _usage_parts(o, solo_of(case, o)))), None)
    wrong = wrong or apart_from_solo(case, got)
    wrong = wrong or next(((o, w) for o in got if (w := _found_itself(case, o))), None)
    lines = [f"{o.id}  {_tokens(o)}  preempted {_preempted(o)}" for o in got]
    if wrong is None:
        rise = case.delta("preemptions", args.since, args.until)
        guard(rise >= 1, "no request was preempted", lines)
    return Finding.about(
        wrong,
        expected=f"each of {len(got)} replies = solo, and so is its usage",
        observed=lines,
    )


def _tokens(outcome: Outcome) -> str:
    return f"prompt {outcome.prompt_tokens}  completion {outcome.completion_tokens}"


def _preempted(outcome: Outcome) -> str:
    return "unknown" if outcome.trace is None else f"{outcome.trace.get('preemptions', 0)} times"


def _usage_parts(outcome: Outcome, solo: Outcome) -> str:
    came, alone = generated_length(outcome), generated_length(solo)
    if came != alone:
        return f"{came} tokens of {outcome.id} came, alone {alone}: {_lost_or_repeated(outcome, solo)}"
    for name in ("prompt_tokens", "completion_tokens"):
        mine, theirs = getattr(outcome, name), getattr(solo, name)
        if mine != theirs:
            return f"{outcome.id} reports {name} {mine}, alone {theirs}"
    return ""


def _found_itself(case: Case, outcome: Outcome) -> str:
    """Alone it runs cold, so its count has no equal there; but its own rows, found again, are no hit."""
    if not outcome.cached or outcome.cached <= (most := case.lawful(outcome).high):
        return ""
    return (
        f"{outcome.id} reports {outcome.cached} cached tokens, where others had stored at most {most} of "
        f"its prompt: it counts what it found of its own"
    )


def _lost_or_repeated(outcome: Outcome, solo: Outcome) -> str:
    a, b = outcome.token_ids or [], solo.token_ids or []
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return f"they part at token {at}"


# ---- evict/8


class WrittenOnly(Strict):
    broken: Name = step_ref()
    again: Name = step_ref()


def _again(args: WrittenOnly) -> frozenset[str]:
    return frozenset({args.again})


Pair = tuple[Outcome, Outcome, float | None]
"""A request that broke off in mid-prefill, the same one again, and the tokens written in between."""


@register("written_only", "evict/8", WrittenOnly, solo_steps=_again)
def written_only(args: WrittenOnly, case: Case) -> Finding:
    """After a prefill that was cancelled, or failed, the same prompt = solo and adopts only what was written.

    Of several requests of `broken` those count that ended in mid-prefill, with nothing else before their
    `again` (evict/8).
    """
    again = case.requests(args.again)
    pairs = _broken_off(case, present(case, args.broken), again)
    lines = [f"{a.id} ended after {_told(n)} tokens, {b.id} adopts {b.cached}" for a, b, n in pairs]
    over = next(
        ((b, _unwritten(a, b, n)) for a, b, n in pairs if n is not None and (b.cached or 0) > n), None
    )
    wrong = over or apart_from_solo(case, again)
    if wrong is None:
        guard(
            bool(pairs), f"no request of {args.broken!r} ended in mid-prefill right before its repeat", lines
        )
        inside = any(n is None or 0 < n < case.length(b) for _, b, n in pairs)
        guard(inside, f"no request of {args.broken!r} ended with a part of its prompt written", lines)
    return Finding.about(
        wrong,
        expected=f"{args.again} = solo, and adopts no more than had been written",
        observed=lines,
    )


def _broken_off(case: Case, broken: Sequence[Outcome], again: Sequence[Outcome]) -> list[Pair]:
    pairs = [(a, b) for a, b in zip(broken, again, strict=False) if _mid_prefill(a)]
    same = [(a, b) for a, b in pairs if a.plan.prompt_ids == b.plan.prompt_ids]
    apart = [(a, b) for a, b in same if a.ended <= b.sent and not _others(case, a, b)]
    return [(a, b, risen(case, "computed_tokens", a.sent, b.sent)) for a, b in apart]


def _mid_prefill(outcome: Outcome) -> bool:
    failed = not outcome.ok and outcome.left is None and not outcome.rejected and outcome.first is None
    return outcome.left == "prefilling" or failed


def _others(case: Case, broken: Outcome, again: Outcome) -> bool:
    """Whether another request ran between the start of one and that of the other."""
    main = [o for o in case.workload.outcomes if o.arm == "main" and o is not broken]
    return any(o.sent < again.sent and o.ended > broken.sent for o in main)


def _told(written: float | None) -> str:
    return "an unknown number of" if written is None else f"{written:g}"


def _unwritten(broken: Outcome, again: Outcome, written: float | None) -> str:
    return (
        f"{again.id} adopts {again.cached} cached tokens, but {broken.id}, which sent the same prompt, ended "
        f"when {_told(written)} were written: nobody computed the rest"
    )
