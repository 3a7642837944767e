"""What rows depend on: nothing where they are exact; each way to go wrong is found by its own measurement.

The runner that the fakes spoil is the digest model, exact by construction: what is found is what was put in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx
import pytest

from engine.digest import DigestModel
from engine.kvview import KVView, noise_view
from engine.model import CanonicalModel, DecodeRow, ModelShape, Runner
from engine.probe import (
    Finding,
    decode_as_prefill,
    farthest,
    fitting,
    key_padding,
    promise,
    routes,
    startup_promise,
)
from engine.tiny import TINY, tiny_weights
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


def test_plain_products_are_measured_behind_the_longest_past_that_fits() -> None:
    assert farthest(short(10_000)) == [3840]
    assert farthest(short(2048)) == [512]
    assert farthest(short(100)) == [0]
    assert farthest(short(40)) == []


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
    assert startup_promise(CanonicalModel(TINY, weights), "bits").grade == "bits"
    assert startup_promise(InCompany(TINY, weights), "bits").grade == "decided"


def test_a_runner_without_arithmetic_is_exact() -> None:
    assert startup_promise(DigestModel(PLAIN), "fast").grade == "bits"


# ---- the past that costs nothing


def test_noise_has_its_length_and_follows_its_seed() -> None:
    shape = ModelShape(10, 2, 3, 4, 100, mx.float16)
    a, same, other = (noise_view(shape, 5, seed) for seed in (1, 1, 2))
    keys, values = a.read(1, 5)
    assert (keys.shape, keys.dtype) == ((3, 5, 4), mx.float16)
    assert mx.array_equal(keys, same.read(1, 5)[0])
    assert not mx.array_equal(keys, other.read(1, 5)[0])
    assert not mx.array_equal(keys, values)
