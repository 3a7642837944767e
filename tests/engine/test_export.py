"""The exported folder as mlx-lm and transformers read it: the same model, the same ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from engine.export import export
from engine.kvview import ArrayView
from engine.model import ModelError, Runner, load
from engine.tokenizer import HFTokenizer

TEXT = "Bäume 日本 <|im_end|>|x|"
CHAT = [{"role": "user", "content": "Grüße"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("export") / "deep" / "tiny"
    export(target)
    return target


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Any:
    return load(str(folder))


def logits(runner: Runner, tokens: list[int]) -> mx.array:
    return runner.prefill(ArrayView(runner.shape), tokens, 0, len(tokens))


def test_the_folder_holds_what_a_loader_looks_for(folder: Path) -> None:
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {p.name for p in folder.iterdir()} == names
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["rope_theta"], config["head_dim"]) == ("llama", 10000.0, 32)


def test_the_exported_model_comes_back_bit_equal(loaded: tuple[Runner, Any]) -> None:
    tokens = list(range(40, 140))
    assert mx.array_equal(logits(loaded[0], tokens), logits(load("tiny")[0], tokens))


def test_mlx_lms_own_forward_agrees(folder: Path) -> None:
    import mlx_lm

    network = mlx_lm.load(str(folder))[0]
    tokens = list(range(40, 140))
    assert mx.allclose(network(mx.array([tokens]))[0, -1], logits(load("tiny")[0], tokens), atol=1e-2, rtol=0)


def test_the_exported_tokenizer_gives_the_same_ids(loaded: tuple[Any, HFTokenizer]) -> None:
    own = load("tiny")[1]
    other = loaded[1]
    assert other.encode(TEXT) == own.encode(TEXT)
    assert other.decode(own.encode(TEXT)) == TEXT
    assert other.render_chat(CHAT) == own.render_chat(CHAT)
    assert (other.vocab_size, other.eos_ids) == (own.vocab_size, own.eos_ids)
    assert set(own.plain_ids()) <= set(other.plain_ids())


def test_another_seed_exports_other_weights(folder: Path, tmp_path: Path) -> None:
    export(tmp_path, seed=1)
    a, b = (mx.load(str(f / "model.safetensors")) for f in (folder, tmp_path))
    assert isinstance(a, dict)
    assert isinstance(b, dict)
    assert a.keys() == b.keys()
    assert not mx.array_equal(a["lm_head.weight"], b["lm_head.weight"])


@pytest.mark.parametrize("name", ["tiny-fat", "digest", "/some/folder"])
def test_only_tiny_can_be_exported(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"cannot export '{name}': only tiny"):
        export(tmp_path / "new", name)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"cannot write to '.*file/x': Not a directory"):
        export(tmp_path / "file" / "x")


def test_a_quantized_folder_is_read_as_plain_weights(folder: Path, tmp_path: Path) -> None:
    from mlx_lm import convert

    target = tmp_path / "quantized"
    convert(str(folder), mlx_path=str(target), quantize=True, q_bits=8, q_group_size=32)
    tokens = list(range(40, 140))
    apart = mx.abs(logits(load(str(target))[0], tokens) - logits(load("tiny")[0], tokens)).max()
    assert 0 < float(apart) < 5


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        ModelError, match=r"cannot load '.*nowhere', which is none of tiny, tiny-fat, digest: "
    ):
        load(str(tmp_path / "nowhere"))


def test_a_folder_of_another_family_is_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(folder / name)
    config = json.loads((folder / "config.json").read_text())
    config["rope_scaling"] = {"type": "dynamic", "factor": 2.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="is refused: its rope scaling is 'dynamic'"):
        load(str(tmp_path))
