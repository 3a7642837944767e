"""Faults of identity, of endings and of accounts change what they say, and the healthy engine does not."""

from __future__ import annotations

from typing import Any

import pytest

from engine.faults import parts_for
from engine.messages import Adapter
from engine.replies import CompletionReply, Usage
from engine.testmode import FallibleRunner, rehearsing
from tests.engine.rig import Client, Rig, expected

PROMPT = 20


def rig(name: str | None, **settings: Any) -> Rig:
    return Rig(parts_for(name), **settings)


def one(engine: Rig, prompt: list[int], **told: Any) -> Client:
    return engine.run(prompt, **told)[0]


def across_salts(name: str | None) -> tuple[int | None, int]:
    """What a stored prompt reports under another salt, and the tokens it computes there."""
    engine = rig(name)
    one(engine, engine.prompt(PROMPT), salt="mine")
    before = engine.scheduler.counts["computed_tokens_total"]
    cached = one(engine, engine.prompt(PROMPT), salt="theirs").cached
    return cached, engine.scheduler.counts["computed_tokens_total"] - before


@pytest.mark.parametrize(
    ("name", "seen"), [(None, (0, 20)), ("ignore_salt", (16, 4)), ("tell_of_other_salts", (0, 4))]
)
def test_salts(name: str | None, seen: tuple[int, int]) -> None:
    assert across_salts(name) == seen


def test_its_own_salt_still_reports_what_others_are_not_told() -> None:
    engine = rig("tell_of_other_salts")
    assert [one(engine, engine.prompt(PROMPT), salt="mine").cached for _ in range(2)] == [0, 16]


def after_an_adapter(name: str | None, salt: str) -> int | None:
    """What the bare model reports under this salt once the adapter `a` has stored the prompt without one."""
    engine = rig(name)
    one(engine, engine.prompt(PROMPT), adapter=Adapter("a"))
    return one(engine, engine.prompt(PROMPT), salt=salt).cached


@pytest.mark.parametrize(
    ("name", "salt", "cached"),
    [
        (None, "", 0),
        (None, "a", 0),
        ("ignore_adapter", "", 16),
        ("blend_salt_and_adapter", "a", 16),
        ("blend_salt_and_adapter", "tiny:a", 16),
        ("blend_salt_and_adapter", "b", 0),
    ],
)
def test_adapters(name: str | None, salt: str, cached: int) -> None:
    assert after_an_adapter(name, salt) == cached


@pytest.mark.parametrize(("name", "cached"), [(None, 4), ("ignore_parent", 16)])
def test_parents(name: str | None, cached: int) -> None:
    engine = rig(name)
    body, other = engine.prompt(16, seed=1), engine.prompt(4, seed=2)
    one(engine, engine.prompt(4, seed=3) + body)
    one(engine, other + engine.prompt(8, seed=4))
    assert one(engine, other + body).cached == cached


@pytest.mark.parametrize(("name", "cached"), [(None, 8), ("compare_half_blocks", 16)])
def test_tokens_late_in_a_block(name: str | None, cached: int) -> None:
    engine = rig(name)
    prompt = engine.prompt(PROMPT)
    one(engine, prompt)
    prompt[11] = next(token for token in engine.plain if token != prompt[11])
    assert one(engine, prompt).cached == cached


@pytest.mark.parametrize(("name", "cached"), [(None, 0), ("trust_hashes", 16)])
def test_collisions(name: str | None, cached: int) -> None:
    engine = rig(name, hash_bytes=0)
    one(engine, engine.prompt(PROMPT, seed=1))
    assert one(engine, engine.prompt(PROMPT, seed=2)).cached == cached


# ---- endings


def held_after_stop(name: str | None) -> int:
    engine = rig(name)
    first = engine.engine.tokenizer.decode(expected(engine.prompt(PROMPT), 1))
    client = engine.add(engine.prompt(PROMPT), stop=(first,))
    while engine.scheduler.busy:
        engine.scheduler.step()
    assert client.done
    return engine.paged.pool.referenced


