"""A spec made concrete for one target: exact prompts, numbers, salts, in the order they will be sent.

Knows the spec, the target's declared facts and its vocabulary. Does not know HTTP, and judges nothing. The
same spec, rung, seed and facts give the same prompts on every machine: random choice is seeded and a salt is
a field of the request, not text. Where a target has no such field, the salt becomes a head in front of the
prompt (design, section 4, rules that hold everywhere).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

from conformance.history import Facts, PlannedRequest
from conformance.lengths import LengthError, UnknownHere, evaluate
from conformance.rungs import digest, spec_digest
from conformance.spec import (
    Arm,
    Burst,
    HeadPart,
    Leave,
    Length,
    LiteralPart,
    Mark,
    Part,
    Request,
    Reset,
    Send,
    Series,
    Serve,
    Spec,
    Step,
    Turns,
    UniquePart,
    Wait,
    step_name,
)

Scale = Literal["full", "ci"]
Prompt = Sequence[int] | str
"""Token ids, or text where the target takes none."""

SCALES: dict[Scale, dict[str, int]] = {
    "full": {"prefix": 3700, "reply": 128},
    "ci": {"prefix": 570, "reply": 32},
}
SETTLE: dict[Scale, float] = {"full": 2.0, "ci": 0.5}
"""Seconds that `wait: settle` takes at least; a target that declares more gets more."""

_HEAD = 8  # tokens that a salt takes as text; rounded up to whole granules, so that lengths keep their place
_SEEDS_APART = 64  # requests of a step before the first ids of the next seed begin
_DRAWS = 4096  # draws that show every plain token of a small vocabulary


class Vocabulary(Protocol):
    """Harmless tokens of a target: no special ones, and text that encodes back to the same ids."""

    @property
    def is_ids(self) -> bool:
        """Whether the target takes ids; else it gets words."""

    def ids(self, count: int, seed: int) -> list[int]:
        """`count` ids drawn by `random.Random(seed)`; a longer draw begins with a shorter one."""

    def text(self, count: int, seed: int) -> str:
        """Words worth about `count` tokens, drawn the same way, with a space between."""

    def encode(self, text: str) -> list[int]:
        """Ids of a literal text. Raises ValueError where that is not possible."""


class PlanError(ValueError):
    """A spec that cannot be on this target; `loc` is the place in the file."""

    def __init__(self, message: str, loc: tuple[int | str, ...] = ()) -> None:
        super().__init__(message)
        self.loc = loc


class Unobservable(Exception):
    """The target lacks what the spec needs; the reason is the message. No mistake of the spec."""


@dataclass(frozen=True)
class TurnPlan:
    """One conversation: what opens it, and what each turn adds after the reply of the last one."""

    opening: Prompt
    each: tuple[Prompt, ...]
    max_tokens: int
    stream: bool
    salt: str


@dataclass(frozen=True)
class PlannedStep:
    """One step. `requests` is empty for turns, whose prompts depend on replies (`turn_request`).

    Steps without a name of their own are called `wait[3]`, `reset[3]`: no spec can give such a name.
    """

    kind: Literal["send", "burst", "series", "turns", "wait", "mark", "reset"]
    name: str
    requests: tuple[PlannedRequest, ...] = ()
    leave: Leave | None = None
    wait: Literal["idle"] | float | None = None
    turns: TurnPlan | None = None


@dataclass(frozen=True)
class Plan:
    """Everything the driver needs for one arm of one (spec, rung)."""

    spec_id: str
    rung: str
    digest: str
    serve: Serve
    arms: Mapping[str, Arm]
    steps: tuple[PlannedStep, ...]
    solo_steps: frozenset[str] = field(default=frozenset())

    @property
    def solos(self) -> list[PlannedRequest]:
        """Requests that a judge compares with their solo run, each key once, in order."""
        wanted = [r for step in self.steps if step.name in self.solo_steps for r in step.requests]
        first: dict[str, PlannedRequest] = {}
        for request in wanted:
            first.setdefault(request.key, request)
        return list(first.values())


def make_plan(
    spec: Spec,
    rung: str | None,
    facts: Facts,
    scale: Scale,
    run_salt: str,
    vocabulary: Vocabulary,
    *,
    solo_steps: frozenset[str] = frozenset(),
    arm: str = "main",
) -> Plan:
    """Plan one arm.

    Raises PlanError for lengths that cannot be, Unobservable where the target lacks something.
    """
    rung = rung or ""
    salt = "-".join(word for word in (run_salt, spec.id, rung, arm) if word not in ("", "main"))
    planner = _Planner(spec, facts, vocabulary, _symbols(spec, rung, facts, scale), salt)
    steps = tuple(
        planner.step(i, step, max(facts.settle, SETTLE[scale])) for i, step in enumerate(spec.steps)
    )
    return Plan(spec.id, rung, spec_digest(spec), spec.serve, spec.arms, steps, solo_steps)


def turn_request(
    step: PlannedStep, turn: int, previous: PlannedRequest | None, reply: Prompt | None
) -> PlannedRequest:
    """The request of one turn: the last prompt, its reply, and what the turn adds.

    Turn 0 has the opening instead of a last prompt. `reply` is ids where the plan is in ids, else text;
    raises PlanError where it is not.
    """
    plan = step.turns
    assert plan is not None
    before = plan.opening if previous is None else _replied(previous, reply)
    if before is None:
        raise PlanError(
            f"turn {turn} of {step.name}: the reply before it did not come back in the prompt's form"
        )
    return _request(step.name, turn, True, [before, plan.each[turn]], plan)


def _replied(previous: PlannedRequest, reply: Prompt | None) -> Prompt | None:
    """A prompt and its reply, verbatim; None when one is ids and the other text."""
    if previous.prompt_ids is None:
        return (previous.prompt_text or "") + reply if isinstance(reply, str) else None
    return None if reply is None or isinstance(reply, str) else [*previous.prompt_ids, *reply]


@dataclass(frozen=True)
class _Planner:
    """Makes prompts of one workload; `salt` is the workload's own."""

    spec: Spec
    facts: Facts
    vocabulary: Vocabulary
    symbols: Mapping[str, int]
    salt: str

    def step(self, i: int, step: Step, settle: float) -> PlannedStep:
        if isinstance(step, Wait):
            seconds = settle if step.wait == "settle" else step.wait
            return PlannedStep("wait", f"wait[{i}]", wait=seconds)
        if isinstance(step, Mark):
            return PlannedStep("mark", step.mark)
        if isinstance(step, Reset):
            return self._reset(i)
        if isinstance(step, Turns):
            return PlannedStep("turns", step.turns, turns=self._turns(i, step))
        if not isinstance(step, Send | Burst | Series):
            raise PlanError("this step cannot be planned yet", ("steps", i))
        return PlannedStep(_kind(step), step_name(step), self._requests(i, step), step.leave)

    def _reset(self, i: int) -> PlannedStep:
        if not self.facts.has_reset:
            raise Unobservable("the target has no way to reset its cache")
        return PlannedStep("reset", f"reset[{i}]")

    def _turns(self, i: int, step: Turns) -> TurnPlan:
        loc = ("steps", i)
        opening = self._joined(step.opening, (*loc, "opening"), 0, self._head(self.salt))
        each = tuple(self._joined(step.each, (*loc, "each"), turn) for turn in range(step.count))
        return TurnPlan(opening, each, self._reply(step.max_tokens, loc), step.stream, self._field(self.salt))

    def _requests(self, i: int, step: Send | Burst | Series) -> tuple[PlannedRequest, ...]:
        count = (step.requests or 0) if isinstance(step, Burst | Series) else 1
        return tuple(self._one(i, step, index, many=not isinstance(step, Send)) for index in range(count))

    def _one(self, i: int, step: Send | Burst | Series, index: int, many: bool) -> PlannedRequest:
        loc, name = ("steps", i), step_name(step)
        salt = self._salt(step.salt, f"{name}[{index}]" if many else name)
        parts = [*self._head(salt), *self._parts(step.prompt or [], (*loc, "prompt"), index)]
        how = _How(self._reply(step.max_tokens, loc), step.stream, self._field(salt), step.logprobs)
        return _request(name, index, many, parts, how)

    def _salt(self, salt: str, request: str) -> str:
        if salt == "shared":
            return self.salt
        return f"{self.salt}-{request}" if salt == "private" else f"{self.salt}-label-{salt}"

    def _field(self, salt: str) -> str:
        return salt if self.facts.has_salt else ""

    def _head(self, salt: str) -> list[Prompt]:
        """The salt as text, where there is no field for it."""
        if self.facts.has_salt:
            return []
        granule = self.facts.granule or 1
        return [self._draw(-(-_HEAD // granule) * granule, _seed("salt", salt))]

    def _joined(
        self, parts: Sequence[Part], loc: tuple[int | str, ...], index: int, head: Sequence[Prompt] = ()
    ) -> Prompt:
        return _join([*head, *self._parts(parts, loc, index)])

    def _parts(self, parts: Sequence[Part], loc: tuple[int | str, ...], index: int) -> list[Prompt]:
        return [self._part(part, (*loc, k), index) for k, part in enumerate(parts)]

    def _part(self, part: Part, loc: tuple[int | str, ...], index: int) -> Prompt:
        if isinstance(part, UniquePart):
            return self._unique(self._tokens(part.unique, (*loc, "unique")), part.seed, index, loc)
        if isinstance(part, LiteralPart):
            return self._literal(part.literal, loc)
        if isinstance(part, HeadPart):
            return self._head_of(part, loc)
        if not isinstance(part, str):
            raise PlanError("this part cannot be planned yet", loc)
        return self._draw(self._text_tokens(part), self.spec.texts[part].seed)

    def _unique(self, count: int, seed: int, index: int, loc: tuple[int | str, ...]) -> Prompt:
        """The first token says which request and which seed this is; the rest is random."""
        if index >= len(self._firsts):
            message = f"request {index} has no first token of its own: {len(self._firsts)} plain tokens"
            raise PlanError(message, loc)
        first = self._firsts[(seed * _SEEDS_APART + index) % len(self._firsts)]
        drawn = self._draw(count, _seed("unique", seed, index))
        if isinstance(drawn, str):
            return " ".join([str(first), *drawn.split()[1:]])
        return [int(first), *drawn[1:]]

    @cached_property
    def _firsts(self) -> list[int | str]:
        """Every plain token, in an order that is the same for all specs."""
        drawn = self._draw(_DRAWS, 0)
        return list(dict.fromkeys(drawn.split() if isinstance(drawn, str) else drawn))

    def _literal(self, text: str, loc: tuple[int | str, ...]) -> Prompt:
        if not self.vocabulary.is_ids:
            return text
        try:
            return self.vocabulary.encode(text)
        except ValueError as error:
            raise PlanError(f"the literal cannot be sent as token ids: {error}", loc) from None

    def _head_of(self, part: HeadPart, loc: tuple[int | str, ...]) -> Prompt:
        whole, count = self._text_tokens(part.head_of), self._tokens(part.tokens, (*loc, "tokens"))
        if count > whole:
            raise PlanError(
                f"a head of {count} tokens of {part.head_of!r}, which has {whole}", (*loc, "tokens")
            )
        return self._draw(count, self.spec.texts[part.head_of].seed)

    def _draw(self, count: int, seed: int) -> Prompt:
        draw = self.vocabulary.ids if self.vocabulary.is_ids else self.vocabulary.text
        return draw(count, seed)

    def _text_tokens(self, name: str) -> int:
        return self._tokens(self.spec.texts[name].tokens, ("texts", name, "tokens"))

    def _reply(self, length: Length, loc: tuple[int | str, ...]) -> int:
        return self._tokens(length, (*loc, "max_tokens"))

    def _tokens(self, length: Length, loc: tuple[int | str, ...]) -> int:
        return _positive(length, self.symbols, loc)


@dataclass(frozen=True)
class _How:
    """Parameters of a request besides its prompt; the part of a TurnPlan that one turn needs."""

    max_tokens: int
    stream: bool
    salt: str
    logprobs: bool = True


def _symbols(spec: Spec, rung: str, facts: Facts, scale: Scale) -> dict[str, int]:
    """Values of the symbols this target tells, the scale's, and the ladder's variable on this rung."""
    pool = facts.pool_blocks * facts.block if facts.pool_blocks and facts.block else None
    told = {
        "B": facts.block,
        "G": facts.granule,
        "C": facts.chunk,
        "pool": pool,
        "min_prefix": facts.min_prefix,
    }
    symbols = {name: value for name, value in told.items() if value is not None} | SCALES[scale]
    for name, values in spec.ladder.items():
        for i, value in enumerate(values):
            if rung == f"{name}={value}":
                return symbols | {name: _positive(value, symbols, ("for", name, i))}
    return symbols


def _positive(length: Length, symbols: Mapping[str, int], loc: tuple[int | str, ...]) -> int:
    try:
        tokens = evaluate(length, symbols)
    except UnknownHere as unknown:
        raise Unobservable(f"{unknown}, and the length {length!r} needs it") from None
    except LengthError as error:
        raise PlanError(str(error), loc) from None
    if tokens < 1:
        raise PlanError(f"{length!r} is {tokens} tokens on this target; at least 1 is needed", loc)
    return tokens


def _kind(step: Request) -> Literal["send", "burst", "series"]:
    if isinstance(step, Burst):
        return "burst"
    return "series" if isinstance(step, Series) else "send"


def _request(
    step: str, index: int, many: bool, parts: Sequence[Prompt], how: _How | TurnPlan
) -> PlannedRequest:
    prompt = _join(parts)
    logprobs = getattr(how, "logprobs", True)
    return PlannedRequest(
        id=f"{step}[{index}]" if many else step,
        step=step,
        index=index,
        prompt_ids=None if isinstance(prompt, str) else list(prompt),
        prompt_text=prompt if isinstance(prompt, str) else None,
        parts=[len(part) for part in parts],
        max_tokens=how.max_tokens,
        salt=how.salt,
        stream=how.stream,
        logprobs=logprobs,
        key=digest([prompt, how.max_tokens, how.stream, logprobs]),
    )


def _join(parts: Sequence[Prompt]) -> Prompt:
    """One prompt of several parts of one kind; words get a space between."""
    texts = [part for part in parts if isinstance(part, str)]
    if texts:
        return " ".join(texts)
    return [token for part in parts if not isinstance(part, str) for token in part]


def _seed(*words: object) -> int:
    """A seed that is the same on every machine and far from the small numbers that specs use."""
    return int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:8])
