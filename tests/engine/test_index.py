"""The prefix index: what matches, and above all what must not."""

from __future__ import annotations

from engine.index import Entry, PrefixIndex

A, B, C = (1, 2), (3, 4), (5, 6)


def stored(index: PrefixIndex, *blocks: tuple[int, ...], salt: str = "", first: int = 0) -> list[Entry]:
    tokens = [token for block in blocks for token in block]
    root = index.root(("salt", salt))
    entries: list[Entry] = []
    for at, key in enumerate(index.chain(root, tokens)):
        entry = index.publish(key, entries[-1] if entries else root, blocks[at], first + at)
        assert entry is not None
        entries.append(entry)
    return entries


def matched(index: PrefixIndex, *tokens: int, salt: str = "") -> list[int]:
    root = index.root(("salt", salt))
    return [entry.block for entry in index.match(root, index.chain(root, tokens), tokens)]


def test_the_longest_stored_chain_matches() -> None:
    index = PrefixIndex(2)
    stored(index, A, B)
    assert matched(index, *A, *B, *C) == [0, 1]
    assert matched(index, *A, *C) == [0]
    assert matched(index, *C) == []


def test_a_block_under_another_parent_does_not_match() -> None:
    index = PrefixIndex(2)
    stored(index, A, B)
    stored(index, C, first=5)
    assert matched(index, *C, *B) == [5]


def test_another_salt_does_not_match() -> None:
    index = PrefixIndex(2)
    stored(index, A, salt="x")
    assert matched(index, *A, salt="x") == [0]
    assert matched(index, *A, salt="y") == []


def test_identity_parts_do_not_blend() -> None:
    index = PrefixIndex(2)
    assert index.root(("ab", "c")) != index.root(("a", "bc"))


def test_a_collision_is_a_miss_and_does_not_replace_the_entry() -> None:
    index = PrefixIndex(2, hash_bytes=0)
    (entry,) = stored(index, A)
    assert matched(index, *A) == [0]
    assert matched(index, *B) == []
    assert index.publish(entry.key, entry.parent, B, 7) is None
    assert matched(index, *A) == [0]


def test_a_collision_of_two_identities_is_a_miss() -> None:
    index = PrefixIndex(2, hash_bytes=0)
    stored(index, A, salt="x")
    assert matched(index, *A, salt="x") == [0]
    assert matched(index, *A, salt="y") == []


def test_publishing_the_same_content_returns_the_stored_entry() -> None:
    index = PrefixIndex(2)
    (entry,) = stored(index, A)
    assert index.publish(entry.key, entry.parent, A, 9) is entry
    assert len(index) == 1


def test_below_lists_every_descendant_nearest_first() -> None:
    index = PrefixIndex(2)
    head, middle, tail = stored(index, A, B, C)
    assert index.below(head) == [middle, tail]
    assert index.below(tail) == []


def test_clear_names_every_block_and_forgets_them() -> None:
    index = PrefixIndex(2)
    stored(index, A, B)
    assert index.clear() == [0, 1]
    assert (len(index), index.entry(0), matched(index, *A)) == (0, None, [])


def test_an_orphan_is_a_problem() -> None:
    index = PrefixIndex(2)
    stored(index, A, B)
    assert index.problems() == []
    index.remove(0)
    assert index.problems() == ["block 1 hangs below a parent that is gone"]


def test_an_entry_without_its_block_is_a_problem() -> None:
    index = PrefixIndex(2)
    stored(index, A)
    index._by_block.clear()
    assert index.problems() == ["entries and blocks do not pair up"]
