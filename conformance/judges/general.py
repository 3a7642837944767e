"""Judges that serve several requirements: a gauge between marks, equal replies, replies apart, lawful counts.

Knows no requirement's content: a spec says with `as:` whose law it asks for. Does not know how counts come
about (`law.py`) or how replies are compared (`out.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from pydantic import Field, model_validator

from conformance.dialect import GAUGES
from conformance.history import Facts, Outcome
from conformance.judges.adopt import unlawful
from conformance.judges.base import (
    Case,
    Finding,
    Stop,
    arm_ref,
    cached_of,
    counting,
    guard,
    is_hit,
    mark_ref,
    need_same_prompts,
    register,
    seen,
    step_ref,
)
from conformance.judges.out import (
    Difference,
    cold_equals_cold,
    compare,
    content_of,
    effective_grade,
    guard_varied,
    of_step,
)
from conformance.law import Lawful
from conformance.lengths import LengthError, UnknownHere, evaluate
from conformance.lengths import names as length_names
from conformance.spec import Length, Name, Strict
from conformance.verdict import Status

SYMBOLS = ("B", "G", "C", "pool", "min_prefix")
"""What a judge knows of a length: the target's own numbers, not those of the scale."""


def amount(case: Case, length: Length) -> int:
    """A length on the main arm's target. Stops as unobservable where the target does not tell a symbol."""
    try:
        return evaluate(length, _symbols(case.facts))
    except UnknownHere as unknown:
        raise Stop(Status.UNOBSERVABLE, str(unknown)) from unknown


def _symbols(facts: Facts) -> dict[str, int]:
    pool = facts.pool_blocks * facts.block if facts.pool_blocks and facts.block else None
    told = {"B": facts.block, "G": facts.granule, "C": facts.chunk, "pool": pool}
    return {name: value for name, value in told.items() if value} | {"min_prefix": facts.min_prefix}


def _check_amount(length: Length | None) -> None:
    if length is None:
        return
    unknown = [name for name in length_names(length) if name not in SYMBOLS]
    if unknown:
        raise LengthError(f"{length!r}: {unknown[0]!r} is no number of the target; use {', '.join(SYMBOLS)}")
    evaluate(length, dict.fromkeys(SYMBOLS, 1))


class Delta(Strict):
    gauge: Name = Field(description="a gauge in the harness's names, for example evictions")
    since: Name = mark_ref()
    until: Name = mark_ref()
    equals: Length | None = Field(None, description="in the gauge's own unit; B, G, C, pool are known")
    at_most: Length | None = None
    at_least: Length | None = None

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.gauge not in GAUGES:
            raise ValueError(f"{self.gauge!r} is no gauge; expected one of {', '.join(sorted(GAUGES))}")
        bounds = (self.equals, self.at_most, self.at_least)
        if all(bound is None for bound in bounds):
            raise ValueError("say what is right with `equals`, `at_most` or `at_least`")
        for bound in bounds:
            _check_amount(bound)
        return self


@register("delta", "count/3", Delta)
def delta(args: Delta, case: Case) -> Finding:
    """A gauge changed by so much between two marks: `equals`, `at_most`, `at_least`, in its own unit."""
    before, after = case.gauge(args.gauge, args.since), case.gauge(args.gauge, args.until)
    bounds = [(word, getattr(args, word)) for word in ("equals", "at_most", "at_least")]
    wanted = [(word, amount(case, length)) for word, length in bounds if length is not None]
    change = after - before
    broken = next(((word, bound) for word, bound in wanted if not _holds(word, change, bound)), None)
    line = f"{args.gauge}  {before:g} at {args.since}, {after:g} at {args.until}: {change:+g}"
    said = " and ".join(f"{word.replace('_', ' ')} {bound}" for word, bound in wanted)
    return Finding(
        expected=f"{args.gauge} changes by {said} from {args.since} to {args.until}",
        observed=[line],
        witness=f"{args.gauge} changed by {change:g}, {broken[0].replace('_', ' ')} {broken[1]} was due"
        if broken
        else "",
    )


def _holds(word: str, change: float, bound: int) -> bool:
    if word == "equals":
        return change == bound
    return change <= bound if word == "at_most" else change >= bound


class SameAs(Strict):
    of: Name = step_ref()
    to: Name | None = step_ref(None)
    arm: Name | None = arm_ref(None)
    hit: bool = Field(False, description="each request of `of` must have adopted something")
    between: int = Field(0, ge=0, description="so many other requests must have run in between")

    @model_validator(mode="after")
    def _two(self) -> Self:
        if self.to is None and self.arm is None:
            raise ValueError("say with `to` or `arm` what the replies are compared with")
        return self


