"""What changed in a golden file, in words: where a reply leaves the reviewed one, and how close that was.

Knows the entries of golden files (`golden.py`). Does not know which change is right: that is for the reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

CLOSE = 0.05
"""Top-2 logprob gap below which another machine may well choose the other token."""

_END = "nothing"

Entries = Mapping[str, Mapping[str, Any]]


def differences(new: Entries, old: object) -> list[tuple[str, str]]:
    """Request id and what is different about it, a line each; nothing for a file that holds no entries."""
    if not isinstance(old, dict) or not all(isinstance(entry, dict) for entry in old.values()):
        return []
    return list(_differences(new, old))


def _differences(new: Entries, old: Entries) -> Iterator[tuple[str, str]]:
    for id_ in [*new, *(gone for gone in old if gone not in new)]:
        if id_ not in old:
            yield id_, "was not there when the file was reviewed"
        elif id_ not in new:
            yield id_, "is in the file, but not in this run"
        elif said := _changed(new[id_], old[id_]):
            yield id_, said


def _changed(new: Mapping[str, Any], old: Mapping[str, Any]) -> str:
    if new.get("prompt") != old.get("prompt"):
        return "has another prompt than the reviewed one, so its reply is no evidence"
    at = _first_difference(_words(new, "ids"), _words(old, "ids"))
    if at is not None:
        return f"{_token(new, old, at)}; {_cached(new, old)}"
    at = _first_difference(list(str(new.get("text"))), list(str(old.get("text"))))
    if at is not None:
        return f"the text differs from character {at} on; {_cached(new, old)}"
    if new.get("cached") != old.get("cached"):
        return f"the reply is the reviewed one, but {_cached(new, old)}"
    if new.get("finish") != old.get("finish"):
        return f"ends with {new.get('finish')}, reviewed {old.get('finish')}"
    return _gaps(new, old)


def _token(new: Mapping[str, Any], old: Mapping[str, Any], at: int) -> str:
    said = f"token {at} is {_word(new, 'ids', at)}, reviewed {_word(old, 'ids', at)}"
    now, then = _word(new, "gaps", at), _word(old, "gaps", at)
    return f"{said}; top-2 gap there {now}, reviewed {then}{_closeness(then)}"


def _closeness(gap: str) -> str:
    try:
        return " (close: another machine may choose the other token)" if float(gap) < CLOSE else ""
    except ValueError:
        return ""


def _cached(new: Mapping[str, Any], old: Mapping[str, Any]) -> str:
    return f"cached {new.get('cached')}, reviewed {old.get('cached')}"


def _gaps(new: Mapping[str, Any], old: Mapping[str, Any]) -> str:
    """Where top-2 gaps are furthest apart; only said where all else is equal."""
    pairs = list(zip_longest(_words(new, "gaps"), _words(old, "gaps"), fillvalue=_END))
    apart = [_distance(a, b) for a, b in pairs]
    if not any(apart):
        return ""
    at = apart.index(max(apart))
    return f"the top-2 gap of token {at} is {pairs[at][0]}, reviewed {pairs[at][1]}; {_cached(new, old)}"


def _distance(a: str, b: str) -> float:
    try:
        return abs(float(a) - float(b))
    except ValueError:
        return 0.0 if a == b else float("inf")


def _words(entry: Mapping[str, Any], key: str) -> list[str]:
    rows = entry.get(key)
    return [word for row in rows for word in str(row).split()] if isinstance(rows, list) else []


def _word(entry: Mapping[str, Any], key: str, at: int) -> str:
    words = _words(entry, key)
    return words[at] if at < len(words) else _END


def _first_difference(new: Sequence[str], old: Sequence[str]) -> int | None:
    pairs = enumerate(zip_longest(new, old))
    return next((at for at, (a, b) in pairs if a != b), None)
