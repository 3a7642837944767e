"""Judges of key/*: what must not match.

Knows the negative control of key/6 (docs/requirements.md). Does not know how prompts were made to differ.
"""

from __future__ import annotations

from conformance.judges.base import Case, Finding, cached_of, guard, register, seen, step_ref
from conformance.judges.count import over_count
from conformance.spec import Name, Strict


class NoFalseHit(Strict):
    of: Name = step_ref()
    positive: Name = step_ref()


@register("no_false_hit", "key/6", NoFalseHit)
def no_false_hit(args: NoFalseHit, case: Case) -> Finding:
    """Prompts with a unique first block report no more than their LCP gives, 0 for exact ids (key/6)."""
    judged = [(o, case.lawful(o)) for o in case.requests(args.of)]
    wrong = next(((o, law) for o, law in judged if not 0 <= cached_of(o) <= law.high), None)
    if wrong is None:
        hit = any(cached_of(o) for o in case.requests(args.positive))
        guard(hit, f"the positive arm {args.positive!r} never hit, so a cache that is off would pass")
    return Finding(
        expected=f"cached <= law_hi of the LCP; {args.positive} hits",
        observed=[seen(o, law) for o, law in judged],
        witness=over_count(*wrong) if wrong else "",
        request=wrong[0].id if wrong else None,
    )
