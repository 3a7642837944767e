"""Faults of reuse: who finds what was stored, when, and how much of it.

Knows the seams of `build.Parts`. Does not know specs.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from engine.faults.registry import fault
from engine.faults.surgery import forget_from
from engine.index import Entry, Key
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.storage import PagedStorage


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


@fault("no_single_flight", "C13", "adopt/3", seam="paged")
class NoSingleFlight(PagedStorage):
    """A request does not wait for another that is computing its prefix: a cold burst computes it N times."""

    def blocked_by(self, seq: Sequence, running: list[Sequence]) -> bool:
        return False


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


@fault("full_hit_leaves_no_token", "C08", "adopt/6 count/1", seam="paged")
class FullHitLeavesNoToken(PagedStorage):
    """A prompt of whole blocks that is stored already is reported as cached to its last token."""

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        super().adopt(seq, blocks)
        whole = self.index.match(seq.root, seq.keys, seq.tokens)
        if len(whole) * self.size == seq.prompt_tokens:
            seq.cached = seq.prompt_tokens


@fault("lend_to_two", "C01", "adopt/1 adopt/2", seam="paged")
class LendToTwo(PagedStorage):
    """Two requests at once may read a stored prefix; the third of a burst finds nothing and computes it."""

    def matched(self, seq: Sequence) -> list[Entry]:
        entries = super().matched(seq)
        return [] if entries and self.pool.refs(entries[0].block) >= 2 else entries


@fault("forget_after_hit", "C01", "store/3 adopt/2", seam="paged")
class ForgetAfterHit(PagedStorage):
    """A stored prefix serves those who come together; when the first of them ends, it is gone for good."""

    def release(self, seq: Sequence) -> None:
        head = self.index.entry(seq.table[0]) if seq.adopted and seq.table else None
        super().release(seq)
        if head is not None:
            forget_from(self, head)


@fault("store_when_finished", "C01", "adopt/3 adopt/4", seam="paged")
class StoreWhenFinished(PagedStorage):
    """A prompt is stored when its reply is complete: a burst on an empty cache shares nothing."""

    def publish(self, seq: Sequence) -> None:
        """Not yet."""

    def release(self, seq: Sequence) -> None:
        super().publish(seq)
        super().release(seq)


# ---- lengths and edges


@fault("miss_at_block_edge", "C08", "adopt/6", seam="paged")
class MissAtBlockEdge(PagedStorage):
    """A prompt of whole blocks finds nothing, though a token more or less finds everything."""

    def matched(self, seq: Sequence) -> list[Entry]:
        return super().matched(seq) if seq.prompt_tokens % self.size else []


@fault("cap_reuse_at_eight_blocks", "C08", "adopt/6 adopt/1", seam="paged")
class CapReuseAtEightBlocks(PagedStorage):
    """However long a stored prefix is, only its first few blocks are reused."""

    def matched(self, seq: Sequence) -> list[Entry]:
        return super().matched(seq)[:8]


@fault("resume_one_token_late", "C08", "adopt/6 out/1", seam="paged")
class ResumeOneTokenLate(PagedStorage):
    """After a hit the first token behind the prefix is never computed: warm replies read nothing there."""

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        super().adopt(seq, blocks)
        if blocks and seq.computed < seq.prompt_tokens - 1:
            seq.computed += 1


@fault("full_hit_has_nothing_to_run", "C08", "adopt/6", seam="paged")
class FullHitHasNothingToRun(PagedStorage):
    """A prompt of whole blocks that is stored to its last token fails: no token is left to compute."""

    def matched(self, seq: Sequence) -> list[Entry]:
        whole = self.index.match(seq.root, seq.keys[: seq.prompt_tokens // self.size], seq.tokens)
        return whole if self.share and seq.adopts else []


@fault("forget_replies", "C01", "adopt/7", seam="paged")
class ForgetReplies(PagedStorage):
    """Only prompts are stored: each turn of a conversation computes again what the last one generated."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.publish_generated = False


@fault("logits_of_a_longer_prompt", "C02", "out/1", seam="scheduler")
class LogitsOfALongerPrompt(Scheduler):
    """A prompt that ends inside a stored one begins its reply as the longer one did."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._last: dict[tuple[Key, tuple[int, ...]], mx.array] = {}

    def _branch(self, seq: Sequence, logits: mx.array) -> None:
        if not seq.adopted:
            self._last[seq.root, seq.request.prompt] = logits
        super()._branch(seq, self._longer(seq, logits) if seq.adopted else logits)

    def _longer(self, seq: Sequence, logits: mx.array) -> mx.array:
        asked = seq.request.prompt
        for (root, prompt), kept in self._last.items():
            if root == seq.root and len(prompt) > len(asked) and prompt[: len(asked)] == asked:
                return kept
        return logits
