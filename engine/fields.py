"""The values that a field of a body may hold: bounds, and the several forms of one value made one.

Knows how a value is read, what is said of a wrong one, and its JSON schema where that cannot be derived. Does
not know the names of fields or which body has which (engine.api).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

MAX_PROMPTS = 128
MAX_BIASES = 4096

Ids = tuple[int, ...]
Json = dict[str, Any]


def _read_prompts(value: object) -> tuple[str | Ids, ...]:
    """Normalise the four legal forms of a prompt to a tuple of texts and id tuples."""
    items = value if isinstance(value, list) and value and not _is_id(value[0]) else [value]
    if len(items) > MAX_PROMPTS:
        raise ValueError(f"holds {len(items)} prompts, at most {MAX_PROMPTS} are taken")
    return tuple(_read_prompt(item) for item in items)


def _read_prompt(value: object) -> str | Ids:
    if isinstance(value, str | list) and not value:
        raise ValueError("must not be empty")
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(map(_is_id, value)):
        return tuple(value)
    raise ValueError("must be text, a list of token ids, or a list of one of those")


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _read_content(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(_read_part, value))
    raise ValueError("must be text or a list of text parts")


def _read_part(value: object) -> str:
    if isinstance(value, dict) and value.get("type") == "text" and isinstance(value.get("text"), str):
        return str(value["text"])
    raise ValueError('holds a part that is not {"type": "text", "text": ...}; only text is served')


def _read_stop(value: object) -> object:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _read_bias(value: object) -> object:
    """JSON object keys are strings; token ids are numbers."""
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_BIASES:
        raise ValueError(f"names {len(value)} ids, at most {MAX_BIASES} are taken")
    return {int(key) if _is_digits(key) else key: bias for key, bias in value.items()}


def _is_digits(key: object) -> bool:
    return isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 19


_TEXT: Json = {"type": "string", "minLength": 1}
_ID: Json = {"type": "integer", "minimum": 0}
_PROMPT: Json = {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": _ID}]}
_PART: Json = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}

Finite = Annotated[float, Field(allow_inf_nan=False)]
Top = Annotated[int, Field(ge=0, le=20)]
Penalty = Annotated[Finite, Field(ge=-2, le=2)]
Count = Annotated[int, Field(ge=0, le=2**20, description="0 computes and stores the prompt alone")]

Prompts = Annotated[
    tuple[str | Ids, ...],
    PlainValidator(_read_prompts),
    WithJsonSchema(
        {
            "anyOf": [
                *_PROMPT["anyOf"],
                {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": _PROMPT},
            ]
        }
    ),
]
"""A tuple of texts and id tuples, whichever of the legal forms it came in."""

Content = Annotated[
    str,
    PlainValidator(_read_content),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]}),
]
"""A message's text, also where it came in parts."""

Stop = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(_read_stop),
    Field(max_length=4),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "maxItems": 4}]}),
]

Biases = Annotated[
    dict[Annotated[int, Field(ge=0)], Annotated[Finite, Field(ge=-100, le=100)]],
    BeforeValidator(_read_bias),
    Field(json_schema_extra={"propertyNames": {"pattern": "^[0-9]{1,18}$"}}),
]
"""Bias by token id."""
