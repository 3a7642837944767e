"""Arrays of keys and values by block id, grown in slabs that are never copied.

Knows arrays, block ids and row offsets. Does not know tokens, sharing or reference counts: whoever
writes a block has made sure that nobody else holds it (`storage.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

import mlx.core as mx

from engine.model import ModelShape

_SLAB_BYTES = 4 << 20
_SLAB_BLOCKS = 64


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

    @property
    def bytes_reserved(self) -> int:
        return len(self._slabs) * self.slab_blocks * self.block_bytes

    def view(self, table: Sequence[int]) -> PagedView:
        return PagedView(self, table)

    def copy(self, source: int, target: int) -> None:
        """Copy one block, all layers (copy-on-write)."""
        for layer in range(self.shape.layers):
            k, v = self.rows(layer, [source])
            self.put(layer, target, 0, k[0], v[0])
        self.settle()

    def put(self, layer: int, block: int, offset: int, k: mx.array, v: mx.array) -> None:
        """Store rows [kv_heads, T, head_dim] at `offset`; at offset 0 the rest of the block becomes zero.

        A recycled block may hold anything: one NaN left behind a mask would poison every later reader.
        """
        slab, at = self._place(block)
        stop = offset + k.shape[1]
        if offset == 0 and stop < self.block_size:
            pad = [(0, 0), (0, self.block_size - stop), (0, 0)]
            k, v, stop = mx.pad(k, pad), mx.pad(v, pad), self.block_size
        keys, values = slab[layer]
        keys[at, :, offset:stop] = k
        values[at, :, offset:stop] = v

    def rows(self, layer: int, blocks: Sequence[int]) -> tuple[mx.array, mx.array]:
        """Keys and values of the blocks, each [blocks, kv_heads, block_size, head_dim]."""
        parts = [self._run(layer, first, stop) for first, stop in self._runs(blocks)]
        if len(parts) == 1:
            return parts[0]
        return mx.concatenate([k for k, _ in parts]), mx.concatenate([v for _, v in parts])

    def settle(self) -> None:
        """Evaluate what was written, so that no pending reader keeps an old version of a slab alive."""
        mx.eval(list(self._slabs.values()))

    def shrink(self, live: Collection[int]) -> None:
        """Drop every slab that holds none of the `live` blocks, wherever it lies (foot/4)."""
        needed = {block // self.slab_blocks for block in live}
        for number in self._slabs.keys() - needed:
            del self._slabs[number]
        self.settle()

    def _place(self, block: int) -> tuple[list[tuple[mx.array, mx.array]], int]:
        number, at = divmod(block, self.slab_blocks)
        if number not in self._slabs:
            self._slabs[number] = [self._slab() for _ in range(self.shape.layers)]
        return self._slabs[number], at

    def _slab(self) -> tuple[mx.array, mx.array]:
        shape = self.shape
        rows = (self.slab_blocks, shape.kv_heads, self.block_size, shape.head_dim)
        return mx.zeros(rows, shape.dtype), mx.zeros(rows, shape.dtype)

    def _run(self, layer: int, first: int, stop: int) -> tuple[mx.array, mx.array]:
        slab, at = self._place(first)
        keys, values = slab[layer]
        return keys[at : at + stop - first], values[at : at + stop - first]

    def _runs(self, blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Ascending runs of ids that lie side by side in one slab."""
        breaks = [
            at for at, (a, b) in enumerate(pairwise(blocks), 1) if b != a + 1 or b % self.slab_blocks == 0
        ]
        for start, stop in pairwise([0, *breaks, len(blocks)]):
            yield blocks[start], blocks[stop - 1] + 1


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

    def read(self, layer: int, length: int) -> tuple[mx.array, mx.array]:
        """Keys and values [kv_heads, length, head_dim]; zeros past the end of the table.

        Copied out at once: while a reader of a slab is pending, the next write would copy the slab instead.
        """
        blocks = -(-length // self._store.block_size)
        k, v = (self._flat(rows, length) for rows in self._store.rows(layer, self._table[:blocks]))
        mx.eval(k, v)
        return k, v

    def _flat(self, rows: mx.array, length: int) -> mx.array:
        heads, width = rows.shape[1], rows.shape[3]
        flat = rows.transpose(1, 0, 2, 3).reshape(heads, -1, width)
        missing = length - flat.shape[1]
        flat = mx.pad(flat, [(0, 0), (0, missing), (0, 0)]) if missing > 0 else flat[:, :length]
        return mx.contiguous(flat)
