"""Performs a plan on a target and records what happened.

Knows steps, threads and the moment of each event. Does not know what is right: nothing here judges, and a
reply that is wrong in any way is written down like one that is not. Every wait is bounded; no fault of a
server raises. When the server is gone, or a request timed out, the workload ends with its `trouble` said,
and what was recorded until then stands.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from conformance.footprint import measure
from conformance.history import Facts, Memory, Outcome, PlannedRequest, Sample, Span
from conformance.launch import COMMAND
from conformance.plan import Plan, PlanError, PlannedStep, turn_request
from conformance.record import Recorder
from conformance.target import Target, TargetError, Unobservable
from conformance.wire import Exchange, Leaving, RawReply

Solos = dict[str, list[Outcome]]
"""Solo runs by request key and facts of the server, for the whole session."""

_EVERY = 0.05
"""Seconds between readings during a step."""
_TELL = 2.0
"""Seconds between progress lines."""
_IDLE = 60.0
_UNMEASURED_TTFT = 0.3
_DYING = 0.5
"""Seconds in which a process whose connections broke may still be about to end."""
_MARK_TRIES = 3


class Driver:
    """Performs plans of one arm on one target; not for use from several threads."""

    def __init__(
        self,
        target: Target,
        recorder: Recorder,
        progress: Callable[[str], None] = lambda line: None,
        arm: str = "main",
    ) -> None:
        self._target, self._recorder, self._progress, self._arm = target, recorder, progress, arm
        self._plan: Plan | None = None
        self._told = time.monotonic()
        self._perform: dict[str, Callable[[PlannedStep], dict[str, Any]]] = {
            "send": self._send,
            "burst": self._burst,
            "series": self._send,
            "turns": self._turns,
            "wait": self._wait,
            "mark": self._mark,
            "reset": self._reset,
        }

    def run(self, plan: Plan) -> None:
        """All steps in order, as far as the server goes along."""
        self._plan = plan
        if self._target.facts.has_reset:
            # Else what earlier workloads left in the pool hides what this one adds to it.
            self._timed(PlannedStep("reset", "(start)"))
        for step in plan.steps:
            if trouble := self._timed(step):
                self._recorder.trouble(f"{step.name}: {trouble}")
                return

    def run_solos(self, requests: Sequence[PlannedRequest], cache: Solos) -> None:
        """Each request once more, alone and cold; each key once a session, one of the workload twice.

        `cache` keeps them for later workloads. Without a way to compute cold there are none.
        """
        wanted = {request.key: request for request in [*requests, *self._turn_requests()]}
        if not wanted or self._recorder.workload.trouble:
            return
        start = self._recorder.now()
        detail: dict[str, Any] = {}
        try:
            with self._target.cold() as cold:
                detail = self._solos(wanted, cache, cold) if cold else {"reason": "no way to compute cold"}
        except (TargetError, Unobservable) as error:
            detail = {"reason": str(error)}
        self._span("(solos)", "solos", start, detail)

    def _timed(self, step: PlannedStep) -> str | None:
        """One step with its span; returns what stops the workload, if anything does."""
        start, known = self._recorder.now(), len(self._recorder.workload.outcomes)
        detail = self._perform[step.kind](step)
        made = self._recorder.workload.outcomes[known:]
        # A reader can tell from the count whether the file still holds every request.
        self._span(step.name, step.kind, start, {**detail, "requests": len(made)} if made else detail)
        return detail.get("trouble") or _trouble(self._target, made)

    def _span(self, name: str, kind: str, start: float, detail: dict[str, Any]) -> None:
        end = self._recorder.now()
        self._recorder.span(Span(arm=self._arm, step=name, kind=kind, start=start, end=end, detail=detail))

    # Steps

    def _send(self, step: PlannedStep) -> dict[str, Any]:
        with self._watched(step):
            for request in step.requests:
                outcome = self._one(step, request)
                if _trouble(self._target, [outcome]):
                    break
        return {}

    def _one(self, step: PlannedStep, request: PlannedRequest) -> Outcome:
        exchange = self._exchange(step, request)
        raws = self._together([exchange], f"{request.id} of {step.name}")
        return self._record(raws[0], request)

    def _burst(self, step: PlannedStep) -> dict[str, Any]:
        with self._watched(step):
            exchanges = [self._exchange(step, request) for request in step.requests]
            raws = self._together(exchanges, step.name)
        for raw, request in zip(raws, step.requests, strict=True):
            self._record(raw, request)
        sent = [raw.sent for raw in raws]
        return {"spread": max(sent) - min(sent)}

    def _turns(self, step: PlannedStep) -> dict[str, Any]:
        assert step.turns is not None
        previous: PlannedRequest | None = None
        reply: list[int] | str | None = None
        with self._watched(step):
            for turn in range(len(step.turns.each)):
                try:
                    previous = turn_request(step, turn, previous, reply)
                except PlanError as error:
                    return {"trouble": str(error)}
                outcome = self._one(step, previous)
                if not outcome.ok:
                    gone = _trouble(self._target, [outcome])
                    return {"trouble": gone or f"{outcome.id} failed: {outcome.error}"}
                reply = outcome.text if previous.prompt_ids is None else outcome.token_ids
        return {}

    def _wait(self, step: PlannedStep) -> dict[str, Any]:
        if step.wait == "idle":
            return {"idle": self._target.idle(min(_IDLE, self._target.options.timeout))}
        time.sleep(step.wait or 0.0)
        return {}

    def _mark(self, step: PlannedStep) -> dict[str, Any]:
        self._target.mark()
        if self._target.facts.has_stats:
            tries = (self._read_stats(step.name) for _ in range(_MARK_TRIES))
            any(tries)
        self._read_memory(step.name, self._target.process_ids())
        return {}

    def _reset(self, step: PlannedStep) -> dict[str, Any]:
        return self._target.reset()

    # Requests

    def _exchange(self, step: PlannedStep, request: PlannedRequest) -> Exchange:
        return self._target.exchange(request, clock=self._recorder.now, leaving=self._leaving(step, request))

    def _record(self, raw: RawReply, request: PlannedRequest) -> Outcome:
        outcome = self._target.parse(raw, request, self._arm)
        self._recorder.outcome(outcome)
        return outcome

    def _together(self, exchanges: Sequence[Exchange], name: str) -> list[RawReply]:
        """Runs the exchanges at once, each in a thread behind a common barrier; replies in order."""
        barrier = threading.Barrier(len(exchanges))
        raws: list[RawReply | None] = [None] * len(exchanges)

        def one(index: int) -> None:
            raws[index] = exchanges[index].run(barrier)

        threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(len(exchanges))]
        for thread in threads:
            thread.start()
        self._wait_for(threads, name)
        return [raw for raw in raws if raw is not None]

    def _wait_for(self, threads: Sequence[threading.Thread], name: str) -> None:
        """Every exchange is bounded, so these threads end; meanwhile says how far they are."""
        start = time.monotonic()
        for number, thread in enumerate(threads):
            while thread.is_alive():
                thread.join(_EVERY)
                now = time.monotonic()
                # Counted over all steps: many short ones are a long wait too.
                if now - self._told > _TELL:
                    self._told = now
                    done = f"{number} of {len(threads)} done after {now - start:.0f} s"
                    self._progress(f"{name}: {done}{self._case()}")

    def _case(self) -> str:
        return f" ({self._plan.spec_id})" if self._plan else ""

    def _leaving(self, step: PlannedStep, request: PlannedRequest) -> Leaving | None:
        leave = step.leave
        if leave is None:
            return None
        how: Literal["rst", "fin"] = "fin" if leave.how == "fin" else "rst"
        if leave.phase == "decoding":
            return Leaving(how, self._target.is_token, tokens=leave.tokens)
        seconds = leave.fraction * self._cold_ttft(request)
        return Leaving(how, self._target.is_token, seconds=seconds)

    def _cold_ttft(self, request: PlannedRequest) -> float:
        """Seconds to the first token of a cold request, by the nearest length measured in this workload."""
        size = _size(request)
        cold = [
            (abs(_size(seen.plan) - size), (seen.first - seen.sent) * size / _size(seen.plan))
            for seen in self._recorder.workload.outcomes
            if seen.first is not None and seen.left is None and not seen.cached
        ]
        return min(cold)[1] if cold else _UNMEASURED_TTFT

    # Readings

    def _watched(self, step: PlannedStep) -> _Watch:
        """Readings all through a step, one at its start and one at its end among them."""
        self._target.mark()
        pids = self._target.process_ids()
        readers: list[Callable[[], object]] = []
        if self._target.facts.has_stats:
            readers.append(lambda: self._read_stats(step.name))
        if pids:
            readers.append(lambda: self._read_memory(step.name, pids))
        return _Watch(readers)

    def _read_stats(self, step: str) -> bool:
        values = self._target.sample()
        if values:
            self._recorder.sample(Sample(at=self._recorder.now(), arm=self._arm, step=step, values=values))
        return bool(values)

    def _read_memory(self, step: str, pids: Sequence[int]) -> None:
        if total := measure(pids):
            memory = Memory(at=self._recorder.now(), arm=self._arm, step=step, bytes=total)
            self._recorder.memory(memory)

    # Solo runs

    def _turn_requests(self) -> list[PlannedRequest]:
        """Requests of conversations, which no plan knows beforehand."""
        if self._plan is None:
            return []
        steps = {step.name for step in self._plan.steps if step.kind == "turns"} & self._plan.solo_steps
        seen = self._recorder.workload.outcomes
        return [outcome.plan for outcome in seen if outcome.step in steps and outcome.arm == self._arm]

    def _solos(self, wanted: dict[str, PlannedRequest], cache: Solos, cold: Target) -> dict[str, Any]:
        cold.idle(min(_IDLE, cold.options.timeout))
        # Another model, grid or storage computes other bits: never a reference for this one.
        known = {key: cache.setdefault(_reference(cold.facts, key), []) for key in wanted}
        doubled = next((key for key, runs in known.items() if len(runs) > 1), next(iter(known)))
        for number, (key, runs) in enumerate(known.items()):
            self._progress(f"solo runs: {number} of {len(wanted)}")
            while len(runs) < (2 if key == doubled else 1):
                outcome = self._solo(wanted[key], len(runs), cold)
                if trouble := _trouble(cold, [outcome]):
                    self._recorder.trouble(f"solo run of {outcome.id}: {trouble}")
                    return {"trouble": trouble}
                runs.append(outcome)
            for outcome in runs:
                self._recorder.solo(key, outcome)
        return {"runs": len(wanted)}

    def _solo(self, request: PlannedRequest, number: int, cold: Target) -> Outcome:
        alone = request.model_copy(update={"salt": f"{request.salt}-solo-{request.key}-{number}"})
        exchange = cold.exchange(alone, cold=True, clock=self._recorder.now)
        return cold.parse(exchange.run(), alone, "solo")


class _Watch:
    """Calls readers all the time, each in a thread of its own; once at the start and once at the end."""

    def __init__(self, readers: Sequence[Callable[[], object]]) -> None:
        self._readers, self._over = readers, threading.Event()
        self._threads = [threading.Thread(target=self._loop, args=(r,), daemon=True) for r in readers]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _loop(self, read: Callable[[], object]) -> None:
        read()
        while not self._over.wait(_EVERY):
            read()
        read()


def _trouble(target: Target, outcomes: Sequence[Outcome]) -> str | None:
    """What must end the workload: a request that timed out, or a server that is no longer there."""
    late = [outcome for outcome in outcomes if outcome.timed_out]
    if late:
        return f"{late[0].id} timed out: {late[0].error}"
    return target.gone(_DYING) if any(outcome.error for outcome in outcomes) else None


def _reference(facts: Facts, key: str) -> str:
    # The command differs where the server does not: a profile may only change what is shared.
    known = facts.model_dump_json(exclude={"machine": {COMMAND}})
    return hashlib.sha256(f"{known}{key}".encode()).hexdigest()[:16]


def _size(request: PlannedRequest) -> int:
    """Length of a prompt for comparison with others of the same target: tokens, or characters."""
    return max(1, len(request.prompt_ids if request.prompt_ids is not None else request.prompt_text or ""))
