"""The spec language as types: what a YAML case may say.

Knows the shape of a case and which words are legal in it. Does not know files and line marks
(`load.py`), numbers of a concrete target (`plan.py`), or what is right (`judges/`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

Length = Annotated[
    int | str,
    Field(
        description="Tokens: a number, or an expression in B, G, C, pool, min_prefix, prefix, reply, "
        "for example 8B+1, 3C-1, pool/2, prefix."
    ),
]
"""`prefix` is the shared prefix of the scale (full 3700, ci 570), `reply` its reply length (128, 32)."""

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]
SpecId = Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+$")]
Requirement = Annotated[str, Field(pattern=r"^[a-z]+/[0-9]+$")]


class Strict(BaseModel):
    """Unknown keys are an error: a mistyped guard must never be ignored. Nor does `true` mean 1."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Text(Strict):
    """A named text: `tokens` seeded random plain ids (or words on a text-only target)."""

    tokens: Length
    seed: int


class UniquePart(Strict):
    """`unique` tokens whose first one differs for every request of the step and every step seed."""

    unique: Length
    seed: int = 0


class HeadPart(Strict):
    """The first `tokens` of the named text."""

    head_of: Name
    tokens: Length


class LiteralPart(Strict):
    literal: str


def _part_kind(part: object) -> str | None:
    """Tags wear brackets so that they are never taken for a key of the file (`load.py` drops them)."""
    if isinstance(part, str):
        return "<name>"
    keys = part if isinstance(part, dict) else getattr(part, "model_fields_set", ())
    return next((f"<{word}>" for word in ("unique", "head_of", "literal") if word in keys), None)


Part = Annotated[
    Annotated[Name, Tag("<name>")]
    | Annotated[UniquePart, Tag("<unique>")]
    | Annotated[HeadPart, Tag("<head_of>")]
    | Annotated[LiteralPart, Tag("<literal>")],
    Discriminator(
        _part_kind,
        custom_error_type="part",
        custom_error_message="a prompt part is a text's name, or a mapping with unique, head_of or literal",
    ),
]
Salt = Literal["shared", "private"] | str
"""`shared`: the workload's own. `private`: one for each request. Else a label: equal labels, equal salt."""


class Leave(Strict):
    """How and when a client walks away from its stream."""

    how: Literal["rst", "fin"] = "rst"
    phase: Literal["prefilling", "decoding"]
    tokens: int = Field(default=4, ge=1, description="decoding: leave after this many streamed tokens")
    fraction: float = Field(
        0.3, gt=0, lt=1, description="prefilling: leave after this share of the measured cold TTFT"
    )


class Request(Strict):
    """What send, burst, series and turns have in common."""

    prompt: list[Part] = Field(min_length=1)
    max_tokens: Length = 16
    salt: Salt = "shared"
    stream: bool = True
    logprobs: bool = True
    leave: Leave | None = None


class Send(Request):
    send: Name


class Burst(Request):
    """`requests` at once: written to connected sockets behind a barrier."""

    burst: Name
    requests: int = Field(ge=2, le=64)


class Series(Request):
    """`requests` one after another, each after the last one ended."""

    series: Name
    requests: int = Field(ge=1, le=256)


class Turns(Strict):
    """One conversation: each turn's prompt is the last prompt, its reply, and `each`."""

    turns: Name
    count: int = Field(ge=2, le=64)
    opening: list[Part] = Field(min_length=1)
    each: list[Part] = Field(min_length=1)
    max_tokens: Length = 16
    stream: bool = True


class Wait(Strict):
    """`idle`: running and waiting are 0, counters stable. Else seconds; a name scales with --scale."""

    wait: Literal["idle", "settle"] | Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)]


class Mark(Strict):
    mark: Name


class Reset(Strict):
    reset: Literal[True]


STEP_WORDS = ("send", "burst", "series", "turns", "wait", "mark", "reset")


def _step_kind(step: object) -> str | None:
    keys = step if isinstance(step, dict) else getattr(step, "model_fields_set", ())
    return next((f"<{word}>" for word in STEP_WORDS if word in keys), None)


Step = Annotated[
    Annotated[Send, Tag("<send>")]
    | Annotated[Burst, Tag("<burst>")]
    | Annotated[Series, Tag("<series>")]
    | Annotated[Turns, Tag("<turns>")]
    | Annotated[Wait, Tag("<wait>")]
    | Annotated[Mark, Tag("<mark>")]
    | Annotated[Reset, Tag("<reset>")],
    Discriminator(
        _step_kind,
        custom_error_type="step",
        custom_error_message="a step is a mapping with one of the words " + ", ".join(STEP_WORDS),
    ),
]


def step_name(step: Step | Request) -> str:
    """The name a step was given; empty for wait and reset, which have none."""
    if isinstance(step, Wait | Reset):
        return ""
    return str(getattr(step, next(word for word in STEP_WORDS if hasattr(step, word))))


class Serve(Strict):
    """How the target must be started for this case; a target that cannot gives `unobservable`."""

    profile: Name = Field(default="default", description="a launch profile that the dialect knows")
    fresh: bool = Field(default=False, description="a process of its own, not the session's")


class Arm(Strict):
    """The same steps once more under other conditions: a control."""

    serve: Serve


class Expect(Strict):
    """One expectation: exactly one judge's word, with its arguments, and whose law it is."""

    judge: Name
    args: dict[str, Any]
    requirement: Requirement
    id: Name
    line: int = 0


class Spec(Strict):
    """A case. `expect` is written as a list of one-key mappings and normalised by `load.py`."""

    spec: Literal[1]
    id: SpecId
    title: str
    proves: list[Requirement] = Field(min_length=1)
    kills: list[Name] = []
    guard: str = Field(default="", description="what must have happened for a pass to mean anything")
    quick: bool = Field(default=False, description="part of the quick set (-m quick)")
    ladder: dict[Name, list[Length]] = Field(
        default={}, alias="for", description="one variable and its values: a rung each"
    )
    serve: Serve = Serve()
    texts: dict[Name, Text] = {}
    steps: list[Step] = Field(min_length=1)
    arms: dict[Name, Arm] = {}
    expect: list[Expect] = Field(min_length=1)
