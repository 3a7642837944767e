"""What pydantic found wrong with a value, in the words of who wrote the YAML.

Knows pydantic's kinds of error and how YAML writes a value. Does not know where the value stands (`marks.py`)
nor what else would be legal there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import ErrorDetails

_SHOWN = 40
"""Characters of a value that a message shows."""

_PLAIN = {
    "string_type": "should be a text",
    "int_type": "should be a whole number",
    "int_from_float": "should be a whole number",
    "float_type": "should be a number",
    "bool_type": "should be true or false",
    "finite_number": "should be a finite number",
    "string_too_short": "should be a text that is not empty",
    "date_type": "should be a day, as in 2027-03-01",
    "date_from_datetime_inexact": "should be a day, as in 2027-03-01",
    "dict_type": "a mapping is needed",
    "model_type": "a mapping is needed",
    "model_attributes_type": "a mapping is needed",
    "list_type": "a list is needed",
    "tuple_type": "a list is needed",
}
"""By the type of the error."""

_PATTERNS = {
    r"^[a-z][a-z0-9_-]*$": "a name (a-z, 0-9, _ and -, a letter first)",
    r"^\$[a-z][a-z0-9_-]*$": "a ladder's word ($ and a name)",
    r"^[a-z0-9.-]+/[a-z0-9.-]+$": "an id of a spec, as in adopt/my-case",
    r"^[a-z]+/[0-9]+$": "an id of a requirement, as in adopt/1",
    r"^[0-9]{1,18}$": "the id of a token",
    r"^https?://\S+$": "a link, as in https://example.org/1",
}

_FORMED: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than_equal": lambda ctx: f"{ctx['ge']:g} or more",
    "greater_than": lambda ctx: f"more than {ctx['gt']:g}",
    "less_than_equal": lambda ctx: f"{ctx['le']:g} or less",
    "less_than": lambda ctx: f"less than {ctx['lt']:g}",
    "literal_error": lambda ctx: "true" if ctx["expected"] == "True" else ctx["expected"],
    "string_pattern_mismatch": lambda ctx: _PATTERNS.get(
        ctx["pattern"], f"a text that matches {ctx['pattern']}"
    ),
}
"""By the type of the error: what it should be, made of what pydantic says about it."""


def message(error: ErrorDetails) -> str:
    """What a value should be, and what it is."""
    kind = error["type"]
    if kind == "too_short":
        return "at least one item is needed"
    if kind == "too_long":
        return f"at most {error['ctx']['max_length']} items fit"
    if kind == "value_error":
        return _own(error["msg"].removeprefix("Value error, "), error["input"])
    if kind in _FORMED:
        what = f"should be {_FORMED[kind](error.get('ctx', {}))}"
    else:
        what = _PLAIN.get(kind) or error["msg"].removeprefix("Input ")
    return f"{what}, not {shown(error['input'])}"


def _own(told: str, value: object) -> str:
    """What a check of our own says: about a whole mapping, or with the value in it, it is enough."""
    is_enough = isinstance(value, dict) or shown(value) in told
    return told if is_enough else f"{told}, not {shown(value)}"


def shown(value: object) -> str:
    """A value as YAML would write it, cut to what a line bears."""
    text = _NAMES[value] if value is None or isinstance(value, bool) else _written(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


_NAMES: dict[object, str] = {True: "true", False: "false", None: "nothing"}


def _written(value: object) -> str:
    # JSON is YAML, and knows no Python.
    is_collection = isinstance(value, dict | list)
    return json.dumps(value, ensure_ascii=False, default=str) if is_collection else repr(value)
