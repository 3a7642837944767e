"""The bundled engine inside this process: no socket, no thread, no clock.

Knows the engine's requests, events and statistics, and turns them into the harness's own. Does not know steps
(`perform.py`) or judges. Imports the engine, as `judging.py` and `ground.py` do: only `python -m
conformance.explore` and its helpers may, never a pytest process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import Any

from conformance.asks import ADAPTER_SALT
from conformance.dialect import Dialect, Reading, Source, dialects, pick
from conformance.history import Choice, Facts, Outcome, PlannedRequest
from conformance.judges.life import Phase
from conformance.vocabulary import LETTERS, Ids, Letters
from engine.build import Parts
from engine.cli import build_parser, config_of
from engine.config import EngineConfig
from engine.messages import (
    Done,
    Event,
    Failed,
    Finished,
    Prompted,
    Request,
    RequestError,
    SamplingParams,
    Started,
    Token,
)
from engine.stepped import SteppedWorker

_TOP = 2
"""Likeliest tokens that are asked for, as the dialect does."""


@cache
def engine_dialect() -> Dialect:
    return next(known for known in dialects() if known.dialect == "engine")


def configured(arguments: Sequence[str]) -> dict[str, EngineConfig]:
    """What `serve` would make of these flags, by launch profile; the model is `digest` where they name none.

    SystemExit 2 for a flag that is none, ConfigError for a value that cannot be.
    """
    flags = ["serve", "--test-mode", "--model", "digest", *arguments]
    profiles = {name: profile.args for name, profile in engine_dialect().profiles.items()}
    return {name: config_of(build_parser().parse_args([*flags, *args])) for name, args in profiles.items()}


class InProcess:
    """One engine, turned by hand. Not for use from several threads."""

    def __init__(self, config: EngineConfig, parts: Parts) -> None:
        self._worker = SteppedWorker(config, parts)

    @cached_property
    def facts(self) -> Facts:
        """What the probe would find out over HTTP."""
        return _facts(self._worker)

    @cached_property
    def vocabulary(self) -> Ids:
        """Where texts come from."""
        codec = self._worker.tokenizer
        return _Remembering(sorted(set(codec.encode(LETTERS))), codec.encode, Letters(LETTERS))

    @property
    def busy(self) -> bool:
        return self._worker.busy

    def turn(self) -> None:
        """One step of the engine, and everything it has to say about it."""
        self._worker.turn()

    def sample(self) -> dict[str, float]:
        """The gauges in the harness's names."""
        stats = self._worker.stats()
        plain, summed = self._gauges
        found = {name: float(stats[key]) for name, key in plain.items()}
        for name, keys, times in summed:
            found[name] = float(times * sum(stats[key] for key in keys))
        return found

    @cached_property
    def _gauges(self) -> tuple[dict[str, str], list[tuple[str, list[str], int]]]:
        """Those that one key tells, which is most of them, and those that take arithmetic."""
        gauges = _gauges(self.facts, self._worker.stats())
        plain = {name: keys[0] for name, keys, times in gauges if len(keys) == times == 1}
        return plain, [gauge for gauge in gauges if gauge[0] not in plain]

    def call(self, name: str, **said: Any) -> dict[str, Any]:
        """A command of the worker, done with the next turn; what it answered, as a history keeps it."""
        future = self._worker.call(name, **said)
        self.turn()
        try:
            answer = future.result(timeout=0)
        except RequestError as error:
            return {"done": False, "status": 400, "answer": str(error)}
        return {"done": answer.get("cleared", True) is True, "status": 200, "answer": str(answer)}

    def reload(self, adapter: str) -> dict[str, Any]:
        """Other weights under an adapter's name, the same ones each time."""
        return self.call("adapter", adapter=adapter, seed=1)

    def cancel(self, id: str) -> None:
        self._worker.cancel(id)

    def submit(self, flight: Flight) -> None:
        """Queues a request; a refusal stands in the flight."""
        try:
            self._worker.submit(self._request(flight), flight.take)
        except RequestError as error:
            flight.refuse(str(error))

    def _request(self, flight: Flight) -> Request:
        plan, codec = flight.plan, self._worker.tokenizer
        adapter = self._worker.adapters.get(plan.adapter) if plan.adapter else None
        prompt = codec.render_chat(plan.messages) if plan.messages else plan.prompt_ids or []
        flight.rendered, flight.token_text = list(prompt), codec.token_text
        salt = self._salt(plan.salt)
        return Request(flight.id, tuple(prompt), _params(plan), salt, trace=True, adapter=adapter)

    def _salt(self, salt: str) -> str:
        """An adapter's name as a salt is what the server calls that adapter (key/7)."""
        name = salt.removeprefix(ADAPTER_SALT)
        return f"{self._worker.model_name}:{name}" if name != salt else salt


