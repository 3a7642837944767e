"""A spec made concrete for one target: exact prompts, numbers, salts, in the order they will be sent.

Knows the steps of a spec, their rounds, and what a target must have for each. Does not know HTTP or how a
request is made (`requesting.py`), and judges nothing. The same spec, rung, seed and facts give the same
prompts on every machine: random choice is seeded and a salt is a field of the request, not text. Where a
target has no such field, the salt becomes a head in front of the prompt (design, section 4, rules that hold
everywhere).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from conformance.history import Facts
from conformance.marks import Location
from conformance.planned import Kind, Plan, PlannedStep
from conformance.prompts import PlanError, Prompt, Unobservable, Vocabulary, positive
from conformance.requesting import Made, Requests
from conformance.rungs import bound, spec_digest, words
from conformance.spec import (
    Arm,
    Burst,
    Churn,
    Fail,
    Hold,
    Join,
    Loop,
    Mark,
    Overwrite,
    Reload,
    Repeat,
    Reset,
    Send,
    Series,
    Spec,
    Start,
    Step,
    Turns,
    Wait,
    When,
    entries,
    step_name,
)

__all__ = [
    "SCALES", "SETTLE", "Plan", "PlanError", "PlannedStep", "Prompt", "Scale", "Unobservable", "Vocabulary",
    "make_plan",
]  # fmt: skip

Scale = Literal["full", "ci"]
SCALES: dict[Scale, dict[str, int]] = {
    "full": {"prefix": 3700, "reply": 128},
    "ci": {"prefix": 570, "reply": 32},
}
SETTLE: dict[Scale, float] = {"full": 2.0, "ci": 0.5}
"""Seconds that `wait: settle` takes at least; a target that declares more gets more."""


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
    memory: bool = False,
) -> Plan:
    """Plan one arm; `memory` says that the footprint of the process is to be read.

    Raises PlanError for lengths that cannot be, Unobservable where the target lacks something.
    """
    rung, digest = rung or "", spec_digest(spec)
    # vLLM refuses a salt with a slash in it, as with @, a backslash, or more than 128 characters.
    words = (run_salt, spec.id, rung, arm)
    salt = "-".join(word for word in words if word not in ("", "main")).replace("/", ".")
    symbols = _symbols(spec, rung, facts, scale)
    spec = bound(spec, rung)
    requests = Requests(spec, facts, vocabulary, symbols, salt, spec.arms.get(arm, Arm()))
    planner = _Planner(requests, max(facts.settle, SETTLE[scale]))
    return Plan(spec.id, rung, digest, spec.serve, spec.arms, tuple(planner.steps()), solo_steps, memory)


@dataclass(frozen=True)
class _Planner:
    """Plans the steps of one arm in order."""

    requests: Requests
    settle: float

    def steps(self) -> Iterator[PlannedStep]:
        for i, step in enumerate(self.requests.spec.steps):
            if isinstance(step, Loop):
                yield from self._rounds(i, step)
            else:
                yield self._step(("steps", i), str(i), step)

    def _rounds(self, i: int, loop: Loop) -> Iterator[PlannedStep]:
        self.requests.in_loop = True
        for number in range(loop.loop):
            for j, step in enumerate(loop.steps):
                planned = self._step(("steps", i, "steps", j), f"{i}.{j}", step)
                yield replace(planned, round=number)
        self.requests.in_loop = False

    def _step(self, loc: Location, place: str, step: Step) -> PlannedStep:
        if isinstance(step, Wait):
            seconds = self.settle if step.wait == "settle" else step.wait
            return PlannedStep("wait", f"wait[{place}]", wait=seconds)
        if isinstance(step, Mark):
            return PlannedStep("mark", step.mark)
        if isinstance(step, Join):
            return PlannedStep("join", f"join[{place}]", says=step)
        if isinstance(step, When):
            return PlannedStep("when", f"when[{place}]", says=step)
        if isinstance(step, Turns):
            return self._sending("turns", step, self.requests.turns(loc, step))
        if isinstance(step, Repeat):
            return self._sending("repeat", step, self.requests.repeat(loc, step), together=bool(step.at_once))
        if isinstance(step, Churn):
            return self._sending("churn", step, self.requests.churn(loc, step))
        if isinstance(step, Send | Burst | Series | Start):
            return self._asked(loc, step)
        return self._action(place, step)

    def _asked(self, loc: Location, step: Send | Burst | Series | Start) -> PlannedStep:
        name = step_name(step)
        if isinstance(step, Burst | Start) and step.each:
            made = self.requests.each(loc, name, entries(step))
        else:
            told = None if isinstance(step, Send) else step.requests
            made = self.requests.alike(loc, name, step, told or 1, many=told is not None)
        together = isinstance(step, Burst) or (isinstance(step, Start) and len(made) > 1)
        return self._sending(_KINDS[type(step)], step, made, together=together)

    def _sending(
        self, kind: Kind, step: Step, made: Sequence[Made], *, together: bool = False
    ) -> PlannedStep:
        name = step_name(step)
        self.requests.made[name] = list(made)
        drafts = {place: one.draft for place, one in enumerate(made) if one.draft.waits}
        if self.requests.arm.one_by_one:
            kind, together = ("series" if kind == "burst" else kind), False
        stagger = (step.stagger or 0.0) if isinstance(step, Burst | Start) else 0.0
        requests = tuple(one.request for one in made)
        return PlannedStep(kind, name, requests, drafts, together=together, stagger=stagger, says=step)

    def _action(self, place: str, step: Step) -> PlannedStep:
        facts = self.requests.facts
        if isinstance(step, Reset):
            _need(facts.has_reset, "the target has no way to reset its cache")
            return PlannedStep("reset", step_name(step) or f"reset[{place}]", says=step)
        if isinstance(step, Reload):
            self.requests.adapter(step.adapter)
            _need(facts.can_reload, "the target has no way to load new weights under an adapter's name")
            return PlannedStep("reload", step.reload, says=step)
        _need(facts.has_test, "the target is no test build: nothing can be held, failed or overwritten")
        kinds: dict[type, Kind] = {Hold: "hold", Fail: "fail", Overwrite: "overwrite"}
        return PlannedStep(kinds[type(step)], step_name(step) or f"hold[{place}]", says=step)


_KINDS: dict[type, Kind] = {Send: "send", Burst: "burst", Series: "series", Start: "start"}


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
    return symbols | _variable(spec, rung, symbols)


def _variable(spec: Spec, rung: str, symbols: Mapping[str, int]) -> dict[str, int]:
    """The ladder's variable on a rung; none where the rungs are words."""
    for name, values in spec.ladder.items():
        for i, value in enumerate(values):
            if rung == f"{name}={value}" and f"${name}" not in words(spec):
                return {name: positive(value, symbols, ("for", name, i))}
    return {}


def _need(holds: bool, reason: str) -> None:
    if not holds:
        raise Unobservable(reason)
