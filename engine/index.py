"""Which tokens a stored block holds: chained block hashes, token ids compared on every hit.

Knows keys, tokens and block ids. Does not know reference counts (`pool.py`) or arrays (`kv.py`).

A key chains identity, every earlier block and this block's tokens, so the same tokens under another
parent or another salt are another key (key/1, key/3). A hash is only a hint: an entry matches when its
parent, down to the identity that its chain begins with, and its token ids are the asked ones too (key/4).
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Key = bytes


@dataclass(eq=False)
class Entry:
    """One published block; the parent of a chain's first block is its root."""

    key: Key
    parent: Entry | Key
    tokens: tuple[int, ...]
    block: int


class PrefixIndex:
    """Published blocks by chained key. `hash_bytes` is shortened only to provoke collisions in tests."""

    def __init__(self, block_size: int, hash_bytes: int = 16) -> None:
        self.block_size = block_size
        self._hash_bytes = hash_bytes
        self._entries: dict[Key, Entry] = {}
        self._by_block: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def root(self, identity: Sequence[str]) -> Key:
        """The key before the first block, never shortened; each part is tagged with its length, so that parts
        cannot blend."""
        tagged = "".join(f"{len(part)}:{part};" for part in identity)
        return _digest(b"root", tagged.encode())

    def next_key(self, parent: Key, tokens: Sequence[int]) -> Key:
        return _digest(parent, array("q", tokens).tobytes())[: self._hash_bytes]

    def chain(self, root: Key, tokens: Sequence[int]) -> list[Key]:
        """Keys of every full block of `tokens`."""
        keys: list[Key] = []
        for block in self._blocks(tokens):
            keys.append(self.next_key(keys[-1] if keys else root, block))
        return keys

    def match(self, root: Key, keys: Sequence[Key], tokens: Sequence[int]) -> list[Entry]:
        """The longest published chain for these tokens, in order; changes nothing."""
        found: list[Entry] = []
        for key, block in zip(keys, self._blocks(tokens), strict=False):
            entry = self._entries.get(key)
            if entry is None or not self._is(entry, found[-1] if found else root, block):
                break
            found.append(entry)
        return found

    def publish(self, key: Key, parent: Entry | Key, tokens: Sequence[int], block: int) -> Entry | None:
        """Name `block`, or return the entry that already holds the same content.

        None when another content owns the key (a collision): the block stays private.
        """
        known = self._entries.get(key)
        if known is not None:
            return known if self._is(known, parent, tokens) else None
        entry = Entry(key, parent, tuple(tokens), block)
        self._entries[key] = self._by_block[block] = entry
        return entry

    def entry(self, block: int) -> Entry | None:
        return self._by_block.get(block)

    def remove(self, block: int) -> None:
        """Forget the entry of a block (eviction takes leaves, so nothing hangs below it)."""
        entry = self._by_block.pop(block)
        del self._entries[entry.key]

    def below(self, entry: Entry) -> list[Entry]:
        """Every entry whose chain runs through this one, nearest first."""
        found = [entry]
        for candidate in found:
            found.extend(child for child in self._entries.values() if child.parent is candidate)
        return found[1:]

    def clear(self) -> list[int]:
        """Forget everything; the blocks that were named."""
        blocks = list(self._by_block)
        self._entries.clear()
        self._by_block.clear()
        return blocks

    def problems(self) -> list[str]:
        """What is inconsistent, in words; empty when sound."""
        found = []
        if len(self._entries) != len(self._by_block):
            found.append("entries and blocks do not pair up")
        for entry in self._entries.values():
            parent = entry.parent
            if isinstance(parent, Entry) and self._entries.get(parent.key) is not parent:
                found.append(f"block {entry.block} hangs below a parent that is gone")
        return found

    def _is(self, entry: Entry, parent: Entry | Key, tokens: Sequence[int]) -> bool:
        return entry.parent == parent and entry.tokens == tuple(tokens)

    def _blocks(self, tokens: Sequence[int]) -> Iterator[Sequence[int]]:
        size = self.block_size
        return (tokens[at : at + size] for at in range(0, len(tokens) - size + 1, size))


def _digest(parent: bytes, data: bytes) -> Key:
    return hashlib.blake2b(parent + data, digest_size=16).digest()
