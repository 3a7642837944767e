"""Measures whether a model's rows depend on anything but the tokens before them, and what may be promised.

Knows: the routes by which a token's keys, values and logits come about (in a batch of some size, at some
place of it, in a prefill cut anywhere, by decode), how to compare them bit by bit, and which grade (out/1)
follows. Does not know: why a route differs, what it costs, blocks, requests, HTTP. It measures rows over
seeded noise, so that thousands of earlier tokens cost nothing to compute.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from engine.kvview import KVView, noise_view
from engine.model import CanonicalModel, DecodeRow, Runner

BASES = (0, 512, 3840)
"""Tokens before the rows that are compared: a BLAS changes its ways with the key length."""
START_BYTES = 16 << 20
"""Of one made-up past, as long as an engine takes the time to compare behind it before it serves."""
BATCH = 8
SPAN = 256
"""Rows of the prefill that is cut, where the model has room for them: the default chunk."""

Bits = Sequence[mx.array]


@dataclass(frozen=True)
class Finding:
    """Whether one thing changes a row's bits; `difference` is the largest absolute one, 0 where none does."""

    what: str
    equal: bool
    difference: float


@dataclass(frozen=True)
class Promise:
    """A grade of out/1 (`bits`, `tokens` or `decided`) and why it is not another."""

    grade: str
    reason: str


@dataclass(frozen=True)
class Start:
    """What an engine that starts may promise, and whether rows that decode wrote may be shared (adopt/7)."""

    promise: Promise
    generated_reusable: bool


# ---- what is promised


def promise(findings: Sequence[Finding], determinism: str) -> Promise:
    """The grade that a mode may promise after these measurements.

    Canonical rows (`bits`) have products of one shape, or of shapes that were measured to give the same
    (`products.py`): what holds on a few routes holds on all. Plain products
    (`fast`) may be equal wherever they were measured and differ elsewhere: at most `tokens`.
    """
    worst = max((f for f in findings if not f.equal), key=lambda f: f.difference, default=None)
    if not findings:
        return Promise("decided", "the model has too few positions to measure anything")
    if worst is not None:
        return Promise("decided", f"rows change with the {worst.what}, by up to {worst.difference:.1e}")
    if determinism == "fast":
        return Promise("tokens", "no route that was measured changes a bit, but no shape is held fixed")
    return Promise("bits", "every shape is fixed by position, and no route that was measured changes a bit")


def at_start(runner: Runner, determinism: str) -> Start:
    """What an engine finds out before it serves: less than `python -m engine doctor` does.

    Shapes that are fixed, or measured to give what those give, hold anywhere when they hold at the start, two
    tiles together among them. Plain ones may part only behind a long past, and so may decode and prefill, in
    either mode.
    """
    if not isinstance(runner, CanonicalModel):
        return Start(Promise("bits", "rows are exact whatever computes them"), True)
    model = runner.stand_in()
    far = affordable(model, determinism)
    decode = decode_as_prefill(model, far, _spans(determinism)) if far else None
    return Start(_startup_promise(model, determinism, decode), decode is not None and decode.equal)


def affordable(runner: Runner, determinism: str) -> list[int]:
    """Every past behind which decode is compared with prefill at start, as far as the model has room.

    Empty where the longest takes more than `START_BYTES`: then nobody knows whether they agree everywhere,
    and generated rows stay private (measured, not assumed).
    """
    bases = fitting(runner, BASES, _rows(runner, _spans(determinism), 1))
    dear = any(base * runner.shape.kv_bytes_per_token > START_BYTES for base in bases)
    return [] if dear else bases


def _spans(determinism: str) -> int:
    """Rows of the prefill that decode is compared with: its number matters to plain products alone."""
    return SPAN if determinism == "fast" else 0


