"""Faults of company: a reply that says what another request should hear.

Knows the seams of `build.Parts`. Does not know specs.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from engine.faults.registry import fault
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.storage import PagedStorage


@fault("swap_rows_on_finish", "C19", "out/2 out/3", seam="scheduler")
class SwapRowsOnFinish(Scheduler):
    """When a request leaves the batch, the first and the last that stay get each other's next token."""

    _left = False

    def _finish(self, seq: Sequence, reason: str) -> None:
        super()._finish(seq, reason)
        self._left = len(self.running) > 1

    def _advance(self, batch: list[Sequence]) -> list[mx.array]:
        logits, left = super()._advance(batch), self._left
        self._left = False
        return [logits[-1], *logits[1:-1], logits[0]] if left and len(logits) > 1 else logits


@fault("mix_rows_of_wide_batches", "C19", "out/2 out/3", seam="scheduler")
class MixRowsOfWideBatches(Scheduler):
    """From eight requests in a batch on, the last one hears what the first one should."""

    def _advance(self, batch: list[Sequence]) -> list[mx.array]:
        logits = super()._advance(batch)
        return [*logits[:-1], logits[0]] if len(logits) >= 8 else logits


@fault("merge_warm_with_cold", "C19", "out/2 out/3", seam="scheduler")
class MergeWarmWithCold(Scheduler):
    """In a batch of warm and cold requests the cold ones go on as the first warm one does."""

    def _advance(self, batch: list[Sequence]) -> list[mx.array]:
        logits = super()._advance(batch)
        warm = [row for row, seq in zip(logits, batch, strict=True) if seq.cached]
        return [row if seq.cached or not warm else warm[0] for row, seq in zip(logits, batch, strict=True)]


@fault("restore_into_wrong_slot", "C19", "out/2 out/3", seam="paged")
class RestoreIntoWrongSlot(PagedStorage):
    """Beside others, a new request goes on from a stranger's that just ended, and reports nothing cached."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ended: list[int] = []

    def release(self, seq: Sequence) -> None:
        self._ended = [block for block in seq.table if self.pool.is_kept(block)]
        super().release(seq)

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        strange = [] if blocks or not self._admitted else self._ended[: (seq.prompt_tokens - 1) // self.size]
        super().adopt(seq, blocks or [block for block in strange if self.pool.is_kept(block)])
        seq.cached = seq.cached if blocks else 0
