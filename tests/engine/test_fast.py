"""`--determinism fast`: the same numbers from products as they come, and a promise that holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
import pytest

from bench.client import Reply, Server, engine
from engine import build as building
from engine import probe
from engine.build import Parts, build
from engine.config import EngineConfig
from engine.digest import DigestModel
from engine.fast import FastRows, fasten
from engine.faults import parts_for
from engine.kvview import ArrayView
from engine.model import CanonicalModel, DecodeRow, Runner
from engine.products import Linear
from engine.tiny import tiny
from engine.tokenizer import ByteTokenizer
from tests.engine.test_bits import needs_openblas

TOKENIZER = ByteTokenizer()
PLAIN = TOKENIZER.plain_ids()
TOKENS = [(37 * i * i + 11 * i) % 509 for i in range(300)]


def numbers(runner: Runner) -> list[mx.array]:
    """Logits of a prefill in two pieces, and of a decode step of two rows after it."""
    views = [ArrayView(runner.shape) for _ in range(2)]
    runner.prefill(views[0], TOKENS, 0, 70)
    resumed = runner.prefill(views[0], TOKENS, 70, 200)
    alone = runner.prefill(views[1], TOKENS, 0, 33)
    rows = [DecodeRow(views[0], TOKENS[200], 200), DecodeRow(views[1], TOKENS[33], 33)]
    return [resumed, alone, *runner.decode(rows)]


@pytest.mark.parametrize("fat", [False, True])
def test_a_fast_twin_computes_the_same_numbers(fat: bool) -> None:
    model = tiny(PLAIN, fat=fat)
    pairs = list(zip(numbers(model), numbers(fasten(model)), strict=True))
    assert all(mx.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in pairs)
    assert not mx.allclose(pairs[0][0], pairs[1][1], rtol=1e-4, atol=1e-4)


def test_the_model_it_was_made_from_stays_canonical() -> None:
    model = tiny(PLAIN)
    twin = fasten(model)
    assert isinstance(twin, FastRows)
    assert type(model) is CanonicalModel
    assert list(twin.tiles(40, 100)) == [(40, 99), (99, 100)]
    assert list(twin.tiles(40, 41)) == [(40, 41)]
    assert list(model.tiles(40, 100)) == [(32, 64), (64, 96), (96, 128)]


def test_a_batch_is_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: set[tuple[int, ...]] = set()
    project = CanonicalModel.project

    def watch(self: CanonicalModel, x: mx.array, linear: Linear) -> mx.array:
        shapes.add(x.shape[:2])
        return project(self, x, linear)

    monkeypatch.setattr(CanonicalModel, "project", watch)
    rows = [DecodeRow(ArrayView(tiny(PLAIN).shape), 65, 3) for _ in range(5)]
    fasten(tiny(PLAIN)).decode(rows)
    assert shapes == {(1, 5)}
    shapes.clear()
    tiny(PLAIN).decode(rows)
    assert shapes == {(5, 1)}


def test_a_model_without_products_stays_as_it_is() -> None:
    runner = DigestModel(PLAIN)
    assert fasten(runner) is runner


# ---- what an engine says of itself


class InCompany(CanonicalModel):
    def decode(self, rows: Sequence[DecodeRow]) -> list[mx.array]:
        return [logits + 2.0**-10 * len(rows) for logits in super().decode(rows)]


def grade(parts: Parts | None = None, **settings: str) -> str:
    return build(replace(EngineConfig(), **settings), parts).promise.grade  # type: ignore[arg-type]


def test_each_mode_has_its_grade() -> None:
    assert (grade(), grade(determinism="fast")) == ("bits", "tokens")


def test_a_fast_model_too_large_to_measure_at_start_promises_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "START_BYTES", 1 << 20)
    engine = build(EngineConfig(determinism="fast"))
    assert (engine.promise.grade, engine.generated_reusable) == ("decided", False)
    assert "not measured" in engine.promise.reason


def test_a_model_whose_rows_change_with_their_company_is_not_promised_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(name: str, *, seed: int | None, grid: int) -> tuple[Runner, ByteTokenizer]:
        model = tiny(PLAIN, seed=seed, grid=grid)
        model.__class__ = InCompany
        return model, TOKENIZER

    monkeypatch.setattr(building, "load", load)
    assert grade() == "decided"


def test_a_fault_breaks_a_promise_and_does_not_lower_it() -> None:
    """A suite that judged a faulty engine at a lower grade would miss the fault."""

    def spoil(runner: Runner) -> Runner:
        runner.__class__ = InCompany
        return runner

    assert grade(Parts(model=spoil)) == "bits"
    assert grade(parts_for("shape_dependent_rows")) == "bits"


@pytest.mark.parametrize("determinism", ["bits", "fast"])
def test_the_granule_does_not_move_with_the_mode(determinism: str) -> None:
    engine = build(EngineConfig(block_size=16, grid=64, chunk=64, determinism=determinism))
    assert engine.storage.granule == 64


@pytest.mark.parametrize(("determinism", "fast"), [("bits", False), ("fast", True)])
def test_adapters_run_in_the_mode_of_their_model(determinism: str, fast: bool) -> None:
    adapters = build(EngineConfig(determinism=determinism)).adapters
    assert isinstance(adapters.runner(adapters.served["a"]), FastRows) is fast


# ---- over HTTP


def warm_and_cold(server: Server) -> tuple[list[Reply], list[Reply]]:
    shared = server.prompt(600, 1)
    asked = [shared + server.prompt(24, 10 + i) for i in range(4)]
    server.burst([shared], "warm", 2)
    warm = server.burst(asked, "warm", 16)
    return warm, [server.burst([prompt], f"solo{i}", 16)[0] for i, prompt in enumerate(asked)]


def test_fast_on_the_bundled_blas_promises_tokens_and_keeps_them() -> None:
    with engine("--blas", "builtin", "--determinism", "fast") as server:
        stats = server.stats()
        assert (stats["grade"], stats["determinism"], stats["blas"]) == ("tokens", "fast", "builtin")
        warm, cold = warm_and_cold(server)
        assert [reply.cached for reply in warm] == [576] * 4
        assert [reply.ids for reply in warm] == [reply.ids for reply in cold]


@needs_openblas
def test_fast_with_openblas_promises_no_more_than_decided_and_keeps_generated_rows_private() -> None:
    with engine("--blas", "auto", "--determinism", "fast") as server:
        stats = server.stats()
        assert (stats["grade"], stats["generated_reusable"]) == ("decided", False)
        warm, cold = warm_and_cold(server)
        assert [reply.cached for reply in warm] == [576] * 4
        assert [reply.logprobs for reply in warm] != [reply.logprobs for reply in cold]


@needs_openblas
def test_bits_with_openblas_which_is_the_default_promises_bits() -> None:
    with engine() as server:
        stats = server.stats()
        assert (stats["grade"], stats["determinism"]) == ("bits", "bits")
        assert "openblas" in stats["blas"]
