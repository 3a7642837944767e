"""The spec language as types: what a YAML case may say.

Knows the shape of a case and which steps are legal in it; what one request says is in `asks.py`. Does not
know files and line marks (`load.py`), numbers of a concrete target (`plan.py`), or what is right (`judges/`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from conformance.asks import (
    BanFirst,
    ChangedPart,
    Entry,
    HeadPart,
    Leave,
    Length,
    LiteralPart,
    MarkerPart,
    Message,
    Name,
    Part,
    Parts,
    RenderedPart,
    RepeatPart,
    ReplyPart,
    Request,
    Salt,
    Sampling,
    StopToken,
    Strict,
    Text,
    UniquePart,
    Variable,
    tag,
)

__all__ = [
    "Arm", "BanFirst", "Burst", "ChangedPart", "Churn", "Entry", "Expect", "Fail", "HeadPart", "Hold",
    "Join", "Leave", "Length", "LiteralPart", "Loop", "Mark", "MarkerPart", "Message", "Name", "Overwrite",
    "Part", "Reload", "RenderedPart", "Repeat", "RepeatPart", "ReplyPart", "Request", "Reset", "Salt",
    "Sampling", "Send", "Series", "Serve", "Spec", "Start", "Step", "StopToken", "Strict", "Text", "Turns",
    "UniquePart", "Variable", "Wait", "When", "all_steps", "entries", "step_name",
]  # fmt: skip

SpecId = Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+$")]
Requirement = Annotated[str, Field(pattern=r"^[a-z]+/[0-9]+$")]
Phase = Literal["queued", "prefilling", "decoding"]


class Send(Request):
    send: Name


class Burst(Request):
    """Requests at once, written to connected sockets behind a barrier: `requests` alike, or `each`."""

    burst: Name
    requests: int | None = Field(default=None, ge=2, le=64)
    each: Annotated[list[Entry], Field(min_length=1, max_length=64)] | None = None
    stagger: float | None = Field(
        default=None, ge=0, le=60, allow_inf_nan=False, description="seconds between one send and the next"
    )


class Series(Request):
    """`requests` one after another, each after the last one ended."""

    series: Name
    requests: int = Field(ge=1, le=256)


class Start(Request):
    """A send, or a burst where there are `requests` or `each`, that goes on while later steps run."""

    start: Name
    requests: int | None = Field(default=None, ge=1, le=64)
    each: Annotated[list[Entry], Field(min_length=1, max_length=64)] | None = None
    stagger: float | None = Field(default=None, ge=0, le=60, allow_inf_nan=False)


class Join(Strict):
    """Waits until a started step has ended; one that is never joined is joined at the end."""

    join: Name


class Reached(Strict):
    """Where a started request must have come to."""

    request: Name
    phase: Phase | Variable
    tokens: int = Field(default=1, ge=1, description="decoding: so many tokens were streamed")
    fraction: float = Field(
        default=0.3, gt=0, lt=1, description="prefilling: so much of the measured cold TTFT has passed"
    )


class When(Strict):
    """Waits until every request of a started step is there, or has ended: bounded, and told by the span."""

    when: Reached


class Turns(Strict):
    """One conversation: each turn's prompt is the last prompt, its reply, and `each`; idle in between.

    With `chat` they are messages: `opening` is the system's, `each` the user's, the replies the assistant's.
    """

    turns: Name
    count: int = Field(ge=2, le=64)
    opening: Parts
    each: Parts
    max_tokens: Length = 16
    stream: bool = True
    chat: Literal[True] | None = None


class Repeat(Strict):
    """Sends the very requests of an earlier step again, `times` over, one by one or all at once."""

    repeat: Name
    of: Name
    times: int = Field(default=1, ge=1, le=256)
    stream: bool | None = None
    at_once: Literal[True] | None = None
    max_tokens: Length | None = None


class Churn(Strict):
    """Unique prompts one after another, until so much has passed: `tokens`, `pools`, or `evictions`."""

    churn: Name
    tokens: Length | None = None
    pools: float | None = Field(default=None, gt=0, le=8)
    evictions: int | None = Field(default=None, ge=1)
    each: Length | None = Field(default=None, description="one prompt; 512 tokens, or a quarter of the pool")
    salt: Salt = "private"


class Loop(Strict):
    """Its steps, `loop` times over; outcomes of all rounds stand under their step's name."""

    loop: int = Field(ge=1, le=256)
    steps: list[Step] = Field(min_length=1)


class Wait(Strict):
    """`idle`: running and waiting are 0, counters stable. Else seconds; a name scales with --scale."""

    wait: Literal["idle", "settle"] | Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)]


class Mark(Strict):
    mark: Name


class Reset(Strict):
    """Empties the cache; with a name its span tells `done`, `status` and `answer`."""

    reset: Literal[True] | Name


class Reload(Strict):
    """New weights under the name of an adapter that is served."""

    reload: Name
    adapter: Name | Variable


class Overwrite(Strict):
    """Test build: other rows in a block that a request of the step wrote or adopted."""

    overwrite: Name
    block_of: Name


