"""Arrays of keys and values by block id, grown in slabs that are never copied.

Knows arrays, block ids and row offsets. Does not know tokens, sharing or reference counts: whoever
writes a block has made sure that nobody else holds it (`storage.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import mlx.core as mx

from engine.kvview import KVView
from engine.model import ModelShape

_SLAB_BYTES = 4 << 20
_SLAB_BLOCKS = 64


class Store(Protocol):
    """What keeps the rows of blocks, on the device (`BlockStore`) or in Python's memory (`host.py`)."""

    shape: ModelShape
    block_size: int
    block_bytes: int

    @property
    def bytes_reserved(self) -> int: ...

    def view(self, table: Sequence[int]) -> KVView:
        """The rows of the blocks that a table names, now and later."""

    def copy(self, source: int, target: int) -> None:
        """Copy one block, all layers (copy-on-write)."""

    def put(self, layer: int, block: int, offset: int, k: mx.array, v: mx.array) -> None:
        """Store rows [kv_heads, T, head_dim] at `offset`; at offset 0 the rest of the block becomes zero.

        A recycled block may hold anything: one NaN left behind a mask would poison every later reader.
        """

    def rows(self, layer: int, blocks: Sequence[int]) -> tuple[mx.array, mx.array]:
        """Keys and values of the blocks, each [blocks, kv_heads, block_size, head_dim]."""

    def settle(self) -> None:
        """Evaluate what was written, so that no pending reader keeps an old version of it alive, and that a
        write which fails does so for whoever wrote."""

    def shrink(self, live: Collection[int]) -> None:
        """Give back memory in which none of the `live` blocks lies."""


class BlockStore:
    """Keys and values of every block, per layer, as slabs of [blocks, kv_heads, block_size, head_dim].

    A pool preallocated at its budget would make every footprint test empty (foot/1), one array that grows
    would be copied (foot/3): a slab comes with the first block written in it and goes with the last live one.
    """

    def __init__(self, shape: ModelShape, block_size: int) -> None:
        self.shape = shape
        self.block_size = block_size
        row = shape.kv_heads * shape.head_dim * shape.dtype.size
        self.block_bytes = 2 * shape.layers * block_size * row
        self.slab_blocks = max(1, min(_SLAB_BLOCKS, _SLAB_BYTES // self.block_bytes))
        self._slabs: dict[int, list[tuple[mx.array, mx.array]]] = {}
        self._written = set[int]()

    @property
    def bytes_reserved(self) -> int:
        return len(self._slabs) * self.slab_blocks * self.block_bytes

    def view(self, table: Sequence[int]) -> PagedView:
        return PagedView(self, table)

    def copy(self, source: int, target: int) -> None:
        for layer in range(self.shape.layers):
            rows = [mx.contiguous(x[0]) for x in self.rows(layer, [source])]
            mx.eval(rows)  # a reader that is pending when its slab is written has the slab copied
            self.put(layer, target, 0, *rows)
        self.settle()

    def put(self, layer: int, block: int, offset: int, k: mx.array, v: mx.array) -> None:
        number, at = divmod(block, self.slab_blocks)
        stop = offset + k.shape[1]
        if offset == 0 and stop < self.block_size:
            pad = [(0, 0), (0, self.block_size - stop), (0, 0)]
            k, v, stop = mx.pad(k, pad), mx.pad(v, pad), self.block_size
        self._written.add(number)
        keys, values = self._slab(number)[layer]
        keys[at, :, offset:stop] = k
        values[at, :, offset:stop] = v

    def rows(self, layer: int, blocks: Sequence[int]) -> tuple[mx.array, mx.array]:
        windows = list(self.windows(layer, blocks))
        return mx.concatenate([k for k, _ in windows]), mx.concatenate([v for _, v in windows])

    def windows(
        self, layer: int, blocks: Sequence[int], every: int = 1
    ) -> Iterator[tuple[mx.array, mx.array]]:
        """As `rows`, of each `every`-th head, in parts that copy nothing: one for each run of blocks."""
        for first, stop, step in _runs(blocks, self.slab_blocks):
            number, at = divmod(first, self.slab_blocks)
            keys, values = self._slab(number)[layer]
            run = slice(at, at + stop - first, step)
            yield keys[run, ::every], values[run, ::every]

    def settle(self) -> None:
        mx.eval([self._slabs[number] for number in self._written if number in self._slabs])
        self._written.clear()

    def shrink(self, live: Collection[int]) -> None:
        """Drop every slab that holds none of the `live` blocks, wherever it lies (foot/4)."""
        needed = {block // self.slab_blocks for block in live}
        for number in self._slabs.keys() - needed:
            del self._slabs[number]
        self.settle()

    def _slab(self, number: int) -> list[tuple[mx.array, mx.array]]:
        if number not in self._slabs:
            self._slabs[number] = [self._empty() for _ in range(self.shape.layers)]
        return self._slabs[number]

    def _empty(self) -> tuple[mx.array, mx.array]:
        shape = self.shape
        rows = (self.slab_blocks, shape.kv_heads, self.block_size, shape.head_dim)
        return mx.zeros(rows, shape.dtype), mx.zeros(rows, shape.dtype)


def _runs(blocks: Sequence[int], per_slab: int) -> Iterator[tuple[int, int, int]]:
    """First, stop and step of ids in one slab that rise evenly: sequences that grow in turns have such."""
    first = last = blocks[0]
    step = 0
    for block in blocks[1:]:
        gap = block - last
        if gap < 1 or (step and gap != step) or block // per_slab != first // per_slab:
            yield first, last + 1, step or 1
            first, step = block, 0
        else:
            step = gap
        last = block
    yield first, last + 1, step or 1


class PagedView:
    """One sequence's rows through its block table (the model's `KVView`)."""

    def __init__(self, store: BlockStore, table: Sequence[int]) -> None:
        self._store = store
        self._table = table

    def write(self, layer: int, start: int, k: mx.array, v: mx.array) -> None:
        """Store rows for positions start .. start + T - 1; the table covers them."""
        size, done = self._store.block_size, 0
        while done < k.shape[1]:
            block, offset = divmod(start + done, size)
            step = min(size - offset, k.shape[1] - done)
            rows = slice(done, done + step)
            self._store.put(layer, self._table[block], offset, k[:, rows], v[:, rows])
            done += step

    def read(self, layer: int, length: int, every: int = 1) -> tuple[mx.array, mx.array]:
        """See `KVView.read`. Each row is copied once, keys straight into the order that a product walks."""
        blocks = self._table[: -(-length // self._store.block_size)]
        windows = list(self._store.windows(layer, blocks, every))
        across = mx.concatenate([k.transpose(1, 3, 0, 2) for k, _ in windows], axis=2).flatten(2)
        along = mx.concatenate([v.swapaxes(0, 1) for _, v in windows], axis=1).flatten(1, 2)
        return _fit(across.swapaxes(1, 2), length), _fit(along, length)


def _fit(rows: mx.array, length: int) -> mx.array:
    missing = length - rows.shape[1]
    return mx.pad(rows, [(0, 0), (0, missing), (0, 0)]) if missing > 0 else rows[:, :length]
