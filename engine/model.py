"""Canonical forward of a Llama-family model: a token's bits are a function of the tokens before it.

Knows: the arithmetic, and that every product which makes keys, values or logits has a shape fixed by absolute
position alone (prefill in tiles on an absolute grid, decode row by row) or one that was measured to give the
same (`products.py`), so that a resumed prefill gives the bits of a cold one (requirement out/1) on any BLAS.
Does not know: who owns the rows it reads, blocks, requests, sampling, HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

import mlx.core as mx

from engine.kvview import KVView
from engine.products import Linear, least_rows, linears, most_tiles

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

Rope = Callable[[mx.array, "int | mx.array"], mx.array]
BUILTIN = ("tiny", "tiny-fat", "digest")


class ModelError(ValueError):
    """A model that cannot be loaded or that this engine refuses, with the reason in one sentence."""


@dataclass(frozen=True)
class ModelShape:
    """What a key-value store must know of a model."""

    vocab: int
    layers: int
    kv_heads: int
    head_dim: int
    max_positions: int
    dtype: mx.Dtype
    on_host: bool = False  # whether Python computes the rows and keeps them (`host.py`)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token adds, over all layers."""
        return self.layers * 2 * self.kv_heads * self.head_dim * self.dtype.size


@dataclass(frozen=True)
class DecodeRow:
    """One sequence's next step: write ``token`` at ``position``, predict ``position + 1``."""

    view: KVView
    token: int
    position: int


class Runner(Protocol):
    """A model as the scheduler sees it. Used by the one engine thread that built it."""

    grid: int

    @property
    def shape(self) -> ModelShape:
        """What the store must know."""

    def prefill(self, view: KVView, tokens: Sequence[int], start: int, stop: int) -> mx.array:
        """Compute and write positions [start, stop) of ``tokens``.

        Rows are computed from the grid line at or below ``start``; those below ``start`` are thrown away, for
        they are in pinned blocks. Returns the fp32 logits [vocab] of position ``stop - 1``, not evaluated:
        whoever wants none drops them unpaid, else they are used before the next write.
        Raises ValueError unless ``0 <= start < stop <= len(tokens)``.
        """

    def prefill_logits(self, view: KVView, tokens: Sequence[int], start: int, stop: int) -> list[mx.array]:
        """As `prefill`, with evaluated logits [vocab] of every position of [start, stop), each with the bits
        that a prefill which stops there gives."""

    def decode(self, rows: Sequence[DecodeRow]) -> list[mx.array]:
        """One step of every row; evaluated fp32 logits [vocab] each, whose bits no other row can change."""


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a Llama-family network, by their names in config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float


@dataclass(frozen=True)
class Slot:
    """One sequence's part of a forward pass: T consecutive rows, the first at ``position``.

    Only rows of ``keep`` (relative to the first) are written. Row i attends to keys ``0 .. position + i``
    among the first ``keys`` rows of the view; ``mask`` [T, keys] is 0 where it may look, -inf elsewhere.
    """

    view: KVView
    position: int
    keep: slice
    keys: int
    mask: mx.array


