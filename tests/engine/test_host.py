"""Rows in Python's memory read back as those on a device do, and logits rank as they do there."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable

import mlx.core as mx
import pytest

from engine import host
from engine.host import HostRows, HostStore
from engine.kvview import ArrayView, KVView
from engine.model import ModelShape

SHAPE = ModelShape(8, layers=2, kv_heads=1, head_dim=3, max_positions=64, dtype=mx.float32, on_host=True)
TABLE = [5, 0, 9, 2]
"""Sixteen positions in blocks of four."""


def rows(length: int, start: float) -> tuple[mx.array, mx.array]:
    k = mx.arange(length * 3, dtype=mx.float32).reshape(1, length, 3) + start
    return k, -k


def same(a: tuple[mx.array, mx.array], b: tuple[mx.array, mx.array]) -> bool:
    return all(bool(mx.array_equal(x, y)) for x, y in zip(a, b, strict=True))


def paged() -> KVView:
    return HostStore(SHAPE, 4).view(TABLE)


def whole() -> KVView:
    return HostRows(SHAPE)


@pytest.mark.parametrize("make", [paged, whole])
@pytest.mark.parametrize("seed", range(20))
def test_what_grows_in_any_steps_reads_as_in_arrays(make: Callable[[], KVView], seed: int) -> None:
    """Rows are written in order, sometimes again from an earlier one, as a sequence does."""
    chance, view, model, length = random.Random(seed), make(), ArrayView(SHAPE), 0
    while length < 16:
        start = chance.randint(max(0, length - 2), length)
        k, v = rows(chance.randint(1, 16 - start), 100.0 * chance.random())
        length = start + k.shape[1]
        for layer in range(2):
            for one in (view, model):
                one.write(layer, start, k + layer, v)
            read = chance.randint(1, length)
            assert same(view.read(layer, read), model.read(layer, read))


@pytest.mark.parametrize("make", [paged, whole])
def test_positions_that_nobody_wrote_read_as_zeros(make: Callable[[], KVView]) -> None:
    view = make()
    k, v = rows(4, 1.0)
    view.write(1, 4, k, v)
    keys, values = view.read(1, 20)
    assert keys.shape == values.shape == (1, 20, 3)
    assert not mx.any(keys[:, :4])
    assert same((keys[:, 4:8], values[:, 4:8]), (k, v))
    assert not mx.any(keys[:, 8:])
    assert not mx.any(view.read(0, 8)[0])


def test_a_recycled_block_shows_zeros_where_nothing_was_written() -> None:
    store = HostStore(SHAPE, 4)
    bad = mx.full((1, 4, 3), float("nan"))
    store.put(0, 7, 0, bad, bad)
    store.put(0, 7, 0, *rows(1, 2.0))
    assert not mx.any(store.view([7]).read(0, 4)[0][:, 1:])


def test_an_array_that_is_still_to_be_computed_is_stored_as_it_will_be() -> None:
    store = HostStore(SHAPE, 4)
    k, v = rows(8, 0.0)
    store.put(0, 3, 1, k[:, 1:6:2] * 2, v[:, 5:8])
    assert same(store.view([3]).read(0, 4), (mx.pad(k[:, 1:6:2] * 2, [(0, 0), (1, 0), (0, 0)]),
                                             mx.pad(v[:, 5:8], [(0, 0), (1, 0), (0, 0)])))  # fmt: skip


def test_a_copy_is_independent_of_its_source() -> None:
    store, (k, v) = HostStore(SHAPE, 4), rows(4, 1.0)
    for layer in range(2):
        store.put(layer, 0, 0, k, v)
    store.copy(0, 5)
    store.put(0, 0, 0, k * 9, v)
    assert same(store.view([5]).read(0, 4), (k, v))
    assert same(store.view([5]).read(1, 4), (k, v))
    own = HostRows(SHAPE)
    own.write(0, 0, k, v)
    twin = own.copy()
    own.write(0, 2, k, v)
    assert same(twin.read(0, 4), (k, v))
    assert not same(own.read(0, 4), (k, v))


def test_blocks_come_as_they_are_told() -> None:
    store, (k, v) = HostStore(SHAPE, 4), rows(4, 1.0)
    store.put(1, 6, 0, k, v)
    store.put(1, 2, 0, v, k)
    keys, values = store.rows(1, [2, 6])
    assert same((keys, values), (mx.stack([v, k]), mx.stack([k, v])))


def test_memory_comes_with_the_first_row_of_a_block_and_goes_with_the_block() -> None:
    store = HostStore(SHAPE, 4)
    assert store.block_bytes == 2 * 2 * 4 * 3 * 4
    assert store.bytes_reserved == 0
    for block in (1, 4):
        store.put(0, block, 0, *rows(1, 1.0))
    store.settle()
    assert store.bytes_reserved == 2 * store.block_bytes
    store.shrink([4])
    assert store.bytes_reserved == store.block_bytes
    assert same(store.view([4]).read(0, 1), rows(1, 1.0))


@pytest.mark.parametrize(("heads", "dtype"), [(2, mx.float32), (1, mx.float16)])
def test_rows_of_other_models_are_refused(heads: int, dtype: mx.Dtype) -> None:
    shape = ModelShape(8, 1, heads, 3, 64, dtype)
    with pytest.raises(ValueError, match="one head in float32"):
        HostStore(shape, 4)


# ---- logits


def logits(seed: int) -> mx.array:
    return mx.random.normal((50,), key=mx.random.key(seed)) * 5


@pytest.mark.parametrize("seed", range(10))
def test_a_token_ranks_as_on_a_device(seed: int) -> None:
    row = logits(seed)
    assert host.best(row).item() == mx.argmax(row).item()
    [(token, logprob, top)] = host.ranked([(mx.array(seed), row)], 3)
    truth = row - mx.logsumexp(row)
    order: list[int] = mx.argsort(-row)[:3].tolist()  # type: ignore[assignment]
    assert token == seed
    assert logprob == pytest.approx(truth[seed].item(), abs=4e-6)
    assert [id for id, _ in top] == order
    assert [value for _, value in top] == pytest.approx(truth[mx.array(order)].tolist(), abs=4e-6)


def test_several_rows_are_ranked_one_by_one() -> None:
    pairs = [(mx.array(seed), logits(seed)) for seed in range(3)]
    assert host.ranked(pairs, 2) == [host.ranked([pair], 2)[0] for pair in pairs]


def test_equal_logits_stand_in_the_order_of_their_ids() -> None:
    [(_, _, top)] = host.ranked([(mx.array(0), mx.array([1.0, 3.0, 2.0, 3.0, 3.0]))], 3)
    assert [id for id, _ in top] == [1, 3, 4]
    assert host.best(mx.array([1.0, 3.0, 3.0])).item() == 1


def test_no_top_where_none_was_asked_for() -> None:
    assert host.ranked([(mx.array(0), logits(1))], 0)[0][2] == []


def test_a_model_on_a_device_needs_no_numpy() -> None:
    code = (
        "import sys; from engine.build import build; from engine.config import EngineConfig;"
        "build(EngineConfig(model='tiny')); print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
