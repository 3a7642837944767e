"""What several faults do to a storage. Knows blocks and entries; registers no fault."""

from __future__ import annotations

from collections.abc import Iterable

import mlx.core as mx

from engine.index import Entry
from engine.storage import PagedStorage


def forget(storage: PagedStorage, entries: Iterable[Entry]) -> None:
    """Take entries out of the index; their blocks are free at once when idle, else at their last release."""
    for entry in entries:
        storage.index.remove(entry.block)
        storage.pool.forget(entry.block)


def forget_from(storage: PagedStorage, entry: Entry) -> None:
    """Forget an entry and all that hangs below it, leaves first."""
    forget(storage, reversed([entry, *storage.index.below(entry)]))


def blank(storage: PagedStorage, blocks: Iterable[int]) -> None:
    """Write zeros over all rows of these blocks."""
    for block in blocks:
        for layer in range(storage.store.shape.layers):
            k, v = storage.store.rows(layer, [block])
            storage.store.put(layer, block, 0, mx.zeros_like(k[0]), mx.zeros_like(v[0]))
    storage.store.settle()
