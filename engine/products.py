"""Which products keep a row's bits on the device that MLX computes on; measured, not derived.

Knows the device's kind, weights and their names. Does not know what the network does with them. `probe.py`
measures what all this promises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

Together = Mapping[int, frozenset[int]]
"""By rows of a part: totals at which one product gives each row the bits that the part alone gives it."""
_MOST_ROWS, _MOST_TILES, _MOST_TILED = 16, 8, 256
"""Rows of decode, tiles, and rows of tiles that are looked at: what a usual batch and chunk hold."""


@dataclass(frozen=True)
class Linear:
    """``x @ weight + bias``; weight [in, out] contiguous, on which the plain BLAS is fastest."""

    weight: mx.array
    bias: mx.array | None = None
    together: Together = field(default_factory=dict)


def least_rows() -> int:
    """Fewest rows that share a decode step on the default device: 2 on a GPU, 1 elsewhere.

    Measured on an H200 (MLX 0.32.4, CUDA 13, bf16): a batch of one gets other bits than any batch of 2 to 16,
    and those agree with each other. A CPU gives a batch of one the same product as each of a larger batch.
    """
    return 2 if mx.default_device().type == mx.DeviceType.gpu else 1


def most_tiles() -> int:
    """Most tiles of a prefill that go through the layers together on the default device: 8 on a CPU, else 1.

    A CPU gives each of several tiles the product that it gets alone, and what every step costs beside the
    products is paid once: prefill of the built-in model takes 0.7 of its time (2,048 tokens, OpenBLAS). A GPU
    may choose its kernel by how many there are, so there each goes alone.
    """
    return 1 if mx.default_device().type == mx.DeviceType.gpu else _MOST_TILES


def together(weight: mx.array, heights: Sequence[int]) -> Together:
    """For parts of each of these heights, how many of their rows may share one product with weight [in, out].

    What a BLAS rounds depends on the shape of a product and on nothing else about it, so noise speaks for all
    rows. One product for 8 rows of decode or 8 tiles of 32 takes a half to a quarter of 8 products' time
    (OpenBLAS, weights of 576 x 1,536). Empty on a GPU, where each shape costs a kernel: there, each alone.
    """
    if mx.default_device().type == mx.DeviceType.gpu:
        return {}
    most = {height: min(_MOST_TILES, _MOST_TILED // height) for height in heights} | {1: _MOST_ROWS}
    return {height: _alike(weight, height, most[height]) for height in heights}


def _alike(weight: mx.array, height: int, most: int) -> frozenset[int]:
    x = mx.random.normal((most, height, len(weight)), weight.dtype, key=mx.random.key(0))
    apart = (x @ mx.broadcast_to(weight, (most, *weight.shape))).flatten(0, 1)
    flat = x.flatten(0, 1)
    sums = range(2 * height, most * height + 1, height)
    return frozenset(rows for rows in sums if bool(mx.array_equal(flat[:rows] @ weight, apart[:rows])))


def linears(weights: Mapping[str, mx.array], head: str, grid: int) -> dict[str, Linear]:
    """The products of a network in mlx-lm's names, by name. The head sees rows of decode alone, the embedding
    none unless it is the head. Where weights differ in dtype, so may rows, and nothing shares."""
    alike = len({weight.dtype for weight in weights.values()}) == 1
    shared: dict[tuple[int, ...], Together] = {}
    found = {}
    for name in (n.removesuffix(".weight") for n in weights if _multiplies(n, weights[n], head)):
        weight = mx.contiguous(weights[f"{name}.weight"].T)
        heights = [1] if name == head else [1, grid]
        key = (*weight.shape, *heights)
        if alike and key not in shared:
            shared[key] = together(weight if name == head else _noise(weight), heights)
        found[name] = Linear(weight, weights.get(f"{name}.bias"), shared.get(key, {}))
    return found


def _noise(weight: mx.array) -> mx.array:
    """Like a weight, without zeros, whose sums are all the same. The head is too large to have it twice."""
    return mx.random.normal(weight.shape, weight.dtype, key=mx.random.key(1))


def _multiplies(name: str, weight: mx.array, head: str) -> bool:
    matrix = name.endswith(".weight") and weight.ndim == 2
    return matrix and ("embed_tokens" not in name or name == f"{head}.weight")
