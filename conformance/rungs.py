"""The rungs of a spec's ladder: one workload each, and what the spec says on each of them.

Knows the ladder's variable and where its words stand. Does not know a target, nor what lengths come to
(`plan.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

from conformance.spec import Spec

_VERBATIM = ("literal", "stop")
"""Keys under which a text is sent as it stands."""


def rungs(spec: Spec) -> list[str]:
    """Labels of the spec's workloads: one per rung of its ladder, or one without a name."""
    return [f"{name}={value}" for name, values in spec.ladder.items() for value in values] or [""]


def words(spec: Spec) -> frozenset[str]:
    """Every `$word` of a spec."""
    said = spec.model_dump(include={"steps", "serve", "arms"}, exclude_unset=True)
    return frozenset(text for text in _texts(said) if re.fullmatch(r"\$[a-z][a-z0-9_-]*", text))


def bound(spec: Spec, rung: str) -> Spec:
    """The spec as it stands on one rung: each `$word` is the word of the rung.

    Raises pydantic's ValidationError where a word cannot stand; the loader has looked at that before.
    """
    if not words(spec):
        return spec
    name, _, word = rung.partition("=")
    said = spec.model_dump(by_alias=True, exclude_unset=True)
    places = {key: _put(said[key], f"${name}", word) for key in ("steps", "serve", "arms") if key in said}
    return Spec.model_validate(said | places)


def spec_digest(spec: Spec) -> str:
    """Digest of what decides the requests; a history recorded under another one cannot be judged."""
    return digest(_said(spec.model_dump(include={"texts", "steps", "serve", "arms", "ladder"})))


def digest(value: object) -> str:
    """16 hex digits that are the same for equal JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode()).hexdigest()[:16]


def _said(value: Any) -> Any:
    """Without what is not said, so that a key which the language gains changes no digest of before.

    `leave` has been part of it, said or not, from the start.
    """
    if isinstance(value, dict):
        return {key: _said(item) for key, item in value.items() if item is not None or key == "leave"}
    return [_said(item) for item in value] if isinstance(value, list) else value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        said = value if isinstance(value, list) else [v for k, v in value.items() if k not in _VERBATIM]
        for item in said:
            yield from _texts(item)


def _put(value: Any, word: str, by: str) -> Any:
    if isinstance(value, dict):
        return {key: item if key in _VERBATIM else _put(item, word, by) for key, item in value.items()}
    if isinstance(value, list):
        return [_put(item, word, by) for item in value]
    return by if value == word else value
