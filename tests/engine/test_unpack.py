"""A GGUF file unpacked for other servers: the folder computes what the file does and reads as it does."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import pytest

from engine.cli import main
from engine.model import ModelError, load
from engine.unpack import unpack
from tests.engine.test_gguf import CONFIG, TEXT, logits, save, sizes, tensors, vocabulary
from tests.engine.test_model import random_weights

PLAIN = {name: w for name, w in random_weights(CONFIG).items() if not name.endswith("bias")}
"""As Llamas are: mlx-lm's form has a bias in all four products of attention or in none."""


def test_the_folder_computes_and_reads_as_the_file_does(tmp_path: Path) -> None:
    path, folder = save(tmp_path, PLAIN), tmp_path / "made" / "here"
    unpack(path, folder)
    (ours, text), (theirs, same) = load(path), load(str(folder))
    assert mx.array_equal(logits(ours), logits(theirs))
    assert same.encode(TEXT) == text.encode(TEXT)
    assert same.eos_ids == text.eos_ids
    chat = [{"role": "user", "content": "x"}]
    assert same.render_chat(chat) == text.render_chat(chat)


def test_other_weights_would_show(tmp_path: Path) -> None:
    path = save(tmp_path, PLAIN)
    unpack(path, tmp_path / "folder")
    other = {name: w * 1.01 for name, w in PLAIN.items()}
    (tmp_path / "other").mkdir()
    changed = load(save(tmp_path / "other", other))[0]
    assert not mx.array_equal(logits(load(str(tmp_path / "folder"))[0]), logits(changed))


def test_what_the_config_says_is_what_mlx_lm_reads(tmp_path: Path) -> None:
    unpack(save(tmp_path, PLAIN), tmp_path / "folder")
    said = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert (said["model_type"], said["architectures"]) == ("llama", ["LlamaForCausalLM"])
    assert (said["rope_theta"], said["tie_word_embeddings"]) == (CONFIG.rope_theta, True)


def test_a_stretched_rope_is_refused_by_name(tmp_path: Path) -> None:
    arrays = tensors(random_weights(CONFIG), interleaved=True)
    arrays["rope_freqs.weight"] = mx.ones(CONFIG.head_dim // 2)
    path = str(tmp_path / "stretched.gguf")
    mx.save_gguf(path, arrays, sizes(CONFIG) | vocabulary())
    with pytest.raises(ModelError, match=r"stretched\.gguf.*stretched rope"):
        unpack(path, tmp_path / "folder")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"cannot write to .*file"):
        unpack(save(tmp_path, PLAIN), tmp_path / "file")


def test_the_command_unpacks_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "export", "--model", save(tmp_path, PLAIN), str(tmp_path / "folder")]) == 0
    assert (tmp_path / "folder" / "model.safetensors").exists()
    assert capsys.readouterr().out.startswith("wrote ")
