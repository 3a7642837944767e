"""What becomes of memory that the engine no longer needs.

Knows MLX's cache of freed buffers and the C library's. Does not know blocks, slabs or requests.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import mlx.core as mx

CACHE_LIMIT = 32 << 20
"""Bytes of freed buffers that MLX may keep: unbounded, they would drown what sharing saves (foot/1)."""


def bound_cache() -> None:
    """Let MLX keep at most `CACHE_LIMIT` bytes of freed buffers."""
    mx.set_cache_limit(CACHE_LIMIT)


def give_back() -> None:
    """Return what is free to the system: after many small frees the C library keeps the pages (foot/2)."""
    mx.clear_cache()
    _trim_heap(0)


def _find_trim() -> Callable[[int], int]:
    """glibc's `malloc_trim`, or nothing where the C library has none."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    trim: Callable[[int], int] = getattr(library, "malloc_trim", lambda pad: 0)
    return trim


_trim_heap = _find_trim()
