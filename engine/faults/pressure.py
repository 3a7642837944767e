"""Faults of eviction and preemption: what goes wrong when room runs out.

Knows the seams of `build.Parts`. Does not know specs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine.faults.registry import fault
from engine.pool import BlockPool
from engine.scheduler import Scheduler
from engine.sequence import Phase, Sequence
from engine.storage import PagedStorage


class OtherPool(PagedStorage):
    """A storage with another pool."""

    kind: type[BlockPool]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pool = self.kind(self.pool.budget)


class FifoPool(BlockPool):
    """Blocks go in the order in which they were first idle."""

    def __init__(self, budget: int) -> None:
        super().__init__(budget)
        self._born: dict[int, int] = {}
        self._births = 0

    def _put_back(self, block: int) -> None:
        super()._put_back(block)
        if self.is_kept(block):
            self._births += 1
            self._born.setdefault(block, self._births)

    def forget(self, block: int) -> None:
        super().forget(block)
        self._born.pop(block, None)

    def oldest(self) -> int | None:
        return min(self._idle, key=lambda block: self._born[block], default=None)


class CarelessPool(BlockPool):
    """Whoever lets go of a block first lets go of it for all."""

    def release(self, table: Iterable[int]) -> None:
        held = list(dict.fromkeys(block for block in table if block in self._refs))
        self._refs |= dict.fromkeys(held, 1)
        super().release(held)


@fault("fifo_eviction", "C14", "evict/1", seam="paged")
class FifoEviction(OtherPool):
    """A prefix in regular use is evicted as early as one that nobody asked for again."""

    kind = FifoPool


@fault("free_ignores_refcount", "C04", "evict/3", seam="paged")
class FreeIgnoresRefcount(OtherPool):
    """When one of two requests that share blocks ends, they are evicted under the other's hands."""

    kind = CarelessPool


@fault("evict_head_first", "C14", "evict/2", seam="paged")
class EvictHeadFirst(PagedStorage):
    """Under pressure a stored prefix loses its first block first: the rest is kept, and of no use."""

    def release(self, seq: Sequence) -> None:
        seq.table.reverse()
        super().release(seq)


@fault("never_evict", "C15", "evict/5", seam="paged")
class NeverEvict(PagedStorage):
    """The cache grows beyond its declared budget instead of evicting."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._declared = self.pool.budget

    def _evict_one(self) -> None:
        self.pool.budget += 1

    def can_ever_hold(self, prompt: int, longest: int, choices: int) -> bool:
        return self._blocks(prompt, [longest] * choices) <= self._declared

    def stats(self) -> dict[str, Any]:
        return super().stats() | {"paged_block_budget": self._declared}


@fault("admit_what_never_fits", "C16", "evict/6", seam="paged")
class AdmitWhatNeverFits(PagedStorage):
    """A prompt above the whole budget is taken in, and breaks off with an error on its way."""

    def can_ever_hold(self, prompt: int, longest: int, choices: int) -> bool:
        return True

    def _missing(self, seq: Sequence) -> int:
        return min(super()._missing(seq), self.pool.budget)

    def extend(self, seq: Sequence, length: int) -> bool:
        if super().extend(seq, length):
            return True
        if seq.phase is Phase.PREFILL:
            raise RuntimeError("out of blocks")
        return False


@fault("fail_instead_of_preempt", "C16", "evict/6 evict/7", seam="scheduler")
class FailInsteadOfPreempt(Scheduler):
    """Under pressure a reply breaks off in its middle with an error."""

    def _preempt(self, request_id: str) -> None:
        self.fail(request_id, "out of blocks")


@fault("replay_token_on_resume", "C18", "evict/7", seam="scheduler")
class ReplayTokenOnResume(Scheduler):
    """After a preemption the client gets the last token once more."""

    def _preempt(self, request_id: str) -> None:
        for seq in self.running:
            if seq.request.id == request_id and seq.generated:
                seq.tokens.pop()
        super()._preempt(request_id)
