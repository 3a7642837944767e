"""One GGUF file as a model with its tokenizer, by MLX's own reader: no PyTorch.

Knows: what GGUF calls the tensors, sizes and vocabulary of a Llama-family model, and how its tokens are cut.
Does not know: which models are refused (engine/pretrained.py), the forward (engine/model.py).

Weights become fp32, whatever they are packed as: exact for the formats that MLX keeps packed (Q4_0, Q4_1,
Q8_0), and the only type that a CPU's BLAS multiplies fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from engine.model import LlamaConfig, ModelError, Rope, Runner
from engine.pretrained import DEFAULT_POSITIONS, accept, assemble
from engine.tokenizer import HFTokenizer, Tokenizer

GROUP = 32
"""Weights of one scale in Q4_0, Q4_1 and Q8_0."""

TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NEEDED = LAYER.keys() - {"attn_q_norm", "attn_k_norm"}
SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
    "num_experts": "expert_count",
}
"""A config.json's name for each size that GGUF keeps under its architecture."""
_TOKENIZER = "tokenizer.ggml."
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_CONTROL, _USER_DEFINED = 3, 4
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 and Qwen 2 cut text before merges, but for the digits that stay together."""


@dataclass(frozen=True)
class Opened:
    """What one file holds: the config.json that says the same, and fp32 weights in mlx-lm's names."""

    config: dict[str, Any]
    sizes: LlamaConfig
    weights: dict[str, mx.array]
    metadata: dict[str, Any]
    stretched: mx.array | None
    """What Llama 3 stretches the period of each rope pair by."""


def load_gguf(path: str, grid: int) -> tuple[Runner, Tokenizer]:
    """Model and tokenizer of one file. Raises ModelError, with the reason, for one that is no such model."""
    with _named(path):
        found = opened(path)
        rope = _rope(found.config, found.sizes, found.stretched)
        vocabulary = len(found.metadata[f"{_TOKENIZER}tokens"])
        runner = assemble(found.sizes, found.weights, vocabulary, grid, rope)
        return runner, tokenizer_of(found.metadata)


def opened(path: str) -> Opened:
    """The file, read and unpacked. Raises ModelError as `load_gguf` does."""
    tensors, metadata = _read(path)
    config = config_of(metadata)
    accept(path, config)
    with _named(path):
        sizes = _sizes(config, tensors)
        weights = weights_of(tensors, sizes, interleaved=config["model_type"] == "llama")
        return Opened(config, sizes, weights, metadata, tensors.get("rope_freqs.weight"))


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Says of which file something is missing or refused; what says so already passes through."""
    try:
        yield
    except KeyError as error:
        raise ModelError(f"cannot load {path!r}: it lacks {error.args[0]}") from None
    except ModelError as error:
        if repr(path) in str(error):
            raise
        raise ModelError(f"model {path!r} is refused: {error}") from None


def _read(path: str) -> tuple[dict[str, mx.array], dict[str, Any]]:
    try:
        loaded: Any = mx.load(path, return_metadata=True)
        tensors, metadata = loaded
    except Exception as error:  # a missing, cut or foreign file, each with MLX's own words
        raise ModelError(f"cannot load {path!r}: {' '.join(str(error).split())}") from error
    return tensors, {name: _plain(value) for name, value in metadata.items()}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, mx.array) else value


def config_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF metadata as the config.json that says the same."""
    kind = metadata.get("general.architecture")
    named = {name: metadata.get(f"{kind}.{key}") for name, key in SIZES.items()}
    config = {name: value for name, value in named.items() if value is not None}
    scaling = metadata.get(f"{kind}.rope.scaling.type", "none")
    if scaling != "none":
        config["rope_scaling"] = {"type": scaling, "factor": metadata.get(f"{kind}.rope.scaling.factor", 1.0)}
    turned = metadata.get(f"{kind}.rope.dimension_count")
    if turned and "num_attention_heads" in config and turned != _head_dim(config):
        config["partial_rotary_factor"] = turned / _head_dim(config)
    return {"model_type": kind, **config}


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _sizes(config: Mapping[str, Any], tensors: Mapping[str, mx.array]) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_hidden_layers=config["num_hidden_layers"],
        num_attention_heads=config["num_attention_heads"],
        num_key_value_heads=config.get("num_key_value_heads", config["num_attention_heads"]),
        head_dim=_head_dim(config),
        max_position_embeddings=config.get("max_position_embeddings", DEFAULT_POSITIONS),
        rms_norm_eps=config["rms_norm_eps"],
        rope_theta=config.get("rope_theta", 10000.0),
    )


def _rope(config: Mapping[str, Any], sizes: LlamaConfig, stretch: mx.array | None) -> Rope:
    """Plain, linear, or Llama 3's: a file of that kind carries what each pair's period is stretched by."""
    scaling = config.get("rope_scaling", {})
    scale = 1 / scaling["factor"] if scaling.get("type") == "linear" else 1.0
    base = sizes.rope_theta if stretch is None else None
    periods = sizes.rope_theta ** (mx.arange(0, sizes.head_dim, 2) / sizes.head_dim)
    stretched = None if stretch is None else periods * stretch

    def rope(x: mx.array, offset: int | mx.array) -> mx.array:
        return mx.fast.rope(
            x, sizes.head_dim, traditional=False, base=base, scale=scale, offset=offset, freqs=stretched
        )

    return rope


