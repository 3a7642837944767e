"""Where sequences keep their rows: the interface, and the paged implementation of it.

Knows blocks, keys and tokens of sequences. Does not know when anything happens (`scheduler.py`), what a
row means (`model.py`), or HTTP. Every method runs on the engine thread, between evaluations.
"""

from __future__ import annotations

from typing import Any, Protocol

from engine.index import Entry, Key, PrefixIndex
from engine.kv import Store
from engine.kvview import KVView
from engine.pool import BlockPool, PoolExhausted
from engine.sequence import Phase, Sequence


class Storage(Protocol):
    """What the scheduler asks of a store."""

    granule: int
    share: bool

    def prepare(self, seq: Sequence) -> None:
        """A sequence arrived: compute what lookups will need. Holds nothing."""

    def blocked_by(self, seq: Sequence, running: list[Sequence]) -> bool:
        """Whether a running sequence is computing the very block that `seq` would compute next."""

    def admit(self, seq: Sequence) -> bool:
        """Match, pin and reserve in one act (adopt/9); False, holding nothing, when it does not fit now."""

    def extend(self, seq: Sequence, length: int) -> bool:
        """Rows [computed, length) become writable by this sequence alone; may evict, and may copy a block
        that siblings share, whose original it then no longer holds.

        False when no block is left that was not promised to another: somebody must be preempted first.
        """

    def view(self, seq: Sequence) -> KVView:
        """The rows of a sequence, for a model."""

    def publish(self, seq: Sequence) -> None:
        """Offer what is written so far to others. Where the same is stored already, the sequence may hold
        that from here on instead of its own."""

    def fork(self, seq: Sequence, twin: Sequence) -> None:
        """Another choice on the rows of `seq`, shared until one of them writes. Raises ValueError when the
        twin holds some already."""

    def release(self, seq: Sequence) -> None:
        """Give back all that a sequence holds and was promised; a second time gives back nothing."""

    def reset(self) -> dict[str, Any]:
        """Forget every stored prefix; what running sequences hold stays theirs."""

    def trim(self) -> None:
        """Give back memory that holds nothing; nothing stored is lost."""

    def can_ever_hold(self, prompt: int, longest: int, choices: int) -> bool: ...

    def stats(self) -> dict[str, Any]: ...

    def problems(self, sequences: list[Sequence]) -> list[str]: ...


