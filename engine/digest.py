"""The model without a network: rows are digests of the tokens that wrote them.

Knows: that a row is a digest of the row before it and its own token, and that the next token is a function of
every row read. So any wrong reuse, a foreign block, a stale row, a row too many, changes the output at once,
and an example costs milliseconds: for simulation, exploration and scale.
Does not know: weights, attention, blocks, requests, HTTP.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

import mlx.core as mx

from engine.kvview import KVView
from engine.model import DecodeRow, ModelShape

_WIDTH = 4
"""Floats of one row; each holds 3 bytes of digest, which fp32 keeps exactly."""
_ROW = 4 * _WIDTH
"""Bytes of one row."""
_LOW = (1 << 24) - 1
_SILENT = -1e9
"""Logit of an id that must not be generated."""


class DigestModel:
    """A `Runner` of one layer whose keys and values are [1, T, 4] digests.

    ``generable``: ids that may be sampled. ``seed`` changes every row and every choice.
    """

    def __init__(self, generable: Sequence[int], *, vocab: int = 512, seed: int = 0, grid: int = 32) -> None:
        self.grid = grid
        self.shape = ModelShape(vocab, 1, 1, _WIDTH, 1 << 20, mx.float32)
        self._seed = seed.to_bytes(8, "little", signed=True)
        self._generable = tuple(generable)
        self._silent = array("f", [_SILENT] * vocab)

    def prefill(self, view: KVView, tokens: Sequence[int], start: int, stop: int) -> mx.array:
        """See `Runner.prefill`."""
        self._compute(view, tokens, start, stop)
        return self._logits(*self._read(view, stop))

    def prefill_logits(self, view: KVView, tokens: Sequence[int], start: int, stop: int) -> list[mx.array]:
        """See `Runner.prefill_logits`."""
        self._compute(view, tokens, start, stop)
        keys, values = self._read(view, stop)
        ends = range((start + 1) * _ROW, stop * _ROW + 1, _ROW)
        return [self._logits(keys[:end], values[:end]) for end in ends]

    def decode(self, rows: Sequence[DecodeRow]) -> list[mx.array]:
        """See `Runner.decode`."""
        return [self._step(row) for row in rows]

    def _compute(self, view: KVView, tokens: Sequence[int], start: int, stop: int) -> None:
        """Write rows [start, stop)."""
        if not 0 <= start < stop <= len(tokens):
            raise ValueError(f"prefill [{start}, {stop}) is not a part of {len(tokens)} tokens")
        base = start - start % self.grid
        rows = self._chain(self._row_before(view, base), tokens[base:stop])[(start - base) * _WIDTH :]
        self._write(view, start, rows)

    def _step(self, row: DecodeRow) -> mx.array:
        before = self._row_before(row.view, row.position)
        self._write(row.view, row.position, self._chain(before, [row.token]))
        return self._logits(*self._read(row.view, row.position + 1))

    def _chain(self, row: list[float], tokens: Sequence[int]) -> array[float]:
        """The rows of `tokens` one after another, flat; `row` is the one before them as it is stored."""
        flat, before = array("f"), str(row)
        for token in tokens:
            a, b, c, d = self._digest(f"{before}:{token}".encode())
            flat.extend((a, b, c, d))
            # As the list of floats would print; whole numbers print faster, and little else takes time here.
            before = f"[{a}.0, {b}.0, {c}.0, {d}.0]"
        return flat

    def _digest(self, data: bytes) -> tuple[int, int, int, int]:
        digest = hashlib.blake2b(data, digest_size=3 * _WIDTH, key=self._seed).digest()
        whole = int.from_bytes(digest, "little")
        return whole & _LOW, whole >> 24 & _LOW, whole >> 48 & _LOW, whole >> 72

    def _row_before(self, view: KVView, position: int) -> list[float]:
        """The row at `position - 1` as it is stored, or nothing at the start."""
        if position == 0:
            return []
        keys, _ = view.read(0, position)
        row: list[float] = keys[0, position - 1].tolist()  # type: ignore[assignment]
        return row

    def _write(self, view: KVView, start: int, rows: array[float]) -> None:
        written = mx.array(memoryview(rows)).reshape(1, -1, _WIDTH)  # type: ignore[arg-type]
        view.write(0, start, written, written)

    def _read(self, view: KVView, length: int) -> tuple[bytes, bytes]:
        """Every key row and every value row below `length`."""
        rows = mx.concatenate([*view.read(0, length)])
        both = memoryview(mx.contiguous(rows)).cast("B")  # type: ignore[arg-type]
        return bytes(both[: length * _ROW]), bytes(both[length * _ROW :])

    def _logits(self, keys: bytes, values: bytes) -> mx.array:
        """fp32 logits [vocab] from every row read."""
        read = hashlib.shake_256(self._seed + keys + values).digest(2 * self.shape.vocab)
        noise, logits = memoryview(read).cast("H"), self._silent[:]
        for token in self._generable:
            logits[token] = noise[token] / 4096
        return mx.array(memoryview(logits))  # type: ignore[arg-type]
