"""The prefix index against a model that knows no hashes: stored prompts as plain tuples of blocks."""

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

from engine.index import Entry, PrefixIndex

SIZE = 2
BOUNDED = settings(max_examples=100, stateful_step_count=30, deadline=None, derandomize=True, database=None)
PROMPTS = st.lists(st.integers(0, 1), max_size=9)
SALTS = st.sampled_from(["", "x"])

Path = tuple[Any, ...]
"""A salt, then the blocks of tokens from the start: what a stored block is a continuation of, in full."""


class IndexMachine(RuleBasedStateMachine):
    """`stored` maps each full path to its block; a match is the longest stored path, nothing else."""

    index_type = PrefixIndex
    hash_bytes = 16

    def __init__(self) -> None:
        super().__init__()
        self.index = self.index_type(SIZE, self.hash_bytes)
        self.stored: dict[Path, int] = {}
        self.fresh = 0

    def paths(self, prompt: list[int], salt: str) -> list[Path]:
        blocks = [tuple(prompt[at : at + SIZE]) for at in range(0, len(prompt) - SIZE + 1, SIZE)]
        return [(salt, *blocks[: at + 1]) for at in range(len(blocks))]

    def keys(self, prompt: list[int], salt: str) -> list[bytes]:
        return self.index.chain(self.index.root(("salt", salt)), prompt)

    @rule(prompt=PROMPTS, salt=SALTS)
    def publish(self, prompt: list[int], salt: str) -> None:
        """Each block under its parent; a collision keeps the rest of the chain private, as a storage does."""
        parent: Entry | bytes = self.index.root(("salt", salt))
        for path, key in zip(self.paths(prompt, salt), self.keys(prompt, salt), strict=True):
            entry = self.index.publish(key, parent, path[-1], self.fresh)
            if entry is None:
                assert (self.hash_bytes, path in self.stored) == (0, False)
                return
            assert entry.block == self.stored.setdefault(path, self.fresh)
            self.fresh += entry.block == self.fresh
            parent = entry

    @rule(prompt=PROMPTS, salt=SALTS)
    def match(self, prompt: list[int], salt: str) -> None:
        root = self.index.root(("salt", salt))
        found = [entry.block for entry in self.index.match(root, self.keys(prompt, salt), prompt)]
        expected = []
        for path in self.paths(prompt, salt):
            if path not in self.stored:
                break
            expected.append(self.stored[path])
        assert found == expected

    @precondition(lambda self: self.stored)
    @rule(data=st.data())
    def remove_a_leaf(self, data: Any) -> None:
        leaves = [p for p in self.stored if not any(q[:-1] == p for q in self.stored)]
        path = data.draw(st.sampled_from(sorted(leaves, key=repr)))
        self.index.remove(self.stored.pop(path))

    @precondition(lambda self: self.stored)
    @rule(data=st.data())
    def look_below(self, data: Any) -> None:
        path = data.draw(st.sampled_from(sorted(self.stored, key=repr)))
        entry = self.index.entry(self.stored[path])
        assert entry is not None
        below = [block for p, block in self.stored.items() if len(p) > len(path) and p[: len(path)] == path]
        assert sorted(found.block for found in self.index.below(entry)) == sorted(below)

    @rule()
    def clear(self) -> None:
        assert sorted(self.index.clear()) == sorted(self.stored.values())
        self.stored.clear()

    @invariant()
    def entries_are_what_is_stored(self) -> None:
        assert self.index.problems() == []
        assert len(self.index) == len(self.stored)
        for path, block in self.stored.items():
            entry = self.index.entry(block)
            assert entry is not None
            assert (entry.block, entry.tokens) == (block, path[-1])


class CollidingMachine(IndexMachine):
    """Keys of no byte at all: everything collides, and a collision is a miss (key/4)."""

    hash_bytes = 0


IndexMachine.TestCase.settings = BOUNDED
CollidingMachine.TestCase.settings = BOUNDED
TestIndex = IndexMachine.TestCase
TestCollidingIndex = CollidingMachine.TestCase


class TrustsHashes(PrefixIndex):
    def _is(self, entry: Entry, parent: Entry | bytes, tokens: Any) -> bool:
        return True


class NoParents(PrefixIndex):
    def next_key(self, parent: bytes, tokens: Any) -> bytes:
        return super().next_key(b"", tokens)

    def _is(self, entry: Entry, parent: Entry | bytes, tokens: Any) -> bool:
        return entry.tokens == tuple(tokens)


class OneIdentity(PrefixIndex):
    def root(self, identity: Any) -> bytes:
        return super().root(())


@pytest.mark.parametrize("broken", [NoParents, OneIdentity])
def test_a_broken_index_is_caught(broken: type[PrefixIndex]) -> None:
    _caught(type("Broken", (IndexMachine,), {"index_type": broken}))


def test_an_index_that_trusts_its_hashes_is_caught_by_collisions() -> None:
    _caught(type("Broken", (CollidingMachine,), {"index_type": TrustsHashes}))


def _caught(machine: type[IndexMachine]) -> None:
    quick = settings(BOUNDED, max_examples=500, phases=[Phase.generate], print_blob=False)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=quick)
