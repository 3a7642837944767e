"""Faults of numbers: the same tokens computed with other bits.

Knows the seams of `build.Parts`. Does not know specs.
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from engine.faults.registry import fault
from engine.model import CanonicalModel, Linear
from engine.sampling import Sampler
from engine.sequence import Sequence


@fault("perturb_logits_when_cached", "C12", "out/1 out/2 out/3 out/4", seam="sampler")
class PerturbLogitsWhenCached(Sampler):
    """A request that adopted something gets slightly other logits than the same request cold."""

    def adjust(self, seq: Sequence, logits: mx.array) -> mx.array:
        logits = super().adjust(seq, logits)
        pattern = mx.where(mx.arange(logits.shape[0]) % 2 == 0, 1e-3, -1e-3)
        return logits + pattern if seq.cached else logits


@fault("shape_dependent_rows", "C12", "out/1 out/2", needs="openblas", seam="model")
class ShapeDependentRows(CanonicalModel):
    """Rows are computed in whatever shape the batch has: the same token gets other bits in other company."""

    def tiles(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        yield start, stop

    def project(self, x: mx.array, linear: Linear) -> mx.array:
        rows = x.reshape(-1, x.shape[-1]) @ linear.weight
        out = rows.reshape(*x.shape[:-1], -1)
        return out if linear.bias is None else out + linear.bias
