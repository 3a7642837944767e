"""`python -m bench device`: its counts, its comparison of bits, its phases.

Expected numbers are worked out by hand: 94 tokens a prompt (70 shared, 24 of its own) in blocks of 32, so two
whole blocks are shared and 30 tokens are left to each. With a reply of 16 tokens 109 rows are written: four
blocks, two of them its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from bench import device, mlxlm
from bench.__main__ import main as run_bench
from bench.inprocess import (
    FIXED_ROWS,
    MODES,
    SHAPES,
    Bench,
    Burst,
    Client,
    Clock,
    OutOfTime,
    Setup,
    burst,
    compare,
    decode_rate,
    in_mode,
    prompts,
    seeded_weights,
)
from engine.model import CanonicalModel, DecodeRow

SETUP = Setup(prefix=70, reply=16)
WAYS = 3
BLOCK_BYTES = 32 * 2 * 2 * 2 * 32 * 2  # tokens, layers, keys and values, kv heads, head_dim, bf16
SMALL = ["--prefix", "70", "--reply", "4", "--ways", "2", "--modes", "bits", "--rounds", "1"]


@cache
def model() -> CanonicalModel:
    return CanonicalModel(SHAPES["small"], seeded_weights(SHAPES["small"], 1), grid=32)


def engine(setup: Setup = SETUP, runner: CanonicalModel | None = None) -> Bench:
    return Bench(runner or model(), setup, WAYS, Clock(60))


def asked() -> list[list[int]]:
    return prompts(512, SETUP, WAYS, 5)


def run(bench: Bench, *, warm: bool) -> tuple[Burst, list[Client]]:
    return burst(bench, asked(), warm=warm)


def solos(bench: Bench) -> list[Client]:
    return [bench.ask([prompt], SETUP.reply, salt=f"solo {i}")[0] for i, prompt in enumerate(asked())]


# ---- counts


@pytest.mark.parametrize(("warm", "computed", "adopters"), [(False, 94 + 2 * 30, 2), (True, 3 * 30, 3)])
def test_a_burst_computes_the_shared_blocks_at_most_once(warm: bool, computed: int, adopters: int) -> None:
    found, _ = run(engine(), warm=warm)
    assert (found.computed, found.least_computed, found.adopters) == (computed, computed, adopters)


@pytest.mark.parametrize("warm", [False, True])
def test_a_burst_holds_one_copy_of_the_shared_blocks(warm: bool) -> None:
    found, _ = run(engine(), warm=warm)
    assert found.kv_peak == found.kv_least == (2 + 3 * 2) * BLOCK_BYTES


def test_without_sharing_the_same_figures_show_what_it_costs() -> None:
    found, _ = run(engine(replace(SETUP, share=False)), warm=False)
    assert (found.adopters, found.computed, found.least_computed) == (0, 3 * 94, 154)
    assert (found.kv_peak, found.kv_least) == (3 * 4 * BLOCK_BYTES, 8 * BLOCK_BYTES)


def test_a_grid_of_several_blocks_keeps_no_row_twice() -> None:
    found, _ = run(engine(replace(SETUP, grid=64), in_grid(64)), warm=True)
    assert (found.computed, found.cached_tokens) == (90, [64])


def in_grid(grid: int) -> CanonicalModel:
    return CanonicalModel(SHAPES["small"], seeded_weights(SHAPES["small"], 1), grid=grid)


def test_memory_grows_by_the_slab_that_was_asked_for() -> None:
    found, _ = run(engine(replace(SETUP, slab=16)), warm=False)
    assert found.kv_reserved == 16 * BLOCK_BYTES


# ---- bits


@pytest.mark.parametrize("mode", MODES)
def test_replies_of_a_burst_equal_the_same_requests_alone(mode: str) -> None:
    bench = engine(runner=in_mode(model(), mode))
    _, clients = run(bench, warm=True)
    found = compare(clients, solos(bench))
    assert (found.equal, found.of, found.largest_logprob_difference) == (3, 3, 0)


class Swayed(CanonicalModel):
    """A row's logits grow with the company it has."""

    def decode(self, rows: Sequence[DecodeRow]) -> list[mx.array]:
        return [logits * (1 + len(rows) / 64) for logits in super().decode(rows)]


def test_a_model_whose_rows_depend_on_company_is_not_bit_equal() -> None:
    swayed = in_mode(model(), "bits")
    swayed.__class__ = Swayed
    bench = engine(runner=swayed)
    _, clients = run(bench, warm=True)
    found = compare(clients, solos(bench))
    assert found.equal == 0
    assert found.largest_logprob_difference > 0


