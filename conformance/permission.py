"""What a case does to a server that others may be using, and whether it may.

Knows which steps disturb other users of an endpoint. Does not know servers; one that was started for the run
bears everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from conformance.spec import Spec

PERMISSIONS = {
    "churn": "it fills the cache with prompts of its own, which pushes out those of others",
    "disconnect": "its clients walk away from the server",
    "reset": "it empties the cache for everybody",
}
"""Word of `--allow` -> what the case does."""

_SIGNS = {"leave": "disconnect", "churn": "churn", "reset": "reset"}
"""Field of a step -> the permission that it needs."""


def permitted(given: str) -> frozenset[str]:
    """The permissions in a list with commas between; ValueError for a word that is none."""
    words = frozenset(word.strip() for word in given.split(",") if word.strip())
    unknown = sorted(words - set(PERMISSIONS))
    if unknown:
        raise ValueError(f"{unknown[0]}: expected some of {', '.join(PERMISSIONS)}, with a comma between")
    return words


def needed(spec: Spec) -> frozenset[str]:
    """The permissions that a case needs on an endpoint, by its steps and those inside them."""
    return frozenset(_needs(spec.steps))


def refusal(spec: Spec, allowed: Iterable[str]) -> str:
    """Why an endpoint must not get this case; empty when it may."""
    missing = sorted(needed(spec) - set(allowed))
    reasons = [f"{PERMISSIONS[word]}; say --allow {word} if it may bear that" for word in missing]
    return " and ".join(reasons)


def _needs(steps: Iterable[Any]) -> Iterator[str]:
    for step in steps:
        yield from (word for field, word in _SIGNS.items() if getattr(step, field, None))
        for inner in ("steps", "each"):
            yield from _needs(_entries(getattr(step, inner, None)))


def _entries(inner: Any) -> Iterable[Any]:
    """Steps or requests inside a step; `each` of a conversation holds prompt parts, which need nothing."""
    return inner if isinstance(inner, list | tuple) else ()
