"""The model's only window on stored keys and values, and its plainest implementation.

Knows: that one sequence has key and value rows by layer and absolute position.
Does not know: blocks, tables, sharing or pinning (the paged store implements the same protocol), tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import mlx.core as mx

if TYPE_CHECKING:
    from engine.model import ModelShape


class KVView(Protocol):
    """Keys and values of one sequence as the model sees them."""

    def write(self, layer: int, start: int, k: mx.array, v: mx.array) -> None:
        """Store rows for positions ``start .. start + T - 1`` of one layer.

        ``k``, ``v``: [kv_heads, T, head_dim] in the model's dtype. What is left of the last touched block
        is zero at its first touch, so that no former owner's row, perhaps a NaN, is ever behind a mask.
        """

    def read(self, layer: int, length: int, every: int = 1) -> tuple[mx.array, mx.array]:
        """Keys and values, each [kv_heads, length, head_dim], for positions ``0 .. length - 1``.

        Zeros for every position never written or past the end of the table. ``every``: of that many heads
        only the first. Not evaluated: whoever reads uses the rows, evaluates and drops them before the next
        write to this layer, for a write behind a pending reader copies the store instead.
        """


class ArrayView:
    """A `KVView` over one contiguous array per layer: no sharing, grows as it is written.

    Used where the engine measures itself and where tests need a store without a pool.
    """

    def __init__(self, shape: ModelShape, capacity: int = 0) -> None:
        self.shape = shape
        rows = (shape.kv_heads, capacity, shape.head_dim)
        self.keys = [mx.zeros(rows, shape.dtype) for _ in range(shape.layers)]
        self.values = [mx.zeros(rows, shape.dtype) for _ in range(shape.layers)]

    def write(self, layer: int, start: int, k: mx.array, v: mx.array) -> None:
        stop = start + k.shape[1]
        self._grow(layer, stop)
        self.keys[layer][:, start:stop] = k
        self.values[layer][:, start:stop] = v

    def read(self, layer: int, length: int, every: int = 1) -> tuple[mx.array, mx.array]:
        self._grow(layer, length)
        return self.keys[layer][::every, :length], self.values[layer][::every, :length]

    def copy(self, length: int | None = None) -> ArrayView:
        """An independent view with the same rows, or with those before `length`."""
        twin = ArrayView(self.shape)
        twin.keys = [mx.array(k[:, :length]) for k in self.keys]
        twin.values = [mx.array(v[:, :length]) for v in self.values]
        return twin

    def _grow(self, layer: int, length: int) -> None:
        missing = length - self.keys[layer].shape[1]
        if missing > 0:
            pad = [(0, 0), (0, missing), (0, 0)]
            self.keys[layer] = mx.pad(self.keys[layer], pad)
            self.values[layer] = mx.pad(self.values[layer], pad)


def noise_view(shape: ModelShape, length: int, seed: int = 0) -> ArrayView:
    """A view whose first `length` rows are normal noise from a seed: a long past that costs nothing."""
    view = ArrayView(shape)
    rows = (shape.kv_heads, length, shape.head_dim)
    for layer in range(shape.layers):
        keys = (mx.random.key(2 * (shape.layers * seed + layer) + i) for i in range(2))
        k, v = (mx.random.normal(rows, shape.dtype, key=key) for key in keys)
        view.write(layer, 0, k, v)
    return view