class _Remembering(Ids):
    """Draws what it drew before at once: the same few texts are drawn in every example."""

    def ids(self, count: int, seed: int) -> list[int]:
        return list(_drawn(self.plain, count, seed))


@lru_cache(4096)
def _drawn(plain: tuple[int, ...], count: int, seed: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(plain, k=count))


@dataclass
class _Said:
    """What the events of one choice add up to."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    tops: list[list[tuple[int, float]]] = field(default_factory=list)
    finish: str | None = None


@dataclass
class Flight:
    """One request on its way, by the events that answer it. `clock` gives the moment of each."""

    plan: PlannedRequest
    id: str
    arm: str
    clock: Callable[[], float]
    sent: float = 0.0
    ended: float | None = None
    first: float | None = None
    left: Phase | None = None
    started: Started | None = None
    turns: int = 0
    """Steps since it was started."""
    done: Done | None = None
    error: str | None = None
    status: int = 200
    rendered: list[int] = field(default_factory=list)
    token_text: Callable[[int], str] = str
    choices: dict[int, _Said] = field(default_factory=lambda: {0: _Said()})
    prompted: Prompted | None = None
    trace: dict[str, Any] = field(default_factory=dict)
    tokens_at: list[float] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.ended is not None

    @property
    def tokens(self) -> int:
        """What its client has counted: tokens of the first choice."""
        return len(self.choices[0].ids)

    def take(self, event: Event) -> None:
        """What the engine says; nothing any more once the client has left."""
        if self.over:
            return
        if isinstance(event, Token):
            self._token(event)
        elif isinstance(event, Finished):
            said = self.choices.setdefault(event.choice, _Said())
            said.finish, said.text = event.reason, said.text + event.text
        elif isinstance(event, Failed):
            self.status = 200 if self.first is not None and self.plan.stream else event.status
            self.error = f"the server reports: {event.message}"
            self.ended = self.clock()
        else:
            self._other(event)

    def _token(self, event: Token) -> None:
        said = self.choices.setdefault(event.choice, _Said())
        said.ids.append(event.id)
        said.text += event.text
        said.logprobs += [] if event.logprob is None else [event.logprob]
        said.tops.append(event.top)
        if event.choice == 0 and self.plan.stream:
            self.tokens_at.append(self.clock())
            self.first = self.first or self.tokens_at[0]

    def _other(self, event: Started | Prompted | Done) -> None:
        if isinstance(event, Prompted):
            self.prompted = event
            return
        self.trace.update(event.trace or {})
        if isinstance(event, Started):
            self.started = event
        else:
            self.done, self.ended = event, self.clock()

    def refuse(self, reason: str) -> None:
        self.status, self.error, self.ended = 400, f"status 400: {reason}", self.clock()

    def leave(self, phase: Phase) -> None:
        """The client walks away: what comes from now on is not seen."""
        self.left, self.ended = phase, self.clock()

    def outcome(self) -> Outcome:
        """The request as it went; one that has not ended has timed out."""
        said, done = self.choices[0], self.done
        several = len(self.choices) > 1
        seen = Outcome(
            id=self.plan.id, arm=self.arm, step=self.plan.step, index=self.plan.index, plan=self.plan,
            sent=self.sent, first=self.first, ended=self.ended if self.ended is not None else self.clock(),
            status=self.status, error=self.error, timed_out=not self.over, finish_reason=said.finish,
            text=said.text, left=self.left, tokens_at=self.tokens_at, trace=self.trace or None,
            rejected=self.status == 400, usages=int(done is not None),
            rendered_ids=self.rendered if self.plan.messages else None,
            choices=[self._choice(i) for i in sorted(self.choices)] if several else [],
            prompt_logprobs=self._prompt_logprobs(),
        )  # fmt: skip
        return seen.model_copy(update=self._reply(said) | (self._usage(done) if done else {}))

    def _reply(self, said: _Said) -> dict[str, Any]:
        """As a server tells it: ids always, the rest where it was asked for."""
        if not self.plan.logprobs:
            return {"token_ids": list(said.ids)}
        tops = [sorted((value for _, value in top), reverse=True) for top in said.tops]
        known = bool(tops) and all(len(top) > 1 for top in tops)
        return {
            "token_ids": list(said.ids),
            "logprobs": list(said.logprobs),
            "logprob_tokens": [self.token_text(id) for id in said.ids],
            "gaps": [top[0] - top[1] for top in tops] if known else None,
        }

    def _usage(self, done: Done) -> dict[str, Any]:
        counts = {"prompt_tokens": done.prompt_tokens, "completion_tokens": done.completion_tokens}
        return {**counts, "cached": done.cached_tokens, "usage": {**counts, "cached": done.cached_tokens}}

    def _choice(self, index: int) -> Choice:
        said = self.choices[index]
        logprobs = list(said.logprobs) if self.plan.logprobs else None
        return Choice(
            index=index,
            token_ids=list(said.ids),
            text=said.text,
            logprobs=logprobs,
            finish_reason=said.finish,
        )

    def _prompt_logprobs(self) -> list[float | None] | None:
        if self.prompted is None or not self.plan.sampling.get("prompt_logprobs"):
            return None
        return [token.logprob for token in self.prompted.tokens]


def _params(plan: PlannedRequest) -> SamplingParams:
    """The same that the API makes of the body which the dialect would send."""
    said = dict(plan.sampling)
    if "stop" in said:
        said["stop"] = tuple(said["stop"])
    if "logit_bias" in said:
        said["logit_bias"] = {int(id): value for id, value in said["logit_bias"].items()}
    if said.pop("prompt_logprobs", None):
        said["prompt_logprobs"] = 1
    params = SamplingParams(max_tokens=plan.max_tokens, ignore_eos=True, **said)
    return replace(params, logprobs=_TOP) if plan.logprobs else params


def _facts(worker: SteppedWorker) -> Facts:
    dialect, stats = engine_dialect(), worker.stats()
    said = {name: _fact(value, stats) for name, value in dialect.facts.items()}
    return Facts(
        dialect=dialect.dialect, name=dialect.name, how="engine", has_salt=True, has_chat=True,
        has_abort=True, can_reload=True, can=list(dialect.ask.sampling),
        adapters=[name for name in dialect.ask.adapters if name in worker.adapters],
        takes_ids=True, returns_ids=True, reports_cached=True, has_logprobs=True,
        has_reset=True, has_stats=True, has_test=True,
        **{name: value for name, value in said.items() if value is not None},
    )  # fmt: skip


def _fact(value: Any, stats: dict[str, Any]) -> Any:
    if not isinstance(value, Source):
        return value
    found = pick(stats, value.path or "")
    return value.map.get(str(found)) if value.map else found


def _gauges(facts: Facts, stats: dict[str, Any]) -> list[tuple[str, list[str], int]]:
    """Name, keys of the statistics that add up to it, and what the sum is multiplied by; those it tells."""
    found: list[tuple[str, list[str], int]] = []
    for name, value in engine_dialect().stats[0].values.items():
        reading = value if isinstance(value, Reading) else Reading(of=value)
        keys = [reading.of] if isinstance(reading.of, str) else list(reading.of)
        times = (facts.pool_blocks or 0) if reading.times is not None else 1
        if stats.keys() >= set(keys):
            found.append((name, keys, times))
    return found
