"""`--determinism fast`: the same network with products in whatever shape the work at hand has.

Knows: which two seams of the canonical forward fix its shapes, and how to let go of them. Does not know why
one would want bits (`model.py`) or what this mode may still promise (`probe.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import mlx.core as mx

from engine.model import CanonicalModel, Runner
from engine.products import Linear


class FastRows(CanonicalModel):
    """Mixin before a canonical model: one product for all rows of a batch, one tile for all of a prefill."""

    def tiles(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """All rows but the last need no output from the last layer, so the last one goes by itself."""
        if stop - start > 1:
            yield start, stop - 1
        yield stop - 1, stop

    def project(self, x: mx.array, linear: Linear) -> mx.array:
        flat = x.reshape(1, -1, x.shape[-1])
        return super().project(flat, linear).reshape(*x.shape[:-1], -1)

    def stand_in(self) -> CanonicalModel:
        thin = super().stand_in()
        return self if thin is self else _twin(thin)


def fasten(runner: Runner) -> Runner:
    """A fast twin on the same weights; a runner that is no canonical model has no fast form and stays."""
    if not isinstance(runner, CanonicalModel):
        return runner
    return _twin(runner)


def _twin(model: CanonicalModel) -> CanonicalModel:
    twin = copy.copy(model)
    twin.__class__ = type(f"Fast{type(model).__name__}", (FastRows, type(model)), {})
    return twin
