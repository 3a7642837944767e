"""Faults of what is kept: entries, their names, and who may write in them.

Knows the seams of `build.Parts`. Does not know specs.
"""

from __future__ import annotations

from typing import Any

from engine.dense import DenseStorage, Whole
from engine.faults.registry import fault
from engine.faults.surgery import blank, forget
from engine.index import Entry, Key, PrefixIndex
from engine.scheduler import Scheduler
from engine.sequence import Phase, Sequence
from engine.storage import PagedStorage


@fault("truncate_entry_on_partial_match", "C02", "store/2", seam="paged")
class TruncateEntryOnPartialMatch(PagedStorage):
    """A short match trims the long entry it matched to the matched length; the long prompt is cold again."""

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        super().adopt(seq, blocks)
        last = self.index.entry(blocks[-1]) if blocks else None
        for entry in reversed(self.index.below(last) if last else []):
            self.index.remove(entry.block)
            self.pool.forget(entry.block)


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


@fault("keep_hash_on_recycle", "C06", "store/8 evict/4", seam="paged")
class KeepHashOnRecycle(PagedStorage):
    """A recycled block keeps its old name beside the new one: the index grows, and finds wrong rows."""

    def _evict_one(self) -> None:
        block = self.pool.oldest()
        if block is not None:
            self.pool.forget(block)
            self.counts["evictions_lru"] += 1


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


@fault("match_whole_entries_only", "C02", "adopt/1 store/2", seam="paged")
class MatchWholeEntriesOnly(PagedStorage):
    """A stored prompt is found only by a prompt that contains all of it, to the end of its reply."""

    def matched(self, seq: Sequence) -> list[Entry]:
        entries = super().matched(seq)
        return [] if entries and self.index.below(entries[-1]) else entries


@fault("keep_last_prompt_only", "C02", "store/2", seam="paged")
class KeepLastPromptOnly(PagedStorage):
    """There is room for one prompt: a short one between two uses of a long one loses the rest of it."""

    def release(self, seq: Sequence) -> None:
        kept = set(seq.table)
        super().release(seq)
        idle = [block for block in self.pool.kept if block not in kept and not self.pool.refs(block)]
        forget(self, filter(None, map(self.index.entry, idle)))


@fault("fork_without_copy", "C05", "out/5", seam="paged")
class ForkWithoutCopy(PagedStorage):
    """Choices of one request all go on in the block that their prompt ends in, over each other's rows."""

    def _own(self, seq: Sequence, at: int) -> None:
        if self.pool.is_kept(seq.table[at]):
            super()._own(seq, at)


@fault("copy_leaves_rows_behind", "C05", "out/5", seam="paged")
class CopyLeavesRowsBehind(PagedStorage):
    """A choice that writes in a shared block gets one of its own, without the rows that were in it."""

    def _own(self, seq: Sequence, at: int) -> None:
        shared = seq.table[at]
        super()._own(seq, at)
        if seq.table[at] != shared:
            blank(self, [seq.table[at]])


@fault("keep_hash_of_heads", "C06", "evict/4", seam="paged")
class KeepHashOfHeads(PagedStorage):
    """When the first block of a prompt is recycled, the index goes on to find it under its old name."""

    def _evict_one(self) -> None:
        block = self.pool.oldest()
        entry = None if block is None else self.index.entry(block)
        if entry is None or isinstance(entry.parent, Entry):
            super()._evict_one()
        else:
            self.pool.forget(entry.block)
            self.counts["evictions_lru"] += 1


class RememberingIndex(PrefixIndex):
    """Keeps a record of every block that was ever stored."""

    def remove(self, block: int) -> None:
        entry = self.entry(block)
        super().remove(block)
        if entry is not None:
            self._entries[b"was " + entry.key] = entry


@fault("index_never_shrinks", "C06", "store/8", seam="paged")
class IndexNeverShrinks(PagedStorage):
    """The index keeps something of every prompt that ever came: replies are right, and memory only grows."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.index = RememberingIndex(self.size, kwargs.get("hash_bytes", 16))


@fault("publish_failed_chunk", "C07", "evict/8", seam="scheduler")
class PublishFailedChunk(Scheduler):
    """A chunk whose forward failed is offered to others like those before it, though it was never written."""

    def fail(self, request_id: str, message: str, status: int = 500) -> bool:
        for seq in self.running:
            if seq.request.id == request_id and seq.phase is Phase.PREFILL:
                seq.computed = min(seq.prompt_tokens, seq.computed + self.chunk)
                self.storage.publish(seq)
        return super().fail(request_id, message, status)


@fault("publish_ahead_on_cancel", "C07", "evict/8", seam="scheduler")
class PublishAheadOnCancel(Scheduler):
    """When a client leaves during prefill, the chunk that was to come next is stored as if written."""

    def cancel(self, request_id: str) -> None:
        for seq in self.running:
            stop = min(seq.prompt_tokens, seq.computed + self.chunk)
            going = seq.request.id == request_id and seq.phase is Phase.PREFILL
            if going and self.storage.extend(seq, stop):
                seq.computed = stop
                self.storage.publish(seq)
        super().cancel(request_id)


@fault("snapshot_each_turn", "C15", "evict/5 store/3", seam="paged")
class SnapshotEachTurn(SecondNames):
    """Whoever ends leaves a copy of all its blocks beside what is stored: a repeat costs a whole prompt."""

    def release(self, seq: Sequence) -> None:
        for original in filter(None, map(self.index.entry, seq.table)):
            if self.pool.free:
                fresh = self._take()
                self.store.copy(original.block, fresh)
                self.name_again(original, fresh)
                self.pool.release([fresh])
        super().release(seq)


@fault("lend_live_rows", "C05", "store/6", seam="dense")
class LendLiveRows(DenseStorage):
    """A stored sequence is lent without being taken or copied: all borrowers write into the same rows."""

    def _take(self, seq: Sequence, entry: Whole | None, length: int) -> None:
        super()._take(seq, entry, length)
        if entry is not None:
            self.entries.append(entry)


class Unstorable(PagedStorage):
    """A storage that never stores blocks of some names."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._barred: set[Key] = set()

    def _publish_block(self, seq: Sequence, at: int) -> bool:
        tokens = seq.tokens[at * self.size : (at + 1) * self.size]
        return self._key(seq, at, tokens) not in self._barred and super()._publish_block(seq, at)


@fault("never_store_again", "C06", "adopt/1", seam="paged")
class NeverStoreAgain(Unstorable):
    """A prompt that was evicted is never stored again: from then on each use of it is cold."""

    def _evict_one(self) -> None:
        block = self.pool.oldest()
        entry = None if block is None else self.index.entry(block)
        if entry is not None:
            self._barred.add(entry.key)
        super()._evict_one()


@fault("never_store_what_failed", "C07", "adopt/1", seam="paged")
class NeverStoreWhatFailed(Unstorable):
    """A prompt whose prefill broke off is never stored beyond that place, however often it comes again."""

    def release(self, seq: Sequence) -> None:
        if seq.phase is Phase.PREFILL and seq.published < len(seq.keys):
            self._barred.add(seq.keys[seq.published])
        super().release(seq)
