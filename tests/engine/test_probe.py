"""What rows depend on: nothing where they are exact; each way to go wrong is found by its own measurement.

The runner that the fakes spoil is the digest model, exact by construction: what is found is what was put in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
import pytest

from engine import probe
from engine.digest import DigestModel
from engine.fast import fasten
from engine.kvview import KVView, noise_view
from engine.model import CanonicalModel, DecodeRow, ModelShape, Runner
from engine.probe import (
    START_BYTES,
    Finding,
    Promise,
    Start,
    affordable,
    at_start,
    decode_as_prefill,
    fitting,
    key_padding,
    promise,
    routes,
)
from engine.tiny import TINY, tiny, tiny_weights
from engine.tokenizer import ByteTokenizer

PLAIN = ByteTokenizer().plain_ids()
STEP = 2.0**-10
"""What a fake adds: exact beside logits of a few units."""


class ByBatchSize(DigestModel):
    def decode(self, rows: Sequence[DecodeRow]) -> list[mx.array]:
        return [logits + STEP * len(rows) for logits in super().decode(rows)]


class ByPosition(DigestModel):
    """The last place of a full batch is another one, as a kernel's left-over rows are."""

    def decode(self, rows: Sequence[DecodeRow]) -> list[mx.array]:
        logits = super().decode(rows)
        return [*logits[:7], *(one + STEP for one in logits[7:])]


class ByCut(DigestModel):
    def prefill(self, view: KVView, tokens: Sequence[int], start: int, stop: int) -> mx.array:
        return super().prefill(view, tokens, start, stop) + STEP * (stop - start)


class ByCutInRows(DigestModel):
    """Logits are right; one stored row is not."""

    def prefill(self, view: KVView, tokens: Sequence[int], start: int, stop: int) -> mx.array:
        logits = super().prefill(view, tokens, start, stop)
        if start % self.grid:
            keys, values = view.read(0, start + 1)
            view.write(0, start, keys[:, start:] + 1.0, values[:, start:])
        return logits


class ByDecode(DigestModel):
    """A decoded row is one unit off."""

    def decode(self, rows: Sequence[DecodeRow]) -> list[mx.array]:
        logits = super().decode(rows)
        for row in rows:
            keys, values = row.view.read(0, row.position + 1)
            row.view.write(0, row.position, keys[:, row.position :] + 1.0, values[:, row.position :])
        return logits


def found(runner: Runner) -> dict[str, bool]:
    return {f.what: f.equal for f in [*routes(runner, (0, 64)), decode_as_prefill(runner, (0, 64))]}


ROUTES = ["batch size", "position in the batch", "cut of the prefill", "decode or prefill"]


def test_a_runner_that_is_exact_depends_on_nothing() -> None:
    assert found(DigestModel(PLAIN)) == dict.fromkeys(ROUTES, True)


@pytest.mark.parametrize(
    ("kind", "differing"),
    [
        (ByBatchSize, {"batch size", "decode or prefill"}),
        (ByPosition, {"batch size", "position in the batch"}),
        (ByCut, {"cut of the prefill", "decode or prefill"}),
        (ByCutInRows, {"cut of the prefill"}),
        (ByDecode, {"decode or prefill"}),
    ],
)
def test_what_a_runner_depends_on_is_found(kind: type[DigestModel], differing: set[str]) -> None:
    assert found(kind(PLAIN)) == {what: what not in differing for what in ROUTES}


def test_the_largest_difference_is_told() -> None:
    size, *_ = routes(ByBatchSize(PLAIN), (0,))
    assert size == Finding("batch size", False, 7 * STEP)


def test_a_difference_that_is_no_number_is_infinite() -> None:
    class Broken(DigestModel):
        def decode(self, rows: Sequence[DecodeRow]) -> list[mx.array]:
            return [logits * (math.nan if len(rows) > 1 else 1.0) for logits in super().decode(rows)]

    assert routes(Broken(PLAIN), (0,))[0].difference == math.inf


@pytest.mark.parametrize("grid", [1, 3, 32, 128])
def test_any_grid_is_measured(grid: int) -> None:
    assert found(DigestModel(PLAIN, grid=grid)) == dict.fromkeys(ROUTES, True)
    assert not found(ByCut(PLAIN, grid=grid))["cut of the prefill"]


def short(positions: int) -> DigestModel:
    runner = DigestModel(PLAIN)
    runner.shape = ModelShape(512, 1, 1, 4, positions, mx.float32)
    return runner


def test_bases_are_grid_lines_with_room_behind_them() -> None:
    assert fitting(short(600), (0, 5, 520, 3840), 64) == [0, 512]


def test_a_model_without_room_gives_no_finding_and_no_promise() -> None:
    assert routes(short(40)) == []
    assert promise(routes(short(40)), "bits").grade == "decided"


@pytest.mark.parametrize("determinism", ["bits", "fast"])
@pytest.mark.parametrize(
    ("positions", "bases"), [(10_000, [0, 512, 3840]), (2048, [0, 512]), (400, [0]), (30, [])]
)
def test_decode_is_compared_behind_every_past_that_fits(
    positions: int, bases: list[int], determinism: str
) -> None:
    assert affordable(short(positions), determinism) == bases


def test_a_past_too_large_for_the_start_leaves_nothing_worth_measuring() -> None:
    runner = short(10_000)
    runner.shape = replace(runner.shape, layers=200)
    assert 512 * runner.shape.kv_bytes_per_token < START_BYTES < 3840 * runner.shape.kv_bytes_per_token
    assert affordable(runner, "bits") == []


