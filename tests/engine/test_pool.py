"""The block pool: counts, order, and what its integrity check can see."""

from __future__ import annotations

import pytest

from engine.pool import BlockPool, PoolExhausted


def test_take_hands_out_the_lowest_free_id_first() -> None:
    pool = BlockPool(4)
    table = [pool.take() for _ in range(3)]
    pool.release([table[0]])
    assert (table, pool.take(), pool.take()) == ([0, 1, 2], 0, 3)


def test_take_from_a_pool_of_live_blocks_raises() -> None:
    pool = BlockPool(1)
    pool.take()
    with pytest.raises(PoolExhausted, match="all 1 blocks are live"):
        pool.take()


def test_a_block_held_twice_outlives_one_release() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.retain([block])
    pool.release([block])
    assert (pool.refs(block), pool.free) == (1, 1)
    pool.release([block])
    assert (pool.refs(block), pool.free) == (0, 2)


def test_a_kept_block_is_cached_when_idle_and_free_when_forgotten() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.keep(block)
    pool.release([block])
    assert (pool.cached, pool.live, pool.available) == (1, 1, 2)
    pool.forget(block)
    assert (pool.cached, pool.live, pool.free) == (0, 0, 2)


def test_the_tail_of_a_chain_is_the_first_to_go() -> None:
    pool = BlockPool(3)
    table = [pool.take() for _ in range(3)]
    for block in table:
        pool.keep(block)
    pool.release(table)
    assert pool.oldest() == table[-1]


def test_a_hit_refreshes_recency() -> None:
    pool = BlockPool(2)
    old, new = pool.take(), pool.take()
    for block in (old, new):
        pool.keep(block)
        pool.release([block])
    assert pool.oldest() == old
    pool.retain([old])
    pool.release([old])
    assert pool.oldest() == new


def test_peak_counts_live_blocks_since_the_mark() -> None:
    pool = BlockPool(3)
    table = [pool.take(), pool.take()]
    pool.release(table)
    assert pool.peak_live == 2
    pool.mark_peak()
    assert pool.peak_live == 0


def test_releasing_what_nobody_holds_raises_and_releases_nothing() -> None:
    pool = BlockPool(2)
    held = pool.take()
    with pytest.raises(ValueError, match="nobody holds"):
        pool.release([held, 1])
    assert pool.refs(held) == 1


def test_pinning_what_is_not_live_raises_and_pins_nothing() -> None:
    pool = BlockPool(2)
    held = pool.take()
    with pytest.raises(ValueError, match="not live"):
        pool.retain([held, 1])
    assert (pool.refs(held), pool.problems()) == (1, [])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda pool: pool._freed.append(0), "free and live"),
        (lambda pool: pool._freed.extend([9, 9]), "twice in the free list"),
        (lambda pool: pool._idle.update({0: None}), "referenced and idle"),
        (lambda pool: pool._refs.update({0: 0}), "below one"),
        (lambda pool: pool._refs.clear(), "handed out"),
        (lambda pool: pool._kept.clear(), "nothing names it"),
    ],
)
def test_the_integrity_check_sees_each_damage(damage, words) -> None:  # type: ignore[no-untyped-def]
    pool = BlockPool(8)
    pool.take()
    kept = pool.take()
    pool.keep(kept)
    pool.release([kept])
    assert pool.problems() == []
    damage(pool)
    assert any(words in problem for problem in pool.problems())
