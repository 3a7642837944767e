"""Faults of identity, of endings and of accounts: what matches too much, leaves something, or counts wrongly.

Knows the same seams as `faults.py`, which registers these under their names. Does not know specs.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Rows
from contextlib import contextmanager
from typing import Any

from engine.faults import fault
from engine.index import Entry, Key, PrefixIndex
from engine.scheduler import Live, Scheduler
from engine.sequence import Sequence
from engine.storage import PagedStorage, Storage

# ---- identity


class OtherRoot(PagedStorage):
    """A storage whose chains begin with another identity than the request's."""

    def root_of(self, seq: Sequence) -> tuple[str, ...]:
        raise NotImplementedError

    def prepare(self, seq: Sequence) -> None:
        seq.root = self.index.root(self.root_of(seq))
        seq.keys = self.index.chain(seq.root, seq.tokens)


@fault("ignore_salt", "C09", "key/1", seam="paged")
class IgnoreSalt(OtherRoot):
    """One tenant's prompt hits what another tenant stored."""

    def root_of(self, seq: Sequence) -> tuple[str, ...]:
        return seq.identity[2:]


@fault("ignore_adapter", "C09", "key/1", seam="paged")
class IgnoreAdapter(OtherRoot):
    """A request for an adapter runs on keys and values of the bare model."""

    def root_of(self, seq: Sequence) -> tuple[str, ...]:
        return seq.identity[:2]


@fault("blend_salt_and_adapter", "C09", "key/7", seam="paged")
class BlendSaltAndAdapter(OtherRoot):
    """Salt and adapter share one place in the key: a salt called like an adapter finds the adapter's rows."""

    def root_of(self, seq: Sequence) -> tuple[str, ...]:
        adapter = seq.request.adapter
        return (adapter.name if adapter else seq.request.salt.rpartition(":")[2],)


@fault("tell_of_other_salts", "C09", "key/5", seam="paged")
class TellOfOtherSalts(OtherRoot):
    """Rows are shared across salts but reported as computed: only the time tells what others have sent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._owners: dict[int, str] = {}

    def root_of(self, seq: Sequence) -> tuple[str, ...]:
        return seq.identity[2:]

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        super().adopt(seq, blocks)
        if blocks and self._owners.get(blocks[0]) != seq.request.salt:
            seq.cached = 0

    def _use_stored(self, seq: Sequence, at: int, block: int) -> bool:
        if block == seq.table[at]:
            self._owners[block] = seq.request.salt
        return super()._use_stored(seq, at, block)


class FlatIndex(PrefixIndex):
    """Keys of blocks after the first know nothing of what stands before them."""

    def __init__(self, block_size: int, hash_bytes: int = 16) -> None:
        super().__init__(block_size, hash_bytes)
        self._roots: set[Key] = set()

    def next_key(self, parent: Key, tokens: Rows[int]) -> Key:
        return super().next_key(parent if parent in self._roots else b"", tokens)

    def root(self, identity: Rows[str]) -> Key:
        made = super().root(identity)
        self._roots.add(made)
        return made

    def _is(self, entry: Entry, parent: Entry | Key, tokens: Rows[int]) -> bool:
        return entry.tokens == tuple(tokens)


class HeadIndex(PrefixIndex):
    """A block is known by its first half."""

    def next_key(self, parent: Key, tokens: Rows[int]) -> Key:
        return super().next_key(parent, tokens[: len(tokens) // 2])

    def _is(self, entry: Entry, parent: Entry | Key, tokens: Rows[int]) -> bool:
        half = len(tokens) // 2
        return super()._is(entry, parent, [*tokens[:half], *entry.tokens[half:]])


class TrustingIndex(PrefixIndex):
    """Equal hashes are equal blocks."""

    def _is(self, entry: Entry, parent: Entry | Key, tokens: Rows[int]) -> bool:
        return True


class OtherIndex(PagedStorage):
    """A storage with another index."""

    kind: type[PrefixIndex]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.index = self.kind(self.size, kwargs.get("hash_bytes", 16))


@fault("ignore_parent", "C09", "key/3", seam="paged")
class IgnoreParent(OtherIndex):
    """A block that was stored behind one text is adopted behind another, at positions it was not made for."""

    kind = FlatIndex


@fault("compare_half_blocks", "C09", "key/2", seam="paged")
class CompareHalfBlocks(OtherIndex):
    """A prompt that differs late in a block hits the whole block, and its own tokens there are not read."""

    kind = HeadIndex


@fault("trust_hashes", "C09", "key/4", seam="paged")
class TrustHashes(OtherIndex):
    """Two blocks whose hashes collide are taken for one: a stranger's text is adopted."""

    kind = TrustingIndex


