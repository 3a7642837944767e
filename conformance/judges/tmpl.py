"""Judges of tmpl/1 and tmpl/2: what a chat template keeps, and what the engine makes of it.

Knows prompts as ids after the template. Does not know any template: a miss is the template's where the ids
part, and the engine's where they do not (docs/requirements.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pydantic import Field

from conformance.history import Outcome
from conformance.judges.adopt import unlawful
from conformance.judges.base import Case, Finding, cached_of, guard, need, register, seen, step_ref
from conformance.law import common_prefix
from conformance.spec import Name, Strict

LONG = 4
"""Granules that a kept prefix must exceed to mean anything (tmpl/2)."""


def rendered(outcome: Outcome) -> list[int]:
    """Ids of a chat prompt after the template; stops as unobservable where the target does not tell them."""
    need(outcome.rendered_ids is not None, f"{outcome.id}: the ids after the chat template are not told")
    return outcome.rendered_ids or []


class Apart(Strict):
    of: Name = step_ref()
    others: list[Name] = step_ref([])


def chats(args: Apart, case: Case) -> list[Outcome]:
    """Requests of all the steps, in the order in which they were sent."""
    return sorted((o for step in (args.of, *args.others) for o in case.requests(step)), key=lambda o: o.sent)


@register("told_apart", "tmpl/1", Apart)
def told_apart(args: Apart, case: Case) -> Finding:
    """First how many ids the template kept, then whether the engine adopted them lawfully (tmpl/1).

    A prefix that the template broke is none of the engine's: it leaves nothing to judge here.
    """
    got = chats(args, case)
    for outcome in got:
        rendered(outcome)
    laws = [(o, case.lawful(o)) for o in got]
    wrong = next(((o, law) for o, law in laws if not law.allows(cached_of(o))), None)
    lines = [f"{seen(o, law)}  LCP of the rendered ids {law.lcp.low}" for o, law in laws]
    if wrong is None:
        due = any(law.low > 0 for _, law in laws)
        guard(due, "the template keeps no granule of any prompt, so the engine is owed nothing", lines)
    return Finding(
        expected="cached tokens are lawful for the ids that the template gave",
        observed=lines,
        witness=f"the engine, not the template: {unlawful(*wrong)}" if wrong else "",
        request=wrong[0].id if wrong else None,
    )


class Rerendered(Apart):
    spare: int = Field(8, ge=0, description="ids at the end of a prompt that the next turn may render anew")


@register("rerendered", "tmpl/2", Rerendered)
def rerendered(args: Rerendered, case: Case) -> Finding:
    """Each turn of a chat begins with the ids of the turn before (tmpl/2)."""
    turns = [(o, rendered(o)) for o in chats(args, case)]
    guard(len(turns) > 1, f"{args.of!r} is one turn")
    kept = [(b, len(before), common_prefix(before, after)) for (_, before), (b, after) in pairwise(turns)]
    lost = next(((o, n, lcp) for o, n, lcp in kept if lcp < n - args.spare), None)
    lines = [f"{o.id}  keeps {lcp} of the {n} ids of the turn before" for o, n, lcp in kept]
    if lost is None:
        _guard_long(case, kept, lines)
    return Finding(
        expected=f"every turn keeps all but {args.spare} ids of the turn before",
        observed=lines,
        witness=_lost(*lost) if lost else "",
        request=lost[0].id if lost else None,
    )


def _guard_long(case: Case, kept: Sequence[tuple[Outcome, int, int]], lines: Sequence[str]) -> None:
    least, enough = min(lcp for *_, lcp in kept), LONG * case.granule()
    guard(least > enough, f"{least} ids in common are no more than {LONG} granules, {enough}", lines)


def _lost(outcome: Outcome, n: int, lcp: int) -> str:
    return (
        f"the template, not the engine: {outcome.id} renders the {n} ids of the turn before as others from "
        f"id {lcp} on, so no cache can serve them"
    )