def _startup_promise(model: CanonicalModel, determinism: str, decode: Finding | None) -> Promise:
    tiles = 2 if fitting(model, BASES[:1], _rows(model, 0, 2)) else 1
    near = fitting(model, BASES[:1], _rows(model, 0, tiles))
    if not near:
        return promise([], determinism)
    if determinism == "bits":
        return promise([batch_size(model, near), prefill_cut(model, near, 0, tiles)], determinism)
    if decode is None:
        return Promise("decided", "this model is not measured at start, and no shape is held fixed")
    far = fitting(model, BASES, _rows(model, SPAN))[-1:]
    return promise([batch_size(model, near), prefill_cut(model, far), decode], determinism)


# ---- the routes


def routes(runner: Runner, bases: Sequence[int] = BASES, span: int = SPAN) -> list[Finding]:
    """What a promise rests on: batch size, place in the batch, cuts of a prefill. Empty: nothing fits."""
    fit = fitting(runner, bases, _rows(runner, span))
    if not fit:
        return []
    return [batch_size(runner, fit), batch_position(runner, fit), prefill_cut(runner, fit, span)]


def fitting(runner: Runner, bases: Sequence[int], rows: int) -> list[int]:
    """The grid lines at or below `bases` that leave room for so many rows."""
    lines = [base - base % runner.grid for base in bases]
    return [line for line in dict.fromkeys(lines) if line + rows <= runner.shape.max_positions]


def batch_size(runner: Runner, bases: Sequence[int]) -> Finding:
    """A row among eight, against the same row among four and alone."""
    pairs: list[tuple[mx.array, mx.array]] = []
    for rows in (_company(runner, base) for base in bases):
        together, half = _step(runner, rows), len(rows) // 2
        pairs += _pairs(together, [_step(runner, [row])[0] for row in rows])
        pairs += _pairs(together, [*_step(runner, rows[:half]), *_step(runner, rows[half:])])
    return _finding("batch size", pairs)


def batch_position(runner: Runner, bases: Sequence[int]) -> Finding:
    """A row at its place in a batch of eight, against the same batch reversed and turned by three."""
    pairs: list[tuple[mx.array, mx.array]] = []
    for rows in (_company(runner, base) for base in bases):
        placed = _step(runner, rows)
        turned = _step(runner, [*rows[3:], *rows[:3]])
        pairs += _pairs(placed, _step(runner, rows[::-1])[::-1])
        pairs += _pairs(placed, [*turned[-3:], *turned[:-3]])
    return _finding("position in the batch", pairs)


def prefill_cut(runner: Runner, bases: Sequence[int], span: int = SPAN, tiles: int = 2) -> Finding:
    """A prefill of `span` rows (so many tiles at least) in one go, against one resumed at several places."""
    rows = _rows(runner, span, tiles)
    cuts = [pair for base in fitting(runner, bases, rows) for pair in _cut(runner, base, rows)]
    return _finding("cut of the prefill", cuts)


def decode_as_prefill(runner: Runner, bases: Sequence[int] = BASES, span: int = 0) -> Finding:
    """The last three of `span` rows (default: of one tile) by decode, against all of them by prefill."""
    rows = _rows(runner, span, 1)
    pairs = [pair for base in fitting(runner, bases, rows) for pair in _decoded(runner, base, base + rows)]
    return _finding("decode or prefill", pairs)


