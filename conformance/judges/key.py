"""Judges of key/*: what must not match.

Knows the negative control of key/6, and how a request is shown to have used nothing but what its own
identity and its own parents stored (key/1 to key/5, key/7; docs/requirements.md). Does not know how prompts
were made to differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from conformance.history import Outcome
from conformance.judges.base import (
    Case,
    Finding,
    cached_of,
    control,
    guard,
    mark_ref,
    need,
    register,
    seen,
    step_ref,
)
from conformance.judges.count import over_count
from conformance.judges.out import apart_from_solo, content_of, of_step, solo_of
from conformance.law import Lawful, shared_prefix
from conformance.spec import Name, Strict

NOISE = 0.1
"""Share of the control's time below which a difference in time to first token says nothing (key/5)."""


class NoFalseHit(Strict):
    of: Name = step_ref()
    positive: Name = step_ref()


@register("no_false_hit", "key/6", NoFalseHit)
def no_false_hit(args: NoFalseHit, case: Case) -> Finding:
    """Prompts with a unique first block report no more than their LCP gives, 0 for exact ids (key/6)."""
    judged = [(o, case.lawful(o)) for o in case.requests(args.of)]
    wrong = next(((o, law) for o, law in judged if not 0 <= cached_of(o) <= law.high), None)
    if wrong is None:
        hit = any(cached_of(o) > 0 for o in case.requests(args.positive))
        guard(hit, f"the positive arm {args.positive!r} never hit, so a cache that is off would pass")
    return Finding(
        expected=f"cached <= law_hi of the LCP; {args.positive} hits",
        observed=[seen(o, law) for o, law in judged],
        witness=over_count(*wrong) if wrong else "",
        request=wrong[0].id if wrong else None,
    )


class OwnMatch(Strict):
    of: Name = step_ref()
    positive: Name = step_ref()
    stored: Name | None = step_ref(None)
    collided_at: Name | None = mark_ref(None)


@register("own_match", "key/1", OwnMatch, solo_steps=of_step)
def own_match(args: OwnMatch, case: Case) -> Finding:
    """Requests adopt only what their own identity and parents stored, and answer as alone (key/1 to 4, 7).

    `positive` must adopt more than any of them may. `stored`: what another identity stored before, and must
    share a prefix with them. `collided_at`: a mark at which the index shows that hashes collided (key/4).
    """
    got = case.requests(args.of)
    judged = [(o, case.lawful(o)) for o in got]
    wrong = next(((o, law) for o, law in judged if not 0 <= cached_of(o) <= law.high), None)
    apart = None if wrong else apart_from_solo(case, got)
    if wrong is None and apart is None:
        _guard_own(args, case, judged)
    return Finding(
        expected="cached <= law_hi of the LCP under the same identity; each reply = its solo run",
        observed=[seen(o, law) for o, law in judged],
        witness=_foreign_match(args, case, *wrong) if wrong else apart[1] if apart else "",
        request=wrong[0].id if wrong else apart[0].id if apart else None,
    )


def _foreign_match(args: OwnMatch, case: Case, outcome: Outcome, law: Lawful) -> str:
    """The false hit, and where its tokens may have come from."""
    if args.stored is None or cached_of(outcome) < 0:
        return over_count(outcome, law)
    other = case.requests(args.stored)[0]
    shared = shared_prefix(case.workload, [outcome, other])
    return f"{over_count(outcome, law)}; {other.id} has {shared} of its tokens, under {_identity(other)}"


def _identity(outcome: Outcome) -> str:
    adapter = f"adapter {outcome.plan.adapter}" if outcome.plan.adapter else "no adapter"
    return f"salt {outcome.plan.salt!r} and {adapter}"


def _guard_own(args: OwnMatch, case: Case, judged: Sequence[tuple[Outcome, Lawful]]) -> None:
    if args.stored is not None:
        _guard_tempted(case, case.requests(args.stored)[0], judged)
    if args.collided_at is not None:
        _guard_collided(args.collided_at, case)
    if case.requirement == "key/3":
        low = min(law.low for _, law in judged)
        guard(low > 0, f"nothing was stored under the own parent of {args.of!r}, so only one parent was")
    reached = min(map(cached_of, case.requests(args.positive)))
    most = max(law.high for _, law in judged)
    what = f"{args.positive!r} adopts {reached} tokens, no more than the {most} that {args.of!r} may"
    guard(reached > most, f"{what}: a cache that is off would pass")


def _guard_tempted(case: Case, other: Outcome, judged: Sequence[tuple[Outcome, Lawful]]) -> None:
    """Another identity must have stored what these requests would have liked to find."""
    for outcome, law in judged:
        _need_identity(case, other, outcome)
        shared = shared_prefix(case.workload, [outcome, other])
        enough = shared >= law.high + case.granule()
        guard(enough, f"{outcome.id} shares {shared} tokens with {other.id}: not one granule to mistake")
    for outcome, _ in judged:
        if outcome.plan.adapter != other.plan.adapter:
            own = content_of(solo_of(case, outcome)) != content_of(other)
            guard(own, f"{outcome.id} answers alone what {other.id} answers, so weights show no owner")