@pytest.mark.parametrize(("name", "held"), [(None, 0), ("leak_ref_on_stop", 5)])
def test_stops(name: str | None, held: int) -> None:
    assert held_after_stop(name) == held


def failing(name: str | None) -> tuple[Rig, list[Client]]:
    """Two strangers; the second forward, of the first one's prompt, fails."""
    engine = Rig(rehearsing(parts_for(name)))
    runner = engine.engine.runner
    assert isinstance(runner, FallibleRunner)
    runner.failing, runner.fail_after = "prefill", 1
    clients = [engine.add(engine.prompt(PROMPT, seed=seed)) for seed in (1, 2)]
    while engine.scheduler.busy:
        engine.scheduler.step()
    return engine, clients


@pytest.mark.parametrize(
    ("name", "failed", "held"),
    [
        (None, [True, False], 0),
        ("spread_failure", [True, True], 0),
        ("leak_ref_on_failure", [True, False], 4),
    ],
)
def test_failures(name: str | None, failed: list[bool], held: int) -> None:
    engine, clients = failing(name)
    assert [client.failed is not None for client in clients] == failed
    assert engine.paged.pool.referenced == held


@pytest.mark.parametrize(("name", "generated"), [(None, 1), ("ignore_disconnect", 9)])
def test_departures(name: str | None, generated: int) -> None:
    engine = rig(name)
    client = engine.add(engine.prompt(4), max_tokens=9)
    engine.steps(1)
    engine.scheduler.cancel(client.request.id)
    engine.drain()
    assert engine.scheduler.counts["generated_tokens_total"] == generated
    assert len(client.ids()) == 1


@pytest.mark.parametrize(("name", "same"), [(None, True), ("wipe_on_abort", False)])
def test_siblings_of_an_aborted_request(name: str | None, same: bool) -> None:
    engine = rig(name)
    shared = engine.prompt(16)
    one(engine, shared + engine.prompt(2, seed=1))
    stays, goes = (shared + engine.prompt(2, seed=seed) for seed in (2, 3))
    clients = [engine.add(stays, max_tokens=12), engine.add(goes, max_tokens=12)]
    engine.steps(3)
    engine.scheduler.cancel(clients[1].request.id)
    engine.drain()
    assert (clients[0].ids() == expected(stays, 12)) is same


# ---- accounts


@pytest.mark.parametrize(("name", "cached"), [(None, 16), ("usage_counts_per_choice", 48)])
def test_usage_of_several_choices(name: str | None, cached: int) -> None:
    engine = rig(name)
    one(engine, engine.prompt(PROMPT))
    client = one(engine, engine.prompt(PROMPT), n=3)
    assert getattr(client.events[-1], "cached_tokens", None) == cached


@pytest.mark.parametrize(("name", "hits"), [(None, 16), ("count_hits_twice", 32)])
def test_hit_counters(name: str | None, hits: int) -> None:
    engine = rig(name)
    for _ in range(2):
        one(engine, engine.prompt(PROMPT))
    assert engine.scheduler.counts["hits_tokens_total"] == hits


@pytest.mark.parametrize(("name", "counted"), [(None, False), ("count_recompute_as_hit", True)])
def test_recomputation(name: str | None, counted: bool) -> None:
    engine = rig(name, blocks=12, reserve="prompt")
    clients = [engine.add(engine.prompt(12, seed=seed), max_tokens=20) for seed in range(3)]
    engine.drain()
    assert engine.scheduler.counts["preemptions_total"] > 0
    reported = sum(client.cached or 0 for client in clients)
    assert (engine.scheduler.counts["hits_tokens_total"] > reported) is counted


@pytest.mark.parametrize(("name", "more"), [(None, 0), ("cached_counts_as_free", 5)])
def test_the_free_gauge(name: str | None, more: int) -> None:
    engine = rig(name)
    one(engine, engine.prompt(PROMPT))
    seen = engine.paged.stats()
    summed = sum(seen[f"paged_blocks_{part}"] for part in ("free", "cached", "referenced"))
    assert summed - seen["paged_block_budget"] == more


