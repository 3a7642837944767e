"""Each supported family against mlx-lm's own forward, its bits on both BLAS, and every refusal by name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from engine import pretrained
from engine.blas import OPENBLAS, available
from engine.kvview import ArrayView
from engine.model import DecodeRow, ModelError, Runner, load
from engine.pretrained import refusal
from engine.tokenizer import ByteTokenizer
from tests.engine.families import FAMILIES, SMALL, Family, write

TOKENS = [(37 * i * i + 11 * i) % 509 for i in range(100)]
FULL = 64
ROUNDING = 1e-4
"""Bound in fp32 where shapes differ; logits here are about 3."""
BF16_ROUNDING = 2**-4
"""Four units in the last place of such a logit: mlx-lm adds a bias before it rounds, we after."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("families")
    return cache(lambda name: str(write(root / name, FAMILIES[name])))


def mlx_lm_logits(folder: str | Path, tokens: Sequence[int]) -> mx.array:
    import mlx_lm

    network = mlx_lm.load(str(folder))[0]
    last: mx.array = network(mx.array([list(tokens)]))[0, -1]
    return last.astype(mx.float32)


def logits(runner: Runner, tokens: Sequence[int]) -> mx.array:
    return runner.prefill(ArrayView(runner.shape), tokens, 0, len(tokens))


def apart(a: mx.array, b: mx.array) -> float:
    return float(mx.abs(a - b).max())


# -- the numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_whole_prompt_in_one_tile_has_mlx_lms_own_bits(folders: Any, name: str) -> None:
    runner = load(folders(name), grid=FULL)[0]
    assert mx.array_equal(logits(runner, TOKENS[:FULL]), mlx_lm_logits(folders(name), TOKENS[:FULL]))


def test_the_comparison_notices_one_other_token(folders: Any) -> None:
    runner = load(folders("llama"), grid=FULL)[0]
    changed = [TOKENS[0] + 1, *TOKENS[1:FULL]]
    assert apart(logits(runner, changed), mlx_lm_logits(folders("llama"), TOKENS[:FULL])) > 100 * ROUNDING


def test_each_rope_turns_another_way(folders: Any) -> None:
    kinds = ("llama", "llama, linear rope", "llama, llama3 rope")
    plain, linear, llama3 = (logits(load(folders(kind))[0], TOKENS) for kind in kinds)
    assert min(apart(plain, linear), apart(plain, llama3), apart(linear, llama3)) > 100 * ROUNDING


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.dtype == mx.float32])
def test_tiles_and_decode_agree_with_mlx_lm_to_rounding(folders: Any, name: str) -> None:
    runner = load(folders(name), grid=16)[0]
    view = ArrayView(runner.shape)
    runner.prefill(view, TOKENS, 0, 70)
    stepped = [runner.decode([DecodeRow(view, TOKENS[i], i)])[0] for i in range(70, 75)][-1]
    assert apart(stepped, mlx_lm_logits(folders(name), TOKENS[:75])) < ROUNDING


def test_a_bias_in_bf16_agrees_with_mlx_lm_to_rounding(tmp_path: Path) -> None:
    folder = write(tmp_path, Family("qwen2", dtype=mx.bfloat16))
    ours = logits(load(str(folder), grid=FULL)[0], TOKENS[:FULL])
    assert apart(ours, mlx_lm_logits(folder, TOKENS[:FULL])) <= BF16_ROUNDING


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_packed_weights_give_the_bits_of_plain_ones_and_nearly_those_of_packed_products(
    tmp_path: Path, kind: str, bits: int
) -> None:
    import mlx_lm
    from mlx_lm.utils import dequantize_model

    folder = str(write(tmp_path, Family(kind, {"head_dim": 32, "tie_word_embeddings": True}, bits=bits)))
    ours = logits(load(folder, grid=FULL)[0], TOKENS[:FULL])
    plain = dequantize_model(mlx_lm.load(folder)[0])(mx.array([TOKENS[:FULL]]))[0, -1]
    assert mx.array_equal(ours, plain)
    assert apart(ours, mlx_lm_logits(folder, TOKENS[:FULL])) < ROUNDING


