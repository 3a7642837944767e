"""Faults of reuse, of what is kept, and of how tokens are chosen.

Knows the same seams as `faults.py`, which registers these under their names. Does not know specs.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

import mlx.core as mx

from engine.faults import fault
from engine.index import Entry, Key
from engine.sampling import Sampled, Sampler
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.storage import PagedStorage

# ---- reuse


@fault("visible_two_requests_late", "C01", "adopt/5 adopt/1", seam="paged")
class VisibleTwoRequestsLate(PagedStorage):
    """What was stored is found only after another request came by: a first repeat is cold, a second hits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._arrived = 0
        self._born: dict[Key, int] = {}

    def prepare(self, seq: Sequence) -> None:
        super().prepare(seq)
        self._arrived += 1

    def publish(self, seq: Sequence) -> None:
        super().publish(seq)
        for key in seq.keys[: seq.published]:
            self._born.setdefault(key, self._arrived)

    def matched(self, seq: Sequence) -> list[Entry]:
        entries = super().matched(seq)
        return entries if all(self._born[e.key] < self._arrived - 1 for e in entries) else []


@fault("full_hit_leaves_no_token", "C08", "adopt/6 count/1", seam="paged")
class FullHitLeavesNoToken(PagedStorage):
    """A prompt of whole blocks that is stored already is reported as cached to its last token."""

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        super().adopt(seq, blocks)
        whole = self.index.match(seq.root, seq.keys, seq.tokens)
        if len(whole) * self.size == seq.prompt_tokens:
            seq.cached = seq.prompt_tokens


@fault("forget_on_cancel", "C13", "adopt/4 adopt/8", seam="scheduler")
class ForgetOnCancel(Scheduler):
    """When the client of a prefill goes away, what was computed goes too; whoever waits starts from zero."""

    def cancel(self, request_id: str) -> None:
        tables = [seq.table for seq in self.running if seq.request.id == request_id]
        super().cancel(request_id)
        assert isinstance(self.storage, PagedStorage)
        for block in (block for table in tables for block in reversed(table)):
            if self.storage.index.entry(block) is not None:
                self.storage.index.remove(block)
                self.storage.pool.forget(block)


@fault("match_on_arrival", "C04", "adopt/9", seam="paged")
class MatchOnArrival(PagedStorage):
    """A queued request adopts the blocks that were matched when it came, whatever they hold by then."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._early: dict[str, list[Entry]] = {}

    def prepare(self, seq: Sequence) -> None:
        super().prepare(seq)
        self._early[seq.request.id] = super().matched(seq)

    def matched(self, seq: Sequence) -> list[Entry]:
        early = self._early.get(seq.request.id, [])
        kept = all(self.pool.is_kept(entry.block) for entry in early)
        return early if early and kept else super().matched(seq)


@fault("count_cached_on_arrival", "C10", "adopt/9", seam="paged")
class CountCachedOnArrival(PagedStorage):
    """A queued request reports what was stored when it came, though it was evicted before the start."""

    def prepare(self, seq: Sequence) -> None:
        super().prepare(seq)
        seq.trace["early"] = len(self.matched(seq)) * self.size // self.granule * self.granule

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        super().adopt(seq, blocks)
        seq.cached = max(seq.cached, seq.trace.pop("early", 0))


# ---- what is kept


class SecondNames(PagedStorage):
    """A storage that names copies of stored blocks by keys that nobody looks up."""

    def name_again(self, original: Entry, block: int) -> None:
        key = self.index.next_key(original.key, [block])
        self.index.publish(key, original.parent, original.tokens, block)
        self.pool.keep(block)


@fault("copy_on_adopt", "C05", "store/4 store/1 evict/5", seam="paged")
class CopyOnAdopt(SecondNames):
    """Each adopter gets a copy of the prefix, which stays stored beside the original."""

    def admit(self, seq: Sequence) -> bool:
        admitted = super().admit(seq)
        if admitted:
            seq.table = [self._copied(seq, block) for block in seq.table]
        return admitted

    def _copied(self, seq: Sequence, block: int) -> int:
        original, fresh = self.index.entry(block), self._take()
        self.store.copy(block, fresh)
        self.pool.release([block])
        if original is not None:
            self.name_again(original, fresh)
        return fresh


@fault("no_dedup_on_publish", "C13", "store/9", seam="paged")
class NoDedupOnPublish(SecondNames):
    """A block that is stored already is stored once more by whoever computed it at the same time."""

    def _use_stored(self, seq: Sequence, at: int, block: int) -> bool:
        own, original = seq.table[at], self.index.entry(block)
        if block == own or original is None:
            return super()._use_stored(seq, at, block)
        self.name_again(original, own)
        return True


@fault("share_partial_tail_no_cow", "C05", "store/5 out/5", seam="paged")
class SharePartialTailNoCow(PagedStorage):
    """A partly filled last block is shared by all who go on from it, and each writes its rows there."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tail: tuple[Key, int, list[int]] | None = None
        """The last partly filled block: the key before it, its id, its tokens."""

    def release(self, seq: Sequence) -> None:
        full = seq.computed // self.size
        if full and seq.published == full < len(seq.table):
            old, tail = self._tail, seq.table[full]
            self.pool.retain([tail])
            self._tail = (seq.keys[full - 1], tail, seq.tokens[full * self.size : seq.computed])
            self.pool.release([old[1]] if old else [])
        super().release(seq)

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        super().adopt(seq, blocks)
        if self._tail is None or not blocks or seq.keys[len(blocks) - 1] != self._tail[0]:
            return
        _, block, tokens = self._tail
        rest = seq.request.prompt[seq.computed : -1]
        same = next((i for i, (a, b) in enumerate(zip(rest, tokens, strict=False)) if a != b), len(tokens))
        self.pool.retain([block])
        seq.table.append(block)
        seq.computed += min(same, len(rest))
        seq.epoch = -1  # what it writes from here on is never offered to others

    def _own(self, seq: Sequence, at: int) -> None:
        """Written where it stands, whoever else reads it."""


