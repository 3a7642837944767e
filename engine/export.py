"""The built-in model as a folder in Hugging Face form, for servers that are not ours.

Knows: config.json, model.safetensors, tokenizer.json and tokenizer_config.json, as mlx-lm and transformers
read them.
Does not know: how the weights are drawn (engine/tiny.py) or what an id means (engine/tokenizer.py).
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx

from engine.model import LlamaConfig, ModelError
from engine.tiny import TINY, tiny_weights
from engine.tokenizer import CHAT_END, CHAT_TEMPLATE, EOS, SPECIALS, ByteTokenizer


def export(directory: str | Path, model: str = "tiny", seed: int | None = None) -> None:
    """Write ``model`` with its own seed or another into ``directory``, made where missing.

    Raises ModelError for any other model and for a folder that cannot be written.
    """
    tokenizer = ByteTokenizer()
    weights = plain_weights(model, tokenizer, seed)
    try:
        _write(Path(directory), TINY, weights, tokenizer)
    except OSError as error:
        raise ModelError(f"cannot write to {str(directory)!r}: {error.strerror or error}") from error


def plain_weights(model: str, tokenizer: ByteTokenizer, seed: int | None) -> dict[str, mx.array]:
    """fp32 weights of ``model`` by mlx-lm's names. Raises ModelError for one that is no plain network."""
    if model != "tiny":
        raise ModelError(f"cannot export {model!r}: only tiny is a plain network that other servers load")
    return tiny_weights(tokenizer.plain_ids(), seed)


def _write(folder: Path, config: LlamaConfig, weights: dict[str, mx.array], tokenizer: ByteTokenizer) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("config.json", _config(config, tokenizer)),
        ("tokenizer.json", tokenizer_json(tokenizer)),
        ("tokenizer_config.json", _tokenizer_config(config)),
    ):
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})


def _config(config: LlamaConfig, tokenizer: ByteTokenizer) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **asdict(config),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": [tokenizer.id_of(EOS), tokenizer.id_of(CHAT_END)],
    }


def _tokenizer_config(config: LlamaConfig) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "pad_token": EOS,
        "additional_special_tokens": list(SPECIALS[1:]),
        "clean_up_tokenization_spaces": False,
        "model_max_length": config.max_position_embeddings,
        "chat_template": CHAT_TEMPLATE,
    }


def tokenizer_json(tokenizer: ByteTokenizer) -> dict[str, Any]:
    """The built-in tokenizer as byte-level BPE in the form of the `tokenizers` library."""
    plain = [p for p in tokenizer.pieces if p.decode("utf-8", "ignore") not in SPECIALS]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(tokenizer.id_of(text), text) for text in SPECIALS],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {_spell(piece): i for i, piece in enumerate(plain)},
            "merges": [[_spell(piece[:1]), _spell(piece[1:])] for piece in plain if len(piece) == 2],
        },
    }


def _added(token: int, text: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token, "content": text, **flags}


def _spell(piece: bytes) -> str:
    return "".join(_ALPHABET[byte] for byte in piece)


def _byte_alphabet() -> dict[int, str]:
    """What byte-level BPE writes for each byte: itself where visible, else the next character from U+0100."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {b: chr(b) for b in visible} | {b: chr(0x100 + i) for i, b in enumerate(hidden)}


_ALPHABET = _byte_alphabet()
