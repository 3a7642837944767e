"""Requests put on the wire: alone, at one moment, or with a client that walks away; each outcome recorded.

Knows exchanges, threads and when a client is to leave. Does not know steps or their order (`drive.py`). Every
exchange is bounded, so everything here ends.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence

from conformance.carrying import carry
from conformance.dialect import as_json, pick
from conformance.drafts import Draft, completed
from conformance.history import Outcome, PlannedRequest
from conformance.leaving import Leaving
from conformance.record import Recorder
from conformance.spec import Leave
from conformance.target import Target
from conformance.watch import EVERY
from conformance.wire import Exchange, RawReply

_TELL = 2.0
"""Seconds between progress lines."""
_UNMEASURED_TTFT = 0.3
_DYING, _BRIEFLY = 0.5, 0.1
"""Seconds in which a process whose connections broke may still be about to end."""


class Sender:
    """Sends the requests of one arm; `tell` is given lines on what is waited for."""

    def __init__(self, target: Target, recorder: Recorder, arm: str, tell: Callable[[str], None]) -> None:
        self.target, self.recorder, self.arm = target, recorder, arm
        self._tell, self._told = tell, time.monotonic()

    def ready(self, request: PlannedRequest, draft: Draft | None) -> PlannedRequest:
        """The request as it is sent, with the replies that it waits for. Raises MissingReply."""
        return request if draft is None else completed(request, draft, self._reply)

    def _reply(self, id: str) -> Outcome | None:
        seen = self.recorder.workload.outcomes
        return next((o for o in seen if o.id == id and o.arm == self.arm), None)

    def exchanges(self, requests: Sequence[PlannedRequest]) -> list[Exchange]:
        """Requests that belong together, each on a connection of its own, not yet sent.

        Once one cannot be connected the others are not tried: together they would take minutes to fail.
        """
        made: list[Exchange] = []
        for request in requests:
            broken = next((exchange.broken for exchange in made if exchange.broken), None)
            made.append(self.exchange(request, broken))
        return made

    def exchange(self, request: PlannedRequest, broken: str | None = None) -> Exchange:
        """The request on a connection of its own, not yet sent; without one where it is said to be broken."""
        id = f"{request.id}-{secrets.token_hex(4)}"
        leaving = self._leaving(request, id) if request.leave else None
        return self.target.exchange(request, clock=self.recorder.now, leaving=leaving, id=id, broken=broken)

    def one(self, request: PlannedRequest, name: str) -> Outcome:
        """Sends one request and waits for its end."""
        [raw] = self.wait([self.exchange(request)], f"{request.id} of {name}")
        return self.record(raw, request)

    def wait(self, exchanges: Sequence[Exchange], name: str, stagger: float = 0.0) -> list[RawReply]:
        """Runs the exchanges at once, and waits; replies in order."""
        together = Together(exchanges, stagger)
        self.wait_for(together.threads, exchanges, name)
        return together.raws()

    def record(self, raw: RawReply, request: PlannedRequest) -> Outcome:
        outcome = self.target.parse(raw, request, self.arm)
        self.recorder.outcome(outcome)
        return outcome

    def wait_for(self, threads: Sequence[threading.Thread], exchanges: Sequence[Exchange], name: str) -> None:
        """Every exchange is bounded, so these threads end; meanwhile says how far they are."""
        start = time.monotonic()
        for thread in threads:
            while thread.is_alive():
                thread.join(EVERY)
                now = time.monotonic()
                # Counted over all steps: many short ones are a long wait too.
                if now - self._told > _TELL:
                    self._told = now
                    done = sum(exchange.over for exchange in exchanges)
                    self._tell(f"{name}: {done} of {len(exchanges)} done after {now - start:.0f} s")

    def trouble(self, outcomes: Sequence[Outcome]) -> str | None:
        """What must end the workload: a request that timed out, or a server that is no longer there."""
        return trouble(self.target, outcomes)

    def cold_ttft(self, request: PlannedRequest) -> float:
        """Seconds to the first token of a cold request, by the nearest length measured in this workload."""
        size = _size(request)
        cold = [
            (abs(_size(seen.plan) - size), (seen.first - seen.sent) * size / _size(seen.plan))
            for seen in self.recorder.workload.outcomes
            if seen.first is not None and seen.left is None and not seen.cached
        ]
        return min(cold)[1] if cold else _UNMEASURED_TTFT

    def _leaving(self, request: PlannedRequest, id: str) -> Leaving:
        leave = Leave.model_validate(request.leave)
        last = max(1, request.max_tokens - 1)
        tokens = {"decoding": leave.tokens, "last_step": last, "first_token": 1, "queued": 1}.get(leave.phase)
        seconds = leave.fraction * self.cold_ttft(request) if leave.phase == "prefilling" else None
        until: Callable[[], bool] | None = None
        if leave.phase == "queued":
            gauges = self.target.sample()
            until = (lambda: self._waits(gauges["waiting"])) if "waiting" in gauges else None
            # Without a gauge nobody can tell when it is queued but at once.
            seconds = None if until else 0.0
        return Leaving(
            how=leave.how,  # type: ignore[arg-type]
            is_token=self.target.is_token,
            tokens=tokens,
            seconds=seconds,
            until=until,
            phase=leave.phase,  # type: ignore[arg-type]
            last=last,
            pause=leave.seconds or 1.0,
            abort=lambda event: self._abort(event, id),
        )

    def _waits(self, before: float) -> bool:
        return self.target.sample().get("waiting", 0.0) > before

    def _abort(self, event: bytes, id: str) -> None:
        """By the name that the client gave, else by the one that the server did."""
        told = id if self.target.dialect.ask.id else pick(as_json(event.decode(errors="replace")), "id")
        if isinstance(told, str):
            self.target.abort(told)


class Together:
    """Exchanges begun at one moment, or `stagger` seconds apart.

    One thread carries them all, but for those whose steps may wait for something: each of them has its own.
    """

    def __init__(self, exchanges: Sequence[Exchange], stagger: float = 0.0) -> None:
        self.exchanges, self._stagger = exchanges, stagger
        self._failure: BaseException | None = None
        alone = [[exchange] for exchange in exchanges if exchange.waits]
        others = [exchange for exchange in exchanges if not exchange.waits]
        groups = [*alone, *([others] if others else [])]
        self._barrier = threading.Barrier(len(groups), action=self._stand_apart)
        self.threads = [threading.Thread(target=self._run, args=(group,), daemon=True) for group in groups]
        for thread in self.threads:
            thread.start()

    def _stand_apart(self) -> None:
        """Once all are ready: who begins when."""
        now = self.exchanges[0].clock()
        for place, exchange in enumerate(self.exchanges):
            exchange.wake = now + self._stagger * place

    def _run(self, group: Sequence[Exchange]) -> None:
        try:
            carry(group, group[0].clock, group[0].timeout, self._barrier)
        except BaseException as error:
            self._failure = error

    def raws(self) -> list[RawReply]:
        """Replies in order, once the threads have ended. Raises what ended one of them before its time: a
        reply that nobody read to its end must not be judged."""
        if self._failure is not None:
            raise self._failure
        return [exchange.reply for exchange in self.exchanges]


def spread(raws: Sequence[RawReply]) -> float:
    """Seconds between the first send and the last."""
    sent = [raw.sent for raw in raws]
    return max(sent) - min(sent)


def trouble(target: Target, outcomes: Sequence[Outcome]) -> str | None:
    """What must end the workload: a request that timed out, or a server that is no longer there."""
    late = [outcome for outcome in outcomes if outcome.timed_out]
    if late:
        return f"{late[0].id} timed out: {late[0].error}"
    failed = [outcome for outcome in outcomes if outcome.error]
    # Who told what went wrong was there to tell it, if perhaps as its last word; a reply that broke off is
    # more often the first sign of a death.
    grace = _BRIEFLY if all(outcome.told for outcome in failed) else _DYING
    return target.gone(grace) if failed else None


def _size(request: PlannedRequest) -> int:
    """Length of a prompt for comparison with others of the same target: tokens, or characters."""
    if request.messages:
        return max(1, sum(len(message["content"]) for message in request.messages))
    return max(1, len(request.prompt_ids if request.prompt_ids is not None else request.prompt_text or ""))