def test_rows_that_pad_the_vocabulary_cannot_be_generated(tmp_path: Path) -> None:
    folder = write(tmp_path, Family("qwen2", {"vocab_size": 544}))
    runner, tokenizer = load(str(folder), grid=FULL)
    assert runner.shape.vocab == tokenizer.vocab_size == 512
    theirs = mlx_lm_logits(folder, TOKENS[:FULL])
    assert theirs.shape == (544,)
    assert mx.array_equal(logits(runner, TOKENS[:FULL]), theirs[:512])


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_rope_settings_are_found_under_their_newer_name(tmp_path: Path, kind: str) -> None:
    older = write(tmp_path / "older", Family(kind, {"head_dim": 16}))
    config = json.loads((older / "config.json").read_text())
    newer = write(tmp_path / "newer", Family(kind, {"head_dim": 16}))
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    (newer / "config.json").write_text(json.dumps(config))
    assert config["rope_parameters"]["rope_theta"] == SMALL["rope_theta"]
    before, after = (logits(load(str(folder))[0], TOKENS) for folder in (older, newer))
    assert mx.array_equal(before, after)


def test_tokenizer_and_chat_template_come_with_the_folder(folders: Any) -> None:
    chat = [{"role": "user", "content": "Grüße"}]
    assert load(folders("qwen3"))[1].render_chat(chat) == ByteTokenizer().render_chat(chat)


# -- the bits ---------------------------------------------------------------------------------------


def warm_as_cold(runner: Runner) -> bool:
    """Whether a prefill resumed inside a tile gives the logits, keys and values of a cold one."""
    cold, warm = ArrayView(runner.shape), ArrayView(runner.shape)
    runner.prefill(warm, TOKENS, 0, 40)
    pairs = [(runner.prefill(cold, TOKENS, 0, 90), runner.prefill(warm, TOKENS, 40, 90))]
    for layer in range(runner.shape.layers):
        pairs += zip(cold.read(layer, 90), warm.read(layer, 90), strict=True)
    return all(bool(mx.array_equal(a, b)) for a, b in pairs)


def alone_as_in_company(runner: Runner) -> bool:
    """Whether a decode step gives each of five rows the bits it gets alone."""
    lengths = (3, 17, 48, 49, 90)
    views = [ArrayView(runner.shape) for _ in lengths]
    for view, length in zip(views, lengths, strict=True):
        runner.prefill(view, TOKENS, 0, length)
    rows = [DecodeRow(view, 65, length) for view, length in zip(views, lengths, strict=True)]
    alone = [runner.decode([DecodeRow(row.view.copy(), 65, row.position)])[0] for row in rows]  # type: ignore[attr-defined]
    return all(bool(mx.array_equal(a, b)) for a, b in zip(runner.decode(rows), alone, strict=True))


def report(folders: dict[str, str]) -> dict[str, bool]:
    runners = {name: load(folder, grid=16)[0] for name, folder in folders.items()}
    return {name: warm_as_cold(runner) and alone_as_in_company(runner) for name, runner in runners.items()}


def test_bits_depend_on_the_tokens_alone(folders: Any) -> None:
    assert report({name: folders(name) for name in FAMILIES}) == dict.fromkeys(FAMILIES, True)