class Hold(Strict):
    """Test build: requests stand still in a phase once they did `after` tokens of it; `off` lets them go."""

    hold: Phase | Literal["off"] | Variable
    after: int = Field(default=0, ge=0)


class Fail(Strict):
    """Test build: one forward of this kind fails, after so many that succeed."""

    fail: Name
    forward: Literal["prefill", "decode"]
    after: int = Field(default=0, ge=0)


STEP_WORDS = (
    "send", "burst", "series", "start", "join", "when", "turns", "repeat", "churn", "loop", "wait", "mark",
    "reset", "reload", "overwrite", "hold", "fail",
)  # fmt: skip


def _step_kind(step: object) -> str | None:
    return tag(step, STEP_WORDS)


Step = Annotated[
    Annotated[Send, Tag("<send>")]
    | Annotated[Burst, Tag("<burst>")]
    | Annotated[Series, Tag("<series>")]
    | Annotated[Start, Tag("<start>")]
    | Annotated[Join, Tag("<join>")]
    | Annotated[When, Tag("<when>")]
    | Annotated[Turns, Tag("<turns>")]
    | Annotated[Repeat, Tag("<repeat>")]
    | Annotated[Churn, Tag("<churn>")]
    | Annotated[Loop, Tag("<loop>")]
    | Annotated[Wait, Tag("<wait>")]
    | Annotated[Mark, Tag("<mark>")]
    | Annotated[Reset, Tag("<reset>")]
    | Annotated[Reload, Tag("<reload>")]
    | Annotated[Overwrite, Tag("<overwrite>")]
    | Annotated[Hold, Tag("<hold>")]
    | Annotated[Fail, Tag("<fail>")],
    Discriminator(
        _step_kind,
        custom_error_type="step",
        custom_error_message="a step is a mapping with one of the words " + ", ".join(STEP_WORDS),
    ),
]


Loop.model_rebuild()


def step_name(step: Step) -> str:
    """The name a step was given; empty for steps that have none (a join has that of what it joins)."""
    if isinstance(step, Wait | Join | When | Hold | Loop):
        return ""
    if isinstance(step, Reset):
        return step.reset if isinstance(step.reset, str) else ""
    return str(getattr(step, next(word for word in STEP_WORDS if word in type(step).model_fields)))


def entries(step: Burst | Start) -> list[Entry]:
    """The entries of a burst of different requests, with what the burst says where they say nothing."""
    said = {name for name in Request.model_fields if name in step.model_fields_set}
    return [
        entry.model_copy(update={name: getattr(step, name) for name in said - entry.model_fields_set})
        for entry in step.each or ()
    ]


def all_steps(steps: Sequence[Step]) -> Iterator[Step]:
    """Steps in order, those inside a loop in its place, each once."""
    for step in steps:
        yield step
        if isinstance(step, Loop):
            yield from all_steps(step.steps)


class Serve(Strict):
    """How the target must be started for this case; a target that cannot gives `unobservable`."""

    profile: Name | Variable = Field(default="default", description="a launch profile that the dialect knows")
    optional: Literal[True] | None = Field(
        default=None, description="where there is no such profile, the server as it is started otherwise"
    )
    fresh: bool = Field(default=False, description="a process of its own, not the session's")


class Arm(Strict):
    """The same steps once more under other conditions: a control. The same server unless `serve` is given."""

    serve: Serve | None = None
    salt: Literal["private"] | None = Field(default=None, description="every request a cache of its own")
    one_by_one: Literal[True] | None = Field(default=None, description="bursts become series")
    stream: bool | None = Field(default=None, description="every request streamed, or none")


class Expect(Strict):
    """One expectation: exactly one judge's word, with its arguments, and whose law it is."""

    judge: Name
    args: dict[str, Any]
    requirement: Requirement
    id: Name
    line: int = 0


def _no_flag(value: object) -> object:
    """`true` equals 1 in Python, and a literal is compared."""
    if isinstance(value, bool):
        raise ValueError("should be 1")
    return value


class Spec(Strict):
    """A case. `expect` is written as a list of one-key mappings and normalised by `load.py`."""

    spec: Annotated[Literal[1], BeforeValidator(_no_flag)]
    id: SpecId
    title: str
    proves: list[Requirement] = Field(min_length=1)
    kills: list[Name] = Field(default=[])
    stays: str = Field(default="", description="why it is worth its time though no fault dies by it alone")
    guard: str = Field(default="", description="what must have happened for a pass to mean anything")
    quick: bool = Field(default=False, description="part of the quick set (-m quick)")
    ladder: dict[Name, list[Length]] = Field(
        default={},
        alias="for",
        description="one variable and its values, a rung each: lengths, or words that are used as $NAME",
    )
    serve: Serve = Serve()
    texts: dict[Name, Text] = Field(default={})
    steps: list[Step] = Field(min_length=1)
    arms: dict[Name, Arm] = Field(default={})
    expect: list[Expect] = Field(min_length=1)