def blocks_for(length: int, size: int) -> int:
    return -(-length // size)


def why_missed(seq: Sequence, storage: Storage) -> str:
    """Why an admitted sequence reports nothing cached (count/5); empty when it adopted.

    Whether the same tokens are stored under another salt is not told: that would let one tenant ask what
    another has sent (key/5).
    """
    if seq.cached:
        return ""
    if not storage.share:
        return "sharing_off"
    if not seq.adopts:
        return "prompt_logprobs"
    if seq.prompt_tokens - 1 < storage.granule:
        return "no_full_block"
    return "below_granule" if seq.adopted else "cold"


class PagedStorage:
    """Clone-and-pin over one block pool: adoption changes no stored entry (store/2, store/6).

    `publish_generated`: whether rows written by decode have the bits that prefill would give; if not they
    stay private. `share` False never adopts and never publishes: the arm without the effect. `reserve`
    "full" promises a request all it may ever write, "prompt" what it has plus one block for each choice:
    growth beyond that may find nothing left, and then the scheduler preempts.

    What is promised is no number of its own, but what admitted sequences still lack of it: it ends with them,
    and what one has taken is promised no more.
    """

    def __init__(
        self,
        store: Store,
        budget: int,
        *,
        granule: int,
        share: bool = True,
        publish_generated: bool = True,
        reserve: str = "full",
        hash_bytes: int = 16,
    ) -> None:
        self.store = store
        self.size = store.block_size
        self.granule = granule
        self.pool = BlockPool(budget)
        self.index = PrefixIndex(self.size, hash_bytes)
        self.share = share
        self.publish_generated = publish_generated
        self.reserve = reserve
        self.epoch = 0
        self._admitted: set[Sequence] = set()
        self.counts = {"inserts": 0, "evictions_lru": 0, "copies": 0}

    # -- arriving ---------------------------------------------------------------------------------------

    def prepare(self, seq: Sequence) -> None:
        seq.root = self.index.root(seq.identity)
        seq.keys = self.index.chain(seq.root, seq.tokens)

    def matched(self, seq: Sequence) -> list[Entry]:
        """Stored blocks this prompt may adopt; the last prompt token is always computed."""
        if not self.share or not seq.adopts:
            return []
        limit = (seq.prompt_tokens - 1) // self.size
        return self.index.match(seq.root, seq.keys[:limit], seq.tokens)

    def blocked_by(self, seq: Sequence, running: list[Sequence]) -> bool:
        return self.share and seq.adopts and any(self._awaits(seq, other) for other in running)

    def _awaits(self, seq: Sequence, leader: Sequence) -> bool:
        """Whether the next block that `leader` adds to the index is one that `seq` may adopt.

        One key tells, since it chains all before it and those are stored. This is asked for each waiting
        sequence in each step: a lookup of the whole prompt would cost a queue more than its forwards.
        """
        if leader.phase is not Phase.PREFILL or leader.epoch != self.epoch:
            return False
        limit = min((seq.prompt_tokens - 1) // self.size, leader.prompt_tokens // self.size)
        added = (at for at in range(leader.published, limit) if leader.keys[at] not in self.index)
        at = next(added, limit)
        return at < limit and seq.keys[at] == leader.keys[at]

    def admit(self, seq: Sequence) -> bool:
        entries = self.matched(seq)
        blocks = [entry.block for entry in entries]
        for choice in (seq, *seq.branches):
            choice.limit = self._limit(choice)
        need = self._missing(seq) - len(blocks)
        idle = sum(not self.pool.refs(block) for block in blocks)
        if need > self.pool.available - idle - self.promised:
            return False
        self.adopt(seq, blocks)
        self._admitted.add(seq)
        return True

    def adopt(self, seq: Sequence, blocks: list[int]) -> None:
        """Clone and pin: the empty table names the stored blocks, each gets one more reference."""
        seq.trace["adopted_blocks"] = list(blocks)
        seq.trace["in_flight"] = sum(self.pool.refs(block) > 0 for block in blocks)
        self._pin(seq, blocks)
        seq.epoch = self.epoch
        seq.published = len(blocks)
        seq.adopted = seq.computed = len(blocks) * self.size
        seq.cached = seq.adopted // self.granule * self.granule

    @property
    def promised(self) -> int:
        """Blocks that admitted sequences may still take: to reach their limits, and for all but one of those
        that share a block which is not full yet, to copy it."""
        tails = {block for seq in self._admitted for block in seq.table[seq.computed // self.size :]}
        copies = sum(self.pool.refs(block) - 1 for block in tails)
        return copies + sum(self._missing(seq) for seq in self._admitted)

    # -- running ----------------------------------------------------------------------------------------

    def extend(self, seq: Sequence, length: int) -> bool:
        first, stop = seq.computed // self.size, blocks_for(length, self.size)
        try:
            for at in range(first, min(len(seq.table), stop)):
                self._own(seq, at)
            while len(seq.table) < stop:
                seq.table.append(self._grow(seq))
        except PoolExhausted:
            return False
        return True

    def view(self, seq: Sequence) -> KVView:
        return self.store.view(seq.table)

    def publish(self, seq: Sequence) -> None:
        """Name each full written block. A twin that is stored already replaces this sequence's own copy,
        so that simultaneous identical work ends stored once (store/9) and a named block's parent is
        always held by whoever holds the block. A write that fails does so before its block has a name."""
        self.store.settle()
        if not self.share or seq.epoch != self.epoch:
            return
        limit = seq.computed if self.publish_generated else min(seq.computed, seq.prompt_tokens)
        while (seq.published + 1) * self.size <= limit:
            if not self._publish_block(seq, seq.published):
                return
            seq.published += 1

    def fork(self, seq: Sequence, twin: Sequence) -> None:
        self._pin(twin, seq.table)
        self._admitted.add(twin)
        twin.root = seq.root
        twin.keys = seq.keys[: seq.prompt_tokens // self.size]
        twin.computed, twin.published, twin.epoch = seq.computed, seq.published, seq.epoch

    def release(self, seq: Sequence) -> None:
        self.pool.release(seq.table)
        seq.table = []
        self._admitted.discard(seq)

    # -- the store as a whole ---------------------------------------------------------------------------

    def reset(self) -> dict[str, Any]:
        before, entries = self.pool.live, len(self.index)
        for block in self.index.clear():
            self.pool.forget(block)
        self.epoch += 1
        self.trim()
        freed = (before - self.pool.live) * self.store.block_bytes
        return {"cleared": True, "freed_bytes": freed, "freed_entries": entries}

    def trim(self) -> None:
        self.store.shrink(self.pool.blocks())

    def can_ever_hold(self, prompt: int, longest: int, choices: int) -> bool:
        return self._blocks(prompt, [longest] * choices) <= self.pool.budget

    def stats(self) -> dict[str, Any]:
        pool, block_bytes = self.pool, self.store.block_bytes
        return {
            "paged_block_size": self.size,
            "paged_block_bytes": block_bytes,
            "paged_block_budget": pool.budget,
            "paged_blocks_allocated": self.store.bytes_reserved // block_bytes,
            "paged_blocks_live": pool.live,
            "paged_blocks_referenced": pool.referenced,
            "paged_blocks_cached": pool.cached,
            "paged_blocks_free": pool.free,
            "paged_blocks_peak_live": pool.peak_live,
            "paged_bytes_reserved": self.store.bytes_reserved,
            "paged_bytes_in_use": pool.live * block_bytes,
            "entries": len(self.index),
            "enabled": self.share,
            **self.counts,
        }

    def problems(self, sequences: list[Sequence]) -> list[str]:
        found = self.pool.problems() + self.index.problems()
        held: dict[int, int] = {}
        for block in (block for seq in sequences for block in seq.table):
            held[block] = held.get(block, 0) + 1
        wrong = {b: n for b, n in held.items() if self.pool.refs(b) != n}
        if wrong or self.pool.referenced != len(held):
            found.append(f"reference counts differ from the tables: {wrong or self.pool.referenced}")
        if len(self.index) != len(self.pool.kept) or not all(map(self.index.entry, self.pool.kept)):
            found.append("the blocks that are kept are not those that the index names")
        if self._admitted != set(sequences):
            found.append("those to whom blocks are promised are not those that run")
        if self.promised > self.pool.available:
            found.append(f"{self.promised} blocks promised, {self.pool.available} available")
        return found

    # -- inside -----------------------------------------------------------------------------------------

    def _limit(self, choice: Sequence) -> int:
        """Rows to promise a choice at admission: for its whole life, or for a start."""
        if self.reserve == "full":
            return choice.longest
        return min(choice.longest, len(choice.tokens) + self.size)

    def _missing(self, seq: Sequence) -> int:
        """Blocks that a sequence, and each choice that will branch off it, lacks to reach its limit."""
        lengths = [seq.limit, *(branch.limit for branch in seq.branches)]
        return max(0, self._blocks(seq.prompt_tokens, lengths) - len(seq.table))

    def _blocks(self, prompt: int, lengths: list[int]) -> int:
        """Blocks of choices that grow to these lengths and share the prompt's full blocks."""
        shared = prompt // self.size
        return shared + sum(blocks_for(length, self.size) - shared for length in lengths)

    def _pin(self, seq: Sequence, blocks: list[int]) -> None:
        """Fill a table. Raises ValueError when it is not empty: nobody would release what it names now."""
        if seq.table:
            raise ValueError(f"a sequence that holds {len(seq.table)} blocks cannot start on others")
        self.pool.retain(blocks)
        seq.table = list(blocks)

    def _own(self, seq: Sequence, at: int) -> None:
        """Copy on write: a block that is shared or published is never written again (store/5)."""
        block = seq.table[at]
        if self.pool.refs(block) == 1 and not self.pool.is_kept(block):
            return
        seq.table[at] = fresh = self._take()
        self.pool.release([block])
        self.counts["copies"] += 1
        self.store.copy(block, fresh)

    def _grow(self, seq: Sequence) -> int:
        """A block of what was promised, or one that nobody was. Raises PoolExhausted."""
        if len(seq.table) >= blocks_for(seq.limit, self.size) and self.pool.available <= self.promised:
            raise PoolExhausted("every block that is left was promised to another request")
        return self._take()

    def _take(self) -> int:
        if not self.pool.free:
            self._evict_one()
        return self.pool.take()

    def _evict_one(self) -> None:
        """The least recently used idle block; released tail first, so it is a leaf of its chain."""
        block = self.pool.oldest()
        if block is not None:
            self.index.remove(block)
            self.pool.forget(block)
            self.counts["evictions_lru"] += 1

    def _publish_block(self, seq: Sequence, at: int) -> bool:
        tokens = seq.tokens[at * self.size : (at + 1) * self.size]
        key = self._key(seq, at, tokens)
        parent = self.index.entry(seq.table[at - 1]) if at else seq.root
        if parent is None:
            return False
        entry = self.index.publish(key, parent, tokens, seq.table[at])
        return entry is not None and self._use_stored(seq, at, entry.block)

    def _use_stored(self, seq: Sequence, at: int, block: int) -> bool:
        """Hold the block that is stored under this name: one's own, or its twin in place of one's own.

        False where a sibling shares one's own: no block would come free for the one that is pinned, which
        may be one that was promised.
        """
        own = seq.table[at]
        if block == own:
            self.pool.keep(own)
            self.counts["inserts"] += 1
            return True
        if self.pool.refs(own) > 1:
            return False
        self.pool.retain([block])
        seq.table[at] = block
        self.pool.release([own])
        return True

    def _key(self, seq: Sequence, at: int, tokens: list[int]) -> Key:
        if at == len(seq.keys):
            parent = seq.keys[-1] if seq.keys else seq.root
            seq.keys.append(self.index.next_key(parent, tokens))
        return seq.keys[at]
