"""The faults of reuse, storage and choice, each seen on the engine itself: blocks of 4, chunks of 8."""

from __future__ import annotations

from typing import Any

import pytest

from engine.faults import parts_for
from tests.engine.rig import Client, Rig, expected


def rig(name: str | None, **settings: object) -> Rig:
    return Rig(parts_for(name), **{"max_batch": 8, "blocks": 256} | settings)


def finish(engine: Rig, *clients: Client) -> list[int | None]:
    """Steps without looking for inconsistencies, which some faults are; what each reported as cached."""
    engine.drain_unchecked()
    return [client.cached for client in clients]


def run(engine: Rig, *prompts: list[int], **params: Any) -> list[int | None]:
    return finish(engine, *(engine.add(prompt, **params) for prompt in prompts))


@pytest.mark.parametrize(("name", "counts"), [(None, [8, 8]), ("visible_two_requests_late", [0, 8])])
def test_visible_two_requests_late(name: str | None, counts: list[int]) -> None:
    engine = rig(name)
    shared = engine.prompt(8, seed=1)
    run(engine, shared)
    assert [run(engine, shared + engine.prompt(2, seed=i))[0] for i in (2, 3)] == counts


@pytest.mark.parametrize(("name", "cached"), [(None, 4), ("full_hit_leaves_no_token", 8)])
def test_full_hit_leaves_no_token(name: str | None, cached: int) -> None:
    engine = rig(name)
    prompt = engine.prompt(8)
    run(engine, prompt)
    assert run(engine, prompt) == [cached]
    assert run(engine, engine.prompt(9)[:7] + engine.prompt(2, seed=9)) == [4]


@pytest.mark.parametrize(("name", "cached"), [(None, 8), ("forget_on_cancel", 0)])
def test_forget_on_cancel(name: str | None, cached: int) -> None:
    engine = rig(name)
    prompt = engine.prompt(32)
    leader = engine.add(prompt)
    engine.scheduler.step()
    engine.scheduler.cancel(leader.request.id)
    assert run(engine, prompt) == [cached]


def queued(name: str | None) -> tuple[list[int], Client]:
    """Twelve blocks: a prefix of four, then a hog of ten for which the queued request waits."""
    engine = rig(name, blocks=12)
    shared = engine.prompt(16, seed=1)
    run(engine, shared, max_tokens=1)
    hog = engine.add(engine.prompt(38, seed=2), max_tokens=3)
    prompt = shared + engine.prompt(3, seed=3)
    late = engine.add(prompt, max_tokens=4)
    finish(engine, hog, late)
    return prompt, late


def test_a_queued_request_finds_what_is_left() -> None:
    prompt, late = queued(None)
    assert late.cached == 8
    assert late.ids() == expected(prompt, 4)


def test_match_on_arrival_reads_rows_of_another_request() -> None:
    prompt, late = queued("match_on_arrival")
    assert late.cached == 16
    assert late.ids() != expected(prompt, 4)


def test_count_cached_on_arrival_reports_what_is_gone() -> None:
    prompt, late = queued("count_cached_on_arrival")
    assert late.cached == 16
    assert late.ids() == expected(prompt, 4)


@pytest.mark.parametrize(("name", "live"), [(None, 11), ("copy_on_adopt", 35)])
def test_copy_on_adopt(name: str | None, live: int) -> None:
    # Eight shared blocks and one of its own for each of three; each of the three copies eight.
    engine = rig(name)
    shared = engine.prompt(32, seed=1)
    run(engine, shared, max_tokens=1)
    for i in range(3):
        assert run(engine, shared + engine.prompt(4, seed=2 + i), max_tokens=1) == [32]
    assert engine.paged.pool.live == live


@pytest.mark.parametrize(("name", "live"), [(None, 2), ("no_dedup_on_publish", 5)])
def test_no_dedup_on_publish(name: str | None, live: int) -> None:
    # Each of four computes the last block of an equal prompt; three copies of it stay.
    engine = rig(name)
    run(engine, *[engine.prompt(8)] * 4, max_tokens=1)
    assert engine.paged.pool.live == live