class CanonicalModel:
    """The canonical forward over weights in mlx-lm's Llama names.

    Hidden rows travel as [N, T, hidden]. Prefill: N tiles of T = grid rows, at most `most_tiles`. Decode and
    the head: N sequences, T = 1, at least `least_rows`: a row alone gets copies, thrown away afterwards.

    How to break it, for the fault `shape_dependent_rows` and for negative controls: override `tiles` to yield
    tiles off the grid (such as one from ``start`` to ``stop``) or `project` to run one flat product
    [N * T, D] @ [D, O]. On a BLAS whose rounding depends on the shape (OpenBLAS) warm bits then differ.
    """

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, mx.array],
        *,
        grid: int = 32,
        rope: Rope | None = None,
    ) -> None:
        if grid < 1:
            raise ModelError(f"grid must be at least 1 row, got {grid}")
        self.config = config
        self.grid = grid
        self.least_rows = least_rows()
        self.most_tiles = most_tiles()
        # Not `or`: an mlx.nn rope is an empty dict, and false.
        self._rope = _plain_rope(config) if rope is None else rope
        self._embedding = weights["model.embed_tokens.weight"]
        self._norms = {name: w for name, w in weights.items() if "norm" in name}
        self._head = "lm_head" if "lm_head.weight" in weights else "model.embed_tokens"
        self._linears = linears(weights, self._head, grid)
        mx.eval(self._embedding, self._norms, [(w.weight, w.bias) for w in self._linears.values()])

    @property
    def shape(self) -> ModelShape:
        """See `ModelShape`."""
        c = self.config
        return ModelShape(
            c.vocab_size,
            c.num_hidden_layers,
            c.num_key_value_heads,
            c.head_dim,
            c.max_position_embeddings,
            self._embedding.dtype,
        )

    def prefill(self, view: KVView, tokens: Sequence[int], start: int, stop: int) -> mx.array:
        """See `Runner.prefill`."""
        _check_range(tokens, start, stop)
        *others, last = self._abreast(start, stop)
        for tiles in others:
            self._stored(view, tokens, tiles, start, stop)
        x, q, slots = self._stored(view, tokens, last, start, stop)
        attention = self.attend(q.squeeze(0), *self.read(slots[0], self._top), slots[0].mask)
        hidden = self._mixed(self._top, x, self._merged(self._top, [attention]))
        row = stop - 1 - last[-1][0]
        return self._logits(hidden[:, row : row + 1])[0]

    def prefill_logits(self, view: KVView, tokens: Sequence[int], start: int, stop: int) -> list[mx.array]:
        """See `Runner.prefill_logits`. Row by row: the head's product has one shape everywhere."""
        _check_range(tokens, start, stop)
        logits = []
        for tiles in self._abreast(start, stop):
            x, slots = self._tiles(view, tokens, tiles, start, stop)
            hidden = self._layers(x, slots)
            for n, slot in enumerate(slots):
                rows = range(slot.keep.start, slot.keep.stop)
                logits += [_known(self._logits(hidden[n : n + 1, row : row + 1]))[0] for row in rows]
        return logits

    def decode(self, rows: Sequence[DecodeRow]) -> list[mx.array]:
        """See `Runner.decode`. Copies that fill the batch up read what their row wrote and write nothing."""
        copies = list(rows[:1]) * (self.least_rows - len(rows))
        slots = [self._step(row, 1) for row in rows] + [self._step(row, 0) for row in copies]
        x = self._embedding[mx.array([row.token for row in (*rows, *copies)])][:, None]
        return _known(self._logits(self._layers(x, slots)))[: len(rows)]

    def stand_in(self) -> CanonicalModel:
        """The model to measure in place of this one: the same products, perhaps over fewer stored bytes."""
        return self

    def tiles(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """[base, end) of each tile that makes rows [start, stop): absolute multiples of the grid."""
        for base in range(start - start % self.grid, stop, self.grid):
            yield base, base + self.grid

    def project(self, x: mx.array, linear: Linear) -> mx.array:
        """[N, T, D] -> [N, T, O] with the bits of N products of one shape: as one, where that was measured to
        give them, else with the weight broadcast to each."""
        parts, rows, _ = x.shape
        weight = linear.weight
        if parts > 1 and parts * rows not in linear.together.get(rows, ()):
            weight = mx.broadcast_to(weight, (parts, *weight.shape))
        out = x @ weight
        return out if linear.bias is None else out + linear.bias

    def attend(self, q: mx.array, k: mx.array, v: mx.array, mask: mx.array) -> mx.array:
        """q [heads, T, head_dim] over k, v [kv_heads, L, head_dim] under mask [T, L]; shaped as q.

        Written for a CPU. On a GPU mx.fast.scaled_dot_product_attention may be faster, and whether its bits
        depend on the padded key length would have to be measured first (`probe.key_padding`).
        """
        heads, rows, width = q.shape
        grouped = (q * self._scale).reshape(k.shape[0], -1, width)
        # A BLAS walks [head_dim, L] faster than its transpose, by more than the copy costs. Paged keys
        # come in that order already and are not copied again.
        scores = grouped @ mx.contiguous(k.swapaxes(1, 2))
        scores = scores.reshape(heads, rows, -1) + mask
        shares = mx.softmax(scores, axis=-1, precise=True).reshape(*grouped.shape[:2], -1)
        return (shares @ v).reshape(q.shape)

    def write(self, slot: Slot, layer: int, k: mx.array, v: mx.array) -> None:
        """Hand the rows that are to be kept, of k and v [kv_heads, T, head_dim], to the slot's view."""
        first = slot.position + slot.keep.start
        slot.view.write(layer, first, k[:, slot.keep], v[:, slot.keep])

    def read(self, slot: Slot, layer: int) -> tuple[mx.array, mx.array]:
        """Keys and values [kv_heads, keys, head_dim] that the slot's rows attend over."""
        return slot.view.read(layer, slot.keys)

    def _abreast(self, start: int, stop: int) -> Iterator[list[tuple[int, int]]]:
        """The tiles of [start, stop), as many of one height together as go through the layers at once."""
        for _, alike in groupby(self.tiles(start, stop), lambda tile: tile[1] - tile[0]):
            tiles = list(alike)
            for first in range(0, len(tiles), self.most_tiles):
                yield tiles[first : first + self.most_tiles]

    def _tiles(
        self, view: KVView, tokens: Sequence[int], tiles: Sequence[tuple[int, int]], start: int, stop: int
    ) -> tuple[mx.array, list[Slot]]:
        """Embedded rows [N, T, hidden] of N tiles, and where each writes and reads."""
        ids, slots = [], []
        for base, end in tiles:
            known = list(tokens[base : min(stop, end)])
            ids.append(known + [0] * (end - base - len(known)))
            keep = slice(max(start - base, 0), min(stop, end) - base)
            slots.append(self._slot(view, base, end - base, keep, end))
        return self._embedding[mx.array(ids)], slots

    def _stored(
        self, view: KVView, tokens: Sequence[int], tiles: Sequence[tuple[int, int]], start: int, stop: int
    ) -> tuple[mx.array, mx.array, Sequence[Slot]]:
        """Compute and store the rows of some tiles. Of the last one: hidden rows [1, T, hidden] below the top
        layer, its queries there, and its slot; nobody asks for the others' output."""
        x, slots = self._tiles(view, tokens, tiles, start, stop)
        for layer in range(self._top):
            x = self._layer(layer, x, slots)
        q, k, v = self._heads(self._top, x, slots)
        mx.eval(k, v)
        self._store(self._top, k, v, slots)
        return x[-1:], q[-1:], slots[-1:]

    def _layers(self, x: mx.array, slots: Sequence[Slot]) -> mx.array:
        for layer in range(self.shape.layers):
            x = self._layer(layer, x, slots)
        return x

    def _layer(self, layer: int, x: mx.array, slots: Sequence[Slot]) -> mx.array:
        return self._mixed(layer, x, self._attention(layer, x, slots))

    def _mixed(self, layer: int, x: mx.array, attention: mx.array) -> mx.array:
        x = x + attention
        h = self._norm(f"model.layers.{layer}.post_attention_layernorm", x)
        gate, up = (self._linear(layer, f"mlp.{name}_proj", h) for name in ("gate", "up"))
        return x + self._linear(layer, "mlp.down_proj", gate * mx.sigmoid(gate) * up)

    def _attention(self, layer: int, x: mx.array, slots: Sequence[Slot]) -> mx.array:
        q, k, v = self._heads(layer, x, slots)
        self._store(layer, k, v, slots)
        return self._attended(layer, q, slots)

    def _store(self, layer: int, k: mx.array, v: mx.array, slots: Sequence[Slot]) -> None:
        for slot, keys, values in zip(slots, k, v, strict=True):
            self.write(slot, layer, keys, values)

    def _attended(self, layer: int, q: mx.array, slots: Sequence[Slot]) -> mx.array:
        """The next slot's work is laid out while one computes, and begins when what that one read is gone."""
        reads = self._reads(layer, slots)
        rows: list[mx.array] = []
        for slot, queries in zip(slots, q, strict=True):
            rows.append(self.attend(queries, *next(reads), slot.mask))  # lets go of the read before
            mx.eval(rows[-2:-1])
            mx.async_eval(rows[-1])  # type: ignore[no-untyped-call]
        return self._merged(layer, rows)

    def _reads(self, layer: int, slots: Sequence[Slot]) -> Iterator[tuple[mx.array, mx.array]]:
        """Keys and values for each slot; tiles of one sequence have theirs gathered once."""
        for _, alike in groupby(slots, lambda slot: id(slot.view)):
            own = list(alike)
            k, v = self.read(max(own, key=lambda slot: slot.keys), layer)
            yield from ((k[:, : slot.keys], v[:, : slot.keys]) for slot in own)

    def _merged(self, layer: int, rows: list[mx.array]) -> mx.array:
        merged = mx.stack(rows).swapaxes(1, 2).reshape(len(rows), rows[0].shape[1], -1)
        return self._linear(layer, "self_attn.o_proj", merged)

    def _heads(self, layer: int, x: mx.array, slots: Sequence[Slot]) -> tuple[mx.array, mx.array, mx.array]:
        h = self._norm(f"model.layers.{layer}.input_layernorm", x)
        positions = mx.array([slot.position for slot in slots])
        q, k, v = (self._split(self._linear(layer, f"self_attn.{name}_proj", h)) for name in "qkv")
        q, k = (self._head_norm(layer, name, x) for name, x in (("q", q), ("k", k)))
        # Together, since the angles take as long as the turning, and on a CPU some twenty small steps.
        turned = self._rope(mx.concatenate([q, k], axis=1), positions)
        return turned[:, : q.shape[1]], turned[:, q.shape[1] :], v

    def _split(self, x: mx.array) -> mx.array:
        return x.reshape(*x.shape[:2], -1, self.config.head_dim).swapaxes(1, 2)

    def _head_norm(self, layer: int, name: str, x: mx.array) -> mx.array:
        norm = f"model.layers.{layer}.self_attn.{name}_norm"  # Qwen3 has these
        return self._norm(norm, x) if f"{norm}.weight" in self._norms else x

    def _linear(self, layer: int, name: str, x: mx.array) -> mx.array:
        return self.project(x, self._linears[f"model.layers.{layer}.{name}"])

    def _norm(self, name: str, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, self._norms[f"{name}.weight"], self.config.rms_norm_eps)

    def _logits(self, hidden: mx.array) -> list[mx.array]:
        """fp32 [vocab] of each of [N, 1, hidden]; the one row of a prefill gets copies as in decode."""
        copies = [hidden[:1]] * (self.least_rows - hidden.shape[0])
        h = self._norm("model.norm", mx.concatenate([hidden, *copies]))
        return list(self.project(h, self._linears[self._head])[: len(hidden), 0].astype(mx.float32))

    def _step(self, row: DecodeRow, kept: int) -> Slot:
        return self._slot(row.view, row.position, 1, slice(0, kept), self._tile_end(row.position))

    def _slot(self, view: KVView, position: int, rows: int, keep: slice, keys: int) -> Slot:
        own = mx.arange(position, position + rows)[:, None]
        mask = mx.where(mx.arange(keys)[None] <= own, 0.0, -math.inf).astype(self.shape.dtype)
        return Slot(view, position, keep, keys, mask)

    def _tile_end(self, position: int) -> int:
        return position - position % self.grid + self.grid

    @property
    def _top(self) -> int:
        return self.config.num_hidden_layers - 1

    @property
    def _scale(self) -> float:
        return 1 / math.sqrt(self.config.head_dim)


def _known(logits: list[mx.array]) -> list[mx.array]:
    mx.eval(logits)
    return logits


def _check_range(tokens: Sequence[int], start: int, stop: int) -> None:
    if not 0 <= start < stop <= len(tokens):
        raise ValueError(f"prefill of [{start}, {stop}) asked of {len(tokens)} tokens")


def _plain_rope(config: LlamaConfig) -> Rope:
    def rope(x: mx.array, offset: int | mx.array) -> mx.array:
        return mx.fast.rope(
            x, config.head_dim, traditional=False, base=config.rope_theta, scale=1.0, offset=offset
        )

    return rope


def load(name: str, *, seed: int | None = None, grid: int = 32) -> tuple[Runner, Tokenizer]:
    """`tiny`, `tiny-fat`, `digest`, or whatever `engine.pretrained` takes, and its tokenizer.

    ``seed`` draws other weights for a built-in model. Raises ModelError with the reason when refused.
    """
    from engine.tokenizer import byte_tokenizer

    if name not in BUILTIN:
        from engine.pretrained import load_pretrained

        if seed is not None:
            raise ModelError(f"a model seed applies to {', '.join(BUILTIN)} only, not to {name!r}")
        return load_pretrained(name, grid)
    tokenizer = byte_tokenizer()
    if name == "digest":
        from engine.digest import DigestModel

        return DigestModel(tokenizer.plain_ids(), seed=seed or 0, grid=grid), tokenizer
    from engine.tiny import tiny

    return tiny(tokenizer.plain_ids(), seed=seed, grid=grid, fat=name == "tiny-fat"), tokenizer