def test_differences_count_up_to_the_first_token_that_differs() -> None:
    one = Client(ids=[1, 2, 3], logprobs=[-1.0, -2.0, -3.0])
    other = Client(ids=[1, 9, 3], logprobs=[-1.0, -2.5, -9.0])
    found = compare([one, one], [other, one])
    assert (found.equal, found.same_ids, found.largest_logprob_difference) == (1, 1, 0.5)


def test_a_reply_depends_on_the_first_block_of_its_prompt() -> None:
    bench, prompt = engine(), asked()[0]
    first, other = bench.ask([prompt, [prompt[0] ^ 1, *prompt[1:]]], SETUP.reply)
    assert first.logprobs != other.logprobs


@pytest.mark.parametrize("rows", [1, FIXED_ROWS, FIXED_ROWS + 1])
def test_fixed_rows_give_any_number_of_rows_the_bits_of_one(rows: int) -> None:
    fixed = in_mode(model(), "fixed")
    linear = fixed._linears["model.layers.0.mlp.up_proj"]
    x = mx.random.normal((rows, 1, 128), mx.bfloat16, key=mx.random.key(0))
    alone = mx.concatenate([fixed.project(x[i : i + 1], linear) for i in range(rows)])
    assert bool(mx.array_equal(fixed.project(x, linear), alone))


# ---- rates and limits


def test_decode_is_timed_from_the_last_first_token_on() -> None:
    assert decode_rate([[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]]) == 3 / 2


def test_a_spent_budget_ends_a_burst() -> None:
    with pytest.raises(OutOfTime, match="budget of 0 s"):
        run(Bench(model(), SETUP, WAYS, Clock(0)), warm=False)


def test_a_forward_that_fails_fails_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, rows: object) -> list[mx.array]:
        raise ValueError("no such kernel")

    monkeypatch.setattr(CanonicalModel, "decode", broken)
    with pytest.raises(RuntimeError, match="no such kernel"):
        run(engine(), warm=False)


# ---- phases


def phases(tmp_path: Path, *options: str) -> dict[str, Any]:
    out = tmp_path / "device.json"
    assert device.main([*SMALL, "--out", str(out), *options]) == 0
    body = json.loads(out.read_text())
    return {phase["name"]: phase for phase in body["phases"]}


def test_every_phase_is_measured_and_one_that_cannot_run_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: object) -> None:
        raise ImportError("no transformers here")

    monkeypatch.setattr(mlxlm, "network", missing)
    monkeypatch.setattr(device, "BASES", (0,))
    found = phases(tmp_path)
    assert list(found) == ["weights", "bits: burst of 2", "bits: doctor", "bits: speed", "mlx-lm: speed"]
    assert found["mlx-lm: speed"]["failed"] == "ImportError: no transformers here"
    assert found["bits: burst of 2"]["result"]["bits_cold"]["equal"] == 2
    assert found["bits: doctor"]["result"]["promise"]["grade"] == "bits"
    assert found["bits: speed"]["result"]["decode_8_tokens_s"] > 0
    assert "124 / 124 = 1.000" in capsys.readouterr().out


def test_phases_are_skipped_once_the_budget_is_spent(tmp_path: Path) -> None:
    found = phases(tmp_path, "--budget", "0")
    assert all("budget" in phase["skipped"] for phase in found.values())


def test_the_command_line_finds_this_bench(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_bench(["device", *SMALL, "--budget", "0"]) == 0
    assert "skipped: the budget of 0 s is spent" in capsys.readouterr().out


def test_nothing_beyond_mlx_is_imported() -> None:
    script = "import sys, bench.__main__, bench.device; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "mlx.core" in loaded
    assert not loaded & {"requests", "pydantic", "fastapi", "starlette", "ruamel", "psutil", "transformers"}


def test_mlx_lm_runs_on_the_same_weights() -> None:
    weights = seeded_weights(SHAPES["small"], 1)
    network = mlxlm.network(SHAPES["small"], weights)
    ours, theirs = engine().ask(asked()[:1], 4)[0].ids, mlxlm.single(network, asked()[0], 4, Clock(60))
    logits = network(mx.array(asked()[0])[None])[0, -1]
    assert mx.argmax(logits).item() == ours[0]
    assert theirs["prefill_tokens_s"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ways", "8,x"], "'x' is not a whole number above 0"),
        (["--modes", "bits,best"], "'best' is not one of bits, fixed, fast"),
        (["--prefix", "9000"], "9028 tokens, but small has 8192 positions"),
        (["--block", "48"], "one must divide the other"),
        (["--chunk", "40"], "is not a multiple of the grid"),
    ],
)
def test_options_that_cannot_be_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        device.main([*SMALL, *options])
    assert message in capsys.readouterr().err
