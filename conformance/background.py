"""Started steps: requests that go on while later steps run, and how far they are.

Knows threads and what an exchange shows of its progress. Does not know what the progress is waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from conformance.history import Outcome, PlannedRequest
from conformance.planned import PlannedStep
from conformance.sending import Sender, Together
from conformance.spec import Reached
from conformance.watch import Watch
from conformance.wire import Exchange, RawReply

_LOOK = 0.005
"""Seconds between looks."""
_LONGEST = 60.0
"""Seconds for which a `when` waits at most."""


class Running:
    """One started step. `start` is its beginning on the recorder's clock."""

    def __init__(
        self, step: PlannedStep, requests: Sequence[PlannedRequest], sender: Sender, watch: Watch
    ) -> None:
        self.step, self.start = step, sender.recorder.now()
        self._sender, self._requests, self._watch = sender, requests, watch
        self._exchanges = sender.exchanges(requests)
        self._raws: list[RawReply] = []
        watch.__enter__()
        self._together = Together(self._exchanges, step.stagger) if step.together else None
        self._threads = self._together.threads if self._together else [self._one_by_one()]
        self._wait_for_begin()

    def _one_by_one(self) -> threading.Thread:
        def run() -> None:
            self._raws += [exchange.run() for exchange in self._exchanges]

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _wait_for_begin(self) -> None:
        """What comes after a start comes after its first request was sent."""
        end = time.monotonic() + self._sender.target.options.timeout
        first = self._exchanges[0]
        while first.begun is None and not first.over and time.monotonic() < end:
            time.sleep(_LOOK)

    def reached(self, where: Reached) -> dict[str, bool]:
        """Waits until every request is where it should be, or one has ended; bounded."""
        end = time.monotonic() + min(_LONGEST, self._sender.target.options.timeout)
        while time.monotonic() < end and not any(exchange.over for exchange in self._exchanges):
            if self._is_there(where):
                return {"reached": True}
            time.sleep(_LOOK)
        return {"reached": False}

    def _is_there(self, where: Reached) -> bool:
        if where.phase == "decoding":
            return all(exchange.tokens >= where.tokens for exchange in self._exchanges)
        if any(exchange.tokens for exchange in self._exchanges):
            return False
        gauges = self._sender.target.sample()
        if where.phase == "queued":
            return gauges.get("waiting", 0.0) >= len(self._exchanges)
        return gauges.get("running", 1.0) >= 1 and all(
            self._has_passed(exchange, where.fraction * self._sender.cold_ttft(request))
            for exchange, request in zip(self._exchanges, self._requests, strict=True)
        )

    def _has_passed(self, exchange: Exchange, seconds: float) -> bool:
        return exchange.begun is not None and self._sender.recorder.now() - exchange.begun >= seconds

    def join(self, name: str) -> tuple[list[Outcome], list[RawReply]]:
        """Waits for the end of all requests and records them."""
        try:
            self._sender.wait_for(self._threads, self._exchanges, name)
        finally:
            self._watch.__exit__()
        raws = self._together.raws() if self._together else self._raws
        pairs = zip(raws, self._requests, strict=True)
        return [self._sender.record(raw, request) for raw, request in pairs], raws

    def abandon(self) -> None:
        """Stops the readings; the requests end with the process."""
        self._watch.__exit__()
