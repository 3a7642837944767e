"""Slabs of keys and values: rows land where they should and nothing old shows through."""

from __future__ import annotations

from collections.abc import Callable

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
    assert store.bytes_reserved == 3 * store.block_bytes
    store.put(0, 0, 0, k, v)
    assert store.bytes_reserved == 6 * store.block_bytes


@pytest.mark.parametrize(("live", "slabs"), [([0, 4, 8], 3), ([8], 1), ([0, 1], 1), ([1, 7], 2), ([], 0)])
def test_a_slab_without_a_live_block_goes_wherever_it_lies(
    store: BlockStore, live: list[int], slabs: int
) -> None:
    k, v = rows(4)
    for block in (0, 4, 8):
        store.put(0, block, 0, k + block, v)
    store.shrink(live)
    assert store.bytes_reserved == slabs * 3 * store.block_bytes
    for block in {0, 4, 8} & set(live):
        assert same(store.view([block]).read(0, 4)[0], k + block)


def test_a_write_behind_a_pending_reader_copies_no_slab() -> None:
    """Eight sequences write and read in turn before anything is evaluated, as one decode step does."""
    store = BlockStore(ModelShape(8, 1, 1, 32, 4096, mx.float32), block_size=32)
    k = mx.zeros((1, 32, 32))
    for block in range(64):
        store.put(0, block, 0, k, k)
    store.settle()
    assert _peak_rise(lambda: _decode(store, 8)) < store.bytes_reserved / 10


def test_the_pool_grows_without_being_copied() -> None:
    """foot/3 on blocks of 2 MiB, as `tiny-fat` has them."""
    store = BlockStore(ModelShape(8, 2, 128, 32, 4096, mx.float32), block_size=32)
    rise = _peak_rise(lambda: _fill(store, 40))
    assert 40 * store.block_bytes == 80 << 20
    assert 80 << 20 <= rise <= 1.15 * (80 << 20)


def _decode(store: BlockStore, sequences: int) -> None:
    one = mx.ones((1, 1, 32))
    said = []
    for block in range(sequences):
        view = store.view([block])
        view.write(0, 16, one, one)
        said.append(view.read(0, 32)[0].sum())
    mx.eval(said)
    assert [value.item() for value in said] == [32.0] * sequences


def _fill(store: BlockStore, blocks: int) -> None:
    for block in range(blocks):
        for layer in range(2):
            rows = mx.full((128, 32, 32), block + layer)
            store.put(layer, block, 0, rows, rows)
        store.settle()


def _peak_rise(act: Callable[[], None]) -> int:
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    act()
    return mx.get_peak_memory() - before


def test_a_block_larger_than_a_slab_gets_a_slab_of_its_own() -> None:
    fat = ModelShape(8, 2, 64, 64, 64, mx.float32)
    assert BlockStore(fat, block_size=64).slab_blocks == 1
