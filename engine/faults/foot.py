"""Faults of memory: rows that are held beside the store, which its own figures do not show.

Test material. Knows the paged storage and its slabs. Does not know how a footprint is
measured, nor which spec must see what.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from engine.faults.registry import fault
from engine.kv import Store
from engine.sequence import Sequence
from engine.storage import PagedStorage

Rows = list[mx.array]


def _copies(store: Store, blocks: list[int]) -> Rows:
    """Copies of the blocks' rows, all layers, made now."""
    layers = range(store.shape.layers if blocks else 0)
    found = [rows for layer in layers for rows in store.rows(layer, blocks)]
    mx.eval(found)
    return found


@fault("copy_rows_on_adopt", "C01", "foot/1", seam="paged")
class CopyRowsOnAdopt(PagedStorage):
    """Each adopter copies the prefix for itself: counts and block gauges are right, memory is not shared."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._own_rows: dict[str, Rows] = {}

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        super().adopt(seq, blocks)
        self._own_rows[seq.request.id] = _copies(self.store, blocks)

    def release(self, seq: Sequence) -> None:
        self._own_rows.pop(seq.request.id, None)
        super().release(seq)


@fault("keep_rows_of_the_gone", "C15", "foot/2", seam="paged")
class KeepRowsOfTheGone(PagedStorage):
    """A request that ended leaves a copy of its rows behind for ever, in no figure of the store."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._gone: list[Rows] = []

    def release(self, seq: Sequence) -> None:
        self._gone.append(_copies(self.store, seq.table))
        super().release(seq)


@fault("keep_slabs_after_reset", "C15", "foot/4", seam="paged")
class KeepSlabsAfterReset(PagedStorage):
    """A reset forgets every prefix and says that it freed them, but no memory goes back to the system."""

    def trim(self) -> None:
        return None


@fault("copy_pool_on_growth", "C15", "foot/3", seam="paged")
class CopyPoolOnGrowth(PagedStorage):
    """Each time the pool grows it is copied, and the old one lives on until the engine has a quiet moment."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._old: Rows = []
        self._size = 0

    def publish(self, seq: Sequence) -> None:
        if self.store.bytes_reserved > self._size:
            self._old = []
            self._old = _copies(self.store, list(self.pool.blocks()))
        self._size = self.store.bytes_reserved
        super().publish(seq)

    def trim(self) -> None:
        self._old = []
        super().trim()
