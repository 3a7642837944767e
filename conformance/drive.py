"""Performs a plan on a target and records what happened.

Knows steps, their order, and the moment of each event. Does not know what is right: nothing here judges, and
a reply that is wrong in any way is written down like one that is not. Every wait is bounded; no fault of a
server raises. When the server is gone, or a request timed out, the workload ends with its `trouble` said, and
what was recorded until then stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from conformance.background import Running
from conformance.dialect import Action, Hooks, pick
from conformance.drafts import MissingReply
from conformance.history import Outcome, PlannedRequest, Span
from conformance.planned import Plan, PlannedStep
from conformance.prompts import Unobservable
from conformance.record import Recorder
from conformance.sending import Sender, spread
from conformance.solo import IDLE, Solos, run_solos
from conformance.spec import Churn, Fail, Hold, Join, Overwrite, Reload, Reset, When
from conformance.target import Target, TargetError
from conformance.watch import Readings

__all__ = ["Driver", "Solos"]

Detail = dict[str, Any]


class _Trouble(Exception):
    """What ends the workload; the message says it."""


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
        self._sender = Sender(target, recorder, arm, lambda line: progress(line + self._case()))
        self._readings = Readings(target, recorder, arm)
        self._running: dict[str, Running] = {}
        self._held = False
        self._perform: dict[str, Callable[[PlannedStep], Detail]] = {
            "wait": self._wait,
            "mark": self._mark,
            "reset": self._reset,
            "when": self._when,
            "reload": self._reload,
            "hold": self._hold,
            "fail": self._fail,
            "overwrite": self._overwrite,
        }

    def run(self, plan: Plan) -> None:
        """All steps in order, as far as the server goes along."""
        self._plan = plan
        self._readings = Readings(self._target, self._recorder, self._arm, plan.memory)
        with self._readings.footprint():
            pass  # what the server holds before anything is asked of it
        try:
            if self._target.facts.has_reset:
                # Else what earlier workloads left in the pool hides what this one adds to it.
                self._timed(PlannedStep("reset", "(start)"))
            for step in plan.steps:
                self._step(step)
            self._join_all()
        except _Trouble as trouble:
            self._recorder.trouble(str(trouble))
            self._let_go()
        except Exception:
            self._let_go()
            raise
        except BaseException:
            for running in self._running.values():
                running.abandon()
            raise

    def run_solos(self, requests: Sequence[PlannedRequest], cache: Solos) -> None:
        """Each request once more, alone and cold; each key once a session, one of the workload twice.

        `cache` keeps them for later workloads. Without a way to compute cold there are none.
        """
        wanted = {request.key: request for request in [*requests, *self._late_requests()]}
        if not wanted or self._recorder.workload.trouble:
            return
        start = self._recorder.now()
        detail: Detail = {}
        try:
            with self._target.cold() as cold:
                reason = {"reason": "no way to compute cold"}
                detail = run_solos(wanted, cache, cold, self._recorder, self._progress) if cold else reason
        except (TargetError, Unobservable) as error:
            detail = {"reason": str(error)}
        self._span("(solos)", "solos", start, detail)

    def _late_requests(self) -> list[PlannedRequest]:
        """Requests that no plan knows beforehand, since they waited for replies."""
        if self._plan is None:
            return []
        late = {step.requests[place].id for step in self._plan.steps for place in step.drafts}
        seen = [o.plan for o in self._recorder.workload.outcomes if o.arm == self._arm and o.id in late]
        return [request for request in seen if self._plan.is_solo(request)]

    # Steps

    def _step(self, step: PlannedStep) -> None:
        """Raises _Trouble, said with the step's name, for what stops the workload."""
        try:
            if step.kind == "start":
                self._start(step)
            elif step.kind == "join":
                assert isinstance(step.says, Join)
                self._join(step.says.join)
            else:
                self._timed(step)
        except MissingReply as missing:
            raise _Trouble(f"{step.name}: {missing}") from None

    def _timed(self, step: PlannedStep) -> None:
        """One step with its span."""
        start, perform = self._recorder.now(), self._perform.get(step.kind)
        outcomes, detail = ([], perform(step)) if perform else self._send(step)
        self._noted(step, start, outcomes, detail)

    def _noted(self, step: PlannedStep, start: float, outcomes: Sequence[Outcome], detail: Detail) -> None:
        """The span of a step that is over, and what stops the workload, if anything does."""
        # A reader can tell from the count whether the file still holds every request.
        counted = {"requests": len(outcomes)} if outcomes else {}
        rounds = {"round": step.round} if step.round is not None else {}
        self._span(step.name, step.kind, start, {**detail, **counted, **rounds})
        if trouble := detail.get("trouble") or self._sender.trouble(outcomes):
            raise _Trouble(f"{step.name}: {trouble}")

    def _span(self, name: str, kind: str, start: float, detail: Detail) -> None:
        end = self._recorder.now()
        self._recorder.span(Span(arm=self._arm, step=name, kind=kind, start=start, end=end, detail=detail))

    def _case(self) -> str:
        return f" ({self._plan.spec_id})" if self._plan else ""

    # Steps that send

    def _send(self, step: PlannedStep) -> tuple[list[Outcome], Detail]:
        if step.together:
            return self._burst(step)
        return self._churn(step) if isinstance(step.says, Churn) else self._one_by_one(step)

    def _burst(self, step: PlannedStep) -> tuple[list[Outcome], Detail]:
        requests = self._ready(step)
        with self._readings.during(step.name):
            exchanges = self._sender.exchanges(requests)
            raws = self._sender.wait(exchanges, step.name, step.stagger)
        pairs = zip(raws, requests, strict=True)
        return [self._sender.record(raw, request) for raw, request in pairs], {"spread": spread(raws)}

    def _ready(self, step: PlannedStep) -> list[PlannedRequest]:
        return [self._sender.ready(request, step.drafts.get(i)) for i, request in enumerate(step.requests)]

    def _one_by_one(
        self, step: PlannedStep, enough: Callable[[list[Outcome]], bool] = lambda outcomes: False
    ) -> tuple[list[Outcome], Detail]:
        """Each request after the last one ended, until it is enough or the server fails."""
        outcomes: list[Outcome] = []
        with self._readings.during(step.name):
            for place, request in enumerate(step.requests):
                try:
                    outcomes.append(
                        self._sender.one(self._sender.ready(request, step.drafts.get(place)), step.name)
                    )
                except MissingReply as missing:
                    return outcomes, {"trouble": str(missing)}
                if self._sender.trouble(outcomes[-1:]) or enough(outcomes):
                    break
                if step.kind == "turns" and not outcomes[-1].ok:
                    return outcomes, {"trouble": f"{outcomes[-1].id} failed: {outcomes[-1].error}"}
                if step.kind == "turns" and place + 1 < len(step.requests):
                    self._settle()
        return outcomes, {}

    def _settle(self) -> None:
        """Until what the last turn stored is to be found; the target is never idle beside started steps."""
        if self._running:
            time.sleep(self._target.facts.settle)
        else:
            self._rest()

    def _rest(self) -> bool:
        """Waits until the target is idle; whether it came to that."""
        return self._target.idle(min(IDLE, self._target.options.timeout))

    def _churn(self, step: PlannedStep) -> tuple[list[Outcome], Detail]:
        """Prompts until all were sent, or the gauge of evictions rose by what the case asks for."""
        assert isinstance(step.says, Churn)
        wanted, before = step.says.evictions, self._evictions()
        if wanted is not None and before is None:
            raise Unobservable("the target does not count evictions, and a churn waits for them")
        enough = (lambda outcomes: self._risen(before) >= wanted) if wanted is not None else None
        outcomes, detail = self._one_by_one(step, enough) if enough else self._one_by_one(step)
        tokens = sum(len(o.plan.prompt_ids) if o.plan.prompt_ids else o.prompt_tokens or 0 for o in outcomes)
        risen = {} if before is None else {"evictions": self._risen(before)}
        return outcomes, {**detail, "tokens": tokens, **risen}

    def _evictions(self) -> float | None:
        return self._target.sample().get("evictions")

    def _risen(self, before: float | None) -> float:
        return (self._evictions() or 0.0) - (before or 0.0)

    # Steps in the background

    def _start(self, step: PlannedStep) -> None:
        watch = self._readings.during(step.name)
        self._running[step.name] = Running(step, self._ready(step), self._sender, watch)

    def _join(self, name: str) -> None:
        running = self._running.pop(name)
        outcomes, raws = running.join(name)
        self._noted(running.step, running.start, outcomes, {"spread": spread(raws)})

    def _join_all(self) -> None:
        self._release()
        for name in list(self._running):
            self._join(name)

    def _let_go(self) -> None:
        """Leaves nothing behind, whatever ended the workload: no hold, no thread, no step without a span."""
        self._release()
        while self._running:
            name = next(iter(self._running))
            try:
                self._join(name)
            except _Trouble:
                continue

    def _when(self, step: PlannedStep) -> Detail:
        assert isinstance(step.says, When)
        where = step.says.when
        told = {"request": where.request, "phase": where.phase}
        running = self._running.get(where.request)
        return {**told, **(running.reached(where) if running else {"reached": False})}

    # Steps that send nothing

    def _wait(self, step: PlannedStep) -> Detail:
        with self._readings.footprint():
            if step.wait == "idle":
                return {"idle": self._rest()}
            time.sleep(step.wait or 0.0)
            return {}

    def _mark(self, step: PlannedStep) -> Detail:
        self._readings.mark(step.name, resting=not self._running)
        return {}

    def _reset(self, step: PlannedStep) -> Detail:
        """A named reset is asked for once and its answer kept; any other is insisted on."""
        named = isinstance(step.says, Reset) and isinstance(step.says.reset, str)
        return self._target.reset_once() if named else self._target.reset()

    def _reload(self, step: PlannedStep) -> Detail:
        assert isinstance(step.says, Reload)
        return self._target.reload(step.says.adapter)

    def _hold(self, step: PlannedStep) -> Detail:
        assert isinstance(step.says, Hold)
        told = self._did(lambda hooks: hooks.hold, phase=step.says.hold, after=step.says.after)
        if not told.get("done"):
            raise Unobservable(f"the target does not hold requests: {told.get('answer', 'no answer')}")
        self._held = step.says.hold != "off"
        return told

    def _release(self) -> None:
        if self._held:
            self._held = False
            self._did(lambda hooks: hooks.hold, phase="off", after=0)

    def _fail(self, step: PlannedStep) -> Detail:
        assert isinstance(step.says, Fail)
        return self._did(lambda hooks: hooks.fail, forward=step.says.forward, after=step.says.after)

    def _overwrite(self, step: PlannedStep) -> Detail:
        assert isinstance(step.says, Overwrite)
        block = self._block_of(step.says.block_of)
        if block is None:
            of = step.says.block_of
            raise MissingReply(f"no request of {of!r} adopted a block that could be overwritten")
        return {"block": block, **self._did(lambda hooks: hooks.overwrite, block=block)}

    def _block_of(self, name: str) -> int | None:
        """The first block that a request of the step adopted, as its trace tells."""
        hooks = self._target.dialect.test
        traces = [o.trace for o in self._recorder.workload.of(name, self._arm) if o.trace]
        blocks = [pick(trace, hooks.block) for trace in traces] if hooks else []
        return next((block for block in blocks if block is not None), None)

    def _did(self, which: Callable[[Hooks], Action], **said: Any) -> Detail:
        hooks = self._target.dialect.test
        assert hooks is not None
        return self._target.do(which(hooks), said)