@register("same_as", "out/6", SameAs, solo_steps=of_step)
def same_as(args: SameAs, case: Case) -> Finding:
    """Replies of two steps, or of one step in two arms, are equal one by one, at the target's grade.

    A difference counts only on a target that repeats itself when cold.
    """
    got, other = case.requests(args.of), case.requests(args.to or args.of, args.arm or "main")
    guard(len(other) in (1, len(got)), f"{len(got)} replies are compared with {len(other)}")
    others = other * len(got) if len(other) == 1 else other
    need_same_prompts(case, got, others)
    grade = effective_grade(case, [*got, *others], "target")
    found = [compare(case, grade, a, b, f"in {_named(args, b)}") for a, b in zip(got, others, strict=True)]
    wrong = next(((a, b, d) for a, b, d in zip(got, others, found, strict=True) if d), None)
    if wrong is None:
        _guard_same(args, case, got, others)
    else:
        cold_equals_cold(case, got, grade)
    return Finding(
        expected=f"each of {len(got)} replies of {args.of} = {_named(args, other[0])}, grade {grade}",
        observed=[_equal_line(o, difference) for o, difference in zip(got, found, strict=True)],
        witness=f"{wrong[0].id} parts from {_named(args, wrong[1])}: {wrong[2].text}" if wrong else "",
        request=wrong[0].id if wrong else None,
    )


def _named(args: SameAs, other: Outcome) -> str:
    return f"{other.id} of the arm {args.arm}" if args.arm else other.id


def _equal_line(outcome: Outcome, difference: Difference | None) -> str:
    return f"{outcome.id}  cached {outcome.cached}  {difference.text if difference else 'equal'}"


def _guard_same(args: SameAs, case: Case, got: Sequence[Outcome], others: Sequence[Outcome]) -> None:
    guard_varied(case)
    if args.hit:
        cold = next((o.id for o in got if cached_of(o) <= 0), None)
        guard(cold is None, f"{cold} adopted nothing")
    if args.between:
        own = {args.of, args.to}
        since, until = max(o.ended for o in others), min(o.sent for o in got)
        ran = [o for o in case.workload.outcomes if o.step not in own and o.ok]
        count = sum(since <= o.sent and o.ended <= until for o in ran)
        guard(count >= args.between, f"{count} requests ran in between, {args.between} are asked for")


class Distinct(Strict):
    of: Name = step_ref()
    others: list[Name] = step_ref([])


@register("distinct", "out/3", Distinct)
def distinct(args: Distinct, case: Case) -> Finding:
    """The replies of a step (and of `others`) are pairwise different."""
    got = [o for step in (args.of, *args.others) for o in case.requests(step)]
    guard(len(got) > 1, f"{args.of!r} is one request")
    pairs = ((a, b) for at, a in enumerate(got) for b in got[:at])
    twins = next(((b, a) for a, b in pairs if content_of(a) == content_of(b)), None)
    return Finding(
        expected=f"{len(got)} replies, no two of them equal",
        observed=[f"{o.id}  {o.text[:40]!r}" for o in got],
        witness=f"{twins[0].id} and {twins[1].id} answer alike: {twins[1].text[:40]!r}" if twins else "",
        request=twins[1].id if twins else None,
    )


class AllLawful(Strict):
    of: Name = step_ref()
    zero: bool = Field(False, description="nothing may be reported as cached")
    positive: Name | None = step_ref(None)


@register("lawful", "count/1", AllLawful)
def all_lawful(args: AllLawful, case: Case) -> Finding:
    """Every cached count is lawful, neither too much nor too little; with `zero` it is 0.

    `positive` names requests that must hit, so that a cache that is off does not pass for one that is empty.
    A request whose client left before a count could come is noted, not judged.
    """
    got, gone = counting(case, args.of)
    judged = [(o, case.lawful(o)) for o in got]
    wrong = next(((o, law) for o, law in judged if not _is_due(args, o, law)), None)
    if wrong is None:
        _guard_lawful(args, case, judged)
    return Finding(
        expected="every request reports 0 cached tokens" if args.zero else "every cached count is lawful",
        observed=[*(seen(o, law) for o, law in judged), *gone],
        witness=_wrong_count(args, *wrong) if wrong else "",
        request=wrong[0].id if wrong else None,
    )


def _is_due(args: AllLawful, outcome: Outcome, law: Lawful) -> bool:
    return cached_of(outcome) == 0 if args.zero else law.allows(cached_of(outcome))


def _wrong_count(args: AllLawful, outcome: Outcome, law: Lawful) -> str:
    if not args.zero:
        return unlawful(outcome, law)
    return f"{outcome.id} reports {cached_of(outcome)} cached tokens, where nothing may be reused"


def _guard_lawful(args: AllLawful, case: Case, judged: Sequence[tuple[Outcome, Lawful]]) -> None:
    if args.zero:
        hits = case.requests(args.positive) if args.positive else case.workload.outcomes
        guard(any(is_hit(o) for o in hits), "no other request hits, so a cache that is off would pass")
        return
    case.granule()
    guard(any(law.low > 0 for _, law in judged), f"nothing that {args.of!r} could adopt was stored")
