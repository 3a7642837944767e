"""The exported GGUF file, read back by MLX: every tensor where llama.cpp looks for it, and the same ids."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from engine.export import plain_weights
from engine.exportgguf import MISSING, export_gguf, tensor_name
from engine.kvview import ArrayView
from engine.model import ModelError, Runner, load
from engine.tokenizer import ByteTokenizer

TEXT = "Bäume 日本 <|im_end|>|x| it's 42\n\n  Ж"
CHAT = [{"role": "user", "content": "Grüße"}]
OWN = ByteTokenizer()
LAYER_1 = {
    "blk.1.attn_norm.weight": "model.layers.1.input_layernorm.weight",
    "blk.1.attn_v.weight": "model.layers.1.self_attn.v_proj.weight",
    "blk.1.attn_output.weight": "model.layers.1.self_attn.o_proj.weight",
    "blk.1.ffn_norm.weight": "model.layers.1.post_attention_layernorm.weight",
    "blk.1.ffn_gate.weight": "model.layers.1.mlp.gate_proj.weight",
    "blk.1.ffn_up.weight": "model.layers.1.mlp.up_proj.weight",
    "blk.1.ffn_down.weight": "model.layers.1.mlp.down_proj.weight",
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gguf", reason="a .gguf file is written by the package gguf")
    target = tmp_path_factory.mktemp("export") / "deep" / "tiny.gguf"
    export_gguf(target)
    return target


@pytest.fixture(scope="module")
def read(path: Path) -> tuple[dict[str, mx.array], dict[str, Any]]:
    loaded: Any = mx.load(str(path), return_metadata=True)
    return loaded[0], loaded[1]


def logits(runner: Runner, tokens: list[int]) -> mx.array:
    return runner.prefill(ArrayView(runner.shape), tokens, 0, len(tokens))


def test_tensors_are_written_in_fp32_under_llama_cpps_names(read: tuple[dict[str, mx.array], Any]) -> None:
    weights = plain_weights("tiny", OWN, None)
    assert len(read[0]) == len(weights) == 21
    for theirs, ours in LAYER_1.items():
        assert read[0][theirs].dtype == mx.float32
        assert mx.array_equal(read[0][theirs], weights[ours])


@pytest.mark.parametrize("part", ["q", "k"])
def test_query_and_key_rows_that_turn_together_are_neighbours(
    read: tuple[dict[str, mx.array], Any], part: str
) -> None:
    rows = plain_weights("tiny", OWN, None)[f"model.layers.0.self_attn.{part}_proj.weight"]
    written = read[0][f"blk.0.attn_{part}.weight"]
    order = [pair + 16 * half for pair in range(16) for half in (0, 1)]
    assert mx.array_equal(written, rows[mx.array(order)])
    assert not mx.array_equal(written, rows)


def test_the_file_computes_what_the_built_in_model_does(path: Path) -> None:
    tokens = list(range(40, 140))
    assert mx.array_equal(logits(load(str(path))[0], tokens), logits(load("tiny")[0], tokens))


def test_the_tokenizer_in_the_file_gives_the_same_ids(path: Path) -> None:
    other = load(str(path))[1]
    assert other.encode(TEXT) == OWN.encode(TEXT)
    assert other.render_chat(CHAT) == OWN.render_chat(CHAT)
    assert (other.vocab_size, other.eos_ids) == (OWN.vocab_size, OWN.eos_ids)


def test_no_token_is_put_in_front_and_special_ones_are_marked(
    read: tuple[Any, dict[str, Any]],
) -> None:
    said = read[1]
    assert said["tokenizer.ggml.add_bos_token"].item() is False
    assert said["tokenizer.ggml.token_type"].tolist() == [1] * 509 + [3] * 3
    assert said["tokenizer.ggml.tokens"][509:] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert len(said["tokenizer.ggml.merges"]) == 253


def test_another_seed_writes_other_weights(read: tuple[dict[str, mx.array], Any], tmp_path: Path) -> None:
    export_gguf(tmp_path / "other.gguf", seed=1)
    other: Any = mx.load(str(tmp_path / "other.gguf"))
    assert other.keys() == read[0].keys()
    assert not mx.array_equal(other["output.weight"], read[0]["output.weight"])


def test_a_file_that_cannot_be_written_is_named(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot write .*x\.gguf': (File exists|Not a directory)"):
        export_gguf(path / "x.gguf")
    with pytest.raises(ModelError, match=r"cannot write .*: Is a directory"):
        export_gguf(tmp_path)


def test_only_tiny_can_be_exported(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot export 'digest': only tiny"):
        export_gguf(tmp_path / "x.gguf", "digest")
    assert not list(tmp_path.iterdir())


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModuleNotFoundError, match=f"^{MISSING}$"):
        export_gguf(tmp_path / "x.gguf")
    assert "pip install gguf" in MISSING


def test_a_tensor_without_a_name_there_is_an_error() -> None:
    assert tensor_name("model.layers.7.mlp.up_proj.weight") == "blk.7.ffn_up.weight"
    with pytest.raises(KeyError, match="rotary"):
        tensor_name("rotary.weight")
