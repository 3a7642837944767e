"""Each fault of memory holds what it says beside the store, and the store's own figures stay right."""

from __future__ import annotations

from typing import Any

from engine.faults import parts_for
from tests.engine.rig import Rig


def rig(name: str | None, **settings: Any) -> Rig:
    return Rig(parts_for(name), max_batch=8, blocks=256, **settings)


def held(engine: Rig, what: str) -> list[Any]:
    """Arrays that the fault keeps."""
    kept = getattr(engine.paged, what)
    groups = kept.values() if isinstance(kept, dict) else kept
    return [rows for group in groups for rows in (group if isinstance(group, list) else [group])]


def test_copy_rows_on_adopt_holds_a_copy_while_the_adopter_runs() -> None:
    engine = rig("copy_rows_on_adopt")
    shared = engine.prompt(64, seed=1)
    engine.run(shared)
    assert held(engine, "_own_rows") == []
    client = engine.add(shared + engine.prompt(2, seed=2))
    engine.scheduler.step()
    assert client.cached == 64
    copied = held(engine, "_own_rows")
    assert copied
    assert all(rows.shape[0] * engine.paged.size == 64 for rows in copied)
    assert engine.scheduler.problems() == []
    engine.scheduler.cancel(client.request.id)
    assert held(engine, "_own_rows") == []


def test_keep_rows_of_the_gone_grows_with_every_request() -> None:
    engine = rig("keep_rows_of_the_gone")
    engine.run(engine.prompt(64, seed=1))
    once = len(held(engine, "_gone"))
    engine.run(engine.prompt(64, seed=1))
    assert once > 0
    assert len(held(engine, "_gone")) == 2 * once
    assert engine.scheduler.problems() == []


def reserved_after_reset(name: str | None) -> int:
    engine = rig(name)
    engine.run(engine.prompt(64, seed=1))
    assert engine.paged.reset()["cleared"] is True
    assert engine.paged.pool.live == 0
    return engine.paged.store.bytes_reserved


def test_keep_slabs_after_reset_reserves_what_it_reserved() -> None:
    assert reserved_after_reset("keep_slabs_after_reset") > 0
    assert reserved_after_reset(None) == 0


def test_copy_pool_on_growth_holds_the_old_pool_until_it_is_quiet() -> None:
    engine = rig("copy_pool_on_growth", model="tiny")
    engine.run(engine.prompt(64, seed=1))
    assert held(engine, "_old") != []
    engine.paged.trim()
    assert held(engine, "_old") == []
    engine.run(engine.prompt(32, seed=2))
    assert held(engine, "_old") == [], "the slab had room, so nothing grew"
