"""Adapters: the same network with a few weights moved, served under the model's name and theirs (`tiny:a`).

Knows how an adapter's weights follow from its name and seed, and which version a name stands for now. Does
not know requests, blocks or HTTP. A version never changes: a reload gives its name another one, and requests
that began under the old one end under it (reset/3).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import lru_cache

import mlx.core as mx

from engine.config import EngineConfig
from engine.digest import DigestModel
from engine.messages import Adapter, RequestError
from engine.model import BUILTIN, CanonicalModel, Runner
from engine.tiny import TINY, FatModel, tiny_weights
from engine.tokenizer import Tokenizer

NAMES = ("a", "b")
"""Adapters that every built-in model has."""
_TOUCHED = "self_attn.v_proj.weight"
_GAIN = 3.0  # over sqrt(fan-in), the gain of the matrices it is added to
_KEPT = 8


class Adapters:
    """The served adapters by name, and the model that each of them makes.

    `make` builds a model in the calling thread; at most `_KEPT` are kept, and built again when needed.
    """

    def __init__(self, names: tuple[str, ...], make: Callable[[Adapter], Runner]) -> None:
        self.served = {name: Adapter(name) for name in names}
        self.runner = lru_cache(_KEPT)(make)

    def reload(self, name: str, seed: int) -> Adapter:
        """Other weights under a name. Raises RequestError when there is no such adapter."""
        if name not in self.served:
            raise RequestError(f"no adapter {name!r}; there are {', '.join(self.served) or 'none'}", "name")
        adapter = Adapter(name, seed, self.served[name].version + 1)
        self.served = {**self.served, name: adapter}
        return adapter


def adapters_for(
    config: EngineConfig, tokenizer: Tokenizer, mutate: Callable[[Runner], Runner] = lambda runner: runner
) -> Adapters:
    """The adapters of a built-in model, each mutated as the base is; other models have none."""
    make = _digest if config.model == "digest" else _tiny
    names = NAMES if config.model in BUILTIN else ()
    return Adapters(names, lambda adapter: mutate(make(adapter, config, tokenizer)))


def _digest(adapter: Adapter, config: EngineConfig, tokenizer: Tokenizer) -> Runner:
    """Another seed, so that a row written under one adapter is noise under any other."""
    seed = int.from_bytes(_bytes(f"{config.model_seed or 0}", adapter, 7), "little")
    return DigestModel(tokenizer.plain_ids(), seed=seed, grid=config.grid)


def _tiny(adapter: Adapter, config: EngineConfig, tokenizer: Tokenizer) -> Runner:
    """A rank-1 change of every layer's values."""
    weights = tiny_weights(tokenizer.plain_ids(), config.model_seed)
    for name in [name for name in weights if name.endswith(_TOUCHED)]:
        weights[name] = weights[name] + _rank_one(name, adapter, *weights[name].shape)
    kind = FatModel if config.model == "tiny-fat" else CanonicalModel
    return kind(TINY, weights, grid=config.grid)


def _rank_one(name: str, adapter: Adapter, rows: int, width: int) -> mx.array:
    """fp32 [rows, width], the product of two vectors of standard deviation 1, scaled. Channel 0, which is the
    same for all tokens, stays out."""
    noise = mx.array(list(_bytes(name, adapter, rows + width))).astype(mx.float32)
    unit = (noise - 127.5) / math.sqrt((256**2 - 1) / 12)
    up, down = unit[:rows, None], unit[None, rows:]
    return (_GAIN / math.sqrt(width)) * up * mx.where(mx.arange(width) == 0, 0.0, down)


def _bytes(what: str, adapter: Adapter, count: int) -> bytes:
    return hashlib.shake_256(f"{what}:{adapter.name}:{adapter.seed}".encode()).digest(count)