@pytest.mark.skipif(not available(), reason=f"{OPENBLAS} is not installed (Debian: libopenblas0)")
def test_bits_depend_on_the_tokens_alone_with_openblas(folders: Any) -> None:
    code = (
        f"import ctypes; ctypes.CDLL({OPENBLAS!r}, ctypes.RTLD_GLOBAL)\n"
        "import json, sys; from tests.engine.test_pretrained import report\n"
        "print(json.dumps(report(json.loads(sys.argv[1]))))"
    )
    argument = json.dumps({name: folders(name) for name in FAMILIES})
    run = subprocess.run(
        [sys.executable, "-c", code, argument], capture_output=True, text=True, timeout=120, check=True
    )
    assert json.loads(run.stdout.splitlines()[-1]) == dict.fromkeys(FAMILIES, True)


# -- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "its model_type is None; supported are llama, mistral, qwen2, qwen3"),
        ({"model_type": "gemma2"}, "its model_type is 'gemma2'; supported are llama"),
        ({"model_type": "mamba", "state_size": 16}, "'mamba' and it is recurrent (state_size)"),
        ({"model_type": "qwen3_next", "linear_num_key_heads": 16}, "it is recurrent (linear_num_key_heads)"),
        ({"model_type": "jamba", "mamba_d_state": 16}, "it is recurrent (mamba_d_state)"),
        ({"model_type": "mixtral", "num_local_experts": 8}, "'mixtral' and it is a mixture of experts"),
        ({"model_type": "qwen3_moe", "num_experts": 128}, "a mixture of experts (num_experts)"),
        ({"model_type": "qwen2_vl", "vision_config": {"depth": 32}}, "it is multimodal (vision_config)"),
        ({"model_type": "smollm3", "no_rope_layer_interval": 4}, "some of its layers have no rope"),
        ({"model_type": "llama", "quantize_activations": True}, "it quantizes activations"),
        (
            {"model_type": "llama", "layer_types": ["full_attention", "sliding_attention"]},
            "sliding_attention",
        ),
        ({"model_type": "mistral", "sliding_window": 4096}, "see a sliding window of 4096 tokens"),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True}, "window of 64 tokens"),
        ({"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "longrope"}}, "'longrope'"),
        ({"model_type": "qwen3", "rope_scaling": {"type": "yarn", "factor": 4.0}}, "'yarn'; supported are"),
        ({"model_type": "qwen3", "rope_parameters": {"rope_type": "yarn"}}, "'yarn'"),
        ({"model_type": "llama", "rope_parameters": {"full_attention": {}}}, "differs from layer to layer"),
        ({"model_type": "llama", "partial_rotary_factor": 0.5}, "turns only 0.5 of each head"),
        ({"model_type": "llama", "hidden_act": "gelu"}, "its MLP uses 'gelu'"),
    ],
)
def test_a_model_without_canonical_bits_is_refused_by_name(config: dict[str, Any], reason: str) -> None:
    assert reason in (refusal(config) or "accepted")


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama"},
        {"model_type": "llama", "layer_types": ["full_attention"] * 2, "rope_scaling": None},
        {"model_type": "llama", "rope_scaling": {"rope_type": "llama3"}},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "qwen2", "sliding_window": 131072, "use_sliding_window": False},
        {"model_type": "qwen3", "hidden_act": "silu", "rope_parameters": {"rope_theta": 1e6}},
    ],
)
def test_a_dense_model_is_accepted(config: dict[str, Any]) -> None:
    assert refusal(config) is None


def test_a_refusal_needs_no_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mixtral", "num_local_experts": 8}')
    with pytest.raises(
        ModelError, match=r"model '.*' is refused: .*'mixtral' and it is a mixture of experts"
    ):
        load(str(tmp_path))


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "model_type": "llama"}))
    with pytest.raises(ModelError, match=r"cannot load '.*', which is none of .*: No safetensors found"):
        load(str(tmp_path))


def test_weights_that_stay_packed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlx_lm.utils.dequantize_model", lambda network: network)
    folder = write(tmp_path, Family("llama", bits=8))
    with pytest.raises(
        ModelError, match=r"is refused: .*weight is packed in a way that cannot be made plain"
    ):
        pretrained.load_pretrained(str(folder), 32)
