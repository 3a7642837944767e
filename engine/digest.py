"""The model without a network: rows are digests of the tokens that wrote them.

Knows: that a row is a digest of the row before it and its own token, and that the next token is a function of
every row read. So any wrong reuse, a foreign block, a stale row, a row too many, changes the output at once,
and an example costs milliseconds: for simulation, exploration and scale.
Does not know: weights, attention, blocks, requests, HTTP.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache

import mlx.core as mx

from engine.host import flat, shaped
from engine.kvview import KVView
from engine.model import DecodeRow, ModelShape


def _number(words: Iterable[int]) -> int:
    """One number of 32-bit words, the first one lowest."""
    return int.from_bytes(b"".join(word.to_bytes(4, "little") for word in words), "little")


_WIDTH = 4
"""Floats of one row."""
_ROW = 4 * _WIDTH
"""Bytes of one row."""
_KEPT, _SET = _number([0xBFFFFFFF] * _WIDTH), _number([1 << 29] * _WIDTH)
"""What of a digest stays, and what is set: the exponent of each float begins with 01, so that it is neither
zero nor subnormal nor infinite nor no number, and any way of copying it keeps all its bits."""
_SPREAD = 0x807FFFFF, 0x41000000
"""What of a logit's noise stays, and what is set: any float of 8 to 16 or of -16 to -8."""
_SILENT = int.from_bytes(struct.pack("<f", -1e9), "little")
"""Logit of an id that must not be generated."""


class DigestModel:
    """A `Runner` of one layer whose keys and values are [1, T, 4] digests.

    ``generable``: ids that may be sampled. ``seed`` changes every row and every choice.
    """

    def __init__(self, generable: Sequence[int], *, vocab: int = 512, seed: int = 0, grid: int = 32) -> None:
        self.grid = grid
        self.shape = ModelShape(vocab, 1, 1, _WIDTH, 1 << 20, mx.float32, on_host=True)
        self._seed = seed.to_bytes(8, "little", signed=True)
        self._kept, self._set = _masks(frozenset(generable), vocab)

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
        rows = _chain(self._seed, self._row_before(view, base), tuple(tokens[base:stop]))
        self._write(view, start, rows[(start - base) * _ROW :])

    def _step(self, row: DecodeRow) -> mx.array:
        before = self._row_before(row.view, row.position)
        self._write(row.view, row.position, _chain(self._seed, before, (row.token,)))
        return self._logits(*self._read(row.view, row.position + 1))

    def _row_before(self, view: KVView, position: int) -> bytes:
        """The row at `position - 1` as it is stored, or nothing at the start."""
        return self._read(view, position)[0][-_ROW:] if position else b""

    def _write(self, view: KVView, start: int, rows: bytes) -> None:
        written = shaped(rows, _WIDTH)
        view.write(0, start, written, written)

    def _read(self, view: KVView, length: int) -> tuple[bytes, bytes]:
        """Every key row and every value row below `length`."""
        keys, values = view.read(0, length)
        return flat(keys), flat(values)

    def _logits(self, keys: bytes, values: bytes) -> mx.array:
        """fp32 logits [vocab] from every row read."""
        read = hashlib.blake2b(keys, salt=self._seed)
        read.update(values)
        size = 4 * self.shape.vocab
        noise = int.from_bytes(hashlib.shake_128(read.digest()).digest(size), "little")
        logits = (noise & self._kept | self._set).to_bytes(size, "little")
        return mx.array(memoryview(logits).cast("f"))  # type: ignore[arg-type]


@lru_cache(1024)
def _chain(seed: bytes, row: bytes, tokens: tuple[int, ...]) -> bytes:
    """The rows of `tokens` one after another; `row` is the one before them as it is stored.

    Remembered, since whoever explores asks the same of one engine after another.
    """
    rows = []
    for token in tokens:
        digest = hashlib.blake2b(row + token.to_bytes(4, "little"), digest_size=_ROW, salt=seed)
        row = (int.from_bytes(digest.digest(), "little") & _KEPT | _SET).to_bytes(_ROW, "little")
        rows.append(row)
    return b"".join(rows)


@cache
def _masks(generable: frozenset[int], vocab: int) -> tuple[int, int]:
    """What of the noise of all logits stays, and what is set, each as one number of 32-bit words."""
    words = [_SPREAD if id in generable else (0, _SILENT) for id in range(vocab)]
    kept, fixed = zip(*words, strict=True)
    return _number(kept), _number(fixed)
