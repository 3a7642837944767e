"""Before a run on a server that was not started from here: does one cache answer, and as declared?

A router or data-parallel replicas give one address several caches, and then nothing about reuse can be judged
behind it. Knows a target's facts and one look at eight heads of a stored prompt. Does not know specs, except
which areas of the law are about reuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.heads import Look, contradicted, is_exact, look
from conformance.history import Facts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from conformance.target import Target

STORED = 560
HEADS = (523, 462, 401, 340, 263, 212, 149, 98)
"""Tokens: for every granule up to 256, what they floor to has it as its greatest common divisor."""
_PATIENCE = 2.0
"""Seconds after which even a store in the background should be over."""
_ABOUT_REUSE = frozenset({"adopt", "store", "key", "count", "evict", "reset", "foot"})


def is_about_reuse(proves: Iterable[str]) -> bool:
    """Whether a case that proves these requirements needs to know which cache answered."""
    return any(requirement.partition("/")[0] in _ABOUT_REUSE for requirement in proves)


def checked(target: Target) -> Facts:
    """The target's facts with what the look showed: `several_caches`, `settle`, `contradictions`.

    At most 20 requests. A target that reports no cached tokens is left as it is.
    """
    facts = target.facts
    if not facts.reports_cached:
        return facts
    seen = look(target, STORED, HEADS, seed=11)
    patience = max(_PATIENCE, 2 * facts.settle)
    if _may_be_late(seen) and (seen.hits or _is_found_after(target, patience)):
        seen = look(target, STORED, HEADS, seed=12, settle=patience)
        if seen.hits and not seen.missed:
            late = f"settle {facts.settle:g} s declared, but a stored prompt is found only some time later"
            facts = _noted(facts, late).model_copy(update={"settle": patience})
    facts = _noted(facts, contradicted(facts.granule, seen, facts.partial_reuse, is_exact(target)))
    return facts.model_copy(update={"several_caches": _several(seen)})


def _may_be_late(seen: Look) -> bool:
    """Whether nothing was found, or nothing at first: a store that takes its time looks like that."""
    if None in seen.cached:
        return False
    return not seen.hits or (bool(seen.missed) and seen.missed == list(seen.heads[: len(seen.missed)]))


def _is_found_after(target: Target, patience: float) -> bool:
    """One head alone, before eight more are spent on a server that may simply keep nothing."""
    return bool(look(target, STORED, HEADS[:1], seed=13, settle=patience).hits)


def _several(seen: Look) -> str:
    if not seen.missed:
        return ""
    lengths = ", ".join(map(str, seen.missed))
    return (
        f"of {len(seen.heads)} heads of one stored prompt {len(seen.hits)} were found, those of {lengths} "
        "tokens were not: a router or several replicas seem to answer behind one address, or entries do not "
        "stay; point at one replica"
    )


def _noted(facts: Facts, said: str | None) -> Facts:
    return facts.model_copy(update={"contradictions": [*facts.contradictions, said]}) if said else facts