def _need_identity(case: Case, other: Outcome, outcome: Outcome) -> None:
    if other.plan.adapter == outcome.plan.adapter:
        need(case.facts.has_salt, "the target has no field that keeps the caches of two clients apart")
    same = (other.plan.salt, other.plan.adapter) == (outcome.plan.salt, outcome.plan.adapter)
    guard(not same, f"{outcome.id} and {other.id} have the same identity: {_identity(outcome)}")


def _guard_collided(mark: str, case: Case) -> None:
    """Distinct full blocks that were sent, and fewer in the index although none was evicted (key/4)."""
    values = case.sample_at(mark).values
    need({"index_entries", "evictions"} <= set(values), "the target does not expose the size of its index")
    sent, entries = _distinct_blocks(case), values["index_entries"]
    guard(not values["evictions"], f"{values['evictions']:g} blocks were evicted, so the index may be small")
    line = f"{sent} distinct full blocks were sent and {entries:g} are in the index: no hash collided"
    guard(entries < sent, line)


def _distinct_blocks(case: Case) -> int:
    """Full blocks of all prompts, each with its parents and identity counted once."""
    block = case.block()
    chains = {
        (o.plan.salt, o.plan.adapter, tuple((o.plan.prompt_ids or [])[:stop]))
        for o in case.workload.outcomes
        if o.arm == "main"
        for stop in range(block, len(o.plan.prompt_ids or []) + 1, block)
    }
    return len(chains)


class QuietTiming(Strict):
    across: Name = step_ref()
    control: Name = step_ref()
    same: Name = step_ref()


@register("quiet_timing", "key/5", QuietTiming, of_all=True)
def quiet_timing(args: QuietTiming, case: Case) -> Finding:
    """Under another salt a stored prefix takes as long as one of equal length that nobody sent (key/5).

    Compared are the quicker halves of the times to a first token, since whatever else runs only ever adds; on
    the bundled engine steps from admission to the end. `same`, which may reuse the prefix, must be faster.
    """
    need(case.facts.has_salt, "the target has no field that keeps the caches of two clients apart")
    unit = "steps" if _counts_steps(case, args) else "s"
    across, cold, warm = (_costs(case, step, unit) for step in (args.across, args.control, args.same))
    level, noise = (
        median(_quicker(cold)),
        max(NOISE * median(_quicker(cold)), median(_quicker(cold)) - min(cold)),
    )
    lines = [
        f"{step}  {_range(costs, unit)}"
        for step, costs in ((args.across, across), (args.control, cold), (args.same, warm))
    ]
    gained = level - median(_quicker(across))
    if gained > noise:
        steady = max(_quicker(cold)) <= 2 * min(cold)
        control(steady, f"the control {args.control!r} varies more than twofold", lines)
    else:
        faster = level - median(_quicker(warm)) > noise
        guard(faster, f"{args.same!r} is not faster than the control, so reuse shows no time", lines)
    return Finding(
        expected=f"{args.across} within {noise:.4g} {unit} of {level:.4g} {unit}",
        observed=lines,
        witness=_told(args, gained, noise, unit) if gained > noise else "",
        request=case.requests(args.across)[0].id if gained > noise else None,
    )


def _told(args: QuietTiming, gained: float, noise: float, unit: str) -> str:
    return (
        f"{args.across} comes {gained:.4g} {unit} sooner than {args.control}, of the same length, which "
        f"nobody sent before (noise {noise:.4g} {unit}): whoever guesses a prompt can see that it was sent"
    )


def _counts_steps(case: Case, args: QuietTiming) -> bool:
    """Whether every request tells the scheduler steps of its start and its end."""
    got = [o for step in (args.across, args.control, args.same) for o in case.requests(step)]
    return case.facts.how == "engine" and all(
        {"step_admitted", "step_finished"} <= set(o.trace or ()) for o in got
    )


def _costs(case: Case, step: str, unit: str) -> list[float]:
    """What each request of a step took; prompts of one length."""
    got = case.requests(step)
    guard(len(got) >= 3, f"{step!r} is {len(got)} requests; a comparison needs 3")
    lengths = {(case.length(o), o.plan.max_tokens) for o in got}
    guard(len(lengths) == 1, f"the prompts of {step!r} are of different lengths")
    if unit == "steps":
        return [float(o.trace["step_finished"] - o.trace["step_admitted"]) for o in got if o.trace]
    silent = next((o.id for o in got if o.first is None), None)
    need(silent is None, f"{silent} was not streamed, so its first token has no time")
    return [(o.first or 0.0) - o.sent for o in got]


def _quicker(values: Sequence[float]) -> list[float]:
    return sorted(values)[: (len(values) + 1) // 2]


def _range(values: Sequence[float], unit: str) -> str:
    return f"quicker half {median(_quicker(values)):.4g} {unit}, all {min(values):.4g}..{max(values):.4g}"
