"""A stand-in for the half of the harness that talks to servers: it answers at once and does as it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from conformance.backing import Solos
from conformance.history import Facts, Outcome, PlannedRequest, Span
from conformance.plan import Plan
from conformance.record import Recorder
from conformance.spec import Serve

FACTS = Facts(dialect="engine", name="fake", how="engine", model="tiny", block=8, granule=8, has_salt=True)
CASE = """\
spec: 1
id: area/case
title: A case
proves: [count/1]
texts:
  system: {tokens: 4B, seed: 1}
steps:
  - burst: eight
    requests: 8
    prompt: [system, {unique: 3}]
  - mark: after
arms:
  cold: {serve: {profile: cold}}
expect:
  - counted: {of: eight}
"""


class Broken(Exception):
    """What the fake back raises when there is no server."""


class Vocabulary:
    is_ids = True

    def ids(self, count: int, seed: int) -> list[int]:
        return [(i * (seed % 7 + 3)) % 97 for i in range(count)]

    def text(self, count: int, seed: int) -> str:
        raise AssertionError

    def encode(self, text: str) -> list[int]:
        raise AssertionError


class Target:
    vocabulary = Vocabulary()

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def sample(self) -> dict[str, float]:
        return {"live": 1.0} if self.facts.has_stats else {}

    def has_cold(self) -> bool:
        return self.facts.has_salt


class Back:
    """Servers that answer at once; `events` says what was asked of it, in order."""

    errors: tuple[type[Exception], ...] = (Broken,)

    def __init__(self, facts: Facts = FACTS) -> None:
        self.facts = facts
        self.events: list[str] = []
        self.measured: list[bool] = []
        self.serve_error: Exception | None = None
        self.open_error: Exception | None = None
        self.trouble_after: str | None = None
        self.outcomes: Callable[[PlannedRequest], dict[str, Any]] = lambda request: {"cached": 16}

    def open(self) -> Back:
        self.events.append("open")
        if self.open_error:
            raise self.open_error
        return self

    @contextmanager
    def for_serve(self, serve: Serve) -> Iterator[Target]:
        if self.serve_error:
            raise self.serve_error
        self.events.append(f"serve {serve.profile}")
        yield Target(self.facts)
        self.events.append(f"end {serve.profile}")

    def per_token(self) -> float:
        return 1.0

    def close(self) -> None:
        self.events.append("close")

    def driver(self, target: Target, recorder: Recorder, arm: str) -> Driver:
        return Driver(self, recorder, arm)


class Driver:
    def __init__(self, back: Back, recorder: Recorder, arm: str) -> None:
        self.back, self.recorder, self.arm = back, recorder, arm

    def run(self, plan: Plan) -> None:
        self.back.events.append(f"run {self.arm}")
        self.back.measured.append(plan.memory)
        for step in plan.steps:
            for request in step.requests:
                self.recorder.outcome(outcome(request, self.arm, **self.back.outcomes(request)))
            self.recorder.span(Span(arm=self.arm, step=step.name, kind=step.kind, start=0, end=1))
            if self.back.trouble_after == step.name:
                self.recorder.trouble("the server is gone")
                return

    def run_solos(self, requests: Sequence[PlannedRequest], cache: Solos) -> None:
        self.back.events.append(f"solos {len(requests)}")


def outcome(request: PlannedRequest, arm: str, **more: Any) -> Outcome:
    known: dict[str, Any] = {"sent": 0.0, "first": 0.5, "ended": 1.0, "status": 200, "prompt_tokens": 35}
    plan = {"id": request.id, "arm": arm, "step": request.step, "index": request.index, "plan": request}
    return Outcome(**known | plan | more)
