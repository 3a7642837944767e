"""Seeded weights of the built-in models, in mlx-lm's Llama names.

Knows: the sizes, gains and seed that make `tiny` a good detector of wrong reuse; how its weights are drawn.
Does not know: how a forward pass runs (engine/model.py), how text becomes ids (engine/tokenizer.py).

What makes it a detector, at thousands of tokens (tests/engine/test_tiny.py measures each):

- Scores have a spread of about 2, made by fast-turning rope pairs: attention is neither flat nor on one
  key, and the same token looks at other keys one position later, so greedy decoding falls into no loop.
- Every score carries a query-independent -3 through the slowest rope pair: a key row that was zeroed, or
  never written, is louder than all others instead of silent.
- The second layer's attention weighs about as much as the rest: one foreign block turns the next ids.
- Little that is the same for all tokens reaches the logits: embeddings and head are centred, up and gate
  rows are orthogonal. Otherwise a few ids always win.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import mlx.core as mx

from engine.model import CanonicalModel, LlamaConfig, ModelShape, Slot

TINY_SEED = 229
TINY = LlamaConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=32,
    max_position_embeddings=16384,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
)
FAT_COPIES = 128
"""`tiny-fat` stores every key and value head this often: 64 KiB of fp32 keys and values a token."""

_GAIN = 3.0  # of every matrix, over sqrt(fan-in), but for those below
_O_GAINS = (3.0, 45.0)
_SPREAD, _PAIRS = 2.0, 5
_SHIFT = -3.0
_LEVELS = (1.0, 18.6)  # root mean square of the residual stream as it enters each layer
_MUTE = 1200.0  # over the last residual's root mean square of about 39: unwanted ids sit near -30


def tiny(
    generable: Sequence[int], *, seed: int | None = None, grid: int = 32, fat: bool = False
) -> CanonicalModel:
    """The model `tiny`, or `tiny-fat`; only ``generable`` ids have logits that can win."""
    kind = FatModel if fat else CanonicalModel
    return kind(TINY, tiny_weights(generable, seed), grid=grid)


def tiny_weights(generable: Sequence[int], seed: int | None = None) -> dict[str, mx.array]:
    """fp32 weights of `tiny` by name, linear ones [out, in]; the same bits on every machine.

    ``seed``: None for the model's own. Channel 0 is 1 in every embedding and no layer writes to it: a bias
    for queries, keys and the head.
    """
    noise = {
        name: _draw(TINY_SEED if seed is None else seed, name, shape) for name, shape, _ in _matrices(TINY)
    }
    _balance(noise, mx.array(list(generable)))
    weights = {name: noise[name] * std for name, _, std in _matrices(TINY)}
    weights |= {name: mx.ones(TINY.hidden_size) for name in _norms(TINY)}
    _use_constant(weights, mx.array(list(generable)))
    return weights


def _matrices(c: LlamaConfig) -> Iterator[tuple[str, tuple[int, int], float | mx.array]]:
    """Name, shape [out, in] and standard deviation (of all, or per row) of every matrix."""
    hidden, inner, heads = c.hidden_size, c.intermediate_size, c.num_attention_heads * c.head_dim
    yield "model.embed_tokens.weight", (c.vocab_size, hidden), 1.0
    yield "lm_head.weight", (c.vocab_size, hidden), _GAIN / math.sqrt(hidden)
    for layer, o_gain in enumerate(_O_GAINS):
        prefix = f"model.layers.{layer}"
        for name in "qk":
            yield f"{prefix}.self_attn.{name}_proj.weight", (heads, hidden), _score_gains(c)
        yield f"{prefix}.self_attn.v_proj.weight", (heads, hidden), _GAIN / math.sqrt(hidden)
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, heads), o_gain / math.sqrt(heads)
        for name in ("gate", "up"):
            yield f"{prefix}.mlp.{name}_proj.weight", (inner, hidden), _GAIN / math.sqrt(hidden)
        yield f"{prefix}.mlp.down_proj.weight", (hidden, inner), _GAIN / math.sqrt(inner)


def _score_gains(c: LlamaConfig) -> mx.array:
    """Standard deviation [head_dim, 1] of query and key rows: only the `_PAIRS` fastest rope pairs speak."""
    gain = math.sqrt(_SPREAD / math.sqrt(2 * _PAIRS / c.head_dim) / c.hidden_size)
    return mx.where(mx.arange(c.head_dim) % (c.head_dim // 2) < _PAIRS, gain, 0.0)[:, None]


def _norms(c: LlamaConfig) -> Iterator[str]:
    yield "model.norm.weight"
    for layer in range(c.num_hidden_layers):
        yield f"model.layers.{layer}.input_layernorm.weight"
        yield f"model.layers.{layer}.post_attention_layernorm.weight"


_UNIT = math.sqrt(4 * (256**2 - 1) / 12)


def _draw(seed: int, name: str, shape: tuple[int, int]) -> mx.array:
    """Near-Gaussian fp32 [shape] of standard deviation 1: sums of four hashed bytes.

    A library's generator may change with its version or round differently elsewhere; a hash cannot.
    """
    count = math.prod(shape)
    noise = hashlib.shake_256(f"{seed}:{name}".encode()).digest(4 * count)
    quads = mx.array(memoryview(noise)).reshape(count, 4)  # type: ignore[arg-type]
    total = quads.astype(mx.int32).sum(axis=1)
    return ((total - 510).astype(mx.float32) / _UNIT).reshape(shape)


def _balance(noise: dict[str, mx.array], generable: mx.array) -> None:
    """Keep what all tokens have in common out of values, of the MLP and of the logits."""
    for name, weight in noise.items():
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            noise[name] = weight - _exact_mean(weight[generable])
        elif not name.endswith(("o_proj.weight", "down_proj.weight")):
            weight[:, 0] = 0.0
    for name in [n for n in noise if n.endswith("up_proj.weight")]:
        noise[name] = _orthogonal(noise[name], noise[name.replace("up_proj", "gate_proj")])


def _exact_mean(rows: mx.array) -> mx.array:
    # In whole units sums are exact, whatever order a backend adds in.
    whole = mx.round(rows * _UNIT).astype(mx.int32).sum(axis=0)
    return whole.astype(mx.float32) / (rows.shape[0] * _UNIT)


def _orthogonal(rows: mx.array, others: mx.array) -> mx.array:
    """``rows`` [n, d] without their part along the same row of ``others``."""
    a, b = (mx.round(x * _UNIT).astype(mx.int32) for x in (rows, others))
    along = (a * b).sum(axis=1, keepdims=True).astype(mx.float32)
    return rows - along / (b * b).sum(axis=1, keepdims=True).astype(mx.float32) * others


def _use_constant(weights: dict[str, mx.array], generable: mx.array) -> None:
    slowest, push = TINY.head_dim // 2 - 1, math.sqrt(-_SHIFT * math.sqrt(TINY.head_dim))
    weights["model.embed_tokens.weight"][:, 0] = 1.0
    for layer, level in enumerate(_LEVELS):
        prefix = f"model.layers.{layer}"
        weights[f"{prefix}.input_layernorm.weight"][0] = level
        weights[f"{prefix}.self_attn.q_proj.weight"][slowest, 0] = -push
        weights[f"{prefix}.self_attn.k_proj.weight"][slowest, 0] = push
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            weights[f"{prefix}.{name}.weight"][0] = 0.0
    weights["model.norm.weight"][0] = _MUTE
    weights["lm_head.weight"][:, 0] = -1.0
    weights["lm_head.weight"][generable, 0] = 0.0


class FatModel(CanonicalModel):
    """`tiny` with each key and value head stored `FAT_COPIES` times, so that sharing shows in process memory.

    It computes what a Llama with that many equal heads would, once instead of `FAT_COPIES` times.
    """

    @property
    def shape(self) -> ModelShape:
        return replace(super().shape, kv_heads=self.config.num_key_value_heads * FAT_COPIES)

    def stand_in(self) -> CanonicalModel:
        """As `tiny`: copies change no bit, and measuring on them would cost the memory they stand for."""
        thin = copy.copy(self)
        thin.__class__ = CanonicalModel  # type: ignore[assignment]
        return thin

    def write(self, slot: Slot, layer: int, k: mx.array, v: mx.array) -> None:
        super().write(slot, layer, mx.repeat(k, FAT_COPIES, axis=0), mx.repeat(v, FAT_COPIES, axis=0))

    def read(self, slot: Slot, layer: int) -> tuple[mx.array, mx.array]:
        return slot.view.read(layer, slot.keys, FAT_COPIES)
