"""Faults of numbers: the same tokens computed with other bits.

Knows the seams of `build.Parts`. Does not know specs.
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from engine.faults.registry import fault
from engine.kvview import KVView
from engine.model import CanonicalModel
from engine.products import Linear
from engine.sampling import Sampler
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.storage import PagedStorage


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


def _pattern(logits: mx.array) -> mx.array:
    """A small change of every logit."""
    return mx.where(mx.arange(logits.shape[0]) % 2 == 0, 1e-3, -1e-3)


@fault("first_token_differs_when_cached", "C12", "out/1 out/2 out/4", seam="sampler")
class FirstTokenDiffersWhenCached(Sampler):
    """After a hit the first token has slightly other logits; all that follow are as in a cold run."""

    def adjust(self, seq: Sequence, logits: mx.array) -> mx.array:
        logits = super().adjust(seq, logits)
        return logits + _pattern(logits) if seq.cached and not seq.generated else logits


@fault("perturb_in_company", "C12", "out/2", seam="scheduler")
class PerturbInCompany(Scheduler):
    """A row that decodes beside others gets slightly other logits than alone, warm or cold."""

    def _advance(self, batch: list[Sequence]) -> list[mx.array]:
        logits = super()._advance(batch)
        return [row + _pattern(row) for row in logits] if len(batch) > 1 else logits


class RoundedView:
    """A view whose first rows were kept in half the bits."""

    def __init__(self, view: KVView, rounded: int) -> None:
        self._view, self._rounded = view, rounded

    def write(self, layer: int, start: int, k: mx.array, v: mx.array) -> None:
        self._view.write(layer, start, k, v)

    def read(self, layer: int, length: int, every: int = 1) -> tuple[mx.array, mx.array]:
        k, v = self._view.read(layer, length, every)
        return self._round(k), self._round(v)

    def _round(self, rows: mx.array) -> mx.array:
        adopted = (mx.arange(rows.shape[1]) < self._rounded)[None, :, None]
        return mx.where(adopted, rows.astype(mx.bfloat16).astype(rows.dtype), rows)


@fault("round_adopted_rows", "C12", "out/1 out/2 out/4", seam="paged")
class RoundAdoptedRows(PagedStorage):
    """What was stored comes back in half the bits: a warm reply reads other numbers than a cold one."""

    def view(self, seq: Sequence) -> KVView:
        view = super().view(seq)
        return RoundedView(view, seq.adopted) if seq.adopted else view
