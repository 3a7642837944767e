"""Block ids: who holds them, which idle ones are worth keeping, which one goes next.

Knows reference counts, the free list and recency. Does not know tokens, hashes or arrays: whether a
block is named by an index is told to it by `keep` and `forget`.

A block is in exactly one place (count/4): free, referenced (held by at least one table), or cached
(held by none, kept because the index names it). Live blocks are the last two.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Set


class PoolExhausted(Exception):
    """No block is left: none is free or idle, or each that is was promised to another request."""


class BlockPool:
    """Reference counts and recency over block ids `0 .. budget - 1`."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.peak_live = 0
        self._refs: dict[int, int] = {}
        self._kept: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._freed: list[int] = []
        self._fresh = 0

    @property
    def referenced(self) -> int:
        return len(self._refs)

    @property
    def cached(self) -> int:
        return len(self._idle)

    @property
    def live(self) -> int:
        return self.referenced + self.cached

    @property
    def free(self) -> int:
        return self.budget - self.live

    @property
    def available(self) -> int:
        """Blocks that `take` could hand out, evictions included."""
        return self.free + self.cached

    def refs(self, block: int) -> int:
        return self._refs.get(block, 0)

    @property
    def kept(self) -> Set[int]:
        """Blocks that the index names, as it told."""
        return self._kept

    def is_kept(self, block: int) -> bool:
        return block in self._kept

    def take(self) -> int:
        """A free block with one reference, lowest id first, so that tables stay in runs.

        Raises PoolExhausted when none is free; the caller evicts first.
        """
        if self._freed:
            block = heapq.heappop(self._freed)
        elif self._fresh < self.budget:
            block, self._fresh = self._fresh, self._fresh + 1
        else:
            raise PoolExhausted(f"all {self.budget} blocks are live")
        self._refs[block] = 1
        self.peak_live = max(self.peak_live, self.live)
        return block

    def retain(self, blocks: Iterable[int]) -> None:
        """Pin blocks: one more reference each. Raises ValueError, changing nothing, when one is not live."""
        blocks = list(blocks)
        dead = [block for block in blocks if block not in self._refs and block not in self._idle]
        if dead:
            raise ValueError(f"blocks that are not live cannot be pinned: {dead}")
        for block in blocks:
            self._idle.pop(block, None)
            self._refs[block] = self._refs.get(block, 0) + 1

    def release(self, table: Iterable[int]) -> None:
        """Give back one reference each. Tail first, so that a chain loses its tail before its head.

        Raises ValueError, changing nothing, when one is not held.
        """
        blocks = list(table)
        loose = [block for block in blocks if block not in self._refs]
        if loose:
            raise ValueError(f"blocks that nobody holds cannot be released: {loose}")
        for block in reversed(blocks):
            self._refs[block] -= 1
            if not self._refs[block]:
                del self._refs[block]
                self._put_back(block)

    def keep(self, block: int) -> None:
        """The index names this block: hold it when idle."""
        self._kept.add(block)

    def forget(self, block: int) -> None:
        """The index no longer names it: free at once when idle, else at its last release."""
        self._kept.discard(block)
        if block in self._idle:
            del self._idle[block]
            heapq.heappush(self._freed, block)

    def oldest(self) -> int | None:
        """The least recently used idle block: the next one to evict."""
        return next(iter(self._idle), None)

    def blocks(self) -> set[int]:
        """Ids of the live blocks: storage of any other holds nothing."""
        return self._refs.keys() | self._idle.keys()

    def mark_peak(self) -> None:
        self.peak_live = self.live

    def problems(self) -> list[str]:
        """What is inconsistent, in words; empty when sound (count/4, evict/3)."""
        freed = set(self._freed)
        found = []
        if len(freed) != len(self._freed):
            found.append("a block stands twice in the free list")
        if freed & set(self._refs) or freed & set(self._idle):
            found.append("a block is free and live at once")
        if set(self._refs) & set(self._idle):
            found.append("a block is referenced and idle at once")
        if self._idle.keys() - self._kept:
            found.append("an idle block is kept though nothing names it")
        if len(self._freed) + self.live != self._fresh:
            found.append(f"free {len(self._freed)} + live {self.live} is not {self._fresh} handed out")
        if any(count < 1 for count in self._refs.values()):
            found.append("a reference count is below one")
        return found

    def _put_back(self, block: int) -> None:
        if block in self._kept:
            self._idle[block] = None
        else:
            heapq.heappush(self._freed, block)
