"""Faults of eviction, preemption, resets and chats, seen on the engine itself: blocks of 4, chunks of 8."""

from __future__ import annotations

from typing import Any

import pytest

from engine.build import build
from engine.config import EngineConfig
from engine.faults import parts_for
from engine.messages import Adapter
from tests.engine.rig import Client, Rig, broken_prefill, expected


def rig(name: str | None, **settings: Any) -> Rig:
    return Rig(parts_for(name), **{"max_batch": 8, "blocks": 16} | settings)


one = Rig.finish


def strangers(engine: Rig, count: int, length: int = 15) -> None:
    for seed in range(count):
        one(engine, engine.prompt(length, seed=100 + seed), max_tokens=1)


@pytest.mark.parametrize(("name", "cached"), [(None, [16] * 4), ("fifo_eviction", [16, 16, 16, 12])])
def test_fifo_eviction(name: str | None, cached: list[int]) -> None:
    """Four blocks in use, and three strange ones in each round: in the fourth there is one too many."""
    engine = rig(name)
    prompt = engine.prompt(17)
    one(engine, prompt, max_tokens=1)
    seen = []
    for at in range(4):
        one(engine, engine.prompt(15, seed=50 + at), max_tokens=1)
        seen.append(one(engine, prompt, max_tokens=1).cached)
    assert seen == cached


@pytest.mark.parametrize(("name", "cached"), [(None, 24), ("evict_head_first", 0)])
def test_evict_head_first(name: str | None, cached: int) -> None:
    """A chain of eight blocks in a pool of sixteen; strangers take two of them."""
    engine = rig(name)
    prompt = engine.prompt(33)
    one(engine, prompt, max_tokens=1)
    strangers(engine, 3)
    assert one(engine, prompt, max_tokens=1).cached == cached


def recycled_under_hands(name: str | None) -> tuple[list[int], Client]:
    """A decode on a shared prefix; its sharer ends, and strangers take more than the pool has."""
    engine = rig(name)
    shared = engine.prompt(16, seed=1)
    one(engine, shared, max_tokens=1)
    prompt = shared + engine.prompt(2, seed=2)
    long = engine.add(prompt, max_tokens=24)
    sharer = engine.add(shared + engine.prompt(2, seed=3), max_tokens=1)
    while not sharer.done:
        engine.scheduler.step()
    for seed in range(5):
        engine.add(engine.prompt(15, seed=100 + seed), max_tokens=1)
    engine.drain_unchecked()
    return prompt, long


@pytest.mark.parametrize(("name", "equal"), [(None, True), ("free_ignores_refcount", False)])
def test_free_ignores_refcount(name: str | None, equal: bool) -> None:
    prompt, long = recycled_under_hands(name)
    assert (long.ids() == expected(prompt, 24)) is equal


@pytest.mark.parametrize(("name", "over"), [(None, False), ("never_evict", True)])
def test_never_evict(name: str | None, over: bool) -> None:
    engine = rig(name)
    strangers(engine, 8)
    stats = engine.paged.stats()
    assert stats["paged_block_budget"] == 16
    assert (stats["paged_blocks_live"] > 16) is over
    assert not engine.paged.can_ever_hold(65, 65, 1)


def test_admit_what_never_fits() -> None:
    assert not rig(None).paged.can_ever_hold(80, 84, 1)
    engine = rig("admit_what_never_fits")
    assert engine.paged.can_ever_hold(80, 84, 1)
    client = one(engine, engine.prompt(80))
    assert [e.status for e in [client.failed] if e] == [500]
    grown = one(engine, engine.prompt(62), max_tokens=1)
    assert grown.done


# ---- preemption


def preempted(name: str | None) -> list[Client]:
    """Two requests of two prompt blocks grow to five each in a pool of eight."""
    engine = rig(name, blocks=8, reserve="prompt")
    clients = [engine.add(engine.prompt(7, seed=seed), max_tokens=13) for seed in (1, 2)]
    engine.drain_unchecked()
    return clients


@pytest.mark.parametrize(
    ("name", "ended"), [(None, [True, True]), ("fail_instead_of_preempt", [True, False])]
)
def test_fail_instead_of_preempt(name: str | None, ended: list[bool]) -> None:
    clients = preempted(name)
    assert [client.done for client in clients] == ended
    assert [client.failed is None for client in clients] == ended


