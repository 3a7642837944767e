"""Judges of adopt/*: who gets to reuse a prefix, and how much of it.

Knows the guards and sums of adopt/1 to adopt/3 and adopt/7 (docs/requirements.md). Does not know how the
law's bounds are computed (`law.py`) or where the cached counts came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from pydantic import Field

from conformance.history import Outcome
from conformance.judges.base import (
    Case,
    Finding,
    Stop,
    below_zero,
    cached_of,
    guard,
    held_together,
    in_flight_together,
    register,
    seen,
    step_ref,
    times,
)
from conformance.law import Lawful, shared_prefix
from conformance.spec import Name, Strict
from conformance.verdict import Status


class Adopters(Strict):
    of: Name = step_ref()
    at_least: int | None = Field(None, ge=1, description="how many must adopt; default all but one")
    cached: Literal["lawful"] = "lawful"


@register("adopters", "adopt/1", Adopters)
def adopters(args: Adopters, case: Case) -> Finding:
    """At least `at_least` of the requests (default N - 1) adopt, each lawfully; adopt/3 for a cold burst."""
    got = case.requests(args.of)
    laws = [case.lawful(outcome) for outcome in got]
    cold = case.requirement == "adopt/3"
    (_guard_cold if cold else _guard_warm)(case, got, laws)
    wanted = len(got) - 1 if args.at_least is None else args.at_least
    if wanted > len(got):
        raise Stop(Status.ERROR, f"at_least is {wanted}, but {args.of!r} has {len(got)} requests")
    guard(wanted > 0, f"{args.of!r} is one request, so all but one is none")
    found = _judge_adoption(got, laws, wanted, cold)
    if not found.witness:
        together = in_flight_together(got) if cold else held_together(case, args.of, got)
        guard(together, f"the {len(got)} requests of {args.of!r} took turns", times(got))
    return found


def _guard_warm(case: Case, got: Sequence[Outcome], laws: Sequence[Lawful]) -> None:
    least, granule = min(law.low for law in laws), case.granule()
    reason = f"no prefix worth 4 granules was stored: law_lo is {least}, 4G is {4 * granule}"
    guard(least >= 4 * granule, reason, [seen(o, law) for o, law in zip(got, laws, strict=True)])


def _guard_cold(case: Case, got: Sequence[Outcome], laws: Sequence[Lawful]) -> None:
    own = {outcome.id for outcome in got}
    warm = next((law.lcp.source for law in laws if law.lcp.low > 0 and law.lcp.source not in own), None)
    guard(warm is None, f"the cache was not empty: {warm} had stored a prefix before")
    prefix, granule = shared_prefix(case.workload, got), case.granule()
    guard(prefix >= granule, f"the requests share {prefix} tokens, less than one granule of {granule}")


def _judge_adoption(got: Sequence[Outcome], laws: Sequence[Lawful], wanted: int, cold: bool) -> Finding:
    pairs = list(zip(got, laws, strict=True))
    adopting = sum(cached_of(outcome) > 0 for outcome in got)
    wrong = next(((o, law) for o, law in pairs if cached_of(o) > 0 and not law.allows(cached_of(o))), None)
    witness, culprit = "", None
    if (negative := below_zero(got)) is not None:
        witness, culprit = negative
    elif adopting < wanted:
        culprit, law = next((o, law) for o, law in pairs if cached_of(o) == 0)
        witness = f"only {adopting} of {len(got)} adopted. {_missed(culprit, law, cold)}"
    elif wrong is not None:
        culprit, witness = wrong[0], unlawful(*wrong)
    return Finding(
        expected=f"at least {wanted} of {len(got)} report cached > 0, each lawful",
        observed=[seen(o, law) for o, law in pairs],
        witness=witness,
        request=culprit.id if culprit else None,
        notes=(f"{adopting} of {len(got)} adopted",),
    )


def _missed(outcome: Outcome, law: Lawful, cold: bool) -> str:
    if cold:
        return (
            f"{outcome.id} adopted nothing, although requests sent before it ended share {law.lcp.high} "
            f"tokens with it: up to {law.high_arithmetic} could have been adopted while they were in flight"
        )
    return f"{outcome.id} adopted nothing, although {stored_for(law)}"


def stored_for(law: Lawful) -> str:
    """Why `law.low` tokens stood ready, in words."""
    return (
        f"{law.lcp.source} had stored the {law.lcp.low} tokens that they share before it was sent: "
        f"{law.low_arithmetic}"
    )


def unlawful(outcome: Outcome, law: Lawful) -> str:
    """Why a reported count is outside the law, in words."""
    cached = cached_of(outcome)
    if cached >= law.n:
        return f"{outcome.id} reports {cached} of {law.n} prompt tokens cached; the last is always computed"
    if cached > law.high:
        return (
            f"{outcome.id} reports {cached} cached tokens, but shares no more than {law.lcp.high} of its "
            f"{law.n} with anything sent under its identity: at most {law.high_arithmetic}"
        )
    if cached < law.low:
        return f"{outcome.id} reports {cached} cached tokens, although {stored_for(law)}"
    return f"{outcome.id} reports {cached} cached tokens, which is no multiple of the granule of {law.step}"


class SameTotal(Strict):
    of: Name = step_ref()
    as_series: Name = step_ref()


@register("same_total", "adopt/2", SameTotal)
def same_total(args: SameTotal, case: Case) -> Finding:
    """A warm burst's cached tokens add up to those of the same requests one after another (adopt/2)."""
    burst, series = case.requests(args.of), case.requests(args.as_series)
    together, one_by_one = [sum(map(cached_of, arm)) for arm in (burst, series)]
    guard(one_by_one > 0, f"the sequential arm {args.as_series!r} never hit")
    _guard_comparable(case, burst, series)
    found = Finding(
        expected=f"sum of cached tokens of {args.of} = that of {args.as_series} = {one_by_one}",
        observed=[f"{step}  {_listed(arm)}" for step, arm in ((args.of, burst), (args.as_series, series))],
        witness=_total_differs(args, burst, series, together, one_by_one),
        request=_first_short(burst, series),
    )
    if not found.witness:
        guard(held_together(case, args.of, burst), f"the requests of {args.of!r} took turns", times(burst))
    return found


