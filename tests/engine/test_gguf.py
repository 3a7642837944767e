"""GGUF files: the same network and the same ids as the folder they were made from, and what is refused."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from engine.export import tokenizer_json
from engine.gguf import config_of, tokenizer_of, weights_of
from engine.kvview import ArrayView
from engine.model import CanonicalModel, DecodeRow, LlamaConfig, ModelError, Runner, load
from engine.probe import decode_as_prefill
from engine.tokenizer import CHAT_END, CHAT_TEMPLATE, EOS, ByteTokenizer
from tests.engine.test_model import GROUPED, random_weights

CONFIG = replace(GROUPED, vocab_size=512)
TOKENS = [(37 * i * i + 11 * i) % 509 for i in range(90)]
TEXT = "Grüße, it's 42 Bäume <|im_end|>x"
OWN = ByteTokenizer()
STEMS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def tensors(weights: dict[str, mx.array], *, interleaved: bool) -> dict[str, mx.array]:
    """Weights as a converter writes them: GGUF's names, a Llama's query and key rows in rope pairs."""
    out = {}
    for name, w in weights.items():
        stem, part = name.rsplit(".", 1)
        layer = stem.split(".")[2] if stem.startswith("model.layers.") else ""
        own = stem.split(".", 3)[3] if layer else stem
        paired = interleaved and own in ("self_attn.q_proj", "self_attn.k_proj")
        out[f"blk.{layer}.{STEMS[own]}.{part}" if layer else f"{STEMS[own]}.{part}"] = (
            pairs(w) if paired else w
        )
    return out


def pairs(w: mx.array) -> mx.array:
    dim, half = CONFIG.head_dim, CONFIG.head_dim // 2
    order = [h * dim + i + j * half for h in range(w.shape[0] // dim) for i in range(half) for j in (0, 1)]
    return w[mx.array(order)]


def sizes(c: LlamaConfig, kind: str = "llama") -> dict[str, Any]:
    return {
        "general.architecture": kind,
        f"{kind}.embedding_length": mx.array(c.hidden_size, mx.uint32),
        f"{kind}.feed_forward_length": mx.array(c.intermediate_size, mx.uint32),
        f"{kind}.block_count": mx.array(c.num_hidden_layers, mx.uint32),
        f"{kind}.attention.head_count": mx.array(c.num_attention_heads, mx.uint32),
        f"{kind}.attention.head_count_kv": mx.array(c.num_key_value_heads, mx.uint32),
        f"{kind}.attention.key_length": mx.array(c.head_dim, mx.uint32),
        f"{kind}.attention.layer_norm_rms_epsilon": mx.array(c.rms_norm_eps, mx.float32),
        f"{kind}.context_length": mx.array(c.max_position_embeddings, mx.uint32),
        f"{kind}.rope.freq_base": mx.array(c.rope_theta, mx.float32),
        f"{kind}.rope.dimension_count": mx.array(c.head_dim, mx.uint32),
    }


def vocabulary(pre: str = "gpt-2") -> dict[str, Any]:
    spelled = tokenizer_json(OWN)
    tokens = [*spelled["model"]["vocab"], *(added["content"] for added in spelled["added_tokens"])]
    kinds = [1] * len(spelled["model"]["vocab"]) + [3] * len(spelled["added_tokens"])
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": mx.array(kinds, mx.int32),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in spelled["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": mx.array(OWN.id_of(EOS), mx.uint32),
        "tokenizer.ggml.eot_token_id": mx.array(OWN.id_of(CHAT_END), mx.uint32),
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def save(
    folder: Path,
    weights: dict[str, mx.array] | None = None,
    kind: str = "llama",
    without: str = "",
    **more: Any,
) -> str:
    """A .gguf file of random weights; ``more`` adds metadata with __ for a dot, ``without`` drops a key."""
    path = folder / "model.gguf"
    arrays = tensors(random_weights(CONFIG) if weights is None else weights, interleaved=kind == "llama")
    metadata = sizes(CONFIG, kind) | vocabulary()
    metadata |= {name.replace("__", "."): value for name, value in more.items()}
    arrays.pop(without, None)
    metadata.pop(without, None)
    mx.save_gguf(str(path), arrays, metadata)
    return str(path)


def plain(**lists: Any) -> dict[str, Any]:
    """Metadata of a tokenizer as plain values, as the loader hands it on."""
    metadata = vocabulary() | lists
    return {k: v.tolist() if isinstance(v, mx.array) else v for k, v in metadata.items()}


def logits(runner: Runner, tokens: Sequence[int] = TOKENS) -> mx.array:
    return runner.prefill(ArrayView(runner.shape), tokens, 0, len(tokens))


def test_a_llama_file_computes_what_its_weights_say(tmp_path: Path) -> None:
    expected = CanonicalModel(CONFIG, random_weights(CONFIG))
    runner = load(save(tmp_path))[0]
    assert runner.shape == expected.shape
    assert mx.array_equal(logits(runner), logits(expected))


def test_rows_left_in_pairs_would_compute_something_else(tmp_path: Path) -> None:
    arrays = tensors(random_weights(CONFIG), interleaved=True)
    wrong = CanonicalModel(CONFIG, weights_of(arrays, CONFIG, interleaved=False))
    assert float(mx.abs(logits(load(save(tmp_path))[0]) - logits(wrong)).max()) > 0.1


def test_a_qwen3_file_has_norms_on_heads_and_a_head_of_its_own(tmp_path: Path) -> None:
    weights = random_weights(CONFIG) | {"lm_head.weight": mx.random.normal((512, 32), key=mx.random.key(1))}
    for layer in range(CONFIG.num_hidden_layers):
        for name in "qk":
            weights[f"model.layers.{layer}.self_attn.{name}_norm.weight"] = mx.linspace(0.5, 2, 16)
    runner = load(save(tmp_path, weights, "qwen3"))[0]
    assert mx.array_equal(logits(runner), logits(CanonicalModel(CONFIG, weights)))


def test_half_precision_weights_become_fp32(tmp_path: Path) -> None:
    half = {name: w.astype(mx.float16) for name, w in random_weights(CONFIG).items()}
    runner = load(save(tmp_path, half))[0]
    full = {name: w.astype(mx.float32) for name, w in half.items()}
    assert runner.shape.dtype == mx.float32
    assert mx.array_equal(logits(runner), logits(CanonicalModel(CONFIG, full)))


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_weights_are_made_plain_in_fp32(bits: int) -> None:
    rows = random_weights(CONFIG)
    arrays = tensors(rows, interleaved=False)
    packed, scales, biases = mx.quantize(rows["model.embed_tokens.weight"].astype(mx.float16), 32, bits)
    arrays |= {"token_embd.weight": packed, "token_embd.scales": scales, "token_embd.biases": biases}
    made = weights_of(arrays, CONFIG, interleaved=False)["model.embed_tokens.weight"]
    shifts = mx.arange(0, 32, bits, mx.uint32)
    steps = ((packed[..., None] >> shifts) & (2**bits - 1)).reshape(512, 32).astype(mx.float32)
    assert mx.allclose(made, steps * scales.astype(mx.float32) + biases.astype(mx.float32), rtol=0, atol=1e-6)


def test_warm_has_the_bits_of_cold(tmp_path: Path) -> None:
    runner = load(save(tmp_path), grid=16)[0]
    warm = ArrayView(runner.shape)
    runner.prefill(warm, TOKENS, 0, 41)
    assert mx.array_equal(runner.prefill(warm, TOKENS, 41, 90), logits(runner))
    assert decode_as_prefill(runner).equal


def test_linear_rope_and_stretched_periods_are_told_by_the_file(tmp_path: Path) -> None:
    linear: dict[str, Any] = {
        "llama__rope__scaling__type": "linear",
        "llama__rope__scaling__factor": mx.array(4.0),
    }
    scaled = load(save(tmp_path, **linear))[0]
    expected = CanonicalModel(CONFIG, random_weights(CONFIG), rope=turning(4.0))
    assert float(mx.abs(logits(scaled) - logits(expected)).max()) < 1e-3
    stretched = tmp_path / "stretched.gguf"
    arrays = tensors(random_weights(CONFIG), interleaved=True) | {"rope_freqs.weight": mx.full((8,), 4.0)}
    mx.save_gguf(str(stretched), arrays, sizes(CONFIG) | vocabulary())
    assert float(mx.abs(logits(load(str(stretched))[0]) - logits(expected)).max()) < 1e-3
    assert float(mx.abs(logits(load(save(tmp_path))[0]) - logits(expected)).max()) > 0.1


def turning(factor: float) -> Any:
    """Rope by the formula, every angle divided by ``factor``."""

    def rope(x: mx.array, offset: mx.array) -> mx.array:
        half = CONFIG.head_dim // 2
        rates = mx.array([CONFIG.rope_theta ** (-i / half) / factor for i in range(half)])
        angle = (offset[:, None] + mx.arange(x.shape[2]))[:, None, :, None] * rates
        a, b, cos, sin = x[..., :half], x[..., half:], mx.cos(angle), mx.sin(angle)
        return mx.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

    return rope


def test_decode_goes_on_from_prefill(tmp_path: Path) -> None:
    runner = load(save(tmp_path))[0]
    view = ArrayView(runner.shape)
    runner.prefill(view, TOKENS, 0, 80)
    stepped = runner.decode([DecodeRow(view, TOKENS[80], 80)])[0]
    assert float(mx.abs(stepped - logits(runner, TOKENS[:81])).max()) < 1e-3


# -- tokenizer --------------------------------------------------------------------------------------


def test_the_tokenizer_in_the_file_gives_the_same_ids_and_chat(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Grüße"}]
    tokenizer = load(save(tmp_path))[1]
    assert tokenizer.encode(TEXT) == OWN.encode(TEXT)
    assert tokenizer.decode(OWN.encode(TEXT)) == TEXT
    assert tokenizer.render_chat(chat) == OWN.render_chat(chat)
    assert (tokenizer.vocab_size, tokenizer.eos_ids) == (OWN.vocab_size, OWN.eos_ids)


def test_a_first_token_is_added_where_the_file_says_so() -> None:
    start = OWN.id_of(EOS)
    first = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": start}
    assert tokenizer_of(plain(**first)).encode("x") == [start, ord("x")]
    assert tokenizer_of(plain()).encode("x") == [ord("x")]


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "a1234 b's", ["a", "1234", " b", "'s"]),
        ("smollm", "a12 b's", ["a", "1", "2", " b", "'s"]),
        ("llama-bpe", "a1234 b'S", ["a", "123", "4", " b", "'S"]),
        ("qwen2", "a12 b'S", ["a", "1", "2", " b", "'S"]),
    ],
)
def test_text_is_cut_as_the_file_names_it(pre: str, text: str, pieces: list[str]) -> None:
    hf = tokenizer_of(plain(**{"tokenizer.ggml.pre": pre}))._hf
    cut = hf.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [piece.replace("Ġ", " ") for piece, _ in cut] == pieces


def test_qwen2_composes_letters_first() -> None:
    assert tokenizer_of(plain(**{"tokenizer.ggml.pre": "qwen2"})).encode("u\u0308") == OWN.encode("ü")
    assert tokenizer_of(plain()).encode("u\u0308") != OWN.encode("ü")


# -- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "gemma2"}, "model '.*' is refused: its model_type is 'gemma2'"),
        ({"llama__expert_count": mx.array(8, mx.uint32)}, "a mixture of experts"),
        ({"llama__attention__sliding_window": mx.array(64, mx.uint32)}, "a sliding window of 64 tokens"),
        ({"llama__rope__scaling__type": "yarn"}, "its rope scaling is 'yarn'"),
        ({"llama__rope__dimension_count": mx.array(8, mx.uint32)}, "turns only 0.5 of each head"),
        ({"tokenizer__ggml__model": "llama"}, "is refused: its tokenizer is 'llama'; only byte-level BPE"),
        ({"tokenizer__ggml__pre": "tekken"}, "cuts text as 'tekken'; supported are gpt-2"),
        ({"without": "blk.1.ffn_up.weight"}, "cannot load '.*': it lacks .*layers.1.mlp.up_proj.weight"),
        ({"without": "token_embd.weight"}, "it lacks token_embd.weight"),
        ({"without": "llama.embedding_length"}, "it lacks hidden_size"),
        ({"without": "tokenizer.ggml.tokens"}, "it lacks tokenizer.ggml.tokens"),
        ({"without": "tokenizer.ggml.merges"}, "it lacks merges"),
    ],
)
def test_a_file_that_is_no_such_model_is_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelError, match=reason):
        load(save(tmp_path, **changes))


def test_a_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "odd.gguf")
    arrays = tensors(random_weights(CONFIG), interleaved=True) | {"blk.0.ssm_in.weight": mx.zeros((2, 2))}
    mx.save_gguf(path, arrays, sizes(CONFIG) | vocabulary())
    with pytest.raises(ModelError, match=r"its tensor 'blk\.0\.ssm_in' has no place"):
        load(path)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no such format" * 9])
def test_a_file_that_is_no_gguf_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"cannot load '.*broken\.gguf': "):
        load(str(path))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot load '.*nowhere\.gguf': "):
        load(str(tmp_path / "nowhere.gguf"))


def test_a_grouped_size_may_be_left_out() -> None:
    metadata = {
        "general.architecture": "llama",
        "llama.attention.head_count": 4,
        "llama.embedding_length": 64,
    }
    assert config_of(metadata) == {"model_type": "llama", "num_attention_heads": 4, "hidden_size": 64}


# -- Q4_1, byte by byte -----------------------------------------------------------------------------

Q4_1 = 3


def test_q4_1_rows_are_what_the_format_says(tmp_path: Path) -> None:
    scale, low = (0.5, -0.25), (-2.0, 1.0)
    nibbles = [[(5 * i + row) % 16 for i in range(32)] for row in range(2)]
    path = tmp_path / "q.gguf"
    path.write_bytes(q4_1_file(nibbles, scale, low))
    loaded: Any = mx.load(str(path), return_metadata=True)
    from engine.gguf import _unpacked

    made = _unpacked(loaded[0], "token_embd", "weight")
    assert made.tolist() == [[scale[r] * n + low[r] for n in nibbles[r]] for r in range(2)]


def q4_1_file(nibbles: list[list[int]], scale: Sequence[float], low: Sequence[float]) -> bytes:
    """One tensor [2, 32]; a block is scale, minimum, then value i beside value i + 16 in one byte."""
    name = b"token_embd.weight"
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", len(name)) + name
    header += struct.pack("<IQQIQ", 2, 32, 2, Q4_1, 0)
    blocks = b"".join(
        struct.pack("<ee", scale[row], low[row]) + bytes(n[i] | n[i + 16] << 4 for i in range(16))
        for row, n in enumerate(nibbles)
    )
    return header.ljust(-(-len(header) // 32) * 32, b"\0") + blocks