@fault("decline_drops_entry", "C02", "store/7", seam="paged")
class DeclineDropsEntry(PagedStorage):
    """A request that cannot be served from stored rows throws away those that it was offered."""

    def publish(self, seq: Sequence) -> None:
        if seq.adopts:
            super().publish(seq)

    def prepare(self, seq: Sequence) -> None:
        super().prepare(seq)
        offered = [] if seq.adopts else self.index.match(seq.root, seq.keys, seq.tokens)
        for entry in reversed(offered):
            self.index.remove(entry.block)
            self.pool.forget(entry.block)


@fault("keep_hash_on_recycle", "C06", "store/8 evict/4", seam="paged")
class KeepHashOnRecycle(PagedStorage):
    """A recycled block keeps its old name beside the new one: the index grows, and finds wrong rows."""

    def _evict_one(self) -> None:
        block = self.pool.oldest()
        if block is not None:
            self.pool.forget(block)
            self.counts["evictions_lru"] += 1


# ---- how tokens are chosen


@fault("penalty_window_from_computed_tokens", "C21", "out/4", seam="sampler")
class PenaltyWindowFromComputedTokens(Sampler):
    """Penalties forget the adopted part of the prompt: a warm reply repeats what a cold one avoids."""

    def adjust(self, seq: Sequence, logits: mx.array) -> mx.array:
        seen = copy(seq)
        seen.tokens = seq.tokens[seq.cached :]
        seen.request = replace(seq.request, prompt=seq.request.prompt[seq.cached :])
        return super().adjust(seen, logits)


@fault("seed_counts_computed_tokens", "C21", "out/4", seam="sampler")
class SeedCountsComputedTokens(Sampler):
    """What a seed draws depends on how much of the prompt was computed: warm replies differ from cold."""

    def _draw(self, seq: Sequence, logits: mx.array) -> mx.array:
        params = replace(seq.request.params, seed=(seq.request.params.seed or 0) + seq.cached)
        shifted = copy(seq)
        shifted.request = replace(seq.request, params=params)
        return super()._draw(shifted, logits)


@fault("guess_prompt_logprobs", "C21", "out/4 store/7", seam="paged")
class GuessPromptLogprobs(PagedStorage):
    """A request for prompt logprobs adopts like any other, and says nothing about the part it adopted."""

    def matched(self, seq: Sequence) -> list[Entry]:
        limit = (seq.prompt_tokens - 1) // self.size
        return self.index.match(seq.root, seq.keys[:limit], seq.tokens)


@fault("drift_with_traffic", "C21", "out/6", seam="sampler")
class DriftWithTraffic(Sampler):
    """A prompt that comes back after eight others gets slightly other logits than it had before."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lately: dict[tuple[int, ...], list[str]] = {}
        """Prompt -> requests with other prompts since it last came."""

    def adjust(self, seq: Sequence, logits: mx.array) -> mx.array:
        logits, prompt = super().adjust(seq, logits), tuple(seq.request.prompt)
        if not seq.generated:
            seq.trace["drifts"] = len(self._lately.get(prompt, [])) >= 8
            self._lately[prompt] = []
            for other in self._lately.keys() - {prompt}:
                self._lately[other].append(seq.request.id)
        pattern = mx.where(mx.arange(logits.shape[0]) % 2 == 0, 1e-3, -1e-3)
        return logits + pattern if seq.trace.get("drifts") else logits


@fault("logits_as_logprobs", "C21", "out/7", seam="sampler")
class LogitsAsLogprobs(Sampler):
    """Logprobs are logits that nobody normalised: some are above 0."""

    def sample(self, seq: Sequence, logits: mx.array) -> Sampled:
        chosen = super().sample(seq, logits)
        if chosen.logprob is None:
            return chosen
        value: float = logits[chosen.id].item()  # type: ignore[assignment]
        return replace(chosen, logprob=value)
