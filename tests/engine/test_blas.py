"""Choosing a BLAS library. Loading one changes the whole process, so those tests run in one of their own."""

from __future__ import annotations

import ctypes.util
import subprocess
import sys
from types import SimpleNamespace

import pytest

from engine import blas
from engine.config import ConfigError


def in_new_process(code: str) -> str:
    """What the code prints; a process that fails fails the test."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return run.stdout.strip()


def test_builtin_loads_nothing() -> None:
    assert blas.apply("builtin") == "builtin"


def test_choosing_after_mlx_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", ctypes)
    with pytest.raises(RuntimeError, match="before MLX is imported"):
        blas.apply("auto")


def without_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)


def test_a_path_that_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    without_mlx(monkeypatch)
    with pytest.raises(ConfigError, match=r"--blas: '/nowhere/blas\.so' does not load") as caught:
        blas.apply("/nowhere/blas.so")
    assert caught.value.field == "blas"


def test_a_library_that_is_no_blas_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    without_mlx(monkeypatch)
    name = ctypes.util.find_library("c")
    assert name is not None
    with pytest.raises(ConfigError, match="is not a BLAS library"):
        blas.apply(name)


def test_auto_without_openblas_is_builtin(monkeypatch: pytest.MonkeyPatch) -> None:
    without_mlx(monkeypatch)
    monkeypatch.setattr(blas, "OPENBLAS", "libnone.so.0")
    assert blas.apply("auto") == "builtin"


def test_a_library_is_loaded_for_all_to_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a global one wins over the BLAS that MLX brings."""
    loaded: list[tuple[str, int]] = []

    def load(name: str, mode: int) -> SimpleNamespace:
        loaded.append((name, mode))
        return SimpleNamespace(cblas_sgemm=None)

    without_mlx(monkeypatch)
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert blas.apply("/lib/some.so") == "/lib/some.so"
    assert loaded == [("/lib/some.so", ctypes.RTLD_GLOBAL)]


@pytest.mark.skipif(not ctypes.util.find_library("openblas"), reason="OpenBLAS is not installed")
@pytest.mark.parametrize("choice", ["auto", blas.OPENBLAS])
def test_openblas_is_loaded_where_it_is_installed(choice: str) -> None:
    code = (
        "import ctypes; from engine import blas\n"
        f"print(blas.apply({choice!r}), hasattr(ctypes.CDLL(None), 'openblas_get_config'))"
    )
    assert in_new_process(code) == f"{blas.OPENBLAS} True"


def test_openblas_is_not_there_unless_asked_for() -> None:
    """The control of the test above."""
    code = (
        "import ctypes; from engine import blas\n"
        "print(blas.apply('builtin'), hasattr(ctypes.CDLL(None), 'openblas_get_config'))"
    )
    assert in_new_process(code) == "builtin False"


def test_the_http_layer_does_not_import_mlx() -> None:
    code = "import sys, engine.cli, engine.server, engine.blas; print('mlx.core' in sys.modules)"
    assert in_new_process(code) == "False"