# ---- endings


@fault("leak_ref_on_stop", "C03", "life/1", seam="scheduler")
class LeakRefOnStop(Scheduler):
    """A reply that a stop string ends keeps its blocks pinned for ever."""

    def _finish(self, seq: Sequence, reason: str) -> None:
        if reason == "stop":
            seq.table = []
        super()._finish(seq, reason)


@fault("leak_ref_on_failure", "C03", "life/1 life/6", seam="scheduler")
class LeakRefOnFailure(Scheduler):
    """A request whose forward failed keeps its blocks pinned for ever."""

    def fail(self, request_id: str, message: str, status: int = 500) -> bool:
        for seq in self.running:
            if seq.request.id == request_id:
                seq.table = []
        return super().fail(request_id, message, status)


@fault("spread_failure", "C03", "life/6", seam="scheduler")
class SpreadFailure(Scheduler):
    """One forward that fails ends every request there is."""

    @contextmanager
    def _guard(self, *batch: Sequence) -> Iterator[None]:
        with super()._guard(*self.running, *self.waiting):
            yield


@fault("ignore_disconnect", "C03", "life/4", seam="scheduler")
class IgnoreDisconnect(Scheduler):
    """The engine goes on to the end of a reply that nobody reads any more."""

    def cancel(self, request_id: str) -> None:
        live = self.live.get(request_id)
        if live is not None:
            live.sink = lambda event: None


@fault("wipe_on_abort", "C04", "life/3", seam="scheduler")
class WipeOnAbort(Scheduler):
    """When a client goes away its blocks are cleared at once, though siblings still read them."""

    def cancel(self, request_id: str) -> None:
        for seq in [seq for seq in self.running if seq.request.id == request_id]:
            _wipe(self.storage, seq)
        super().cancel(request_id)


def _wipe(storage: Storage, seq: Sequence) -> None:
    assert isinstance(storage, PagedStorage)
    store = storage.store
    for layer in range(store.shape.layers):
        k, v = store.rows(layer, seq.table)
        for at, block in enumerate(seq.table):
            store.put(layer, block, 0, -k[at], -v[at])
    store.settle()


# ---- accounts


@fault("usage_counts_per_choice", "C10", "count/2", seam="scheduler")
class UsageCountsPerChoice(Scheduler):
    """With n = 4 the usage says that four times as many tokens were cached."""

    def _account(self, live: Live, seq: Sequence) -> None:
        super()._account(live, seq)
        live.cached *= live.request.params.n


@fault("count_recompute_as_hit", "C11", "count/6", seam="scheduler")
class CountRecomputeAsHit(Scheduler):
    """A preempted request that finds its own rows again counts them as another hit."""

    def _start(self, seq: Sequence) -> None:
        if self.live[seq.request.id].admitted:
            self.counts["hits_tokens_total"] += seq.cached
        super()._start(seq)


@fault("count_hits_twice", "C11", "count/3", seam="scheduler")
class CountHitsTwice(Scheduler):
    """The hit counter rises twice for each hit, so a dashboard shows a rate that no reply tells of."""

    def _account(self, live: Live, seq: Sequence) -> None:
        super()._account(live, seq)
        self.counts["hits_tokens_total"] += seq.cached


@fault("cached_counts_as_free", "C11", "count/4", seam="paged")
class CachedCountsAsFree(PagedStorage):
    """The free gauge counts cached blocks too, so that more blocks are shown than there are."""

    def stats(self) -> dict[str, Any]:
        shown = super().stats()
        return shown | {"paged_blocks_free": shown["paged_block_budget"] - shown["paged_blocks_referenced"]}


@fault("miss_without_reason", "C11", "count/5", seam="scheduler")
class MissWithoutReason(Scheduler):
    """A cold prompt is counted neither as a hit nor as a miss."""

    def _account(self, live: Live, seq: Sequence) -> None:
        super()._account(live, seq)
        self.counts["missed_cold_total"] = 0
