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


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""What glibc calls the size from which the free end of a heap goes back to the system, and that from which a
buffer has pages of its own, which go back when it is freed."""
_FREE_END, _OWN_PAGES = 8 << 20, 1 << 20
"""Those sizes here, in bytes. Left alone glibc raises both with each larger buffer that is freed, to 64 and
32 MiB at most. Then slabs of the pool lie in a heap of a thread, whose free end `malloc_trim` leaves: after
one reset in thirty half of a pool of 100 MiB stayed (foot/4)."""


def bound_cache() -> None:
    """Let MLX keep at most `CACHE_LIMIT` bytes of freed buffers, and the C library little."""
    mx.set_cache_limit(CACHE_LIMIT)
    _set_option(_TRIM_THRESHOLD, _FREE_END)
    _set_option(_MMAP_THRESHOLD, _OWN_PAGES)


def give_back() -> None:
    """Return what is free to the system: after many small frees the C library keeps the pages (foot/2)."""
    mx.clear_cache()
    _trim_heap(0)


def _of_glibc(name: str) -> Callable[..., int]:
    """A function of glibc's, or one that does nothing where the C library has none of that name."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    found: Callable[..., int] = getattr(library, name, lambda *_: 0)
    return found


_trim_heap, _set_option = _of_glibc("malloc_trim"), _of_glibc("mallopt")
