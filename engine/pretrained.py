"""Models that others trained: which are taken, which are refused and why.

Knows: what a config.json tells of a network, how mlx-lm loads one, which of its parts the canonical forward
computes.
Does not know: the forward itself (engine/model.py), the GGUF format (engine/gguf.py).

Quantized weights are made plain at load. A packed product would be a second arithmetic whose shapes need a
proof of their own (a GPU takes another kernel for few rows than for many), and a CPU has no BLAS for it: 5
times slower than OpenBLAS in decode, 16 times in prefill. The price is memory. Against mlx-lm's packed
products the logits differ by rounding only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from engine.model import BUILTIN, CanonicalModel, LlamaConfig, ModelError, Rope, Runner
from engine.tokenizer import HFTokenizer, Tokenizer

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""By model_type. SmolLM and SmolLM2 call themselves llama."""
ROPE_TYPES = ("default", "linear", "llama3")
DEFAULT_POSITIONS = 8192
"""Used where a model names no maximum."""

_ROUTED = "it is a mixture of experts ({key}): which rows share a product depends on who else is routed there"
_STATE = "it is recurrent ({key}): its state after a prefix is not made of rows that can be shared"
_MEDIA = "it is multimodal ({key}): token ids alone do not tell two of its prompts apart"
_SIGNS = {
    **dict.fromkeys(("vision_config", "audio_config", "text_config"), _MEDIA),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), _ROUTED),
    **dict.fromkeys(("state_size", "ssm_cfg", "ssm_state_size", "mamba_d_state", "mamba_d_ssm"), _STATE),
    **dict.fromkeys(("linear_num_key_heads", "linear_attn_config", "lru_width", "conv_L_cache"), _STATE),
    **dict.fromkeys(("rwkv_version", "decay_low_rank_dim"), _STATE),
    "no_rope_layer_interval": "some of its layers have no rope ({key})",
    "quantize_activations": "it quantizes activations ({key}), which the canonical forward does not",
}


def load_pretrained(name: str, grid: int) -> tuple[Runner, Tokenizer]:
    """A .gguf file, or a folder or repository by mlx-lm, under the canonical forward, with its tokenizer.

    Raises ModelError, with the reason, for what cannot be loaded and for what is refused.
    """
    if name.lower().endswith(".gguf"):
        from engine.gguf import load_gguf

        return load_gguf(name, grid)
    folder, config = _describe(name)
    accept(name, config)
    network, wrapped = _load(name, folder, config)
    tokenizer = HFTokenizer(wrapped._tokenizer, tuple(wrapped.eos_token_ids))
    ids = 1 + max(wrapped._tokenizer.get_vocab().values())
    return _canonical(name, network, ids, grid), tokenizer


def accept(name: str, config: Mapping[str, Any]) -> None:
    """Raise ModelError with the reason when a config.json is one of a model that is refused."""
    reason = refusal(config)
    if reason:
        raise ModelError(f"model {name!r} is refused: {reason}")


def refusal(config: Mapping[str, Any]) -> str | None:
    """Why this engine cannot promise canonical bits for a config.json, or None when it can."""
    checks = (_other_kind, _other_family, _window, _rope, _arithmetic)
    return next((reason for check in checks if (reason := check(config))), None)


def _other_kind(config: Mapping[str, Any]) -> str | None:
    reasons = (reason.format(key=key) for key, reason in _SIGNS.items() if config.get(key))
    return next((f"its model_type is {config.get('model_type')!r} and {reason}" for reason in reasons), None)


def _other_family(config: Mapping[str, Any]) -> str | None:
    if config.get("model_type") in FAMILIES:
        return None
    return f"its model_type is {config.get('model_type')!r}; supported are {', '.join(FAMILIES)}"


def _window(config: Mapping[str, Any]) -> str | None:
    """A row that falls out of a window is not attended to, but its block would still be adopted."""
    layers = set(config.get("layer_types") or ()) - {"full_attention"}
    if layers:
        return f"it has {', '.join(sorted(layers))} layers; only full_attention sees every earlier token"
    # Mistral means its window wherever there is one; Qwen's stands in every config and is off by default.
    slides = config.get("use_sliding_window", not str(config.get("model_type")).startswith("qwen"))
    if slides and config.get("sliding_window") and not config.get("layer_types"):
        return f"its layers see a sliding window of {config['sliding_window']} tokens, not every earlier one"
    return None