def _guard_comparable(case: Case, burst: Sequence[Outcome], series: Sequence[Outcome]) -> None:
    """Both arms must stand on the same warm state, or their sums may differ lawfully."""
    guard(len(burst) == len(series), f"{len(burst)} requests are compared with {len(series)}")
    due = [sum(case.lawful(outcome).low for outcome in arm) for arm in (burst, series)]
    guard(
        due[0] == due[1], f"the arms stand on different states: {due[0]} tokens due at once, {due[1]} in turn"
    )


def _total_differs(
    args: SameTotal, burst: Sequence[Outcome], series: Sequence[Outcome], together: int, one_by_one: int
) -> str:
    if together == one_by_one:
        return ""
    return (
        f"at once the requests of {args.of} report {together} cached tokens, one after another {one_by_one}: "
        f"{abs(together - one_by_one)} tokens {'less' if together < one_by_one else 'more'} on the same warm "
        "state"
    )


def _first_short(burst: Sequence[Outcome], series: Sequence[Outcome]) -> str | None:
    pairs = zip(burst, series, strict=True)
    return next((a.id for a, b in pairs if cached_of(a) != cached_of(b)), None)


def _listed(outcomes: Sequence[Outcome]) -> str:
    counts = [cached_of(outcome) for outcome in outcomes]
    return f"{' + '.join(map(str, counts))} = {sum(counts)}"


class ComputedOnce(Strict):
    of: Name = step_ref()


