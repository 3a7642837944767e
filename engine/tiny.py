"""Seeded weights of the built-in models, in mlx-lm's Llama names.

Knows: the sizes, gains and seed that make `tiny` a good detector of wrong reuse, and how its weights are drawn.
Does not know: how a forward pass runs (engine/model.py), how text becomes ids (engine/tokenizer.py).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from engine.model import CanonicalModel, LlamaConfig, ModelShape, Slot

TINY_SEED = 227
FAT_COPIES = 128
"""`tiny-fat` stores every key and value head this often: 64 KiB of fp32 keys and values a token."""

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


@dataclass(frozen=True)
class Gains:
    """Standard deviation of each weight times sqrt(fan-in); of the embedding, as it is.

    ``qk`` near 1 keeps attention over thousands of keys neither flat nor on one key; the ``rest`` at 3 keeps the
    network chaotic, so that a small change of any earlier row grows instead of dying out. ``mute`` is how far
    ids that must not be generated are pushed below the others, by a hidden channel that is always 1.
    """

    qk: float = 1.0
    rest: float = 3.0
    o: float = 3.0
    down: float = 3.0
    embed: float = 1.0
    head: float = 3.0
    mute: float = 30.0


def tiny_weights(
    seed: int, generable: Sequence[int], config: LlamaConfig = TINY, gains: Gains = Gains()
) -> dict[str, mx.array]:
    """Weights of a tiny Llama by mlx-lm's names, fp32, linear ones [out, in]; the same bits on every machine."""
    weights = {name: _draw(seed, name, shape, std) for name, shape, std in _matrices(config, gains)}
    weights |= {name: mx.ones(config.hidden_size) for name in _norms(config)}
    _mute(weights, generable, gains.mute)
    return weights


def _matrices(c: LlamaConfig, g: Gains) -> Iterator[tuple[str, tuple[int, int], float]]:
    """Name, shape [out, in] and standard deviation of every matrix."""
    hidden, inner = c.hidden_size, c.intermediate_size
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    yield "model.embed_tokens.weight", (c.vocab_size, hidden), g.embed
    yield "lm_head.weight", (c.vocab_size, hidden), g.head / math.sqrt(hidden)
    for layer in range(c.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        for name, rows, width, gain in (
            ("self_attn.q_proj", q, hidden, g.qk),
            ("self_attn.k_proj", kv, hidden, g.qk),
            ("self_attn.v_proj", kv, hidden, g.rest),
            ("self_attn.o_proj", hidden, q, g.o),
            ("mlp.gate_proj", inner, hidden, g.rest),
            ("mlp.up_proj", inner, hidden, g.rest),
            ("mlp.down_proj", hidden, inner, g.down),
        ):
            yield f"{prefix}.{name}.weight", (rows, width), gain / math.sqrt(width)


def _norms(c: LlamaConfig) -> Iterator[str]:
    yield "model.norm.weight"
    for layer in range(c.num_hidden_layers):
        yield f"model.layers.{layer}.input_layernorm.weight"
        yield f"model.layers.{layer}.post_attention_layernorm.weight"


def _draw(seed: int, name: str, shape: tuple[int, int], std: float) -> mx.array:
    """Near-Gaussian fp32 [shape]: sums of four hashed bytes, exact integers until the last product.

    A library's generator may change with its version or round differently on another machine; a hash cannot.
    """
    count = math.prod(shape)
    noise = hashlib.shake_256(f"{seed}:{name}".encode()).digest(4 * count)
    total = mx.array(memoryview(noise)).reshape(count, 4).astype(mx.int32).sum(axis=1)
    unit = math.sqrt(4 * (256**2 - 1) / 12)
    return ((total - 510).astype(mx.float32) * (std / unit)).reshape(shape)


def _mute(weights: dict[str, mx.array], generable: Sequence[int], depth: float) -> None:
    # Channel 0 is 1 in every embedding and no layer writes to it, so the head can use it as a bias.
    embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    embedding[:, 0] = 1.0
    head[:, 0] = -1.0
    head[mx.array(list(generable)), 0] = 0.0
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight[0] = 0.0
        elif name == "model.norm.weight":
            weight[0] = depth


class FatModel(CanonicalModel):
    """`tiny` with each key and value head stored `FAT_COPIES` times, so that sharing shows in process memory.

    It computes what a Llama with that many equal heads would, once instead of `FAT_COPIES` times.
    """

    @property
    def shape(self) -> ModelShape:  # type: ignore[override]
        thin = super().shape
        return ModelShape(
            thin.vocab, thin.layers, thin.kv_heads * FAT_COPIES, thin.head_dim, thin.max_positions, thin.dtype
        )

    def write(self, slot: Slot, layer: int, k: mx.array, v: mx.array) -> None:
        super().write(slot, layer, mx.repeat(k, FAT_COPIES, axis=0), mx.repeat(v, FAT_COPIES, axis=0))

    def read(self, slot: Slot, layer: int) -> tuple[mx.array, mx.array]:
        k, v = super().read(slot, layer)
        return k[::FAT_COPIES], v[::FAT_COPIES]


def tiny(generable: Sequence[int], *, seed: int | None = None, grid: int = 32, fat: bool = False) -> CanonicalModel:
    """The built-in model `tiny`, or `tiny-fat`, from its own seed or another; ``generable`` ids can be sampled."""
    kind = FatModel if fat else CanonicalModel
    return kind(TINY, tiny_weights(TINY_SEED if seed is None else seed, generable), grid=grid)
