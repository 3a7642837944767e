"""Slabs of keys and values: rows land where they should and nothing old shows through."""

from __future__ import annotations

import mlx.core as mx
import pytest

from engine import kv
from engine.kv import BlockStore
from engine.model import ModelShape

SHAPE = ModelShape(vocab=8, layers=2, kv_heads=2, head_dim=3, max_positions=64, dtype=mx.float32)


def rows(length: int, start: float = 1.0) -> tuple[mx.array, mx.array]:
    k = mx.arange(length * 6, dtype=mx.float32).reshape(2, length, 3) + start
    return k, -k


def same(a: mx.array, b: mx.array) -> bool:
    return bool(mx.array_equal(a, b))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> BlockStore:
    monkeypatch.setattr(kv, "_SLAB_BLOCKS", 3)
    return BlockStore(SHAPE, block_size=4)


@pytest.mark.parametrize("table", [[0, 1, 2], [2, 3, 4], [5, 0, 9], [1, 0, 2]])
def test_what_is_written_through_a_table_is_read_back(store: BlockStore, table: list[int]) -> None:
    k, v = rows(10)
    view = store.view(table)
    for layer in range(2):
        view.write(layer, 0, k + layer, v + layer)
    for layer in range(2):
        read_k, read_v = view.read(layer, 10)
        assert same(read_k, k + layer)
        assert same(read_v, v + layer)


def test_rows_appended_one_by_one_equal_rows_written_at_once(store: BlockStore) -> None:
    k, v = rows(7)
    view = store.view([4, 1])
    for at in range(7):
        view.write(0, at, k[:, at : at + 1], v[:, at : at + 1])
    assert same(view.read(0, 7)[0], k)
    assert same(view.read(0, 7)[1], v)


def test_a_recycled_block_shows_zeros_where_nothing_was_written(store: BlockStore) -> None:
    bad = mx.full((2, 4, 3), float("nan"))
    store.view([0]).write(0, 0, bad, bad)
    k, v = rows(1)
    store.view([0]).write(0, 0, k, v)
    read, _ = store.view([0]).read(0, 4)
    assert same(read[:, 1:], mx.zeros((2, 3, 3)))


def test_positions_past_the_table_read_as_zeros(store: BlockStore) -> None:
    k, v = rows(4)
    store.view([0]).write(0, 0, k, v)
    read, _ = store.view([0]).read(0, 9)
    assert read.shape == (2, 9, 3)
    assert same(read[:, 4:], mx.zeros((2, 5, 3)))


def test_a_copy_is_independent_of_its_source(store: BlockStore) -> None:
    k, v = rows(4)
    for layer in range(2):
        store.view([0]).write(layer, 0, k, v)
    store.copy(0, 5)
    store.view([0]).write(0, 0, k * 9, v)
    assert same(store.view([5]).read(0, 4)[0], k)
    assert same(store.view([5]).read(1, 4)[1], v)


def test_bytes_follow_the_slabs_that_exist(store: BlockStore) -> None:
    assert store.block_bytes == 2 * 2 * 4 * 2 * 3 * 4
    assert store.bytes_reserved == 0
    k, v = rows(1)
    store.put(0, 4, 0, k, v)
    assert store.bytes_reserved == 6 * store.block_bytes
    store.shrink(2)
    assert store.bytes_reserved == 3 * store.block_bytes
    store.shrink(0)
    assert store.bytes_reserved == 0


def test_a_block_larger_than_a_slab_gets_a_slab_of_its_own() -> None:
    fat = ModelShape(8, 2, 64, 64, 64, mx.float32)
    assert BlockStore(fat, block_size=64).slab_blocks == 1