@register("computed_once", "adopt/3", ComputedOnce)
def computed_once(args: ComputedOnce, case: Case) -> Finding:
    """On an empty cache N simultaneous requests compute their prefix once (adopt/3)."""
    got = case.requests(args.of)
    _guard_cold(case, got, [case.lawful(outcome) for outcome in got])
    lengths, granule = [case.length(outcome) for outcome in got], case.granule()
    prefix = shared_prefix(case.workload, got)
    computed = sum(n - cached_of(o) for n, o in zip(lengths, got, strict=True))
    bound = prefix + sum(n - prefix for n in lengths) + len(got) * granule
    found = Finding(
        expected=f"computed prefill <= P {prefix} + suffixes {bound - prefix - len(got) * granule} "
        f"+ {len(got)} * {granule} = {bound} tokens",
        observed=[f"{o.id}  n {n}  computed {n - cached_of(o)}" for n, o in zip(lengths, got, strict=True)],
        witness=_computed_twice(got, lengths, computed, bound, prefix, granule),
        request=max(got, key=lambda o: -cached_of(o)).id if computed > bound else None,
        notes=(_ratio(lengths, prefix, granule, computed),),
    )
    if not found.witness:
        guard(in_flight_together(got), f"the requests of {args.of!r} were not in flight together", times(got))
    return found


def _computed_twice(
    got: Sequence[Outcome], lengths: Sequence[int], computed: int, bound: int, prefix: int, granule: int
) -> str:
    if computed <= bound:
        return ""
    whole = [min(prefix, n - 1) // granule * granule for n in lengths]
    again = [o.id for o, due in zip(got, whole, strict=True) if cached_of(o) < due]
    return (
        f"{computed} prompt tokens were computed, {computed - bound} over the bound of {bound}: the "
        f"prefix of {prefix} tokens is needed once, but {len(again)} of {len(got)} did not adopt all of it "
        f"({', '.join(again)})"
    )


def _ratio(lengths: Sequence[int], prefix: int, granule: int, computed: int) -> str:
    """Computed tokens over the least that one leader (cached 0) and lawful followers can compute."""
    followers = sorted(lengths)[1:]
    least = min(lengths) + sum(n - min(prefix, n - 1) // granule * granule for n in followers)
    return f"computed / minimal = {computed} / {least} = {computed / least:.3f}"


class TurnsAdopt(Strict):
    of: Name = step_ref()


@register("turns_adopt", "adopt/7", TurnsAdopt)
def turns_adopt(args: TurnsAdopt, case: Case) -> Finding:
    """Each turn adopts lawfully over the last turn's prompt, and its reply where declared (adopt/7)."""
    turns = case.requests(args.of)
    judged = [(o, case.lawful(o)) for o in turns[1:]]
    wrong = next(((o, law) for o, law in judged if not law.allows(cached_of(o))), None)
    if wrong is None:
        # Without a granule nothing is due: that lies with what the target tells, not with the case.
        case.granule()
        broken = next((b.id for a, b in pairwise(turns) if not _continues(a, b)), None)
        guard(broken is None, f"{broken} does not continue the turn before it token by token")
        due = any(law.low > 0 for _, law in judged)
        guard(due, f"no turn of {args.of!r} has a granule of history that must be adopted")
    return Finding(
        expected=f"each turn of {args.of} after the first adopts lawfully",
        observed=[seen(o, law) for o, law in judged],
        witness=unlawful(*wrong) if wrong else "",
        request=wrong[0].id if wrong else None,
    )


def _continues(last: Outcome, turn: Outcome) -> bool:
    """Whether a turn's prompt begins with the last one's prompt and reply, exactly."""
    ids, text = turn.plan.prompt_ids, turn.plan.prompt_text
    if ids is not None and last.plan.prompt_ids is not None:
        history = [*last.plan.prompt_ids, *(last.token_ids or [])]
        return last.token_ids is not None and ids[: len(history)] == history
    return text is not None and text.startswith((last.plan.prompt_text or "") + last.text)
