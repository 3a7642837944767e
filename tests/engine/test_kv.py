"""Slabs of keys and values: rows land where they should and nothing old shows through."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import mlx.core as mx
import pytest

from engine import kv
from engine.kv import BlockStore
from engine.model import CanonicalModel, DecodeRow, ModelShape, Slot
from engine.tiny import TINY, FatModel, tiny_weights
from engine.tokenizer import ByteTokenizer

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


@pytest.mark.parametrize("table", [[2, 5, 8], [0, 3, 1], [9, 10, 3]])
def test_every_other_head_is_read_where_asked(store: BlockStore, table: list[int]) -> None:
    k, v = rows(10)
    store.view(table).write(0, 0, k, v)
    read_k, read_v = store.view(table).read(0, 10, every=2)
    assert same(read_k, k[:1])
    assert same(read_v, v[:1])


@pytest.mark.parametrize(
    ("blocks", "runs"),
    [
        ([3, 4, 5], [(3, 6, 1)]),
        ([0, 2, 4, 5], [(0, 5, 2), (5, 6, 1)]),
        ([6, 7, 8, 9], [(6, 8, 1), (8, 10, 1)]),
        ([5, 2, 3], [(5, 6, 1), (2, 4, 1)]),
        ([4], [(4, 5, 1)]),
    ],
)
def test_blocks_that_rise_evenly_in_a_slab_are_one_window(
    blocks: list[int], runs: list[tuple[int, int, int]]
) -> None:
    assert list(kv._runs(blocks, 8)) == runs


def test_a_copy_copies_no_slab() -> None:
    store = BlockStore(ModelShape(8, 1, 1, 32, 4096, mx.float32), block_size=32)
    k = mx.zeros((1, 32, 32))
    for block in range(65):
        store.put(0, block, 0, k, k)
    store.settle()
    assert _peak_rise(lambda: store.copy(3, 40)) <= 4 * store.block_bytes


# ---- what a decode step allocates

SEQUENCES, LENGTH = 8, 1000


class GathersAtOnce(CanonicalModel):
    """Nothing is evaluated before all sequences have read: their rows of a layer exist twice."""

    def _attended(self, layer: int, q: mx.array, slots: Sequence[Slot]) -> mx.array:
        rows = [self.attend(q[n], *self.read(slot, layer), slot.mask) for n, slot in enumerate(slots)]
        return self._merged(layer, rows)


class ReadsAsItWrites(CanonicalModel):
    """Each sequence writes behind the pending readers of those before it, and the slab is copied for it."""

    def _attention(self, layer: int, x: mx.array, slots: Sequence[Slot]) -> mx.array:
        q, k, v = self._heads(layer, x, slots)
        rows = []
        for n, slot in enumerate(slots):
            self.write(slot, layer, k[n], v[n])
            rows.append(self.attend(q[n], *self.read(slot, layer), slot.mask))
        merged = mx.stack(rows).swapaxes(1, 2).reshape(*x.shape[:2], -1)
        return self._linear(layer, "self_attn.o_proj", merged)


def tables(order: str) -> list[list[int]]:
    """Where 8 sequences have their blocks: behind each other, in turns, or anywhere."""
    each = LENGTH // 32 + 1
    if order == "in turns":
        return [list(range(i, SEQUENCES * each, SEQUENCES)) for i in range(SEQUENCES)]
    ids = list(range(SEQUENCES * each))
    if order == "anywhere":
        random.Random(1).shuffle(ids)
    return [ids[i * each : (i + 1) * each] for i in range(SEQUENCES)]


def share_of_pool(runner: CanonicalModel, order: str = "in a row") -> float:
    """What one decode step of 8 sequences of 1,000 tokens allocates at its peak, as a share of the pool."""
    store = BlockStore(runner.shape, block_size=32)
    views = [store.view(table) for table in tables(order)]
    for view in views:
        for layer in range(runner.shape.layers):
            noise = mx.random.normal((runner.shape.kv_heads, LENGTH, runner.shape.head_dim))
            view.write(layer, 0, noise, noise)
        store.settle()
    del noise
    steps = [DecodeRow(view, 65, LENGTH) for view in views]
    in_use = sum(map(len, tables(order))) * store.block_bytes
    return _peak_rise(lambda: runner.decode(steps)) / in_use


def tiny(kind: type[CanonicalModel] = CanonicalModel) -> CanonicalModel:
    return kind(TINY, tiny_weights(ByteTokenizer().plain_ids()))


@pytest.mark.parametrize("order", ["in a row", "in turns", "anywhere"])
def test_a_decode_step_allocates_less_than_a_tenth_of_the_pool(order: str) -> None:
    assert share_of_pool(tiny(), order) < 0.1


@pytest.mark.parametrize("kind", [GathersAtOnce, ReadsAsItWrites])
def test_rows_gathered_for_all_sequences_at_once_take_more_than_a_tenth(kind: type[CanonicalModel]) -> None:
    assert share_of_pool(tiny(kind)) > 0.2


def test_of_equal_heads_a_decode_step_copies_one() -> None:
    assert share_of_pool(tiny(FatModel)) < 0.01


def test_the_pool_grows_without_being_copied() -> None:
    """foot/3 on blocks of 2 MiB, as `tiny-fat` has them."""
    store = BlockStore(ModelShape(8, 2, 128, 32, 4096, mx.float32), block_size=32)
    rise = _peak_rise(lambda: _fill(store, 40))
    assert 40 * store.block_bytes == 80 << 20
    assert 80 << 20 <= rise <= 1.15 * (80 << 20)


def _fill(store: BlockStore, blocks: int) -> None:
    for block in range(blocks):
        for layer in range(2):
            rows = mx.full((128, 32, 32), block + layer)
            store.put(layer, block, 0, rows, rows)
        store.settle()


def _peak_rise(act: Callable[[], object]) -> int:
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    act()
    return mx.get_peak_memory() - before


def test_a_block_larger_than_a_slab_gets_a_slab_of_its_own() -> None:
    fat = ModelShape(8, 2, 64, 64, 64, mx.float32)
    assert BlockStore(fat, block_size=64).slab_blocks == 1