def key_padding(model: CanonicalModel, bases: Sequence[int] = BASES) -> Finding:
    """Attention of one row over its keys, against the same with a tile of masked zeros behind them."""
    pairs = [_padded(model, base + model.grid // 2 + 1) for base in fitting(model, bases, 2 * model.grid)]
    return _finding("padded key length", pairs)


# ---- inside


def _rows(runner: Runner, span: int, tiles: int = 2) -> int:
    """`span` in whole tiles, so many at least; in two a cut may lie on the grid or off it."""
    tile = runner.grid * -(-2 // runner.grid)
    room = runner.shape.max_positions // tile * tile
    return max(tiles * tile, min(span // tile * tile, room))


def _company(runner: Runner, base: int) -> list[DecodeRow]:
    """Eight rows of different lengths, some in another tile than others."""
    lengths = [min(base + 1 + 5 * i, runner.shape.max_positions - 1) for i in range(BATCH)]
    return [DecodeRow(noise_view(runner.shape, n, seed=i), 65 + i, n) for i, n in enumerate(lengths)]


def _step(runner: Runner, rows: Sequence[DecodeRow]) -> list[Bits]:
    """Logits, keys and values that one decode step gives each row; a step repeated writes the same rows."""
    logits = runner.decode(rows)
    return [
        [one, *_written(runner, row.view, row.position, row.position + 1)]
        for one, row in zip(logits, rows, strict=True)
    ]


def _written(runner: Runner, view: KVView, start: int, stop: int) -> list[mx.array]:
    read = [view.read(layer, stop) for layer in range(runner.shape.layers)]
    rows = [part[:, start:stop] for pair in read for part in pair]
    mx.eval(rows)
    return rows


def _tokens(runner: Runner, length: int) -> list[int]:
    return [(7 * i + 5) % runner.shape.vocab for i in range(length)]


def _cut(runner: Runner, base: int, span: int) -> list[tuple[mx.array, mx.array]]:
    """A prefill in one go, against one resumed at a grid line, inside a tile and at its last row."""
    stop, grid = base + span, runner.grid
    cuts = {base + grid, stop - grid + grid // 3 + 1, stop - 1}
    tokens, whole = _tokens(runner, stop), noise_view(runner.shape, base)
    first = [runner.prefill(whole, tokens, base, stop)]
    first += _written(runner, whole, base, stop)
    pairs: list[tuple[mx.array, mx.array]] = []
    for cut in sorted(c for c in cuts if base < c < stop):
        view = noise_view(runner.shape, base)
        runner.prefill(view, tokens, base, cut)
        resumed = runner.prefill(view, tokens, cut, stop)
        pairs += zip(first, [resumed, *_written(runner, view, base, stop)], strict=True)
    return pairs


def _decoded(runner: Runner, base: int, stop: int) -> list[tuple[mx.array, mx.array]]:
    tokens, cold = _tokens(runner, stop), noise_view(runner.shape, base)
    first = [runner.prefill(cold, tokens, base, stop), *_written(runner, cold, base, stop)]
    again = range(max(base, stop - 3), stop)
    warm = cold.copy(again.start)
    for at in again:
        logits = runner.decode([DecodeRow(warm, tokens[at], at)])[0]
    return list(zip(first, [logits, *_written(runner, warm, base, stop)], strict=True))


def _padded(model: CanonicalModel, length: int) -> tuple[mx.array, mx.array]:
    config, dtype = model.config, model.shape.dtype
    heads, kv_heads, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    sizes = ((heads, 1, width), (kv_heads, length, width), (kv_heads, length, width))
    q, k, v = (mx.random.normal(size, dtype, key=mx.random.key(i)) for i, size in enumerate(sizes))
    seen, behind = mx.zeros((1, length), dtype), [(0, 0), (0, model.grid)]
    mask = mx.pad(seen, behind, constant_values=mx.array(-math.inf, dtype))
    far = [mx.pad(x, [(0, 0), (0, model.grid), (0, 0)]) for x in (k, v)]
    return model.attend(q, k, v, seen), model.attend(q, far[0], far[1], mask)


def _pairs(a: Iterable[Bits], b: Iterable[Bits]) -> list[tuple[mx.array, mx.array]]:
    return [pair for x, y in zip(a, b, strict=True) for pair in zip(x, y, strict=True)]


def _finding(what: str, pairs: Sequence[tuple[mx.array, mx.array]]) -> Finding:
    equal = all(bool(mx.array_equal(a, b)) for a, b in pairs)
    return Finding(what, equal, 0.0 if equal else max(_difference(a, b) for a, b in pairs))


def _difference(a: mx.array, b: mx.array) -> float:
    gap = mx.abs(a.astype(mx.float32) - b.astype(mx.float32))
    largest: float = mx.where(mx.isnan(gap), math.inf, gap).max().item()  # type: ignore[assignment]
    return largest
