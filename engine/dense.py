"""One-shot storage: whole sequences, taken by the first borrower and given back when it ends.

The behaviour that shared blocks replaced, kept as a baseline arm (store/6): while one request holds an
entry nobody else can adopt from it. Knows tokens and contiguous rows. Does not know blocks or pins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.host import HostRows
from engine.kvview import ArrayView, KVView
from engine.model import ModelShape
from engine.sequence import Sequence

Rows = ArrayView | HostRows


@dataclass(eq=False)
class Whole:
    """A sequence's tokens with rows written, under one identity."""

    identity: tuple[str, ...]
    tokens: list[int]
    rows: Rows


class DenseStorage:
    """Take, use, give back. The budget counts tokens; the least recently given back leaves first.

    What is booked is no number of its own, but the longest that each choice which has not ended may become.
    """

    def __init__(
        self, shape: ModelShape, budget_tokens: int, *, granule: int, share: bool = True,
        publish_generated: bool = True,
    ) -> None:  # fmt: skip
        self.shape = shape
        self.budget = budget_tokens
        self.granule = granule
        self.share = share
        self.publish_generated = publish_generated
        self.epoch = 0
        self.entries: list[Whole] = []
        self.held: set[Sequence] = set()
        self.counts = {"inserts": 0, "evictions_lru": 0}

    def prepare(self, seq: Sequence) -> None:
        """Nothing to prepare: a lookup compares tokens."""

    def blocked_by(self, seq: Sequence, running: list[Sequence]) -> bool:
        """Never: what another sequence computes cannot be shared before it ends."""
        return False

    def admit(self, seq: Sequence) -> bool:
        if seq.longest * seq.width > self.budget - self.booked:
            return False
        self.held.add(seq)
        entry, length = self._best(seq)
        self._take(seq, entry, length)
        self._evict_to_budget()
        return True

    def extend(self, seq: Sequence, length: int) -> bool:
        """Always: a whole sequence's rows were reserved at admission."""
        return True

    def view(self, seq: Sequence) -> KVView:
        rows: Rows = seq.holding
        return rows

    def publish(self, seq: Sequence) -> None:
        """Nothing is visible before it is given back whole."""

    def fork(self, seq: Sequence, twin: Sequence) -> None:
        if twin.holding is not None:
            raise ValueError("a sequence that holds rows cannot start on others")
        twin.computed, twin.epoch, twin.holding = seq.computed, seq.epoch, seq.holding.copy()
        self.held.add(twin)

    def release(self, seq: Sequence) -> None:
        self.held.discard(seq)
        rows, seq.holding = seq.holding, None
        length = seq.computed if self.publish_generated else min(seq.computed, seq.prompt_tokens)
        if rows is not None and self.share and length and seq.epoch == self.epoch:
            self.entries.append(Whole(seq.identity, seq.tokens[:length], rows))
            self.counts["inserts"] += 1
            self._evict_to_budget()

    def reset(self) -> dict[str, Any]:
        freed, entries = self._stored * self.shape.kv_bytes_per_token, len(self.entries)
        self.entries.clear()
        self.epoch += 1
        return {"cleared": True, "freed_bytes": freed, "freed_entries": entries}

    def trim(self) -> None:
        """Nothing to give back: rows go with the sequence that holds them."""

    def can_ever_hold(self, prompt: int, longest: int, choices: int) -> bool:
        return longest * choices <= self.budget

    def stats(self) -> dict[str, Any]:
        return {"entries": len(self.entries), "bytes": self._stored * self.shape.kv_bytes_per_token,
                "enabled": self.share, **self.counts}  # fmt: skip

    def problems(self, sequences: list[Sequence]) -> list[str]:
        holding = {seq for seq in sequences if seq.holding is not None}
        sound = holding == self.held == set(sequences)
        found = [] if sound else ["rows are held by a sequence that does not run, or one that runs has none"]
        if self.booked + self._stored > self.budget:
            found.append(f"{self.booked} tokens booked and {self._stored} stored, budget {self.budget}")
        return found

    @property
    def booked(self) -> int:
        """Tokens that running sequences, and the choices that will branch off them, may yet fill."""
        return sum(seq.longest * seq.width for seq in self.held)

    @property
    def _stored(self) -> int:
        return sum(len(entry.tokens) for entry in self.entries)

    def _best(self, seq: Sequence) -> tuple[Whole | None, int]:
        """The entry with the longest common prefix; the last prompt token is always computed."""
        best: tuple[Whole | None, int] = (None, 0)
        for entry in self.entries if self.share and seq.adopts else []:
            if entry.identity == seq.identity:
                length = min(common_prefix(entry.tokens, seq.tokens), len(seq.tokens) - 1)
                length = length // self.granule * self.granule
                best = max(best, (entry, length), key=lambda found: found[1])
        return best

    def _take(self, seq: Sequence, entry: Whole | None, length: int) -> None:
        """The rows really move: until they are given back nobody else sees them."""
        if entry is not None:
            self.entries.remove(entry)
        seq.holding = entry.rows if entry is not None else self._empty()
        seq.epoch = self.epoch
        seq.adopted = seq.cached = seq.computed = length

    def _empty(self) -> Rows:
        return (HostRows if self.shape.on_host else ArrayView)(self.shape)

    def _evict_to_budget(self) -> None:
        while self.entries and self._stored + self.booked > self.budget:
            self.entries.pop(0)
            self.counts["evictions_lru"] += 1


def common_prefix(a: list[int], b: list[int]) -> int:
    """Tokens that both begin with."""
    for at, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return at
    return min(len(a), len(b))
