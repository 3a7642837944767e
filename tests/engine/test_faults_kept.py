"""Faults of what is kept, seen on the engine itself: blocks of 4, chunks of 8."""

from __future__ import annotations

from typing import Any

import pytest

from engine.faults import parts_for
from tests.engine.rig import Rig, broken_prefill, expected


def rig(name: str | None, **settings: Any) -> Rig:
    return Rig(parts_for(name), **{"max_batch": 8, "blocks": 64} | settings)


one = Rig.finish


@pytest.mark.parametrize(("name", "cached"), [(None, 8), ("match_whole_entries_only", 0)])
def test_a_prompt_that_parts_from_an_entry(name: str | None, cached: int) -> None:
    engine = rig(name)
    stored = engine.prompt(18)
    one(engine, stored, max_tokens=1)
    assert one(engine, stored[:8] + engine.prompt(4, seed=2)).cached == cached


def test_a_prompt_that_contains_a_whole_entry_still_finds_it() -> None:
    engine = rig("match_whole_entries_only")
    stored = engine.prompt(18)
    one(engine, stored, max_tokens=1)
    assert one(engine, stored + engine.prompt(4, seed=2)).cached == 16


@pytest.mark.parametrize(("name", "cached"), [(None, 16), ("keep_last_prompt_only", 4)])
def test_a_short_prompt_between(name: str | None, cached: int) -> None:
    engine = rig(name)
    long = engine.prompt(18)
    one(engine, long)
    one(engine, long[:4] + engine.prompt(2, seed=2))
    assert one(engine, long).cached == cached
    assert engine.scheduler.problems() == []


# ---- copy on write


@pytest.mark.parametrize(
    ("name", "same"), [(None, True), ("fork_without_copy", False), ("copy_leaves_rows_behind", False)]
)
def test_choices_that_share_a_block(name: str | None, same: bool) -> None:
    """Two choices with seeds of their own from a prompt that ends in the middle of a block."""
    engine, prompt = rig(name), rig(None).prompt(6)
    drawn = {"max_tokens": 8, "temperature": 1.0}
    alone = [one(rig(None), prompt, seed=seed, **drawn).ids() for seed in (5, 6)]
    both = one(engine, prompt, seed=5, n=2, **drawn)
    assert alone[0] != alone[1]
    assert ([both.ids(choice) for choice in (0, 1)] == alone) is same


# ---- recycled blocks


@pytest.mark.parametrize(("name", "more"), [(None, False), ("index_never_shrinks", True)])
def test_the_size_of_the_index(name: str | None, more: bool) -> None:
    engine = rig(name, blocks=16)
    for seed in range(12):
        client = one(engine, engine.prompt(17, seed=seed), max_tokens=2)
        assert client.ids() == expected(engine.prompt(17, seed=seed), 2)
    assert (len(engine.paged.index) > 16) is more


@pytest.mark.parametrize(("name", "equal"), [(None, True), ("keep_hash_of_heads", False)])
def test_a_recycled_head(name: str | None, equal: bool) -> None:
    engine = rig(name, blocks=8)
    prompt = engine.prompt(9)
    one(engine, prompt, max_tokens=1)
    for seed in range(20, 24):
        one(engine, engine.prompt(17, seed=seed), max_tokens=1)
    assert (one(engine, prompt).ids() == expected(prompt, 4)) is equal


# ---- publication


@pytest.mark.parametrize(("name", "cached"), [(None, 8), ("publish_ahead_on_cancel", 16)])
def test_publish_ahead_on_cancel(name: str | None, cached: int) -> None:
    engine = rig(name)
    prompt = engine.prompt(29)
    leaver = engine.add(prompt)
    engine.scheduler.step()
    engine.scheduler.cancel(leaver.request.id)
    again = one(engine, prompt)
    assert again.cached == cached
    assert (again.ids() == expected(prompt, 4)) is (name is None)


# ---- growth


@pytest.mark.parametrize(("name", "grew"), [(None, 0), ("snapshot_each_turn", 12)])
def test_repeats(name: str | None, grew: int) -> None:
    engine = rig(name)
    prompt = engine.prompt(17)
    one(engine, prompt, max_tokens=1)
    before = engine.paged.pool.live
    for _ in range(3):
        one(engine, prompt, max_tokens=1)
    assert engine.paged.pool.live - before == grew


@pytest.mark.parametrize(
    ("name", "cached", "equal"), [(None, [16, 0], [True, True]), ("lend_live_rows", [16, 16], [False, True])]
)
def test_lend_live_rows(name: str | None, cached: list[int], equal: list[bool]) -> None:
    """Two that borrow what a dense storage holds; the second of them overwrites the first."""
    engine = rig(name, storage="dense", blocks=256)
    shared = engine.prompt(16, seed=1)
    one(engine, shared)
    clients = [engine.add(shared + engine.prompt(2, seed=seed), max_tokens=6) for seed in (2, 3)]
    engine.drain_unchecked()
    assert [client.cached for client in clients] == cached
    assert [c.ids() == expected(list(c.request.prompt), 6) for c in clients] == equal


# ---- what is never stored


@pytest.mark.parametrize(("name", "cached"), [(None, [8, 0, 8]), ("never_store_again", [8, 0, 0])])
def test_a_prompt_that_was_evicted(name: str | None, cached: list[int]) -> None:
    engine = rig(name, blocks=8)
    prompt = engine.prompt(9)
    one(engine, prompt, max_tokens=1)
    seen = [one(engine, prompt, max_tokens=1).cached]
    for seed in range(20, 24):
        one(engine, engine.prompt(17, seed=seed), max_tokens=1)
    seen += [one(engine, prompt, max_tokens=1).cached for _ in range(2)]
    assert seen == cached


@pytest.mark.parametrize(("name", "cached"), [(None, [8, 28]), ("never_store_what_failed", [8, 8])])
def test_a_prompt_whose_prefill_failed(name: str | None, cached: list[int]) -> None:
    """Three chunks and a half, of which the second fails."""
    engine, prompt = broken_prefill(parts_for(name))
    assert [one(engine, prompt).cached for _ in range(2)] == cached
