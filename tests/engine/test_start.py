"""A start that fails or is called off ends the process cleanly: the right code, and no word too many."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE = 60.0
SERVE = ("serve", "--port", "0", "--blas", "builtin")

LOADING = """
import sys, time
from engine import cli, worker
build, seconds, cli.LOAD_PATIENCE = worker.build, float(sys.argv[1]), float(sys.argv[2])
def slowly(*parts):
    print("loading", flush=True)
    time.sleep(seconds)
    return build(*parts)
worker.build = slowly
sys.exit(cli.main(sys.argv[3:]))
"""
"""The command line with a model that takes its time, and says that it has begun."""


def folder(path: Path, config: object) -> Path:
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def gguf(path: Path) -> Path:
    file = path / "broken.gguf"
    file.write_bytes(b"GGUF" + bytes(40))
    return file


LLAMA = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
         "intermediate_size": 8, "vocab_size": 8, "rms_norm_eps": 1e-6}  # fmt: skip
WRONG = {
    "no folder of a model": lambda path: path,
    "a family that is refused": lambda path: folder(path, {"model_type": "mamba"}),
    "a config without weights": lambda path: folder(path, LLAMA),
    "a broken file": gguf,
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_model_that_cannot_be_had_ends_in_one_line(wrong: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "engine", *SERVE, "--model", str(WRONG[wrong](tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith("python -m engine: --model: ")


@pytest.mark.parametrize(
    ("seconds", "patience"), [(0.0, PATIENCE), (2 * PATIENCE, 0.1)], ids=["in time", "not in time"]
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_a_model_loads_ends_it_cleanly(
    number: signal.Signals, seconds: float, patience: float
) -> None:
    command = [sys.executable, "-c", LOADING, str(seconds), str(patience), *SERVE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (0, "", "")