def test_a_miss_without_a_reason() -> None:
    engine = rig("miss_without_reason")
    engine.add(engine.prompt(PROMPT))
    while engine.scheduler.busy:
        engine.scheduler.step()
    counts = engine.scheduler.counts
    assert (counts["requests_total"], counts["missed_cold_total"], counts["hits"]) == (1, 0, 0)


def test_everything_but_one_is_cached() -> None:
    engine = rig("everything_but_one_is_cached")
    assert one(engine, engine.prompt(PROMPT)).cached == PROMPT - 1
    assert one(rig(None), engine.prompt(PROMPT)).cached == 0


def held_after_leaving(name: str | None, steps: int) -> int:
    """Blocks that stay referenced when a client of three tokens leaves after so many steps."""
    engine = rig(name)
    client = engine.add(engine.prompt(16), max_tokens=3)
    for _ in range(steps):
        engine.scheduler.step()
    engine.scheduler.cancel(client.request.id)
    assert not engine.scheduler.busy
    return engine.paged.pool.referenced


@pytest.mark.parametrize(
    ("name", "held"),
    [
        (None, [0, 0, 0]),
        ("leak_ref_before_first_token", [2, 0, 0]),
        ("leak_ref_in_last_step", [0, 0, 5]),
    ],
)
def test_leaving_in_each_phase(name: str | None, held: list[int]) -> None:
    assert [held_after_leaving(name, steps) for steps in (1, 2, 3)] == held


@pytest.mark.parametrize(("name", "held"), [(None, 0), ("leak_ref_on_refusal", 1)])
def test_refusals(name: str | None, held: int) -> None:
    engine = rig(name, blocks=8)
    assert not engine.paged.can_ever_hold(40, 44, 1)
    assert engine.paged.can_ever_hold(8, 12, 1)
    assert engine.paged.pool.referenced == held


@pytest.mark.parametrize(("name", "held"), [(None, 0), ("leak_ref_when_queued", 3)])
def test_leaving_the_queue(name: str | None, held: int) -> None:
    engine = rig(name)
    one(engine, engine.prompt(14))
    engine.scheduler.cancel(engine.add(engine.prompt(14)).request.id)
    assert engine.paged.pool.referenced == held
    stays = engine.add(engine.prompt(14))
    while engine.scheduler.busy:
        engine.scheduler.step()
    assert stays.done
    assert engine.paged.pool.referenced == held


@pytest.mark.parametrize(("name", "share"), [(None, 1), ("ledger_forgets_values", 2)])
def test_the_ledger_of_bytes(name: str | None, share: int) -> None:
    engine = rig(name)
    one(engine, engine.prompt(PROMPT))
    seen = engine.paged.stats()
    assert seen["paged_bytes_in_use"] * share == seen["paged_blocks_live"] * seen["paged_block_bytes"] > 0


@pytest.mark.parametrize(("name", "whole"), [(None, 16), ("no_cached_count_when_whole", 0)])
def test_the_usage_of_a_whole_reply(name: str | None, whole: int) -> None:
    kind = parts_for(name).reply(CompletionReply)
    reply, usage = kind(id="r", model="m", codec=rig(None).engine.tokenizer), Usage(20, 1, 16)
    told = [reply.whole([], usage), reply.tail(usage)]
    assert [body["usage"]["prompt_tokens_details"]["cached_tokens"] for body in told] == [whole, 16]


@pytest.mark.parametrize(("name", "held"), [(None, 0), ("leak_block_for_want_of_room", 1)])
def test_waiting_for_room(name: str | None, held: int) -> None:
    """Two that need ten of sixteen blocks each: the second waits for the first."""
    engine = rig(name, blocks=16)
    clients = [engine.add(engine.prompt(36, seed=seed), max_tokens=4) for seed in (1, 2)]
    engine.drain_unchecked()
    assert all(client.done for client in clients)
    assert engine.paged.pool.referenced == held


def test_leak_block_for_want_of_room_leaks_nothing_where_there_is_room() -> None:
    engine = rig("leak_block_for_want_of_room", blocks=64)
    for seed in (1, 2):
        engine.add(engine.prompt(36, seed=seed), max_tokens=4)
    engine.drain()
    assert engine.paged.pool.referenced == 0
