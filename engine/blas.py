"""Chooses the BLAS library that MLX's CPU backend will use.

Knows that a library loaded globally before MLX wins over the one MLX bundles, and the name under which
Linux distributions keep OpenBLAS. Does not know MLX: it must run before MLX is imported, and refuses after.
"""

from __future__ import annotations

import ctypes
import sys

from engine.config import ConfigError

OPENBLAS = "libopenblas.so.0"


def apply(choice: str) -> str:
    """Load the chosen BLAS and say which one it is.

    choice: "builtin" (what MLX bundles), "auto" (OpenBLAS where installed) or the path of a library. Raises
    ConfigError when a named library does not load or is no BLAS, RuntimeError when MLX is already imported.
    """
    if choice == "builtin":
        return "builtin"
    if "mlx.core" in sys.modules:
        raise RuntimeError("the BLAS library must be chosen before MLX is imported")
    return _load_if_present(OPENBLAS) if choice == "auto" else _load(choice)


def available(name: str = OPENBLAS) -> bool:
    """Whether a library can be loaded here; loads it for this process alone, not for MLX."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _load_if_present(name: str) -> str:
    try:
        return _load(name)
    except ConfigError:
        return "builtin"


def _load(name: str) -> str:
    try:
        library = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ConfigError("blas", f"{name!r} does not load ({error}); give builtin, auto or a path") from None
    if not hasattr(library, "cblas_sgemm"):
        raise ConfigError("blas", f"{name!r} is not a BLAS library: it has no cblas_sgemm")
    return name
