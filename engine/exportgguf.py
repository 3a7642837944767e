"""The built-in model as one GGUF file, for llama.cpp and what is built on it.

Knows: what GGUF calls sizes, tensors and tokens (the tables of engine/gguf.py, the other way round), and that
llama.cpp turns neighbouring rows of a Llama's queries and keys where mlx-lm turns rows half a head apart.
Does not know: how the weights are drawn (engine/tiny.py), what an id means (engine/tokenizer.py).

Written by the `gguf` package, which llama.cpp's own converters use: the extra `gguf` of this package.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.export import plain_weights, tokenizer_json
from engine.gguf import LAYER, SIZES, TOP
from engine.model import LlamaConfig, ModelError
from engine.tiny import TINY
from engine.tokenizer import CHAT_END, CHAT_TEMPLATE, EOS, ByteTokenizer

if TYPE_CHECKING:
    import mlx.core as mx

MISSING = "is written by the package gguf, which is not installed here: pip install gguf"
_KIND = "llama"
_IN_LAYER = {ours: theirs for theirs, ours in LAYER.items()}
_ON_TOP = {ours: theirs for theirs, ours in TOP.items()}


def export_gguf(file: str | Path, model: str = "tiny", seed: int | None = None) -> None:
    """Write ``model`` with its own seed or another, fp32, into ``file``; its folder is made where missing.

    Raises ModelError for any other model and for a file that cannot be written, ModuleNotFoundError without
    the package gguf.
    """
    tokenizer = ByteTokenizer()
    weights = plain_weights(model, tokenizer, seed)
    writer = _writer(model)
    _describe(writer, TINY, tokenizer)
    for name, rows in weights.items():
        writer.add_tensor(tensor_name(name), _numpy(_turned(name, rows, TINY)))
    try:
        _write(writer, Path(file))
    except OSError as error:
        raise ModelError(f"cannot write {str(file)!r}: {error.strerror or error}") from error


def _writer(name: str) -> Any:
    try:
        from gguf import GGUFWriter, LlamaFileType
    except ImportError as error:
        raise ModuleNotFoundError(MISSING) from error
    writer = GGUFWriter(None, _KIND)
    writer.add_name(name)
    writer.add_file_type(LlamaFileType.ALL_F32)
    return writer


def _write(writer: Any, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file(file)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, config: LlamaConfig, tokenizer: ByteTokenizer) -> None:
    for name, size in asdict(config).items():
        add = writer.add_float32 if isinstance(size, float) else writer.add_uint32
        add(f"{_KIND}.{SIZES.get(name, name)}", size)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    _spell_tokens(writer, tokenizer)
    writer.add_chat_template(CHAT_TEMPLATE)


def _spell_tokens(writer: Any, tokenizer: ByteTokenizer) -> None:
    from gguf import TokenType

    spelled = tokenizer_json(tokenizer)
    words, specials = list(spelled["model"]["vocab"]), [a["content"] for a in spelled["added_tokens"]]
    writer.add_tokenizer_model("gpt2")
    # Whatever cuts the text first: the only merges are within a letter, which no cut goes through.
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*words, *specials])
    writer.add_token_types([TokenType.NORMAL] * len(words) + [TokenType.CONTROL] * len(specials))
    writer.add_token_merges([" ".join(merge) for merge in spelled["model"]["merges"]])
    writer.add_eos_token_id(tokenizer.id_of(EOS))
    writer.add_eot_token_id(tokenizer.id_of(CHAT_END))
    writer.add_add_bos_token(False)


def tensor_name(name: str) -> str:
    """GGUF's name of a tensor that mlx-lm calls ``name``. Raises KeyError for one it has no name for."""
    stem, _, part = name.rpartition(".")
    if not stem.startswith("model.layers."):
        return f"{_ON_TOP[stem]}.{part}"
    _, _, layer, own = stem.split(".", 3)
    return f"blk.{layer}.{_IN_LAYER[own]}.{part}"


def _turned(name: str, rows: mx.array, config: LlamaConfig) -> mx.array:
    """Each head's query and key rows from (a0 a1 .. b0 b1 ..) to (a0 b0 a1 b1 ..)."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = heads.get(name.split(".")[-2])
    return rows.reshape(count, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape) if count else rows


def _numpy(rows: mx.array) -> Any:
    import numpy  # comes with gguf

    return numpy.array(rows)
