"""What a served engine's memory does while its pool grows, told by its own statistics (foot/1, foot/3)."""

from __future__ import annotations

import gc
import random
from typing import Any

import mlx.core as mx
import pytest

from engine import build
from engine.kv import BlockStore
from tests.engine.fakes import Client
from tests.engine.served import engine

PROMPTS, LENGTH, BUDGET = 12, 128, 128
"""48 of 128 blocks of 2 MiB get stored, by prompts that share nothing and are small beside all of them."""
AT_MOST = 1.15


class Copying(BlockStore):
    """Grows as one array does: all that is there is copied into what is larger."""

    def _slab(self, number: int) -> Any:
        if number not in self._slabs:
            larger = {at: [(k + 0, v + 0) for k, v in slab] for at, slab in self._slabs.items()}
            mx.eval(list(larger.values()))
            self._slabs = larger
        return super()._slab(number)


class Preallocating(BlockStore):
    """Takes the whole budget at the start and keeps it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for number in range(-(-BUDGET // self.slab_blocks)):
            self._slab(number)
        self.settle()

    def shrink(self, live: Any) -> None:
        """Nothing goes back."""


def stats(client: Client) -> dict[str, int]:
    made: dict[str, int] = client.get("/v1/cache/stats").json()
    return made


def growth() -> tuple[float, float]:
    """The most that MLX held while the pool grew, beside what it holds afterwards; and that beside what is
    stored. Weights and whatever else is there before the first request are taken off.
    """
    gc.collect()  # MLX counts for the process: engines of other tests must not go meanwhile
    with engine(model="tiny-fat", block_size=32, grid=32, chunk=128, blocks=BUDGET) as client:
        before = stats(client)
        client.post("/v1/cache/mark", {})
        rest = before["mlx_active_bytes"] - before["paged_bytes_reserved"]
        for seed in range(PROMPTS):
            ids = random.Random(seed).choices(range(65, 91), k=LENGTH)
            assert client.complete(prompt=ids, max_tokens=2).status_code == 200
        after = stats(client)
    stored = after["paged_bytes_in_use"]
    assert stored == PROMPTS * LENGTH * 64 * 2**10
    steady = after["mlx_active_bytes"] - rest
    return (after["mlx_peak_bytes"] - rest) / steady, steady / stored


def test_a_pool_that_grows_takes_little_more_than_it_holds() -> None:
    peak, steady = growth()
    assert 1 <= peak <= AT_MOST
    assert 1 <= steady <= AT_MOST


def test_a_store_that_copies_itself_is_seen_in_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "BlockStore", Copying)
    peak, steady = growth()
    assert peak > 1.5
    assert steady <= AT_MOST


def test_a_store_that_preallocates_is_seen_in_what_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "BlockStore", Preallocating)
    assert growth()[1] > 2