@pytest.mark.parametrize(("name", "extra"), [(None, 0), ("replay_token_on_resume", 1)])
def test_replay_token_on_resume(name: str | None, extra: int) -> None:
    first, second = preempted(name)
    assert [len(client.ids()) for client in (first, second)] == [13, 13 + extra]
    alone = expected(list(second.request.prompt), 13)
    assert list(dict.fromkeys(second.ids())) == list(dict.fromkeys(alone))


# ---- publication


@pytest.mark.parametrize(
    ("name", "cached"), [(None, 8), ("publish_at_allocation", 28), ("publish_failed_chunk", 16)]
)
def test_publication_of_what_failed(name: str | None, cached: int) -> None:
    """Three chunks and a half, of which the second fails."""
    engine, prompt = broken_prefill(parts_for(name))
    again = one(engine, prompt)
    assert again.cached == cached
    assert (again.ids() == expected(prompt, 4)) is (name is None)


# ---- resets


@pytest.mark.parametrize(("name", "cached"), [(None, 0), ("reset_keeps_index", 16)])
def test_reset_keeps_index(name: str | None, cached: int) -> None:
    engine = rig(name)
    prompt = engine.prompt(17)
    one(engine, prompt)
    assert engine.paged.reset()["cleared"]
    assert one(engine, prompt).cached == cached


@pytest.mark.parametrize(("name", "equal"), [(None, True), ("reset_wipes_running", False)])
def test_reset_wipes_running(name: str | None, equal: bool) -> None:
    engine = rig(name)
    prompt = engine.prompt(17)
    client = engine.add(prompt, max_tokens=8)
    for _ in range(5):
        engine.scheduler.step()
    assert client.ids()
    assert engine.paged.reset()["cleared"]
    engine.drain_unchecked()
    assert (client.ids() == expected(prompt, 8)) is equal
    assert engine.paged.reset()["cleared"]


@pytest.mark.parametrize(("name", "cached"), [(None, 0), ("publish_across_reset", 28)])
def test_publish_across_reset(name: str | None, cached: int) -> None:
    engine = rig(name)
    prompt = engine.prompt(29)
    begun = engine.add(prompt)
    engine.scheduler.step()
    engine.paged.reset()
    engine.drain_unchecked()
    assert begun.done
    assert one(engine, prompt).cached == cached


@pytest.mark.parametrize(("name", "cached"), [(None, 0), ("ignore_weight_version", 16)])
def test_ignore_weight_version(name: str | None, cached: int) -> None:
    engine = rig(name)
    prompt = engine.prompt(17)
    one(engine, prompt, adapter=Adapter("a", version=1))
    assert one(engine, prompt, adapter=Adapter("a", version=2)).cached == cached
    assert one(engine, prompt).cached == 0


# ---- chats

SYSTEM = {"role": "system", "content": "Be brief."}
CHAT = [
    SYSTEM,
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "1"},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "Three?"},
]


def kept(name: str | None, turn: int) -> bool:
    """Whether a turn begins with the ids of the one before."""
    render = build(EngineConfig(model="tiny"), parts_for(name)).tokenizer.render_chat
    before, after = render(CHAT[: turn - 2]), render(CHAT[:turn])
    return after[: len(before)] == before


@pytest.mark.parametrize(
    ("name", "seen"),
    [(None, [True, True]), ("stamp_the_chat", [False, False]), ("drop_old_replies", [True, False])],
)
def test_templates(name: str | None, seen: list[bool]) -> None:
    assert [kept(name, turn) for turn in (4, 6)] == seen


@pytest.mark.parametrize(("name", "same"), [(None, True), ("strip_old_messages", False)])
def test_a_turn_that_ends_in_a_space(name: str | None, same: bool) -> None:
    render = build(EngineConfig(model="tiny"), parts_for(name)).tokenizer.render_chat
    chat = [{"role": "user", "content": "One? "}, {"role": "assistant", "content": "1"}]
    before, after = render(chat[:1]), render([*chat, {"role": "user", "content": "Two?"}])
    assert (after[: len(before)] == before) is same


@pytest.mark.parametrize(("name", "cached"), [(None, 16), ("match_chats_short", 8)])
def test_match_chats_short(name: str | None, cached: int) -> None:
    engine = rig(name)
    prompt = engine.prompt(17)
    one(engine, prompt)
    assert one(engine, prompt).cached == cached


# ---- more of eviction