@pytest.mark.parametrize("stop", [7, 8])
def test_decode_is_measured_on_rows_that_it_wrote_itself(stop: int) -> None:
    """A decode that writes nothing must not find what prefill had written."""

    class Writeless(DigestModel):
        def decode(self, rows: Sequence[DecodeRow]) -> list[mx.array]:
            return super().decode([replace(row, view=row.view.copy()) for row in rows])  # type: ignore[attr-defined]

    assert not decode_as_prefill(Writeless(PLAIN, grid=stop), (0,)).equal


# ---- attention


class ByKeys(CanonicalModel):
    """Attention whose rounding follows the number of keys, masked ones too."""

    def attend(self, q: mx.array, k: mx.array, v: mx.array, mask: mx.array) -> mx.array:
        return super().attend(q, k, v, mask) + STEP * k.shape[1]


def test_padded_keys_change_nothing_on_the_bundled_blas() -> None:
    assert key_padding(CanonicalModel(TINY, tiny_weights(PLAIN))).equal


def test_attention_that_depends_on_padding_is_found() -> None:
    assert not key_padding(ByKeys(TINY, tiny_weights(PLAIN))).equal


# ---- promises

SAME, OTHER = Finding("batch size", True, 0.0), Finding("cut of the prefill", False, 3e-5)


@pytest.mark.parametrize(
    ("findings", "determinism", "grade", "reason"),
    [
        ([SAME], "bits", "bits", "no route that was measured changes a bit"),
        ([SAME], "fast", "tokens", "no shape is held fixed"),
        ([SAME, OTHER], "bits", "decided", "rows change with the cut of the prefill, by up to 3.0e-05"),
        ([SAME, OTHER], "fast", "decided", "rows change with the cut of the prefill, by up to 3.0e-05"),
        ([], "bits", "decided", "too few positions"),
    ],
)
def test_a_grade_follows_from_the_findings(
    findings: list[Finding], determinism: str, grade: str, reason: str
) -> None:
    made = promise(findings, determinism)
    assert made.grade == grade
    assert reason in made.reason


class InCompany(CanonicalModel):
    """Rows change with their company: what canonical compute is there to prevent."""

    def decode(self, rows: Sequence[DecodeRow]) -> list[mx.array]:
        return [logits + STEP * len(rows) for logits in super().decode(rows)]


def test_an_engine_that_starts_promises_bits_only_where_they_hold() -> None:
    weights = tiny_weights(PLAIN)
    assert at_start(CanonicalModel(TINY, weights), "bits").promise.grade == "bits"
    assert at_start(InCompany(TINY, weights), "bits").promise.grade == "decided"


def test_a_runner_without_arithmetic_is_exact() -> None:
    assert at_start(DigestModel(PLAIN), "fast") == Start(
        Promise("bits", "rows are exact whatever computes them"), True
    )


def test_a_model_shorter_than_a_tile_is_promised_nothing() -> None:
    short = CanonicalModel(replace(TINY, max_position_embeddings=20), tiny_weights(PLAIN))
    known = at_start(short, "bits")
    assert (known.promise.grade, known.generated_reusable) == ("decided", False)
    assert "too few positions" in known.promise.reason


class FarOff(CanonicalModel):
    """Decode parts from prefill behind a long past only."""

    def decode(self, rows: Sequence[DecodeRow]) -> list[mx.array]:
        return [logits + 1e-3 * (rows[0].position > 3000) for logits in super().decode(rows)]


def test_generated_rows_are_shared_only_where_decode_agrees_everywhere() -> None:
    weights = tiny_weights(PLAIN)
    assert at_start(CanonicalModel(TINY, weights), "bits").generated_reusable
    assert at_start(FarOff(TINY, weights), "bits") == replace(
        at_start(CanonicalModel(TINY, weights), "bits"), generated_reusable=False
    )


def test_generated_rows_of_a_model_too_large_to_measure_stay_private(monkeypatch: pytest.MonkeyPatch) -> None:
    model = CanonicalModel(TINY, tiny_weights(PLAIN))
    monkeypatch.setattr(probe, "START_BYTES", 3840 * model.shape.kv_bytes_per_token - 1)
    monkeypatch.setattr(probe, "decode_as_prefill", None)  # what cannot be used is not measured either
    known = at_start(model, "bits")
    assert (known.promise.grade, known.generated_reusable) == ("bits", False)


@pytest.mark.parametrize("determinism", ["bits", "fast"])
def test_equal_heads_are_measured_once(determinism: str) -> None:
    fat, thin = (tiny(PLAIN, fat=fat) for fat in (True, False))
    modes = [fasten(model) if determinism == "fast" else model for model in (fat, thin)]
    assert at_start(modes[0], determinism) == at_start(modes[1], determinism)
    assert affordable(modes[0], determinism) == []


# ---- the past that costs nothing


def test_noise_has_its_length_and_follows_its_seed() -> None:
    shape = ModelShape(10, 2, 3, 4, 100, mx.float16)
    a, same, other = (noise_view(shape, 5, seed) for seed in (1, 1, 2))
    keys, values = a.read(1, 5)
    assert (keys.shape, keys.dtype) == ((3, 5, 4), mx.float16)
    assert mx.array_equal(keys, same.read(1, 5)[0])
    assert not mx.array_equal(keys, other.read(1, 5)[0])
    assert not mx.array_equal(keys, values)