def weights_of(
    tensors: Mapping[str, mx.array], sizes: LlamaConfig, *, interleaved: bool
) -> dict[str, mx.array]:
    """fp32 weights in mlx-lm's names. ``interleaved``: query and key rows lie in pairs, as GGUF's Llamas do.

    Raises KeyError with the name of a tensor that is missing, ModelError for one without a place.
    """
    turned = {"attn_q": sizes.num_attention_heads, "attn_k": sizes.num_key_value_heads}
    weights = {}
    for name in tensors.keys() - {"rope_freqs.weight"}:
        stem, _, part = name.rpartition(".")
        if part in ("weight", "bias"):  # the rest are scales of packed weights
            heads = turned.get(stem.rpartition(".")[2]) if interleaved else None
            plain = _unpacked(tensors, stem, part)
            weights[f"{_place(stem)}.{part}"] = _halves(plain, heads) if heads else plain
    _check_whole(weights, sizes)
    return weights


def _place(stem: str) -> str:
    """mlx-lm's name of a tensor."""
    block, number, name = (*stem.split(".", 2), "", "")[:3]
    if block == "blk" and name in LAYER:
        return f"model.layers.{number}.{LAYER[name]}"
    if stem in TOP:
        return TOP[stem]
    raise ModelError(f"its tensor {stem!r} has no place in a Llama-family forward")


def _unpacked(tensors: Mapping[str, mx.array], stem: str, part: str) -> mx.array:
    array = tensors[f"{stem}.{part}"]
    if part == "bias" or f"{stem}.scales" not in tensors:
        return array.astype(mx.float32)
    scales, biases = (tensors[f"{stem}.{name}"].astype(mx.float32) for name in ("scales", "biases"))
    bits = array.shape[-1] // scales.shape[-1]  # 32-bit words over groups of 32
    return mx.dequantize(array, scales, biases, group_size=GROUP, bits=bits)


def _halves(rows: mx.array, heads: int) -> mx.array:
    """Each head's rows from (a0 b0 a1 b1 ..) to (a0 a1 .. b0 b1 ..): rope pairs i with i + head_dim / 2."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _check_whole(weights: Mapping[str, mx.array], sizes: LlamaConfig) -> None:
    layers = range(sizes.num_hidden_layers)
    needed = [f"model.layers.{layer}.{LAYER[name]}.weight" for layer in layers for name in sorted(_NEEDED)]
    missing = [n for n in ("model.embed_tokens.weight", "model.norm.weight", *needed) if n not in weights]
    if missing:
        raise KeyError(f"the tensor of {missing[0]}")


# -- tokenizer --------------------------------------------------------------------------------------


def tokenizer_of(metadata: Mapping[str, Any]) -> HFTokenizer:
    """Byte-level BPE of a file's tokens and merges, with its special tokens and its chat template.

    Raises KeyError with the name of a field that is missing, ModelError for tokens of another kind.
    """
    from transformers import PreTrainedTokenizerFast  # 2 s: only here

    fields = {name.removeprefix(_TOKENIZER): value for name, value in metadata.items()}
    if fields.get("model") != "gpt2":
        raise ModelError(
            f"its tokenizer is {fields.get('model')!r}; only byte-level BPE ('gpt2') is supported"
        )
    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=_bpe(fields),
        chat_template=metadata.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        **{role: fields["tokens"][fields[name]] for role, name in _ROLES.items() if name in fields},
    )
    return HFTokenizer(wrapped, [fields[name] for name in ("eos_token_id", "eot_token_id") if name in fields])


def _bpe(fields: Mapping[str, Any]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    pre = fields.get("pre", "gpt-2")
    tokens, merges = fields["tokens"], [tuple(merge.split(" ", 1)) for merge in fields["merges"]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    bpe = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    bpe.pre_tokenizer, bpe.decoder = _cutter(pre), decoders.ByteLevel()
    if pre == "qwen2":
        bpe.normalizer = normalizers.NFC()
    for token, kind in zip(tokens, fields.get("token_type", ()), strict=False):
        if kind in (_CONTROL, _USER_DEFINED):
            bpe.add_tokens([AddedToken(token, special=kind == _CONTROL, normalized=False)])
    if fields.get("add_bos_token", pre == "llama-bpe") and "bos_token_id" in fields:
        bpe.post_processor = _starting_with(fields)
    return bpe


def _cutter(pre: str) -> Any:
    """What cuts text into words before merges, by the name that GGUF gives it."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    words, whole = (ByteLevel(add_prefix_space=False, use_regex=regex) for regex in (True, False))
    known = {
        "gpt-2": words,
        "smollm": Sequence([Digits(individual_digits=True), words]),
        "llama-bpe": Sequence([Split(Regex(_WORDS % "1,3"), "isolated"), whole]),
        "qwen2": Sequence([Split(Regex(_WORDS % "1"), "isolated"), whole]),
    }
    if pre not in known:
        raise ModelError(f"its tokenizer cuts text as {pre!r}; supported are {', '.join(known)}")
    return known[pre]


def _starting_with(fields: Mapping[str, Any]) -> Any:
    from tokenizers.processors import TemplateProcessing

    bos = fields["tokens"][fields["bos_token_id"]]
    return TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, fields["bos_token_id"])]
    )
