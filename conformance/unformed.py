"""Names in a spec whose form is wrong: what can be said of them although the file is no `Spec`.

Knows the keys under which names stand, as plain values. Does not know the order of steps, lengths, or what a
step means (`check.py`, for a spec that is one). Silent wherever the names to compare with cannot be read: a
mistyped `send` must not accuse whoever refers to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from conformance.check import references
from conformance.judges import Judge
from conformance.marks import Document, Location, Problem
from conformance.requirements import REQUIREMENTS
from conformance.spec import STEP_WORDS, Expect

_TEXT_KEYS = ("head_of", "changed")
_STEP_KEYS = ("repeat_of", "reply_of", "rendered_of", "ban_first_of", "block_of", "of", "join", "request")
"""Keys below `steps` whose value is the name of a text, or of a step."""
_PART_KEYS = ("prompt", "content", "opening", "each")
"""Keys of lists in which a plain word is the name of a text."""

_NAMELESS = ("join", "when", "loop", "wait", "hold")
"""Steps whose word is followed by something else than a name of their own."""

Names = Mapping[str, Sequence[str]]
"""What may be referred to, by kind: text, step, mark, arm. A kind that cannot be read is left out."""


def unformed(
    document: Document, expects: Sequence[Expect | None], judges: Mapping[str, Judge]
) -> Iterator[Problem]:
    """Every reference to a text, step, mark, arm or requirement that is surely wrong."""
    names = _names(document.data)
    for i, word in enumerate(_list(document.data.get("proves"))):
        yield from _requirement(document, ("proves", i), word)
    for loc, kind, word in _referring(("steps",), document.data.get("steps"), ""):
        yield from _unknown(document, loc, kind, word, names)
    for i, expect in enumerate(expects):
        if expect is not None:
            yield from _requirement(document, ("expect", i, expect.judge, "as"), expect.requirement)
            for argument, kind, word in references(judges[expect.judge], expect):
                yield from _unknown(document, ("expect", i, expect.judge, argument), kind, word, names)


def _requirement(document: Document, loc: Location, word: object) -> Iterator[Problem]:
    if isinstance(word, str) and word not in REQUIREMENTS:
        yield document.problem(loc, f"there is no requirement {word}", ", ".join(REQUIREMENTS))


def _unknown(document: Document, loc: Location, kind: str, word: str, names: Names) -> Iterator[Problem]:
    if kind in names and word not in names[kind]:
        legal = ", ".join(names[kind]) or "none is declared"
        yield document.problem(loc, f"no {kind} is called {word!r}", legal)


def _names(data: Mapping[str, Any]) -> Names:
    kinds = {"text": "texts", "arm": "arms"}
    found = {kind: list(data[key]) for kind, key in kinds.items() if isinstance(data.get(key), dict)}
    steps = list(_steps(data.get("steps")))
    if not steps or not all(isinstance(step, dict) and set(STEP_WORDS) & step.keys() for step in steps):
        return found
    words = [word for word in STEP_WORDS if word not in _NAMELESS]
    given = [(word, name) for step in steps for word in words for name in _list(step.get(word))]
    marks = [name for word, name in given if word == "mark"]
    sent = [str(name) for word, name in given if word != "mark"]
    return found | {"mark": marks, "step": [*dict.fromkeys([*sent, *_entries(steps)])]}


def _entries(steps: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Names of entries; each text in them, since the key of one may be mistyped."""
    for step in steps:
        for entry in _list(step.get("each")):
            yield from (word for word in _values(entry) if isinstance(word, str))


def _steps(raw: object) -> Iterator[Any]:
    for step in raw if isinstance(raw, list) else ():
        yield step
        yield from _steps(step.get("steps") if isinstance(step, dict) else None)


def _referring(loc: Location, value: object, key: str) -> Iterator[tuple[Location, str, str]]:
    """(place, kind, name) of every text and step that something below the steps refers to."""
    if isinstance(value, dict):
        for word, inner in value.items():
            yield from _referring((*loc, word), inner, word)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _referring((*loc, i), inner, key)
    elif isinstance(value, str):
        is_part = key in _PART_KEYS and isinstance(loc[-1], int)
        if is_part or key in _TEXT_KEYS:
            yield loc, "text", value
        elif key in _STEP_KEYS:
            yield loc, "step", value


def _list(value: object) -> list[Any]:
    """What stands in a list, or alone."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _values(value: object) -> Sequence[object]:
    return list(value.values()) if isinstance(value, dict) else []
