"""Admission, sharing, eviction and every way out, on an engine stepped by hand."""

from __future__ import annotations

from typing import Any

import pytest

from engine.sequence import Phase
from tests.engine.rig import Client, Rig, expected


def lawful(prompt: list[int], shared: int, block: int = 4) -> int:
    return min(shared, len(prompt) - 1) // block * block


def idle(rig: Rig) -> None:
    assert (rig.scheduler.running, rig.scheduler.waiting, rig.scheduler.live) == ([], [], {})
    assert rig.paged.pool.referenced == 0
    assert rig.paged.promised == 0


# -- adoption ------------------------------------------------------------------------------------------


def test_every_sibling_of_a_burst_adopts_the_stored_prefix() -> None:
    rig = Rig(max_batch=8, blocks=128)
    shared = rig.prompt(22, seed=1)
    rig.run(shared + rig.prompt(3, seed=2))
    prompts = [shared + rig.prompt(5, seed=10 + i) for i in range(8)]
    burst = rig.run(*prompts)
    assert [client.cached for client in burst] == [20] * 8
    assert [client.ids() for client in burst] == [expected(prompt, 4) for prompt in prompts]


def test_siblings_in_flight_share_the_blocks_themselves() -> None:
    rig = Rig()
    shared = rig.prompt(16, seed=1)
    rig.run(shared + rig.prompt(1, seed=2))
    for i in range(4):
        rig.add(shared + rig.prompt(2, seed=10 + i), max_tokens=8)
    rig.steps(1)
    tables = [seq.table[:4] for seq in rig.scheduler.running]
    assert len(tables) == 4
    assert all(table == tables[0] for table in tables)


