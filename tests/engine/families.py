"""Small random models of each supported family, made by mlx-lm's own classes, as folders it can load."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.utils import _get_classes

from engine.export import export

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "rope_theta": 500.0,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Family:
    """One network: what its config.json says beside `SMALL`, its weights' type, whether they are packed."""

    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    dtype: mx.Dtype = mx.float32
    bits: int = 0


FAMILIES = {
    "llama": Family("llama"),
    "llama, tied head": Family("llama", {"tie_word_embeddings": True}),
    "llama, one head a group": Family("llama", {"num_key_value_heads": 4}),
    "llama, biases": Family("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, linear rope": Family("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "llama, llama3 rope": Family("llama", {"rope_scaling": LLAMA3}),
    "llama, bf16": Family("llama", dtype=mx.bfloat16),
    "mistral": Family("mistral", {"sliding_window": None, "head_dim": 32}),
    "qwen2": Family("qwen2", {"sliding_window": 64, "use_sliding_window": False}),
    "qwen3": Family("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
}


def write(folder: Path, family: Family) -> Path:
    """The model in ``folder``, with the built-in model's tokenizer and chat template."""
    export(folder)
    config = {**SMALL, "model_type": family.model_type, **family.config}
    network = _network(config, family.dtype)
    if family.bits:
        config["quantization"] = {"group_size": 32, "bits": family.bits}
        nn.quantize(network, 32, family.bits)  # type: ignore[attr-defined]
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(network.parameters())))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _network(config: dict[str, Any], dtype: mx.Dtype) -> Any:
    model, args = _get_classes(config)
    network = model(args.from_dict(config))
    mx.random.seed(7)
    network.update(tree_map_with_path(lambda _, w: _noise(w.shape).astype(dtype), network.parameters()))
    return network


def _noise(shape: tuple[int, ...]) -> mx.array:
    """Matrices keep the size of what they are fed; norms and biases differ from one and from zero."""
    return mx.random.normal(shape) / (math.sqrt(shape[1]) if len(shape) == 2 else 1)