@pytest.mark.parametrize(
    ("name", "cached"),
    [(None, [16] * 3), ("evict_newest_first", [16, 16, 0]), ("clear_when_full", [16, 0, 16])],
)
def test_a_prefix_in_use(name: str | None, cached: list[int]) -> None:
    engine = rig(name)
    prompt = engine.prompt(17)
    one(engine, prompt, max_tokens=1)
    seen = []
    for at in range(3):
        for more in range(2):
            one(engine, engine.prompt(15, seed=50 + 2 * at + more), max_tokens=1)
        seen.append(one(engine, prompt, max_tokens=1).cached)
    assert seen == cached


@pytest.mark.parametrize(("name", "over"), [(None, False), ("never_evict_last_entry", True)])
def test_never_evict_last_entry(name: str | None, over: bool) -> None:
    engine = rig(name)
    for seed in range(2):
        one(engine, engine.prompt(41, seed=seed), max_tokens=1)
    assert (engine.paged.stats()["paged_blocks_live"] > 16) is over


def test_never_evict_last_entry_evicts_one_of_several() -> None:
    engine = rig("never_evict_last_entry")
    strangers(engine, 8)
    assert engine.paged.stats()["paged_blocks_live"] <= 16


def stuck(name: str | None, **settings: Any) -> bool:
    """Whether requests that need more than there is never end."""
    engine = rig(name, **settings)
    for seed in (1, 2, 3):
        engine.add(engine.prompt(7, seed=seed), max_tokens=13)
    for _ in range(400):
        if not engine.scheduler.busy:
            return False
        engine.scheduler.step()
    return True


@pytest.mark.parametrize(
    ("name", "reserve", "hangs"),
    [
        (None, "prompt", False),
        ("hold_and_wait", "prompt", True),
        ("hold_and_wait", "full", False),
        (None, "full", False),
        ("ask_once_for_room", "full", True),
    ],
)
def test_requests_that_wait_for_room(name: str | None, reserve: str, hangs: bool) -> None:
    assert stuck(name, blocks=8, reserve=reserve) is hangs


@pytest.mark.parametrize(
    ("name", "lacks", "equal"),
    [
        (None, 0, True),
        ("lose_token_on_resume", 1, False),
        ("resume_without_replay", 0, False),
    ],
)
def test_resumed_replies(name: str | None, lacks: int, equal: bool) -> None:
    first, second = preempted(name)
    assert [13 - len(client.ids()) for client in (first, second)] == [0, lacks]
    assert (second.ids() == expected(list(second.request.prompt), 13)) is equal


@pytest.mark.parametrize(("name", "equal"), [(None, True), ("stale_cached_count_on_resume", False)])
def test_stale_cached_count_on_resume(name: str | None, equal: bool) -> None:
    """Two prompts of three full blocks; the one that gives way loses blocks to the other's growth."""
    engine = rig(name, blocks=10, reserve="prompt")
    clients = [engine.add(engine.prompt(14, seed=seed), max_tokens=22) for seed in (1, 2)]
    engine.drain_unchecked()
    alone = [expected(list(client.request.prompt), 22) for client in clients]
    assert ([client.ids() for client in clients] == alone) is equal


# ---- the queue


@pytest.mark.parametrize(("name", "cached"), [(None, 0), ("ignore_reset_while_waiting", 16)])
def test_a_reset_while_a_request_waits(name: str | None, cached: int) -> None:
    engine = rig(name, max_batch=1, blocks=64)
    prompt = engine.prompt(17)
    one(engine, prompt)
    engine.add(engine.prompt(9, seed=2), max_tokens=8)
    engine.scheduler.step()
    waiter = engine.add(engine.prompt(9, seed=3))
    assert engine.paged.reset()["cleared"]
    engine.drain_unchecked()
    assert waiter.done
    assert one(engine, prompt).cached == cached
    assert engine.paged.reset()["cleared"]
    assert one(engine, prompt).cached == 0


@pytest.mark.parametrize(("name", "ends"), [(None, True), ("wait_for_the_broken", False)])
def test_those_who_want_what_failed(name: str | None, ends: bool) -> None:
    """Three chunks and a half, of which the second fails; then the same head again."""
    engine, prompt = broken_prefill(parts_for(name))
    assert one(engine, prompt[:8] + engine.prompt(9, seed=2)).done
    again = engine.add(prompt)
    for _ in range(100):
        engine.scheduler.step()
    assert again.done is ends
