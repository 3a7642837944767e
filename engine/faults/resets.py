"""Faults of resets.

Knows the seams of `build.Parts`. Does not know specs.
"""

from __future__ import annotations

from typing import Any

from engine.faults.registry import fault
from engine.faults.surgery import blank
from engine.sequence import Sequence
from engine.storage import PagedStorage


@fault("reset_keeps_index", "C23", "reset/1 reset/2 foot/4", seam="paged")
class ResetKeepsIndex(PagedStorage):
    """A reset says that it is done, and everything is still there."""

    def reset(self) -> dict[str, Any]:
        return {"cleared": True, "freed_bytes": 0, "freed_entries": len(self.index)}


@fault("reset_wipes_running", "C23", "reset/2", seam="paged")
class ResetWipesRunning(PagedStorage):
    """A reset clears the rows of requests that still run."""

    def reset(self) -> dict[str, Any]:
        done = super().reset()
        blank(self, sorted(self.pool.blocks()))
        return done


@fault("publish_across_reset", "C23", "reset/4", seam="paged")
class PublishAcrossReset(PagedStorage):
    """A prefill that began before a reset offers everything that it computed to those who come after."""

    def publish(self, seq: Sequence) -> None:
        if seq.epoch != self.epoch:
            seq.epoch, seq.published = self.epoch, 0
        super().publish(seq)


@fault("ignore_reset_while_waiting", "C23", "reset/1", seam="paged")
class IgnoreResetWhileWaiting(PagedStorage):
    """While a request waits in the queue a reset says that it is done, and forgets nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waiting: set[Sequence] = set()

    def prepare(self, seq: Sequence) -> None:
        super().prepare(seq)
        self._waiting.add(seq)

    def admit(self, seq: Sequence) -> bool:
        admitted = super().admit(seq)
        if admitted:
            self._waiting.discard(seq)
        return admitted

    def release(self, seq: Sequence) -> None:
        self._waiting.discard(seq)
        super().release(seq)

    def reset(self) -> dict[str, Any]:
        if self._waiting:
            return {"cleared": True, "freed_bytes": 0, "freed_entries": 0}
        return super().reset()
