"""Which batches keep a row's bits on the device that MLX computes on; measured, not derived.

Knows the device's kind. Does not know models. `probe.py` measures what these promise.
"""

from __future__ import annotations

import mlx.core as mx


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
    return 1 if mx.default_device().type == mx.DeviceType.gpu else 8
