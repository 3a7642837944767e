"""The block pool against a model of three sets and a list, in any order of legal calls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.pool import BlockPool, PoolExhausted

BUDGET = 6
BOUNDED = settings(max_examples=100, stateful_step_count=40, deadline=None, derandomize=True, database=None)


class PoolMachine(RuleBasedStateMachine):
    """`tables` are what holders hold; the rest follows from them: no counter is kept twice."""

    pool_type = BlockPool

    def __init__(self) -> None:
        super().__init__()
        self.pool = self.pool_type(BUDGET)
        self.tables: list[list[int]] = []
        self.named: set[int] = set()
        self.idle: list[int] = []
        self.peak = 0

    @property
    def held(self) -> set[int]:
        return {block for table in self.tables for block in table}

    @property
    def live(self) -> set[int]:
        return self.held | set(self.idle)

    @rule(size=st.integers(1, 3))
    def take(self, size: int) -> None:
        """Always the lowest id that is not live; PoolExhausted where there is none."""
        self.tables.append([])
        for _ in range(size):
            free = [block for block in range(BUDGET) if block not in self.live]
            if not free:
                with pytest.raises(PoolExhausted):
                    self.pool.take()
                return
            assert self.pool.take() == free[0]
            self.tables[-1].append(free[0])
            self.peak = max(self.peak, len(self.live))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def retain(self, data: Any) -> None:
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.live)), min_size=1, unique=True))
        self.pool.retain(blocks)
        self.tables.append(blocks)
        self.idle = [block for block in self.idle if block not in blocks]

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        """A table goes back whole; what the index names becomes idle, its tail first."""
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table)
        self.idle += [b for b in reversed(table) if b not in self.held and b in self.named]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def keep(self, data: Any) -> None:
        block = data.draw(st.sampled_from(sorted(self.held)))
        self.pool.keep(block)
        self.named.add(block)

    @precondition(lambda self: self.named)
    @rule(data=st.data())
    def forget(self, data: Any) -> None:
        block = data.draw(st.sampled_from(sorted(self.named)))
        self.pool.forget(block)
        self.named.remove(block)
        self.idle = [other for other in self.idle if other != block]

    @rule()
    def evict(self) -> None:
        block = self.pool.oldest()
        assert block == (self.idle[0] if self.idle else None)
        if block is not None:
            self.pool.forget(block)
            self.named.remove(block)
            self.idle.pop(0)

    @rule()
    def mark(self) -> None:
        self.pool.mark_peak()
        self.peak = len(self.live)

    @invariant()
    def every_block_is_in_one_place(self) -> None:
        pool = self.pool
        assert pool.problems() == []
        counted = (pool.referenced, pool.cached, pool.live, pool.free, pool.available)
        free = BUDGET - len(self.live)
        assert counted == (
            len(self.held), len(self.idle), len(self.live), free, free + len(self.idle)
        )  # fmt: skip
        assert pool.peak_live == self.peak
        assert pool.blocks() == set(self.live)

    @invariant()
    def references_are_counted_per_table(self) -> None:
        for block in range(BUDGET):
            assert self.pool.refs(block) == sum(block in table for table in self.tables)
            assert self.pool.is_kept(block) == (block in self.named)


PoolMachine.TestCase.settings = BOUNDED
TestPool = PoolMachine.TestCase


class HeadFirst(BlockPool):
    def release(self, table: Any) -> None:
        super().release(list(table)[::-1])


class NoPins(BlockPool):
    def retain(self, blocks: Any) -> None:
        for block in blocks:
            self._refs[block] = self._refs.get(block, 0) + 1


class FreesIdle(BlockPool):
    def keep(self, block: int) -> None:
        pass


@pytest.mark.parametrize("broken", [HeadFirst, NoPins, FreesIdle])
def test_a_broken_pool_is_caught(broken: type[BlockPool]) -> None:
    machine = type("Broken", (PoolMachine,), {"pool_type": broken})
    quick = settings(BOUNDED, max_examples=500, phases=[Phase.generate], print_blob=False)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=quick)
