"""Judges of count/2 to count/6: usage and counters against each other.

Knows which numbers must agree (docs/requirements.md). Does not know the law of cached counts beyond asking
for it, nor where a target keeps its counters (the dialect).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NoReturn

from pydantic import Field

from conformance.history import Outcome, Sample
from conformance.judges.base import (
    Case,
    Finding,
    Stop,
    cached_of,
    guard,
    mark_ref,
    need,
    register,
    seen,
)
from conformance.judges.count import over_count
from conformance.spec import Name, Strict
from conformance.verdict import Status

COUNTERS = (
    "sequence", "hits_tokens", "computed_tokens", "generated_tokens", "evictions", "preemptions",
    "adopted_requests", "missed_requests", "rejected_requests",
)  # fmt: skip
"""Of the harness's names, those that only ever rise."""


# ---- count/2


class SameUsage(Strict):
    of: list[Name] = Field(min_length=2, json_schema_extra={"ref": "step"})


@register("same_usage", "count/2", SameUsage)
def same_usage(args: SameUsage, case: Case) -> Finding:
    """The same prompt reports the same prompt and cached tokens, streamed or not, n = 1 or 4 (count/2)."""
    got = [outcome for step in args.of for outcome in case.requests(step)]
    need(all(o.usage is not None for o in got), "not every reply has a usage object")
    wrong = next(((o, text) for o in got if (text := _usage_differs(o, got[0]))), None)
    if wrong is None:
        _guard_same(args, case, got)
    return Finding.about(
        wrong,
        expected=f"prompt {got[0].prompt_tokens} and cached {got[0].cached} tokens in all of {len(got)}",
        observed=[_usage_line(o) for o in got],
    )


def _usage_differs(outcome: Outcome, first: Outcome) -> str:
    for name in ("prompt_tokens", "cached"):
        mine, theirs = getattr(outcome, name), getattr(first, name)
        if mine != theirs:
            return f"{_how(outcome)} reports {name} {mine}, but {_how(first)}, the same prompt, {theirs}"
    told, came = outcome.completion_tokens, _generated(outcome)
    if came is not None and told != came:
        return f"{_how(outcome)} reports {told} completion tokens in its last usage, but {came} came"
    return ""


def _how(outcome: Outcome) -> str:
    streamed = "streamed" if outcome.plan.stream else "not streamed"
    return f"{outcome.id} ({streamed}, n = {outcome.choices_asked})"


def _generated(outcome: Outcome) -> int | None:
    """Tokens that came, of all choices; None where ids do not come back."""
    if outcome.choices_asked == 1:
        return None if outcome.token_ids is None else len(outcome.token_ids)
    if not outcome.choices or any(choice.token_ids is None for choice in outcome.choices):
        return None
    return sum(len(choice.token_ids or []) for choice in outcome.choices)


def _usage_line(outcome: Outcome) -> str:
    counts = (
        f"prompt {outcome.prompt_tokens}  cached {outcome.cached}  completion {outcome.completion_tokens}"
    )
    return f"{_how(outcome)}  {counts}"


def _guard_same(args: SameUsage, case: Case, got: Sequence[Outcome]) -> None:
    asked = {(str(o.plan.prompt_ids or o.plan.prompt_text), o.plan.salt) for o in got}
    guard(len(asked) == 1, f"the steps {', '.join(args.of)} do not send one prompt under one salt")
    laws = {(law.low, law.high) for law in map(case.lawful, got)}
    guard(len(laws) == 1, "the requests stand on different warm states")
    guard(cached_of(got[0]) > 0, f"{got[0].id} reports no hit, so equal counts of 0 show nothing")
    kinds = {(o.plan.stream, o.choices_asked) for o in got}
    guard(len(kinds) > 1, "all requests are streamed alike and have as many choices")


# ---- count/3, count/6


class Between(Strict):
    since: Name = mark_ref()
    until: Name = mark_ref()


