"""Faults of readers: what a client that takes its time does to others.

Knows the seams of `build.Parts`. Does not know specs.
"""

from __future__ import annotations

import time

from engine.exchange import Exchange
from engine.faults.registry import fault
from engine.messages import Event

_AHEAD = 8
_LOOK_SECONDS = 0.001


@fault("wait_for_readers", "C16", "life/5", seam="exchange")
class WaitForReaders(Exchange):
    """The engine waits for whoever is behind with reading: a client that stops stops everybody's replies."""

    def _deliver(self, which: int, event: Event) -> None:
        super()._deliver(which, event)
        while self._open and self._queue.qsize() > _AHEAD:
            time.sleep(_LOOK_SECONDS)