def _rope(config: Mapping[str, Any]) -> str | None:
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if any(isinstance(part, dict) for part in scaling.values()):
        return "its rope differs from layer to layer"
    kind = scaling.get("type") or scaling.get("rope_type", "default")
    if kind not in ROPE_TYPES:
        return (
            f"its rope scaling is {kind!r}; supported are {', '.join(ROPE_TYPES)}, the same at every length"
        )
    partial = config.get("partial_rotary_factor") or scaling.get("partial_rotary_factor") or 1
    return None if partial == 1 else f"its rope turns only {partial} of each head"


def _arithmetic(config: Mapping[str, Any]) -> str | None:
    act = config.get("hidden_act") or "silu"
    return None if act in ("silu", "swish") else f"its MLP uses {act!r}; only silu is supported"


def _describe(name: str) -> tuple[Path, dict[str, Any]]:
    """Folder and config.json, fetched from the hub where ``name`` is no folder."""
    from mlx_lm.utils import _download, load_config  # 2 s, for transformers: only here

    try:
        folder = _download(name)
        config: dict[str, Any] = load_config(folder)
    except Exception as error:  # whatever mlx-lm and its hub client raise: the name is wrong
        raise _unloadable(name, error) from error
    return folder, config


def _load(name: str, folder: Path, config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Network with plain weights, and tokenizer, by mlx-lm."""
    from mlx_lm.utils import dequantize_model, load_model, load_tokenizer

    try:
        network, _ = load_model(folder, lazy=True, model_config=_spelled_out(config))
        tokenizer = load_tokenizer(folder, eos_token_ids=config.get("eos_token_id"))  # type: ignore[no-untyped-call]
        return dequantize_model(network), tokenizer
    except Exception as error:  # whatever mlx-lm, transformers or safetensors raise: the folder is wrong
        raise _unloadable(name, error) from error


def _spelled_out(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rope settings where every mlx-lm family looks; not all know the newer ``rope_parameters``."""
    newer = config.get("rope_parameters") or {}
    older = {"rope_theta": newer.get("rope_theta"), "rope_scaling": newer or None}
    return {key: value for key, value in older.items() if value and not config.get(key)}


def _unloadable(name: str, error: Exception) -> ModelError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ModelError(f"cannot load {name!r}, which is none of {', '.join(BUILTIN)}: {reason}")


def _canonical(name: str, network: Any, ids: int, grid: int) -> CanonicalModel:
    """A loaded mlx-lm network's weights and rope under the canonical forward."""
    from mlx.utils import tree_flatten

    args = network.args
    sizes: dict[str, Any] = {f.name: getattr(args, f.name, None) for f in fields(LlamaConfig)}
    sizes["head_dim"] = sizes["head_dim"] or args.hidden_size // args.num_attention_heads
    sizes["max_position_embeddings"] = sizes["max_position_embeddings"] or DEFAULT_POSITIONS
    weights = dict(tree_flatten(network.parameters()))
    packed = [
        n for n, w in weights.items() if n.endswith(".weight") and not mx.issubdtype(w.dtype, mx.floating)
    ]
    if packed:
        raise ModelError(
            f"model {name!r} is refused: {packed[0]} is packed in a way that cannot be made plain"
        )
    rope = network.model.layers[0].self_attn.rope
    return assemble(LlamaConfig(**sizes), weights, ids, grid, rope)


def assemble(
    config: LlamaConfig, weights: Mapping[str, mx.array], ids: int, grid: int, rope: Rope | None
) -> CanonicalModel:
    """The canonical model, its vocabulary cut to the ``ids`` that the tokenizer has: padding has no text."""
    sizes = replace(config, vocab_size=min(config.vocab_size, ids))
    vocabulary = ("model.embed_tokens.weight", "lm_head.weight")
    kept = {n: w[: sizes.vocab_size] if n in vocabulary else w for n, w in weights.items()}
    return CanonicalModel(sizes, kept, grid=grid, rope=rope)