def between(args: Between, case: Case) -> list[Outcome]:
    """Requests sent and ended between two marks. Stops where one straddles a mark, or nothing was sent."""
    since, until = case.sample_at(args.since).at, case.sample_at(args.until).at
    main = [o for o in case.workload.outcomes if o.arm == "main" and o.ended > since and o.sent < until]
    across = next((o for o in main if o.sent < since or o.ended > until), None)
    if across is not None:
        raise Stop(Status.ERROR, f"{across.id} ran across a mark, so counters at the mark show part of it")
    guard(bool(main), f"nothing was sent between {args.since!r} and {args.until!r}")
    return sorted(main, key=lambda o: o.sent)


def rise(case: Case, gauge: str, args: Between) -> float:
    """How far a counter rose between two marks; stops as unobservable where the target has none."""
    since, until = (case.sample_at(mark).values for mark in (args.since, args.until))
    need(gauge in since and gauge in until, f"the target does not expose {gauge}")
    return until[gauge] - since[gauge]


@register("hits_counted", "count/3", Between, of_all=True)
def hits_counted(args: Between, case: Case) -> Finding:
    """The hit counter rises by what the requests in between report, preempted or not (count/3, count/6)."""
    got = between(args, case)
    hits, reported = rise(case, "hits_tokens", args), sum(map(cached_of, got))
    over = next(((o, law) for o in got if cached_of(o) > (law := case.lawful(o)).high), None)
    same = hits == reported
    if same and over is None:
        (_guard_preempted if case.requirement == "count/6" else _guard_calm)(args, case, hits)
    if not same and case.facts.how == "endpoint" and hits > reported:
        raise Stop(Status.INCONCLUSIVE, f"{hits - reported:g} more tokens hit: another client may have sent")
    return Finding(
        expected=f"the hit counter rises by the sum of reported cached tokens, {reported}",
        observed=[f"hit counter {hits:+g}", *(seen(o, case.lawful(o)) for o in got)],
        witness=over_count(*over) if over else "" if same else _miscounted(args, hits, reported, len(got)),
        request=over[0].id if over else None if same else got[0].id,
    )


def _miscounted(args: Between, hits: float, reported: int, count: int) -> str:
    return (
        f"the hit counter rose by {hits:g} between {args.since} and {args.until}, but the {count} requests "
        f"in between report {reported}: {hits - reported:+g} tokens counted that no reply tells of"
    )


def _guard_calm(args: Between, case: Case, hits: float) -> None:
    guard(hits > 0, "nothing hit, so a counter that stands still would pass")
    start, end = case.sample_at(args.since), case.sample_at(args.until)
    queued = max(
        (s.values.get("waiting", 0) for s in case.workload.readings() if start.at <= s.at <= end.at),
        default=0,
    )
    guard(queued == 0, f"{queued:g} requests were queued, and a queued request may be looked up again")
    if "preemptions" in start.values and "preemptions" in end.values:
        guard(not rise(case, "preemptions", args), "a request was preempted")


def _guard_preempted(args: Between, case: Case, hits: float) -> None:
    guard(rise(case, "preemptions", args) >= 1, "no request was preempted")


class NeverFall(Strict):
    pass


@register("never_fall", "count/3", NeverFall)
def never_fall(args: NeverFall, case: Case) -> Finding:
    """No counter ever falls, but over a reset (count/3)."""
    case.facts_of("main")
    readings = case.workload.readings()
    fell = next(_falls(case, readings), None)
    exposed = [name for name in COUNTERS if any(name in s.values for s in readings)]
    if fell is None:
        need(bool(exposed), "the target exposes no counters")
        need(len(readings) > 1, "counters were read once")
        rose = any(_last(readings, name) > _first(readings, name) for name in exposed if name != "sequence")
        guard(rose, "no counter moved, so one that is never written would pass")
    return Finding(
        expected=f"{', '.join(exposed)} never fall",
        observed=[f"{name}  {_first(readings, name):g} to {_last(readings, name):g}" for name in exposed],
        witness=fell or "",
    )


def _falls(case: Case, readings: Sequence[Sample]) -> Iterator[str]:
    resets = [s for s in case.workload.spans if s.kind == "reset" and s.arm == "main"]
    for name in COUNTERS:
        told = [s for s in readings if name in s.values]
        for a, b in pairwise(told):
            over_reset = any(a.at <= r.end and r.start <= b.at for r in resets)
            if b.values[name] < a.values[name] and not over_reset:
                yield (
                    f"{name} fell from {a.values[name]:g} to {b.values[name]:g} between {a.at:.3f} s and "
                    f"{b.at:.3f} s (during {b.step}), and nobody had asked for a reset"
                )


