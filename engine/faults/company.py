"""Faults of company: a reply that says what another request should hear.

Knows the seams of `build.Parts`. Does not know specs.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import mlx.core as mx

from engine.faults.registry import fault
from engine.model import DecodeRow
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


@fault("share_by_references", "C19", "out/2 out/3", seam="scheduler")
class ShareByReferences(Scheduler):
    """When those who share a prefix end, a stranger that stays reads it for a moment in place of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ended: list[tuple[int, list[int]]] = []

    def _drop(self, seq: Sequence) -> None:
        self._ended.append((self.counts["steps"], list(seq.table)))
        super()._drop(seq)

    def _references(self, block: int) -> int:
        """Those who hold a block, and those who did until two steps ago."""
        assert isinstance(self.storage, PagedStorage)
        return self.storage.pool.refs(block) + sum(block in table for _, table in self._ended)

    def _common(self, batch: list[Sequence]) -> list[int]:
        """Blocks of the first one that as many hold as there are rows: everybody's, it seems."""
        assert isinstance(self.storage, PagedStorage)
        full = batch[0].table[: batch[0].computed // self.storage.size]
        return list(takewhile(lambda block: self._references(block) >= max(2, len(batch)), full))

    def _advance(self, batch: list[Sequence]) -> list[mx.array]:
        assert isinstance(self.storage, PagedStorage)
        self._ended = [(at, table) for at, table in self._ended if self.counts["steps"] - at <= 2]
        store, size, common = self.storage.store, self.storage.size, self._common(batch)
        rows = []
        for seq in batch:
            shared = common[: seq.computed // size]
            view = store.view(shared + seq.table[len(shared) :])
            rows.append(DecodeRow(view, seq.tokens[seq.computed], seq.computed))
        return self._runner(batch[0]).decode(rows)
