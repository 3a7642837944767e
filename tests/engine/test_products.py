"""Rows that share a product: as many as were measured to keep the bits they have alone, no more."""

from __future__ import annotations

from unittest.mock import Mock

import mlx.core as mx
import pytest

from engine.model import CanonicalModel
from engine.products import Linear, Together, least_rows, most_tiles, together
from tests.engine.test_model import (
    TOKENS,
    cold,
    equal,
    in_openblas,
    model,
    needs_openblas,
    tiles_alone_as_together,
)


class CompanyIsOther(CanonicalModel):
    """A tile gets another product in each number of tiles."""

    def project(self, x: mx.array, linear: Linear) -> mx.array:
        return super().project(x, linear) * (1.0 + 2.0**-12 * x.shape[0])


def test_a_product_that_depends_on_how_many_tiles_there_are_is_seen() -> None:
    assert not tiles_alone_as_together(CompanyIsOther)


@pytest.mark.parametrize(("most", "together"), [(1, [1, 1, 1, 1, 1]), (2, [2, 2, 1]), (8, [5])])
def test_as_many_tiles_as_allowed_go_together(most: int, together: list[int]) -> None:
    seen: list[int] = []

    class Counted(CanonicalModel):
        def project(self, x: mx.array, linear: Linear) -> mx.array:
            seen.extend([len(x)] if x.shape[1] > 1 and linear is self._linears[first] else [])
            return super().project(x, linear)

    first = "model.layers.0.self_attn.q_proj"
    runner = model(Counted)
    runner.most_tiles = most
    cold(runner, TOKENS, 150)
    assert seen == together


@pytest.mark.parametrize(("device", "rows", "tiles"), [(mx.gpu, 2, 1), (mx.cpu, 1, 8)])
def test_a_gpu_decodes_no_row_alone_and_computes_each_tile_alone(
    monkeypatch: pytest.MonkeyPatch, device: mx.DeviceType, rows: int, tiles: int
) -> None:
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(device))
    assert least_rows() == rows
    assert most_tiles() == tiles


def shares(weight: mx.array, height: int) -> frozenset[int]:
    return together(weight, [height])[height]


def noise(*shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(1))


def keeps_bits(height: int) -> list[int]:
    """Totals that were measured to keep bits and do so for other rows on other weights of the shape."""
    totals = sorted(shares(noise(576, 1536), height))
    weight, x = noise(1536, 576).T, noise(256, 576)
    alone = mx.concatenate([x[at : at + height] @ weight for at in range(0, 256, height)])
    return [rows for rows in totals if equal([x[:rows] @ weight], [alone[:rows]])]


def measured() -> dict[str, list[list[int]]]:
    return {str(height): [keeps_bits(height), sorted(shares(noise(576, 1536), height))] for height in (1, 32)}


def test_without_a_blas_that_rounds_by_shape_all_rows_share() -> None:
    rows, tiles = list(range(2, 17)), list(range(64, 257, 32))
    assert measured() == {"1": [rows, rows], "32": [tiles, tiles]}


@needs_openblas
@pytest.mark.parametrize("height", ["1", "32"])
def test_with_openblas_what_was_measured_holds_for_other_rows(height: str) -> None:
    kept, found = in_openblas("measured", "test_products")[height]
    assert kept == found
    assert found or height == "1"  # of this shape single rows may not share


@needs_openblas
def test_with_openblas_not_every_row_shares() -> None:
    assert in_openblas("measured", "test_products")["1"][1] != list(range(2, 17))


def test_a_gpu_is_not_asked_for_every_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = noise(8, 8)
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    assert together(weight, (1, 32)) == {}


@pytest.mark.parametrize(("totals", "apart"), [({}, 1), ({1: frozenset({2})}, 1), ({1: frozenset({3})}, 0)])
def test_rows_share_a_product_where_that_was_measured(
    monkeypatch: pytest.MonkeyPatch, totals: Together, apart: int
) -> None:
    runner, spread = model(), Mock(wraps=mx.broadcast_to)
    x, weight = noise(3, 1, 64), noise(64, 32)
    monkeypatch.setattr(mx, "broadcast_to", spread)
    assert equal([runner.project(x, Linear(weight, together=totals))], [x @ weight])
    assert spread.call_count == apart