@pytest.mark.parametrize("length", range(1, 14))
def test_a_repeat_adopts_whole_blocks_and_computes_the_last_token(length: int) -> None:
    rig = Rig()
    prompt = rig.prompt(length)
    first, again = rig.run(prompt)[0], rig.run(prompt)[0]
    assert (first.cached, again.cached) == (0, (length - 1) // 4 * 4)
    assert first.ids() == again.ids() == expected(prompt, 4)


def test_a_short_match_leaves_the_long_entry_whole() -> None:
    rig = Rig()
    long = rig.prompt(40, seed=1)
    rig.run(long)
    live = rig.paged.pool.live
    short = long[:8] + rig.prompt(9, seed=2)
    assert rig.run(short)[0].cached == 8
    assert rig.paged.pool.live >= live
    assert rig.run(long)[0].cached == lawful(long, 40)


def test_generated_tokens_are_adopted_by_the_next_turn() -> None:
    rig = Rig()
    prompt = rig.prompt(10)
    reply = rig.run(prompt, max_tokens=9)[0].ids()
    turn = prompt + reply + rig.prompt(3, seed=5)
    assert rig.run(turn)[0].cached == lawful(turn, len(prompt) + len(reply) - 1)


def test_another_salt_adopts_nothing() -> None:
    rig = Rig()
    prompt = rig.prompt(20)
    rig.run(prompt, salt="a")
    assert rig.run(prompt, salt="b")[0].cached == 0
    assert rig.run(prompt, salt="a")[0].cached == 16


def test_without_sharing_nothing_is_adopted_or_kept() -> None:
    rig = Rig(share=False)
    prompt = rig.prompt(20)
    assert [rig.run(prompt)[0].cached for _ in range(2)] == [0, 0]
    assert rig.paged.pool.live == 0


def test_a_grid_wider_than_a_block_shares_blocks_and_reports_grid_lines() -> None:
    rig = Rig(grid=8, chunk=8)
    prompt = rig.prompt(30)
    rig.run(prompt)
    again = rig.add(prompt)
    rig.steps(1)
    assert rig.scheduler.running[0].trace["adopted_blocks"] == list(range(7))
    rig.drain()
    assert again.cached == 24
    assert again.ids() == expected(prompt, 4, grid=8)


# -- single flight -------------------------------------------------------------------------------------


def cold_burst(rig: Rig, n: int = 4) -> tuple[list[list[int]], list[Client]]:
    shared = rig.prompt(32, seed=1)
    prompts = [shared + rig.prompt(3, seed=10 + i) for i in range(n)]
    return prompts, [rig.add(prompt) for prompt in prompts]


def test_a_cold_burst_computes_its_prefix_once() -> None:
    rig = Rig()
    prompts, burst = cold_burst(rig)
    rig.drain()
    assert [client.cached for client in burst] == [0, 32, 32, 32]
    assert rig.scheduler.counts["computed_tokens_total"] == 35 + 3 * 3
    assert [client.ids() for client in burst] == [expected(prompt, 4) for prompt in prompts]


def test_followers_hold_nothing_while_they_wait() -> None:
    rig = Rig()
    cold_burst(rig)
    rig.steps(2)
    assert len(rig.scheduler.running) == 1
    assert [seq.table for seq in rig.scheduler.waiting] == [[], [], []]


def test_a_waiting_follower_does_not_hold_up_others() -> None:
    rig = Rig()
    cold_burst(rig, 2)
    other = rig.add(rig.prompt(3, seed=99))
    rig.steps(1)
    assert other.cached == 0
    assert len(rig.scheduler.waiting) == 1


def test_when_the_leader_goes_a_follower_leads_from_what_is_written() -> None:
    rig = Rig()
    prompts, burst = cold_burst(rig)
    rig.steps(2)
    rig.scheduler.cancel(burst[0].request.id)
    rig.drain()
    assert [client.cached for client in burst[1:]] == [16, 32, 32]
    assert [client.ids() for client in burst[1:]] == [expected(prompt, 4) for prompt in prompts[1:]]
    idle(rig)


def test_identical_prompts_end_stored_once() -> None:
    rig = Rig()
    prompt = rig.prompt(4)
    rig.run(prompt, prompt, prompt, max_tokens=6)
    assert rig.paged.pool.live == len(rig.paged.index) == 2


# -- budget --------------------------------------------------------------------------------------------


def test_the_least_recently_used_prefix_goes_tail_first() -> None:
    rig = Rig(blocks=10)
    old, new = rig.prompt(17, seed=1), rig.prompt(17, seed=2)
    rig.run(old, max_tokens=1)
    rig.run(new, max_tokens=1)
    rig.run(rig.prompt(13, seed=3), max_tokens=1)
    assert rig.paged.counts["evictions_lru"] == 2
    assert rig.run(old, max_tokens=1)[0].cached == 8


def test_a_prefix_in_regular_use_stays() -> None:
    rig = Rig(blocks=16)
    hot = rig.prompt(17, seed=1)
    rig.run(hot)
    for i in range(12):
        rig.run(rig.prompt(12, seed=100 + i))
        assert rig.run(hot)[0].cached == 16
    assert rig.paged.counts["evictions_lru"] > 16


def test_a_block_in_use_is_never_recycled() -> None:
    rig = Rig(blocks=16)
    prompt = rig.prompt(9, seed=1)
    long = rig.add(prompt, max_tokens=20)
    rig.steps(3)
    for i in range(10):
        rig.add(rig.prompt(9, seed=50 + i), max_tokens=1)
    rig.drain()
    assert rig.paged.counts["evictions_lru"] > 8
    assert long.ids() == expected(prompt, 20)


def test_admission_waits_for_what_a_request_will_need() -> None:
    rig = Rig(blocks=8)
    first = rig.add(rig.prompt(8, seed=1), max_tokens=13)
    second = rig.add(rig.prompt(8, seed=2), max_tokens=13)
    rig.steps(4)
    assert (first.cached, second.cached) == (0, None)
    rig.drain()
    assert second.ids() == expected(rig.prompt(8, seed=2), 13)


def test_arrival_order_holds_under_pressure() -> None:
    rig = Rig(blocks=8)
    rig.add(rig.prompt(8, seed=1), max_tokens=13)
    rig.add(rig.prompt(20, seed=2), max_tokens=9)
    small = rig.add(rig.prompt(4, seed=3), max_tokens=1)
    rig.steps(2)
    assert small.cached is None
    rig.drain()
    assert small.done


def test_the_batch_is_bounded() -> None:
    rig = Rig(max_batch=2)
    for i in range(5):
        rig.add(rig.prompt(5, seed=i), max_tokens=6)
    while rig.scheduler.busy:
        rig.steps(1)
        assert len(rig.scheduler.running) <= 2


# -- ways out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(12))
def test_a_cancel_in_any_step_gives_everything_back(steps: int) -> None:
    rig = Rig()
    client = rig.add(rig.prompt(33), max_tokens=6)
    other = rig.add(rig.prompt(33)[:20] + rig.prompt(4, seed=3), max_tokens=6)
    rig.steps(steps)
    rig.scheduler.cancel(client.request.id)
    heard = len(client.events)
    rig.drain()
    idle(rig)
    assert len(client.events) == heard
    assert other.ids() == expected(list(other.request.prompt), 6)


def test_cancelling_twice_or_something_unknown_is_nothing() -> None:
    rig = Rig()
    client = rig.add(rig.prompt(5))
    for name in (client.request.id, client.request.id, "nobody"):
        rig.scheduler.cancel(name)
    assert rig.scheduler.counts["cancelled_total"] == 1


def test_a_retry_after_a_cancelled_prefill_reuses_what_was_written() -> None:
    rig = Rig()
    prompt = rig.prompt(33)
    client = rig.add(prompt)
    rig.steps(2)
    rig.scheduler.cancel(client.request.id)
    again = rig.run(prompt)[0]
    assert (again.cached, again.ids()) == (16, expected(prompt, 4))


def test_an_end_token_stops_and_ignore_eos_does_not() -> None:
    rig = Rig()
    prompt = rig.prompt(9)
    whole = expected(prompt, 6)
    rig.scheduler.eos_ids = frozenset(whole[2:3])
    end = whole.index(whole[2])
    client = rig.run(prompt, max_tokens=6, ignore_eos=False)[0]
    assert client.ids() == whole[: end + 1]
    assert rig.run(prompt, max_tokens=6)[0].ids() == whole


def test_a_stop_string_ends_the_choice_and_its_text() -> None:
    rig = Rig()
    prompt = rig.prompt(9)
    pieces = [rig.engine.tokenizer.decode([token]) for token in expected(prompt, 6)]
    client = rig.run(prompt, max_tokens=6, stop=(pieces[2] + pieces[3],))[0]
    assert client.text == pieces[0] + pieces[1]
    idle(rig)


@pytest.mark.parametrize("method", ["prefill", "decode"])
def test_a_forward_that_fails_fails_its_requests_alone(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    prompt = rig.prompt(21)
    client = rig.add(prompt)
    rig.steps(1 if method == "prefill" else 4)
    with monkeypatch.context() as patch:
        patch.setattr(rig.engine.runner, method, _raise)
        rig.steps(1)
    assert client.failed is not None
    assert (client.failed.status, client.failed.message) == (500, "the engine failed: it broke")
    idle(rig)
    again = rig.run(prompt)[0]
    assert again.cached == (8 if method == "prefill" else 20)
    assert again.ids() == expected(prompt, 4)


def _raise(*_: Any) -> None:
    raise RuntimeError("it broke")


# -- choices -------------------------------------------------------------------------------------------


def test_choices_share_the_prompt_and_copy_its_partial_block_on_write() -> None:
    rig = Rig()
    prompt = rig.prompt(10)
    client = rig.add(prompt, max_tokens=4, n=3)
    rig.steps(2)
    assert len({tuple(seq.table[:2]) for seq in rig.scheduler.running}) == 1
    rig.drain()
    assert rig.paged.counts["copies"] == 2
    assert [client.ids(choice) for choice in range(3)] == [expected(prompt, 4)] * 3
    idle(rig)


def test_each_choice_samples_as_it_would_alone() -> None:
    rig = Rig()
    prompt = rig.prompt(10)
    together = rig.run(prompt, max_tokens=6, n=3, temperature=1.0, seed=7)[0]
    alone = [rig.run(prompt, max_tokens=6, temperature=1.0, seed=7 + i)[0].ids() for i in range(3)]
    assert [together.ids(choice) for choice in range(3)] == alone
    assert len({tuple(ids) for ids in alone}) > 1


def test_choices_that_do_not_fit_the_batch_wait() -> None:
    rig = Rig(max_batch=4)
    rig.add(rig.prompt(5, seed=1), max_tokens=4, n=3)
    second = rig.add(rig.prompt(5, seed=2), max_tokens=4, n=2)
    rig.steps(1)
    assert second.cached is None
    rig.drain()
    assert second.done


# -- reset ---------------------------------------------------------------------------------------------


def test_after_a_reset_a_stored_prefix_is_cold() -> None:
    rig = Rig()
    prompt = rig.prompt(20)
    rig.run(prompt)
    done = rig.paged.reset()
    assert (done["cleared"], done["freed_entries"]) == (True, 5)
    assert rig.paged.pool.live == 0
    assert rig.run(prompt)[0].cached == 0


def test_a_reset_during_a_decode_leaves_the_decode_alone() -> None:
    rig = Rig()
    prompt = rig.prompt(9)
    client = rig.add(prompt, max_tokens=8)
    rig.steps(4)
    rig.paged.reset()
    rig.drain()
    assert client.ids() == expected(prompt, 8)
    assert rig.paged.pool.live == 0


def test_work_begun_before_a_reset_publishes_nothing_after_it() -> None:
    rig = Rig()
    prompt = rig.prompt(33)
    rig.add(prompt)
    rig.steps(2)
    rig.paged.reset()
    again = rig.add(prompt)
    rig.drain()
    assert again.cached == 0
    assert again.ids() == expected(prompt, 4)


# -- dense ---------------------------------------------------------------------------------------------


def test_dense_storage_is_taken_by_the_first_and_given_back_at_the_end() -> None:
    rig = Rig(storage="dense")
    shared = rig.prompt(16, seed=1)
    rig.run(shared + rig.prompt(2, seed=2))
    prompts = [shared + rig.prompt(3, seed=10 + i) for i in range(3)]
    assert [client.cached for client in rig.run(*prompts)] == [16, 0, 0]
    after = rig.run(shared + rig.prompt(3, seed=20))[0]
    assert (after.cached, after.ids()) == (16, expected(list(after.request.prompt), 4))


def test_dense_storage_stays_in_its_budget() -> None:
    rig = Rig(storage="dense", blocks=10)
    for i in range(6):
        rig.run(rig.prompt(12, seed=i))
        assert rig.engine.storage.stats()["entries"] <= 2
    assert rig.engine.storage.stats()["evictions_lru"] == 4


def test_dense_requests_wait_for_room() -> None:
    rig = Rig(storage="dense", blocks=8)
    first = rig.add(rig.prompt(16, seed=1), max_tokens=8)
    second = rig.add(rig.prompt(16, seed=2), max_tokens=8)
    rig.steps(2)
    assert (first.cached, second.cached) == (0, None)
    rig.drain()
    assert second.ids() == expected(rig.prompt(16, seed=2), 8)


def test_dense_choices_go_their_own_ways() -> None:
    rig = Rig(storage="dense")
    prompt = rig.prompt(10)
    client = rig.run(prompt, max_tokens=4, n=2)[0]
    assert [client.ids(choice) for choice in range(2)] == [expected(prompt, 4)] * 2


def test_dense_reset_forgets_and_keeps_what_runs_apart() -> None:
    rig = Rig(storage="dense")
    prompt = rig.prompt(10)
    rig.run(prompt)
    rig.add(rig.prompt(10, seed=3))
    rig.steps(1)
    assert rig.engine.storage.reset()["freed_entries"] == 1
    rig.drain()
    assert rig.engine.storage.stats()["entries"] == 0
    assert rig.run(prompt)[0].cached == 0


# -- integrity -----------------------------------------------------------------------------------------


def test_the_integrity_check_sees_a_leak_and_a_hoarder() -> None:
    rig = Rig()
    rig.add(rig.prompt(9))
    rig.add(rig.prompt(9, seed=2))
    rig.steps(3)
    rig.scheduler.waiting.append(rig.scheduler.running[-1])
    assert "a waiting sequence holds storage" in rig.scheduler.problems()
    rig.scheduler.waiting.clear()
    rig.scheduler.running[0].table.append(60)
    assert any("reference counts" in problem for problem in rig.scheduler.problems())
    assert rig.scheduler.running[0].phase in (Phase.PREFILL, Phase.DECODE)