def _first(readings: Sequence[Sample], name: str) -> float:
    return next(s.values[name] for s in readings if name in s.values)


def _last(readings: Sequence[Sample], name: str) -> float:
    return _first(readings[::-1], name)


# ---- count/4, count/5


class Balanced(Strict):
    at: Name = mark_ref()


@register("balanced", "count/4", Balanced)
def balanced(args: Balanced, case: Case) -> Finding:
    """At idle free + cached + referenced = total; bytes in use = live x block bytes (count/4)."""
    sample, block_bytes = case.sample_at(args.at), case.facts.bytes_per_block
    values = sample.values
    parts = ("free", "cached_idle", "referenced")
    need({*parts, "total"} <= set(values), f"the target does not expose {', '.join((*parts, 'total'))}")
    total, summed = values["total"], sum(values[name] for name in parts)
    witness = ""
    if summed != total:
        witness = (
            f"{_sum(values, parts)} = {summed:g}, but the pool has {total:g}: {summed - total:+g} blocks"
        )
    elif block_bytes and {"bytes_in_use", "live"} <= set(values):
        witness = _bytes_differ(values, block_bytes)
    if not witness:
        guard(sample.quiet, "the target was not idle")
        guard(values["cached_idle"] > 0, "nothing was stored, so an empty ledger would pass")
    return Finding(
        expected="free + cached + referenced = total; bytes in use = live x block bytes",
        observed=[
            f"{name}  {values[name]:g}"
            for name in (*parts, "total", "live", "bytes_in_use")
            if name in values
        ],
        witness=witness,
        notes=() if "bytes_in_use" in values else ("the target does not expose bytes in use",),
    )


def _sum(values: Mapping[str, float], parts: Sequence[str]) -> str:
    return " + ".join(f"{name} {values[name]:g}" for name in parts)


def _bytes_differ(values: Mapping[str, float], block_bytes: int) -> str:
    due = values["live"] * block_bytes
    if values["bytes_in_use"] == due:
        return ""
    return (
        f"bytes in use are {values['bytes_in_use']:g}, but {values['live']:g} live blocks of {block_bytes} "
        f"bytes are {due:g}"
    )


FATES = {"adopted_requests": "adopted", "missed_requests": "missed", "rejected_requests": "were rejected"}


@register("accounted", "count/5", Between, of_all=True)
def accounted(args: Between, case: Case) -> Finding:
    """Each request between the marks is adopted, missed with a reason, or rejected: once (count/5)."""
    got = between(args, case)
    stray = next((o for o in got if o.left is not None or not (o.ok or o.rejected)), None)
    if stray is not None:
        _not_counted(stray)
    due = {
        "adopted_requests": sum(o.ok and cached_of(o) > 0 for o in got),
        "missed_requests": sum(o.ok and cached_of(o) == 0 for o in got),
        "rejected_requests": sum(o.rejected for o in got),
    }
    rose = {name: rise(case, name, args) for name in FATES}
    wrong = next((name for name in FATES if rose[name] != due[name]), None)
    if wrong is None:
        lacking = [FATES[name] for name, count in due.items() if not count]
        guard(not lacking, f"no request between the marks {' or '.join(lacking)}")
    return Finding(
        expected=", ".join(f"{due[name]} {FATES[name]}" for name in FATES),
        observed=[f"{name}  {rose[name]:+g}, {due[name]} due" for name in FATES],
        witness=_not_once(wrong, rose, due, len(got)) if wrong else "",
    )


def _not_counted(outcome: Outcome) -> NoReturn:
    raise Stop(
        Status.ERROR, f"{outcome.id} ended in a way that this account has no column for: {outcome.error}"
    )


def _not_once(name: str, rose: Mapping[str, float], due: Mapping[str, int], count: int) -> str:
    return (
        f"{due[name]} of {count} requests {FATES[name]}, but the counter rose by {rose[name]:g}; all "
        f"together rose by {sum(rose.values()):g}"
    )
