"""Named mutations of the engine: each the override of one seam, none of them known to the engine itself.

Test material, the proof that the suite catches what it claims (`serve --fault NAME`). Knows the seams of
`build.Parts`. Does not know specs: a fault says which requirements its class breaks, and a run must show
that one of them fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from engine.build import Parts
from engine.index import Entry, Key
from engine.model import CanonicalModel, Linear
from engine.sampling import Sampler
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.storage import PagedStorage


@dataclass(frozen=True)
class Fault:
    """A mutation: what a user would see (`symptom`), its class, and the requirements that class breaks.

    `needs`: "openblas" when the mutation shows only where a product's rounding depends on its shape.
    """

    name: str
    bug_class: str
    symptom: str
    breaks: tuple[str, ...]
    parts: Parts
    needs: str = ""


FAULTS: dict[str, Fault] = {}


def parts_for(name: str | None) -> Parts:
    """The parts of an engine with this fault. Raises KeyError with the known names."""
    if name is None:
        return Parts()
    if name not in FAULTS:
        raise KeyError(f"unknown fault {name!r}; known: {', '.join(sorted(FAULTS))}")
    return FAULTS[name].parts


def fault(
    name: str, bug_class: str, breaks: str, *, seam: str, needs: str = ""
) -> Callable[[type[Any]], type[Any]]:
    """Register the decorated class as the replacement of one seam; its docstring is the symptom."""

    def register(kind: type[Any]) -> type[Any]:
        if name in FAULTS:
            raise ValueError(f"two faults are called {name}")
        symptom = " ".join((kind.__doc__ or "").split())
        override: Any = (lambda loaded: _mutated(loaded, kind)) if seam in _LOADED else kind
        parts = replace(Parts(), **{seam: override})
        FAULTS[name] = Fault(name, bug_class, symptom, tuple(breaks.split()), parts, needs)
        return kind

    return register


_LOADED = ("model", "tokenizer")
"""Seams of what is loaded: not a type to replace, but an object to change."""


def _mutated(loaded: Any, mixin: type[Any]) -> Any:
    """The same loaded model or tokenizer with a mixin's methods in front of its own."""
    loaded.__class__ = type(mixin.__name__, (mixin, type(loaded)), {})
    return loaded


@fault("consume_on_adopt", "C01", "adopt/1 adopt/2 store/3", seam="paged")
class ConsumeOnAdopt(PagedStorage):
    """The first adopter takes the stored entry; until it ends, siblings find nothing and compute it again."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._taken: dict[Key, Sequence] = {}

    def matched(self, seq: Sequence) -> list[Entry]:
        return [] if self._is_taken(seq) else super().matched(seq)

    def blocked_by(self, seq: Sequence, running: list[Sequence]) -> bool:
        return not self._is_taken(seq) and super().blocked_by(seq, running)

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        super().adopt(seq, blocks)
        if blocks:
            self._taken[seq.keys[0]] = seq

    def publish(self, seq: Sequence) -> None:
        if not self._is_taken(seq):
            super().publish(seq)

    def release(self, seq: Sequence) -> None:
        self._taken = {key: owner for key, owner in self._taken.items() if owner is not seq}
        super().release(seq)

    def _is_taken(self, seq: Sequence) -> bool:
        return bool(seq.keys) and seq.keys[0] in self._taken


@fault("truncate_entry_on_partial_match", "C02", "store/2", seam="paged")
class TruncateEntryOnPartialMatch(PagedStorage):
    """A short match trims the long entry it matched to the matched length; the long prompt is cold again."""

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        super().adopt(seq, blocks)
        last = self.index.entry(blocks[-1]) if blocks else None
        for entry in reversed(self.index.below(last) if last else []):
            self.index.remove(entry.block)
            self.pool.forget(entry.block)


@fault("leak_ref_on_abort", "C03", "life/1 life/2", seam="scheduler")
class LeakRefOnAbort(Scheduler):
    """A request whose client went away keeps its blocks pinned for ever."""

    def cancel(self, request_id: str) -> None:
        for seq in self.running:
            if seq.request.id == request_id:
                seq.table = []
        super().cancel(request_id)


@fault("perturb_logits_when_cached", "C12", "out/1 out/2 out/3 out/4", seam="sampler")
class PerturbLogitsWhenCached(Sampler):
    """A request that adopted something gets slightly other logits than the same request cold."""

    def adjust(self, seq: Sequence, logits: mx.array) -> mx.array:
        logits = super().adjust(seq, logits)
        pattern = mx.where(mx.arange(logits.shape[0]) % 2 == 0, 1e-3, -1e-3)
        return logits + pattern if seq.cached else logits


@fault("no_single_flight", "C13", "adopt/3", seam="paged")
class NoSingleFlight(PagedStorage):
    """A request does not wait for another that is computing its prefix: a cold burst computes it N times."""

    def blocked_by(self, seq: Sequence, running: list[Sequence]) -> bool:
        return False


@fault("shape_dependent_rows", "C12", "out/1 out/2", needs="openblas", seam="model")
class ShapeDependentRows(CanonicalModel):
    """Rows are computed in whatever shape the batch has: the same token gets other bits in other company."""

    def tiles(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        yield start, stop

    def project(self, x: mx.array, linear: Linear) -> mx.array:
        rows = x.reshape(-1, x.shape[-1]) @ linear.weight
        out = rows.reshape(*x.shape[:-1], -1)
        return out if linear.bias is None else out + linear.bias


@fault("report_without_reuse", "C10", "foot/1 store/1", seam="paged")
class ReportWithoutReuse(PagedStorage):
    """Usage says that the prefix was adopted; every row of it was computed and stored once more."""

    def matched(self, seq: Sequence) -> list[Entry]:
        return []

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        found = super().matched(seq)
        super().adopt(seq, blocks)
        seq.cached = len(found) * self.size // self.granule * self.granule
        seq.epoch = -1 if found else self.epoch


def known() -> list[Fault]:
    """Every fault by name."""
    return [FAULTS[name] for name in sorted(FAULTS)]


from engine import faults_foot as faults_foot  # noqa: E402  registers its own with what stands above
from engine import faults_identity as faults_identity  # noqa: E402  registers its own with what stands above
from engine import faults_pressure as faults_pressure  # noqa: E402  registers its own with what stands above
from engine import faults_reuse as faults_reuse  # noqa: E402  registers its own with what stands above
