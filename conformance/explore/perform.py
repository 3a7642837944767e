"""The steps of a plan on an engine in this process, and the facts about them.

Knows steps, turns of the engine, and when a client leaves. Does not know what is right. Time is counted, not
measured: each moment is a thousandth after the last one, so that a workload always has the same history.
Every wait is bounded by turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from conformance.drafts import MissingReply, completed
from conformance.explore.inprocess import Flight, InProcess, engine_dialect
from conformance.history import Outcome, PlannedRequest, Sample, Span, Workload
from conformance.judges.life import Phase
from conformance.planned import Plan, PlannedStep
from conformance.prompts import Unobservable
from conformance.spec import Churn, Fail, Hold, Join, Overwrite, Reached, Reload, When

_TURNS = 1000
"""Turns that anything is waited for."""
_TURNS_A_SECOND = 500
"""What `wait: 1` stands for, while the engine has work."""


class _Trouble(Exception):
    """What ends the workload; the message says it."""


class Performance:
    """One arm of one workload. The engine is the workload's own: what it did before does not count."""

    def __init__(self, engine: InProcess, workload: Workload, arm: str = "main") -> None:
        self._engine, self._workload, self._arm = engine, workload, arm
        self._now = 0
        self._ids = 0
        self._flying: list[Flight] = []
        self._started: dict[str, tuple[PlannedStep, list[Flight], float]] = {}
        self._step = ""

    def run(self, plan: Plan) -> None:
        """All steps in order, as far as the engine goes along."""
        self._workload.facts[self._arm] = self._engine.facts
        try:
            for step in plan.steps:
                self._perform(step)
            self._let_go()
            for name in list(self._started):
                self._join(name)
        except (_Trouble, MissingReply) as trouble:
            self._workload.trouble = str(trouble)
        except Unobservable as reason:
            self._workload.unobservable = str(reason)

    def one(self, request: PlannedRequest) -> Outcome:
        """A single request, to its end; nothing is read meanwhile, since nobody asks."""
        [flight] = self._fly([request])
        self._until_over([flight], self._advance)
        return flight.outcome()

    # Time and what is read in it

    def _clock(self) -> float:
        self._now += 1
        return self._now / 1000

    def _sample(self, step: str) -> None:
        reading = self._engine.sample()
        self._workload.samples.append(
            Sample.model_construct(at=self._clock(), arm=self._arm, step=step, values=reading)
        )

    def _turn(self) -> None:
        """One step, and what can be read after it."""
        self._advance()
        self._sample(self._step)

    def _advance(self) -> None:
        """One step of the engine; then every client looks whether it is time to leave."""
        self._engine.turn()
        for flight in self._flying:
            flight.turns += flight.started is not None
            if (phase := _leaves(flight, self._engine)) is not None:
                flight.leave(phase)
                self._engine.cancel(flight.id)
        self._flying = [flight for flight in self._flying if not flight.over]

    # Steps

    def _perform(self, step: PlannedStep) -> None:
        self._step, start = step.name, self._clock()
        if step.kind == "start":
            self._started[step.name] = (step, self._fly(self._ready(step)), start)
            return
        if step.kind == "join":
            assert isinstance(step.says, Join)
            self._join(step.says.join)
            return
        if step.requests:
            self._noted(step, start, *self._send(step))
        else:
            self._noted(step, start, [], self._act(step))

    def _noted(
        self, step: PlannedStep, start: float, outcomes: Sequence[Outcome], detail: dict[str, Any]
    ) -> None:
        counted = {"requests": len(outcomes)} if outcomes else {}
        rounds = {"round": step.round} if step.round is not None else {}
        told = {**detail, **counted, **rounds}
        span = Span(
            arm=self._arm, step=step.name, kind=step.kind, start=start, end=self._clock(), detail=told
        )
        self._workload.spans.append(span)
        late = next((o.id for o in outcomes if o.timed_out), None)
        if late is not None:
            raise _Trouble(f"{step.name}: {late} timed out: no end after {_TURNS} steps of the engine")
        if "trouble" in detail:
            raise _Trouble(f"{step.name}: {detail['trouble']}")

    # Steps that send

    def _ready(self, step: PlannedStep) -> list[PlannedRequest]:
        return [self._completed(step, place) for place in range(len(step.requests))]

    def _completed(self, step: PlannedStep, place: int) -> PlannedRequest:
        request, draft = step.requests[place], step.drafts.get(place)
        return request if draft is None else completed(request, draft, self._reply)

    def _reply(self, id: str) -> Outcome | None:
        return next((o for o in self._workload.outcomes if o.id == id and o.arm == self._arm), None)

    def _fly(self, requests: Sequence[PlannedRequest]) -> list[Flight]:
        flights = []
        for request in requests:
            self._ids += 1
            flight = Flight(request, f"{request.id}-{self._ids}", self._arm, self._clock, sent=self._clock())
            self._engine.submit(flight)
            flights.append(flight)
        self._flying += flights
        return flights

    def _land(self, flights: Sequence[Flight]) -> list[Outcome]:
        """Turns until all of them have ended; records them."""
        self._sample(self._step)
        self._until_over(flights, self._turn)
        self._sample(self._step)
        outcomes = [flight.outcome() for flight in flights]
        self._workload.outcomes += outcomes
        return outcomes

    def _until_over(self, flights: Sequence[Flight], turn: Callable[[], None]) -> None:
        for _ in range(_TURNS):
            if all(flight.over for flight in flights):
                break
            turn()

    def _send(self, step: PlannedStep) -> tuple[list[Outcome], dict[str, Any]]:
        if step.together:
            return self._land(self._fly(self._ready(step))), {"spread": 0.0}
        outcomes: list[Outcome] = []
        before = self._engine.sample().get("evictions", 0.0)
        for place in range(len(step.requests)):
            outcomes += self._land(self._fly([self._completed(step, place)]))
            if outcomes[-1].timed_out or self._enough(step, before):
                break
            if step.kind == "turns" and not outcomes[-1].ok:
                return outcomes, {"trouble": f"{outcomes[-1].id} failed: {outcomes[-1].error}"}
            if step.kind == "turns" and not self._started:
                self._rest(_TURNS)
        passed = {"tokens": sum(len(o.plan.prompt_ids or []) for o in outcomes)}
        return outcomes, passed if step.kind == "churn" else {}

    def _enough(self, step: PlannedStep, before: float) -> bool:
        wanted = step.says.evictions if isinstance(step.says, Churn) else None
        return wanted is not None and self._engine.sample()["evictions"] - before >= wanted

    def _join(self, name: str) -> None:
        step, flights, start = self._started.pop(name)
        self._step = name
        self._noted(step, start, self._land(flights), {"spread": 0.0})

    # Steps that send nothing

    def _act(self, step: PlannedStep) -> dict[str, Any]:
        says = step.says
        if step.kind == "wait":
            return self._wait(step)
        if step.kind == "mark":
            self._engine.call("mark")
            self._sample(step.name)
            return {}
        if isinstance(says, When):
            return self._when(says.when)
        if isinstance(says, Hold):
            return self._hold(says.hold, says.after)
        if isinstance(says, Fail):
            return self._engine.call("fail", method=says.forward, after_steps=says.after)
        if isinstance(says, Reload):
            return self._engine.reload(says.adapter)
        if isinstance(says, Overwrite):
            return self._overwrite(says.block_of)
        return self._engine.call("reset")

    def _wait(self, step: PlannedStep) -> dict[str, Any]:
        turns = _TURNS if step.wait == "idle" else int((step.wait or 0.0) * _TURNS_A_SECOND)
        self._rest(turns)
        return {"idle": not self._engine.busy} if step.wait == "idle" else {}

    def _rest(self, turns: int) -> None:
        for _ in range(turns):
            if not self._engine.busy:
                break
            self._turn()

    def _when(self, where: Reached) -> dict[str, Any]:
        told = {"request": where.request, "phase": where.phase}
        flights = self._started[where.request][1] if where.request in self._started else []
        for _ in range(_TURNS):
            if all(_is_there(flight, where) for flight in flights):
                return {**told, "reached": bool(flights)}
            if any(flight.over for flight in flights):
                break
            self._turn()
        return {**told, "reached": False}

    def _hold(self, phase: str, after: int) -> dict[str, Any]:
        hooks = engine_dialect().test
        words = hooks.hold.words if hooks is not None else {}
        return self._engine.call("hold", phase=words.get(phase, phase), after=after)

    def _let_go(self) -> None:
        self._engine.call("hold", phase=None, after=0)

    def _overwrite(self, name: str) -> dict[str, Any]:
        found = [o.trace.get("adopted_blocks") for o in self._workload.of(name, self._arm) if o.trace]
        block = next((blocks[0] for blocks in found if blocks), None)
        if block is None:
            raise MissingReply(f"no request of {name!r} adopted a block that could be overwritten")
        return {"block": block, **self._engine.call("overwrite", block=block)}


def _is_there(flight: Flight, where: Reached) -> bool:
    if where.phase == "queued":
        return flight.started is None and flight.sent > 0
    if where.phase == "prefilling":
        return flight.started is not None
    return flight.tokens >= where.tokens


def _leaves(flight: Flight, engine: InProcess) -> Phase | None:
    """The phase in which its client leaves now; None while it stays."""
    leave = flight.plan.leave
    if leave is None or flight.over:
        return None
    phase: Phase = leave["phase"]
    if phase == "queued":
        return phase if flight.started is None else None
    if phase == "prefilling":
        there = (
            flight.started is not None and flight.tokens == 0 and flight.turns >= _patience(flight, engine)
        )
        return phase if there else None
    last = max(1, flight.plan.max_tokens - 1)
    wanted = {"first_token": 1, "decoding": leave.get("tokens", 4), "last_step": last}[phase]
    return phase if flight.tokens >= wanted else None


def _patience(flight: Flight, engine: InProcess) -> int:
    """Turns of a prefill after which its client leaves."""
    chunk = engine.facts.chunk or 1
    leave: dict[str, Any] = flight.plan.leave or {}
    return max(1, round(float(leave.get("fraction", 0.3)) * len(flight.rendered) / chunk))
