"""Faults of eviction and preemption: what goes wrong when room runs out.

Knows the seams of `build.Parts`. Does not know specs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import mlx.core as mx

from engine.faults.registry import fault
from engine.index import Entry, Key
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


class StackPool(BlockPool):
    """The block that became idle last goes first."""

    def oldest(self) -> int | None:
        return next(reversed(self._idle), None)


@fault("evict_newest_first", "C14", "evict/1", seam="paged")
class EvictNewestFirst(OtherPool):
    """What was used last is evicted first: a prefix in regular use is never there."""

    kind = StackPool


@fault("clear_when_full", "C14", "evict/1", seam="paged")
class ClearWhenFull(PagedStorage):
    """When a block is wanted and none is free, everything that nobody reads is dropped at once."""

    def _evict_one(self) -> None:
        while self.pool.oldest() is not None:
            super()._evict_one()


def _head(entry: Entry) -> Entry:
    """The first block of an entry's chain."""
    while isinstance(entry.parent, Entry):
        entry = entry.parent
    return entry


@fault("never_evict_last_entry", "C15", "evict/5", seam="paged")
class NeverEvictLastEntry(NeverEvict):
    """The only prompt that is stored is never evicted: a second long one takes the cache over its budget."""

    def _evict_one(self) -> None:
        idle = [block for block in self.pool.kept if not self.pool.refs(block)]
        if len(set(map(_head, filter(None, map(self.index.entry, idle))))) > 1:
            PagedStorage._evict_one(self)
        else:
            super()._evict_one()


@fault("hold_and_wait", "C16", "evict/6", seam="scheduler")
class HoldAndWait(Scheduler):
    """Requests that find no room to grow keep what they have and wait for each other's: all hang."""

    def _decode(self, candidates: list[Sequence]) -> None:
        super()._decode([seq for seq in candidates if self._extended(seq, seq.computed + 1)])


@fault("ask_once_for_room", "C16", "evict/6", seam="paged")
class AskOnceForRoom(PagedStorage):
    """A request that once found no room is never looked at again, nor is anybody behind it in the queue."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._refused: set[Sequence] = set()

    def admit(self, seq: Sequence) -> bool:
        if seq in self._refused or not super().admit(seq):
            self._refused.add(seq)
            return False
        return True


@fault("stale_cached_count_on_resume", "C18", "evict/7", seam="paged")
class StaleCachedCountOnResume(PagedStorage):
    """A preempted request goes on from where it stood, over blocks that were given to others meanwhile."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stood: dict[Sequence, int] = {}

    def release(self, seq: Sequence) -> None:
        self._stood[seq] = min(seq.computed, seq.prompt_tokens - 1) // self.size * self.size
        super().release(seq)

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        super().adopt(seq, blocks)
        seq.computed = max(seq.computed, self._stood.pop(seq, 0))


@fault("lose_token_on_resume", "C18", "evict/7", seam="scheduler")
class LoseTokenOnResume(Scheduler):
    """After a preemption a token counts as sent that never was: the reply is shorter by one."""

    def _preempt(self, request_id: str) -> None:
        for seq in self.running:
            if seq.request.id == request_id and seq.generated:
                seq.tokens.append(seq.tokens[-1])
        super()._preempt(request_id)


@fault("resume_without_replay", "C18", "evict/7", seam="scheduler")
class ResumeWithoutReplay(Scheduler):
    """A preempted request computes its prompt again, but not what it had said: the rest reads empty rows."""

    def _begin(self, seq: Sequence, logits: mx.array) -> None:
        seq.computed = max(seq.computed, len(seq.tokens) - 1)
        super()._begin(seq, logits)


@fault("wait_for_the_broken", "C16", "evict/6", seam="paged")
class WaitForTheBroken(PagedStorage):
    """Whoever wants the block at which an earlier prefill broke off waits for that one, for ever."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pending: set[Key] = set()

    def release(self, seq: Sequence) -> None:
        if seq.phase is Phase.PREFILL and seq.published < len(seq.keys):
            self._pending.add(seq.keys[seq.published])
        super().release(seq)

    def blocked_by(self, seq: Sequence, running: list[Sequence]) -> bool:
        adoptable = seq.keys[: (seq.prompt_tokens - 1) // self.size]
        wanted = next((key for key in adoptable if key not in self.index), None)
        return wanted in self._pending or super().blocked_by(seq, running)
