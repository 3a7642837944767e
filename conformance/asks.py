"""What one request of a case says, as types: texts, prompt parts, messages, sampling, and ways to leave.

Knows the words and their shapes. Does not know steps (`spec.py`), files and line marks (`load.py`), or the
numbers of a concrete target (`plan.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

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
Variable = Annotated[str, Field(pattern=r"^\$[a-z][a-z0-9_-]*$", description="a ladder's word")]
"""`$how` stands for the word of the rung, where a ladder holds words."""


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


class MarkerPart(Strict):
    """A short text that no other request holds (out/3); the planned request names it."""

    marker: Literal[True]


class RepeatPart(Strict):
    """The whole prompt of an earlier request; of a step of several, that of the same index."""

    repeat_of: Name


class ReplyPart(Strict):
    """What an earlier single request generated, as it came."""

    reply_of: Name


class RenderedPart(Strict):
    """The ids that an earlier single chat request was rendered to, where the target tells them."""

    rendered_of: Name


class ChangedPart(Strict):
    """The named text, the one token at position `at` (from 0) replaced by another plain one."""

    changed: Name
    at: Length


PART_WORDS = ("unique", "head_of", "literal", "marker", "repeat_of", "reply_of", "rendered_of", "changed")


def _part_kind(part: object) -> str | None:
    """Tags wear brackets so that they are never taken for a key of the file (`load.py` drops them)."""
    if isinstance(part, str):
        return "<name>"
    return tag(part, PART_WORDS)


def tag(value: object, words: Iterable[str]) -> str | None:
    """The tag of the first of the words that a mapping of the file, or what was made of it, has as a key."""
    keys = value if isinstance(value, dict) else getattr(value, "model_fields_set", ())
    return next((f"<{word}>" for word in words if word in keys), None)


Part = Annotated[
    Annotated[Name, Tag("<name>")]
    | Annotated[UniquePart, Tag("<unique>")]
    | Annotated[HeadPart, Tag("<head_of>")]
    | Annotated[LiteralPart, Tag("<literal>")]
    | Annotated[MarkerPart, Tag("<marker>")]
    | Annotated[RepeatPart, Tag("<repeat_of>")]
    | Annotated[ReplyPart, Tag("<reply_of>")]
    | Annotated[RenderedPart, Tag("<rendered_of>")]
    | Annotated[ChangedPart, Tag("<changed>")],
    Discriminator(
        _part_kind,
        custom_error_type="part",
        custom_error_message="a prompt part is a text's name, or a mapping with one of "
        + ", ".join(PART_WORDS),
    ),
]
Parts = Annotated[list[Part], Field(min_length=1)]
Salt = Literal["shared", "private"] | str
"""`shared`: the workload's own. `private`: one for each request. `none`: none at all. `adapter:a`: just what
the target calls that adapter. Else a label: equal labels, equal salt."""
ADAPTER_SALT = "adapter:"


class Message(Strict):
    """One message of a chat; its content is the parts as one text."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Parts


class StopToken(Strict):
    """A stop string: the text of token `token` (from 0) of what an earlier single request generated."""

    reply_of: Name
    token: int = Field(ge=0)


class BanFirst(Strict):
    """Bans the first tokens that the requests of an earlier step generated."""

    ban_first_of: Name


def _text_or_mapping(value: object) -> str:
    return "<text>" if isinstance(value, str) else "<mapping>"


def _bias_kind(value: object) -> str:
    keys = value if isinstance(value, dict) else getattr(value, "model_fields_set", ())
    return "<ban>" if "ban_first_of" in keys else "<ids>"


TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,18}$")]
Stop = Annotated[
    Annotated[str, Tag("<text>"), Field(min_length=1)] | Annotated[StopToken, Tag("<mapping>")],
    Discriminator(_text_or_mapping),
]
Bias = Annotated[
    Annotated[BanFirst, Tag("<ban>")] | Annotated[dict[TokenId, float], Tag("<ids>")],
    Discriminator(_bias_kind),
]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Sampling(Strict):
    """How tokens are chosen. A name that the dialect does not list makes the case unobservable there."""

    temperature: Finite | None = Field(default=None, ge=0)
    seed: int | None = Field(default=None, ge=0)
    top_p: Finite | None = Field(default=None, gt=0, le=1)
    n: int | None = Field(default=None, ge=1, le=64)
    stop: list[Stop] | None = Field(default=None, min_length=1, max_length=4)
    presence_penalty: Finite | None = None
    frequency_penalty: Finite | None = None
    repetition_penalty: Finite | None = None
    logit_bias: Bias | None = None
    min_tokens: int | None = Field(default=None, ge=0)
    prompt_logprobs: Literal[True] | None = None


class Leave(Strict):
    """How and when a client walks away from its stream."""

    how: Literal["rst", "fin", "half_close", "stop_reading", "abort"] | Variable = "rst"
    phase: Literal["queued", "prefilling", "first_token", "decoding", "last_step"] | Variable
    tokens: int = Field(default=4, ge=1, description="decoding: leave after this many streamed tokens")
    fraction: float = Field(
        default=0.3, gt=0, lt=1, description="prefilling: leave after this share of the measured cold TTFT"
    )
    seconds: float | None = Field(
        default=None, gt=0, le=60, description="stop_reading: how long nothing is read before it closes"
    )


class Request(Strict):
    """What send, burst, series, start and the entries of a burst have in common: prompt or messages."""

    prompt: Parts | None = None
    max_tokens: Length = 16
    salt: Salt = "shared"
    stream: bool = True
    logprobs: bool = True
    leave: Leave | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    sampling: Sampling | None = None
    adapter: Name | Variable | None = None


class Entry(Request):
    """Some requests of a burst of different ones. What it does not say, the burst says."""

    name: Name | None = None
    requests: int = Field(default=1, ge=1, le=64)