def branches(name: str | None) -> list[bool]:
    """Whether each of three that go on in a half filled block answers as alone."""
    engine = rig(name)
    shared = engine.prompt(14, seed=1)
    run(engine, shared, max_tokens=1)
    prompts = [shared + engine.prompt(1, seed=2 + i) for i in range(3)]
    clients = [engine.add(prompt, max_tokens=6) for prompt in prompts]
    finish(engine, *clients)
    return [client.ids() == expected(list(client.request.prompt), 6) for client in clients]


def test_branches_inside_a_block_are_apart() -> None:
    assert branches(None) == [True] * 3


def test_share_partial_tail_no_cow_mixes_branches() -> None:
    assert not all(branches("share_partial_tail_no_cow"))


def test_share_partial_tail_no_cow_mixes_choices() -> None:
    engines = [rig(name) for name in (None, "share_partial_tail_no_cow")]
    said = []
    for engine in engines:
        client = engine.add(engine.prompt(6), n=3, temperature=1.0, seed=5, max_tokens=6)
        finish(engine, client)
        said.append([client.ids(choice) for choice in range(3)])
    assert said[0] != said[1]


@pytest.mark.parametrize(("name", "cached"), [(None, 8), ("decline_drops_entry", 0)])
def test_decline_drops_entry(name: str | None, cached: int) -> None:
    engine = rig(name)
    prompt = engine.prompt(10)
    run(engine, prompt)
    assert run(engine, prompt, prompt_logprobs=0) == [0]
    assert run(engine, prompt) == [cached]


@pytest.mark.parametrize(("name", "grows"), [(None, False), ("keep_hash_on_recycle", True)])
def test_keep_hash_on_recycle(name: str | None, grows: bool) -> None:
    engine = rig(name, blocks=8)
    for i in range(6):
        run(engine, engine.prompt(16, seed=i), max_tokens=1)
    assert (len(engine.paged.index) > 8) is grows


@pytest.mark.parametrize("name", ["penalty_window_from_computed_tokens", "seed_counts_computed_tokens"])
def test_choice_that_forgets_the_adopted_part_differs_warm(name: str) -> None:
    options: dict[str, Any] = (
        {"repetition_penalty": 2.0} if "penalty" in name else {"temperature": 1.0, "seed": 3}
    )
    same = []
    for fault in (None, name):
        engine = rig(fault)
        prompt = engine.prompt(200)
        cold, warm = (engine.add(prompt, max_tokens=12, **options) for _ in range(2))
        finish(engine, cold, warm)
        assert (cold.cached, warm.cached) == (0, 196)
        same.append(cold.ids() == warm.ids())
    assert same == [True, False]


@pytest.mark.parametrize(("name", "cached", "told"), [(None, 0, 10), ("guess_prompt_logprobs", 8, 2)])
def test_guess_prompt_logprobs_tells_nothing_of_what_it_adopted(
    name: str | None, cached: int, told: int
) -> None:
    engine = rig(name)
    prompt = engine.prompt(10)
    run(engine, prompt)
    client = engine.add(prompt, prompt_logprobs=0)
    assert finish(engine, client) == [cached]
    assert len(client.prompted) == told


def test_drift_with_traffic_shows_after_eight_others() -> None:
    engine = rig("drift_with_traffic")
    values = []
    for others in (0, 0, 8):
        run(engine, *(engine.prompt(6, seed=20 + i) for i in range(others)))
        client = engine.add(engine.prompt(10), logprobs=0, salt=f"alone-{others}")
        finish(engine, client)
        values.append([token.logprob for token in client.said()])
    assert values[0] == values[1] != values[2]


def test_logits_as_logprobs_are_above_zero() -> None:
    values = []
    for name in (None, "logits_as_logprobs"):
        engine = rig(name)
        client = engine.add(engine.prompt(10), logprobs=0, max_tokens=8)
        finish(engine, client)
        values.append(max(token.logprob or 0 for token in client.said()))
        silent = engine.add(engine.prompt(10), max_tokens=2)
        finish(engine, silent)
        assert all(token.logprob is None for token in silent.said())
    assert values[0] <= 0 < values[1]


