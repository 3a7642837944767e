"""Judge of adopt/6: prompts of every length around a granule or chunk edge, each sent twice.

Knows what must hold rung by rung and across the rungs (docs/requirements.md). Does not know which lengths a
spec chose, beyond asking that they lie on both sides of an edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Self

from pydantic import Field, model_validator

from conformance.history import Grade, Outcome
from conformance.judges.adopt import unlawful
from conformance.judges.base import Case, Finding, cached_of, guard, need, register, seen
from conformance.judges.out import cold_equals_cold, compare, effective_grade
from conformance.law import Lawful
from conformance.spec import Name, Strict

Rung = tuple[Outcome, Outcome, Lawful]
"""A prompt's first request, its second one, and what the second may report."""


class Ladder(Strict):
    of: list[Name] = Field(min_length=1, json_schema_extra={"ref": "step"})
    again: list[Name] = Field(min_length=1, json_schema_extra={"ref": "step"})

    @model_validator(mode="after")
    def _in_pairs(self) -> Self:
        if len(self.of) != len(self.again):
            raise ValueError("`of` and `again` name as many steps each: every step and its repeat")
        return self


def _again(args: Ladder) -> frozenset[str]:
    return frozenset(args.again)


@register("ladder", "adopt/6", Ladder, solo_steps=_again)
def ladder(args: Ladder, case: Case) -> Finding:
    """Every length goes twice without an error, alike, with lawful counts that never fall (adopt/6).

    `of` may be several steps, each with its repeat in `again`: a small cache need not hold the whole ladder.
    """
    refused = _refused(case, args)
    if refused is not None:
        return _broken(refused)
    case.granule()
    rungs = _rungs(args, case)
    grade = effective_grade(case, [o for rung in rungs for o in rung[:2]], "target")
    witness, culprit, parted = _judge(case, rungs, grade)
    if parted:
        cold_equals_cold(case, [rung[1] for rung in rungs], grade)
    if not witness:
        _guard_edges(case, rungs)
    return Finding(
        expected=f"{len(rungs)} lengths twice: the same reply, cached lawful and never falling as n grows",
        observed=[seen(again, law) for _, again, law in rungs],
        witness=witness,
        request=culprit,
    )


def _refused(case: Case, args: Ladder) -> Outcome | None:
    """A request that the server, still up, answered with an error: the law asks for none."""
    sent = [o for step in (*args.of, *args.again) for o in case.workload.of(step)]
    return next((o for o in sent if o.status is not None and not o.ok and not o.timed_out), None)


def _broken(outcome: Outcome) -> Finding:
    n = len(outcome.plan.prompt_ids or []) or outcome.prompt_tokens or "unknown"
    return Finding(
        expected="no error at any length",
        observed=[f"{outcome.id}  n {n}  status {outcome.status}"],
        witness=f"{outcome.id} with n = {n} failed: {outcome.error or f'HTTP status {outcome.status}'}",
        request=outcome.id,
    )


def _rungs(args: Ladder, case: Case) -> list[Rung]:
    first, again = ([o for step in steps for o in case.requests(step)] for steps in (args.of, args.again))
    guard(len(first) == len(again), f"{len(first)} prompts were sent first, {len(again)} again")
    rungs = [(a, b, case.lawful(b)) for a, b in zip(first, again, strict=True)]
    strangers = next((b.id for a, b, _ in rungs if a.plan.key != b.plan.key), None)
    guard(strangers is None, f"{strangers} is another request than the one before it")
    return sorted(rungs, key=lambda rung: rung[2].n)


def _judge(case: Case, rungs: Sequence[Rung], grade: Grade) -> tuple[str, str | None, bool]:
    """Witness, the request it is about, and whether it is about replies."""
    for _, again, law in rungs:
        if not law.allows(cached_of(again)):
            return _unlawful(again, law), again.id, False
    for (_, short, below), (_, long, above) in pairwise(rungs):
        if cached_of(long) < cached_of(short) and above.n > below.n:
            return _fell(short, below, long, above), long.id, False
    for first, again, law in rungs:
        difference = compare(case, grade, again, first, f"the first time ({first.id})")
        if difference is not None:
            return f"{again.id} with n = {law.n} is another reply: {difference.text}", again.id, True
    return "", None, False


def _unlawful(outcome: Outcome, law: Lawful) -> str:
    if cached_of(outcome) >= law.n:
        return (
            f"{outcome.id} reports all {law.n} of its prompt tokens cached; the last one is always computed"
        )
    return unlawful(outcome, law)


def _fell(short: Outcome, below: Lawful, long: Outcome, above: Lawful) -> str:
    return (
        f"{long.id} with n = {above.n} reports {cached_of(long)} cached tokens, fewer than the "
        f"{cached_of(short)} of {short.id} with n = {below.n}"
    )


def _guard_edges(case: Case, rungs: Sequence[Rung]) -> None:
    """A ladder shows something only where counts step up, and where whole multiples are among its lengths."""
    granule, counts = case.granule(), {cached_of(again) for _, again, _ in rungs}
    need(len({law.n for *_, law in rungs}) > 1, "prompts of these lengths cannot be written for the target")
    guard(len(counts) > 1, f"every rung reports {counts} cached tokens, so no edge was crossed")
    whole = any(law.n % granule == 0 for _, _, law in rungs)
    guard(whole, f"no length is a multiple of the granule of {granule}, where a count by one shows")
