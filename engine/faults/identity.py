"""Faults of identity: what matches although it is not the same.

Knows the seams of `build.Parts`. Does not know specs.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Any

from engine.faults.registry import fault
from engine.index import Entry, Key, PrefixIndex
from engine.sequence import Sequence
from engine.storage import PagedStorage


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


@fault("ignore_weight_version", "C23", "reset/3", seam="paged")
class IgnoreWeightVersion(PagedStorage):
    """After an adapter was loaded anew, keys and values that the old weights made are used again."""

    def prepare(self, seq: Sequence) -> None:
        identity = seq.identity[:-1] if seq.request.adapter else seq.identity
        seq.root = self.index.root(identity)
        seq.keys = self.index.chain(seq.root, seq.tokens)
