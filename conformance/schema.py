"""The JSON Schema of the spec language, for editors: generated from the types and the judges.

Knows how the written form of an expectation differs from its type. Does not know what the schema cannot say:
references, lengths and requirement ids that must exist are looked at by `check.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from conformance.judges import JUDGES, Judge
from conformance.load import RESERVED
from conformance.spec import Expect, Spec

VERSION = 1


def schema(judges: Mapping[str, Judge] = JUDGES) -> dict[str, Any]:
    """The schema of one spec file; equal types and judges give equal schemas."""
    made = Spec.model_json_schema(by_alias=True)
    made["$defs"] |= _expectation(judges)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:prefix-cache-conformance:spec:{VERSION}",
        "title": "Prefix-cache conformance spec",
        **{key: value for key, value in made.items() if key != "title"},
    }


def schema_text(judges: Mapping[str, Judge] = JUDGES) -> str:
    """The text of `specs/spec.schema.json`."""
    return json.dumps(schema(judges), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _expectation(judges: Mapping[str, Judge]) -> dict[str, Any]:
    """`Expect` as it is written: a mapping with one key, a judge's word, and its arguments."""
    parts: dict[str, Any] = {}
    words = {name: _arguments(judges[name], parts) for name in sorted(judges)}
    expect = {
        "type": "object",
        "description": Expect.__doc__,
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
        "properties": words,
    }
    return {**parts, "Expect": expect}


def _arguments(judge: Judge, parts: dict[str, Any]) -> dict[str, Any]:
    made = judge.args.model_json_schema()
    parts |= made.pop("$defs", {})
    written = {
        name: Expect.model_json_schema()["properties"][of] for name, of in zip(RESERVED, _AS, strict=True)
    }
    written["as"] = {**written["as"], "default": judge.requirement}
    made["properties"] = made.get("properties", {}) | written
    return made | {"description": judge.doc}


_AS = ("requirement", "id")
"""What the reserved keys are called in `Expect`."""
