"""A GGUF file as a folder in Hugging Face form, so that servers which read no GGUF run the same weights.

Knows: config.json, model.safetensors and the tokenizer's files, as transformers and mlx-lm read them.
Does not know: how GGUF spells any of it (engine/gguf.py), which models are refused (engine/pretrained.py).
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx

from engine.gguf import opened, tokenizer_of
from engine.model import LlamaConfig, ModelError


def unpack(path: str, folder: str | Path) -> None:
    """Write the model of one GGUF file, in fp32, into ``folder``, made where missing.

    Raises ModelError for what `engine.gguf` refuses, for a stretched rope, and where nothing can be written.
    """
    found = opened(path)
    if found.stretched is not None:
        raise ModelError(f"model {path!r} is refused: its stretched rope is not said in a config.json alone")
    tokenizer = tokenizer_of(found.metadata)
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        config = _config(found.config, found.sizes, found.weights, sorted(tokenizer.eos_ids))
        (target / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        mx.save_safetensors(str(target / "model.safetensors"), found.weights, metadata={"format": "mlx"})
        tokenizer.save(target)
    except OSError as error:
        raise ModelError(f"cannot write to {str(folder)!r}: {error.strerror or error}") from error


def _config(
    said: dict[str, Any], sizes: LlamaConfig, weights: dict[str, mx.array], eos: list[int]
) -> dict[str, Any]:
    """`rope_theta` at the top: mlx-lm reads it there alone."""
    kind = said["model_type"]
    return {
        **said,
        **asdict(sizes),
        "architectures": [f"{'Llama' if kind == 'llama' else kind.capitalize()}ForCausalLM"],
        "hidden_act": "silu",
        "attention_bias": any(name.endswith("self_attn.q_proj.bias") for name in weights),
        "mlp_bias": any(name.endswith("mlp.up_proj.bias") for name in weights),
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "torch_dtype": "float32",
        "eos_token_id": eos,
    }
