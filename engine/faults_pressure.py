"""Faults of eviction, of preemption, of resets and of chat templates: what goes wrong when room runs out.

Knows the same seams as `faults.py`, which registers these under their names. Does not know specs.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Rows
from typing import Any

import mlx.core as mx

from engine.faults import fault
from engine.index import Entry
from engine.pool import BlockPool
from engine.scheduler import Scheduler
from engine.sequence import Phase, Sequence
from engine.storage import PagedStorage

# ---- eviction


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


@fault("publish_at_allocation", "C07", "evict/8", seam="paged")
class PublishAtAllocation(PagedStorage):
    """Blocks are offered to others as soon as they are allocated; after a cancel nobody ever writes them."""

    def admit(self, seq: Sequence) -> bool:
        admitted = super().admit(seq)
        if admitted and not seq.branches:
            self.extend(seq, seq.prompt_tokens)
            written, seq.computed = seq.computed, seq.prompt_tokens
            super().publish(seq)
            seq.computed = written
        return admitted

    def _own(self, seq: Sequence, at: int) -> None:
        """Written where it stands, though it has a name."""


# ---- resets


@fault("reset_keeps_index", "C23", "reset/1 reset/2 foot/4", seam="paged")
class ResetKeepsIndex(PagedStorage):
    """A reset says that it is done, and everything is still there."""

    def reset(self) -> dict[str, Any]:
        return {"cleared": True, "freed_bytes": 0, "freed_entries": len(self.index)}


@fault("reset_wipes_running", "C23", "reset/2", seam="paged")
class ResetWipesRunning(PagedStorage):
    """A reset clears the rows of requests that still run."""

    def reset(self) -> dict[str, Any]:
        done = super().reset()
        held = sorted(self.pool.blocks())
        for layer in range(self.store.shape.layers if held else 0):
            k, v = self.store.rows(layer, held)
            for at, block in enumerate(held):
                self.store.put(layer, block, 0, mx.zeros_like(k[at]), mx.zeros_like(v[at]))
        self.store.settle()
        return done


@fault("publish_across_reset", "C23", "reset/4", seam="paged")
class PublishAcrossReset(PagedStorage):
    """A prefill that began before a reset offers everything that it computed to those who come after."""

    def publish(self, seq: Sequence) -> None:
        if seq.epoch != self.epoch:
            seq.epoch, seq.published = self.epoch, 0
        super().publish(seq)


@fault("ignore_weight_version", "C23", "reset/3", seam="paged")
class IgnoreWeightVersion(PagedStorage):
    """After an adapter was loaded anew, keys and values that the old weights made are used again."""

    def prepare(self, seq: Sequence) -> None:
        identity = seq.identity[:-1] if seq.request.adapter else seq.identity
        seq.root = self.index.root(identity)
        seq.keys = self.index.chain(seq.root, seq.tokens)


# ---- chats


@fault("stamp_the_chat", "C20", "tmpl/2", seam="tokenizer")
class StampTheChat:
    """The chat template puts a stamp at the top that differs in each request: no turn finds the last one."""

    stamps = 0

    def render_chat(self, messages: Rows[dict[str, str]], add_generation_prompt: bool = True) -> list[int]:
        self.stamps += 1
        stamp = {"role": "system", "content": f"Request {self.stamps}."}
        rendered: list[int] = super().render_chat([stamp, *messages], add_generation_prompt)  # type: ignore[misc]
        return rendered


@fault("drop_old_replies", "C20", "tmpl/2", seam="tokenizer")
class DropOldReplies:
    """The chat template keeps the last reply alone: every turn changes what stood in the middle."""

    def render_chat(self, messages: Rows[dict[str, str]], add_generation_prompt: bool = True) -> list[int]:
        replies = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        kept = [message for at, message in enumerate(messages) if at not in replies[:-1]]
        rendered: list[int] = super().render_chat(kept, add_generation_prompt)  # type: ignore[misc]
        return rendered


@fault("match_chats_short", "C20", "tmpl/1", seam="paged")
class MatchChatsShort(PagedStorage):
    """A chat that goes on adopts only half of what it shares with its last turn."""

    def matched(self, seq: Sequence) -> list[Entry]:
        entries = super().matched(seq)
        return entries[: len(entries) // 2]
