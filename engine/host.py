"""Rows and logits in this process's own memory, for a model that Python computes.

Knows rows of one head in fp32, kept as bytes by block or by sequence, and how one row of logits is ranked.
What goes in is an array that is there already, and so is what comes out: nothing is left to a device, whose
every answer would cost a change of threads, more than all that such a model computes. Does not know tokens,
sharing, reference counts or requests.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import mlx.core as mx

from engine.model import ModelShape

Pair = tuple[bytearray, bytearray]
"""Key rows and value rows of one layer."""
Ranked = tuple[int, float, list[tuple[int, float]]]
"""A token, its logprob, and the ids and logprobs of the likeliest."""


def flat(rows: mx.array) -> bytes:
    """The bytes of an array, in the order of its indices; computes it where it is still to be."""
    return bytes(memoryview(rows))  # type: ignore[arg-type]


def shaped(data: bytes, width: int) -> mx.array:
    """Rows [1, T, width] in fp32 from their bytes; T is at least 1."""
    length = len(data) // (4 * width)
    return mx.array(memoryview(data).cast("f", (1, length, width)))  # type: ignore[arg-type]


def row_bytes(shape: ModelShape) -> int:
    """Bytes of a key row. Raises ValueError for rows that are not of one head in fp32."""
    if shape.kv_heads != 1 or shape.dtype != mx.float32:
        raise ValueError(
            f"{shape.kv_heads} heads in {shape.dtype}: the host keeps rows of one head in float32"
        )
    return shape.head_dim * shape.dtype.size


class HostStore:
    """See `kv.Store`. A block is reserved from its first write on."""

    def __init__(self, shape: ModelShape, block_size: int) -> None:
        self.shape = shape
        self.block_size = block_size
        self.row = row_bytes(shape)
        """Bytes of a key row."""
        self.block_bytes = 2 * shape.layers * block_size * self.row
        self._blocks = _Blocks(shape.layers, block_size * self.row)

    @property
    def bytes_reserved(self) -> int:
        return len(self._blocks) * self.block_bytes

    def view(self, table: Sequence[int]) -> HostView:
        return HostView(self, table)

    def copy(self, source: int, target: int) -> None:
        self._blocks[target] = [(k[:], v[:]) for k, v in self._blocks[source]]

    def put(self, layer: int, block: int, offset: int, k: mx.array, v: mx.array) -> None:
        self.lay(layer, block, offset, flat(k), flat(v))

    def lay(self, layer: int, block: int, offset: int, k: bytes, v: bytes) -> None:
        """As `put`, from the bytes of the rows."""
        start, size = offset * self.row, self.block_size * self.row
        for kept, new in zip(self._blocks[block][layer], (k, v), strict=True):
            if offset:
                kept[start : start + len(new)] = new
            else:
                kept[:] = new.ljust(size, b"\0")

    def rows(self, layer: int, blocks: Sequence[int]) -> tuple[mx.array, mx.array]:
        keys, values = self.joined(layer, blocks)
        width = self.shape.head_dim
        form = (len(blocks), 1, self.block_size, width)
        return shaped(keys, width).reshape(form), shaped(values, width).reshape(form)

    def joined(self, layer: int, blocks: Sequence[int]) -> tuple[bytes, bytes]:
        """The bytes of the blocks' keys and values, one block after another."""
        pairs = [self._blocks[block][layer] for block in blocks]
        return b"".join([k for k, _ in pairs]), b"".join([v for _, v in pairs])

    def settle(self) -> None:
        """Nothing is pending here."""

    def shrink(self, live: Collection[int]) -> None:
        for block in self._blocks.keys() - live:
            del self._blocks[block]


class _Blocks(dict[int, list[Pair]]):
    """By block id, each layer's rows; zeros in a block that nobody wrote."""

    def __init__(self, layers: int, size: int) -> None:
        self._layers, self._size = layers, size

    def __missing__(self, block: int) -> list[Pair]:
        self[block] = [(bytearray(self._size), bytearray(self._size)) for _ in range(self._layers)]
        return self[block]


class HostView:
    """One sequence's rows through its block table."""

    def __init__(self, store: HostStore, table: Sequence[int]) -> None:
        self._store = store
        self._table = table

    def write(self, layer: int, start: int, k: mx.array, v: mx.array) -> None:
        """See `KVView.write`; the table covers the positions."""
        keys, values, done = flat(k), flat(v), 0
        size, row = self._store.block_size, self._store.row
        while done < k.shape[1]:
            block, offset = divmod(start + done, size)
            stop = min(done + size - offset, k.shape[1])
            part = slice(done * row, stop * row)
            self._store.lay(layer, self._table[block], offset, keys[part], values[part])
            done = stop

    def read(self, layer: int, length: int, every: int = 1) -> tuple[mx.array, mx.array]:
        """See `KVView.read`; there is one head, which is always among those that are read."""
        blocks = self._table[: -(-length // self._store.block_size)]
        return _fitted(self._store.joined(layer, blocks), length, self._store.shape.head_dim)


class HostRows:
    """A `KVView` over rows of one sequence, as `ArrayView` is: no sharing, grows as it is written."""

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape
        self._row = row_bytes(shape)
        self._layers: list[Pair] = [(bytearray(), bytearray()) for _ in range(shape.layers)]

    def write(self, layer: int, start: int, k: mx.array, v: mx.array) -> None:
        at = start * self._row
        for kept, new in zip(self._layers[layer], (flat(k), flat(v)), strict=True):
            kept.extend(bytes(max(0, at - len(kept))))
            kept[at : at + len(new)] = new

    def read(self, layer: int, length: int, every: int = 1) -> tuple[mx.array, mx.array]:
        keys, values = self._layers[layer]
        return _fitted((bytes(keys), bytes(values)), length, self.shape.head_dim)

    def copy(self) -> HostRows:
        """An independent view with the same rows."""
        twin = HostRows(self.shape)
        twin._layers = [(k[:], v[:]) for k, v in self._layers]
        return twin


def _fitted(rows: tuple[bytes, bytes], length: int, width: int) -> tuple[mx.array, mx.array]:
    """Keys and values of `length` rows: cut there, or zeros behind what there is."""
    size = 4 * width * length
    keys, values = (data[:size].ljust(size, b"\0") for data in rows)
    return shaped(keys, width), shaped(values, width)


# ---- logits


def best(logits: mx.array) -> mx.array:
    """The id of the largest logit."""
    return mx.array(int(_numbers(logits).argmax()))


def ranked(tokens: Sequence[tuple[mx.array, mx.array]], count: int) -> list[Ranked]:
    """Each token among the fp32 logits [vocab] it was chosen from; ids of equal logits in their order."""
    return [_among(int(token.item()), _numbers(logits), count) for token, logits in tokens]  # type: ignore[arg-type]


def _among(token: int, logits: Any, count: int) -> Ranked:
    numpy, over = _numpy(), logits - logits.max()
    logprobs = over - numpy.log(numpy.exp(over).sum())
    order = (-logprobs).argsort(kind="stable")[:count] if count else []
    return token, float(logprobs[token]), [(int(id), float(logprobs[id])) for id in order]


def _numbers(logits: mx.array) -> Any:
    """The same memory as a numpy array."""
    return _numpy().asarray(logits)


@cache
def _numpy() -> Any:
    """Loaded when first needed: it takes a tenth of a second, and models on a device never need it."""
    return import_module("numpy")
