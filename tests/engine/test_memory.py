"""Memory the engine does not need goes back: freed buffers, empty slabs, once in each quiet moment."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import mlx.core as mx
import pytest

from engine import memory, worker
from engine.config import EngineConfig
from engine.kv import BlockStore
from engine.messages import Done, Event, Request, SamplingParams
from engine.worker import Worker
from tests.engine.rig import Rig

WAIT = 60


def test_freed_buffers_go_back() -> None:
    mx.eval(mx.zeros(1 << 20) + 1)
    assert mx.get_cache_memory() > 0
    memory.give_back()
    assert mx.get_cache_memory() == 0


def test_the_cache_of_freed_buffers_is_bounded() -> None:
    memory.bound_cache()
    for size in range(24, 40):
        mx.eval(mx.zeros(size << 18) + 1)
    assert mx.get_cache_memory() <= memory.CACHE_LIMIT


@pytest.mark.skipif(sys.platform != "linux", reason="malloc_trim is glibc's")
def test_the_c_library_is_asked_to_trim(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(memory, "_trim_heap", asked.append)
    memory.give_back()
    assert asked == [0]
    assert memory._of_glibc("malloc_trim")(0) in (0, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_the_c_library_keeps_its_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """M_TRIM_THRESHOLD is -1 and M_MMAP_THRESHOLD -3 in malloc.h; to set one ends that they rise."""
    told: dict[int, int] = {}
    monkeypatch.setattr(memory, "_set_option", told.__setitem__)
    memory.bound_cache()
    assert told == {-1: 8 << 20, -3: 1 << 20}
    assert memory._of_glibc("mallopt")(-3, told[-3]) == 1


def test_no_c_library_to_ask_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert memory._of_glibc("malloc_trim")(0) == 0


def test_a_slab_below_a_live_block_goes_at_a_trim() -> None:
    """The first request's blocks fill the first slab; what a longer-lived one holds lies behind it."""
    rig = Rig(model="tiny", block_size=4, blocks=256)
    early = rig.add(rig.prompt(64 * 4, seed=1), max_tokens=1)
    late = rig.add(rig.prompt(40, seed=2), max_tokens=30)
    while not late.ids():
        rig.steps(1)
    assert early.done
    for block in rig.paged.index.clear():
        rig.paged.pool.forget(block)
    assert isinstance(rig.paged.store, BlockStore)
    slab = rig.paged.store.slab_blocks * rig.paged.store.block_bytes
    assert rig.paged.stats()["paged_bytes_reserved"] == 2 * slab
    rig.paged.trim()
    assert rig.paged.stats()["paged_bytes_reserved"] == slab
    assert (
        rig.paged.stats()["paged_bytes_in_use"] == len(rig.paged.pool.blocks()) * rig.paged.store.block_bytes
    )
    rig.drain()
    assert late.done


def test_a_decode_step_allocates_less_than_a_tenth_of_the_pool() -> None:
    """Eight sequences on stored blocks of some MB; one copied slab in each would be more than that."""
    rig = Rig(model="tiny", block_size=32, grid=32, chunk=256, blocks=1024, max_batch=8)
    for seed in range(8):
        rig.run(rig.prompt(1024, seed), max_tokens=1)
    for number in range(8):
        rig.add(rig.prompt(64, seed=0) + rig.prompt(8, 50 + number), max_tokens=40)
    rig.steps(12)
    rises = [_step(rig) for _ in range(5)]
    reserved = rig.paged.store.bytes_reserved
    assert reserved >= 4 << 20
    assert max(rises) < reserved / 10


def _step(rig: Rig) -> int:
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    assert len(rig.scheduler.running) == 8
    rig.scheduler.step()
    return mx.get_peak_memory() - before


# ---- the quiet moment


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[threading.Event]:
    """An event for each time that memory was given back, set once the worker has said so."""
    moments = [threading.Event() for _ in range(9)]
    left = iter(moments)
    monkeypatch.setattr(memory, "give_back", lambda: next(left).set())
    monkeypatch.setattr(worker, "_QUIET", 0.02)
    return moments


@pytest.fixture
def engine(given: list[threading.Event]) -> Iterator[Worker]:
    engine = Worker(EngineConfig(model="digest", block_size=4, grid=4, chunk=8, blocks=64))
    engine.start()
    yield engine
    engine.stop()


def test_a_quiet_engine_gives_memory_back_once_until_it_is_asked_again(
    engine: Worker, given: list[threading.Event]
) -> None:
    assert given[0].wait(WAIT)
    assert not given[1].wait(0.2)
    _ask(engine)
    assert given[1].wait(WAIT)
    assert not given[2].wait(0.2)


def test_requests_on_each_others_heels_trim_nothing(
    engine: Worker, given: list[threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert given[0].wait(WAIT)
    monkeypatch.setattr(worker, "_QUIET", WAIT)
    for _ in range(5):
        _ask(engine)
    assert not given[1].is_set()


def test_a_mark_lets_mlx_peak_start_again(engine: Worker) -> None:
    mx.eval(mx.zeros(8 << 20))
    peak = mx.get_peak_memory()
    engine.call("mark").result(WAIT)
    assert engine.stats()["mlx_peak_bytes"] < peak


def _ask(engine: Worker) -> None:
    done = threading.Event()

    def hear(event: Event) -> None:
        if isinstance(event, Done):
            done.set()

    prompt = tuple(engine.tokenizer.plain_ids()[:9])
    engine.submit(Request(f"r{id(done)}", prompt, SamplingParams(max_tokens=2, ignore_eos=True)), hear)
    assert done.wait(WAIT)