@pytest.mark.parametrize(
    ("name", "counts"), [(None, [8] * 4), ("lend_to_two", [8, 8, 0, 0]), ("forget_after_hit", [8] * 4)]
)
def test_lend_to_two(name: str | None, counts: list[int]) -> None:
    engine = rig(name)
    shared = engine.prompt(8, seed=1)
    run(engine, shared + engine.prompt(2, seed=2))
    assert run(engine, *(shared + engine.prompt(2, seed=10 + i) for i in range(4))) == counts


@pytest.mark.parametrize(("name", "counts"), [(None, [8, 8, 8]), ("forget_after_hit", [8, 0, 8])])
def test_forget_after_hit(name: str | None, counts: list[int]) -> None:
    engine = rig(name)
    shared = engine.prompt(8, seed=1)
    run(engine, shared + engine.prompt(2, seed=2))
    assert [run(engine, shared + engine.prompt(2, seed=10 + i))[0] for i in range(3)] == counts
    assert engine.scheduler.problems() == []


@pytest.mark.parametrize(("name", "counts"), [(None, [0, 32, 32]), ("store_when_finished", [0, 0, 0])])
def test_store_when_finished(name: str | None, counts: list[int]) -> None:
    engine = rig(name)
    shared = engine.prompt(32, seed=1)
    prompts = [shared + engine.prompt(2, seed=10 + i) for i in range(3)]
    assert run(engine, *prompts, max_tokens=24) == counts
    assert run(engine, shared + engine.prompt(2, seed=20)) == [32]


# ---- lengths and edges


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        (None, [36, 36, 40]),
        ("miss_at_block_edge", [36, 0, 40]),
        ("cap_reuse_at_eight_blocks", [32, 32, 32]),
    ],
)
def test_counts_around_an_edge(name: str | None, counts: list[int]) -> None:
    engine = rig(name)
    long = engine.prompt(48)
    run(engine, long)
    assert [run(engine, long[:n])[0] for n in (39, 40, 41)] == counts


@pytest.mark.parametrize(("name", "equal"), [(None, True), ("resume_one_token_late", False)])
def test_resume_one_token_late(name: str | None, equal: bool) -> None:
    engine = rig(name)
    prompt = engine.prompt(10)
    run(engine, prompt)
    again = engine.add(prompt)
    assert finish(engine, again) == [8]
    assert (again.ids() == expected(prompt, 4)) is equal


@pytest.mark.parametrize(("name", "fails"), [(None, False), ("full_hit_has_nothing_to_run", True)])
def test_full_hit_has_nothing_to_run(name: str | None, fails: bool) -> None:
    engine = rig(name)
    run(engine, engine.prompt(10))
    assert run(engine, engine.prompt(10)) == [8]
    whole = engine.add(engine.prompt(8))
    finish(engine, whole)
    assert (whole.failed is not None) is fails


@pytest.mark.parametrize(("name", "cached"), [(None, 20), ("forget_replies", 12)])
def test_forget_replies(name: str | None, cached: int) -> None:
    engine = rig(name)
    prompt = engine.prompt(12)
    first = engine.add(prompt, max_tokens=9)
    finish(engine, first)
    assert run(engine, [*prompt, *first.ids(), *engine.prompt(2, seed=2)]) == [cached]


@pytest.mark.parametrize(("name", "equal"), [(None, True), ("logits_of_a_longer_prompt", False)])
def test_a_prompt_that_ends_inside_a_stored_one(name: str | None, equal: bool) -> None:
    engine = rig(name)
    long = engine.prompt(18)
    run(engine, long)
    cut, other = (engine.add(prompt) for prompt in (long[:10], long[:8] + engine.prompt(2, seed=2)))
    assert finish(engine, cut, other) == [8, 8]
    assert (cut.ids() == expected(long[:10], 4)) is equal
    assert other.ids() == expected(list(other.request.prompt), 4)
