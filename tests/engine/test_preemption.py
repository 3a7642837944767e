"""Preemption by recompute: what is dropped for room comes back and ends as it would have alone (evict/7)."""

from __future__ import annotations

from typing import Any

import pytest

from engine.messages import Done, Started, Token
from tests.engine.rig import Client, Rig, expected


def tight(**settings: Any) -> Rig:
    """Two requests of 2 prompt blocks are admitted; each grows to 5 blocks of a pool of 8."""
    return Rig(**{"blocks": 8, "reserve": "prompt", **settings})


def pair(rig: Rig, **params: Any) -> list[Client]:
    return [rig.add(rig.prompt(7, seed=i), max_tokens=13, **params) for i in (1, 2)]


def preemptions(rig: Rig) -> int:
    return rig.scheduler.counts["preemptions_total"]


def until_preempted(rig: Rig) -> None:
    for _ in range(40):
        if preemptions(rig):
            return
        rig.steps(1)
    raise AssertionError("nothing was preempted")


def logprobs(client: Client) -> list[float | None]:
    return [e.logprob for e in client.events if isinstance(e, Token)]


def test_both_end_with_their_own_tokens_though_one_was_preempted() -> None:
    rig = tight()
    clients = pair(rig)
    rig.drain()
    assert preemptions(rig) > 0
    assert [c.ids() for c in clients] == [expected(list(c.request.prompt), 13) for c in clients]


def test_a_full_reservation_never_preempts() -> None:
    """The control: the same two requests, one after the other."""
    rig = tight(reserve="full")
    pair(rig)
    rig.drain()
    assert preemptions(rig) == 0


def test_the_youngest_goes_and_the_oldest_is_never_disturbed() -> None:
    rig = tight()
    old, young = pair(rig)
    until_preempted(rig)
    (waiting,) = rig.scheduler.waiting
    assert waiting.request.id == young.request.id
    assert [seq.request.id for seq in rig.scheduler.running] == [old.request.id]
    assert (waiting.table, waiting.computed) == ([], 0)
    assert waiting.generated == young.ids() != []


@pytest.mark.parametrize("model", ["digest", "tiny"])
def test_a_preempted_request_has_the_logprob_bits_of_solo(model: str) -> None:
    rig = tight(model=model)
    clients = pair(rig, logprobs=0)
    rig.drain()
    assert preemptions(rig) > 0
    for client in clients:
        solo = Rig(model=model, share=False).run(list(client.request.prompt), max_tokens=13, logprobs=0)[0]
        assert (client.ids(), logprobs(client)) == (solo.ids(), logprobs(solo))


def test_sampling_goes_on_where_it_was() -> None:
    rig = tight()
    clients = pair(rig, temperature=1.0, seed=5)
    rig.drain()
    assert preemptions(rig) > 0
    for client in clients:
        solo = Rig().run(list(client.request.prompt), max_tokens=13, temperature=1.0, seed=5)[0]
        assert client.ids() == solo.ids()


def test_recomputation_is_not_a_hit_and_is_told_once() -> None:
    """The prompt's own block is still stored when the request comes back; usage stays as first told."""
    rig = tight()
    _, young = pair(rig)
    rig.drain()
    done = next(e for e in young.events if isinstance(e, Done))
    assert preemptions(rig) > 0
    assert sum(isinstance(e, Started) for e in young.events) == 1
    assert (young.cached, done.cached_tokens, done.completion_tokens) == (0, 0, 13)
    counts = rig.scheduler.counts
    assert (counts["hits"], counts["hits_tokens_total"], counts["lookups"]) == (0, 0, 2)


def test_a_hit_before_a_preemption_stays_reported() -> None:
    rig = tight()
    rig.run(rig.prompt(7, seed=2), max_tokens=1)
    _, young = pair(rig)
    rig.drain()
    done = next(e for e in young.events if isinstance(e, Done))
    assert preemptions(rig) > 0
    assert (young.cached, done.cached_tokens, rig.scheduler.counts["hits_tokens_total"]) == (4, 4, 4)


def test_the_trace_says_how_often() -> None:
    rig = tight()
    _, young = pair(rig)
    until_preempted(rig)
    assert rig.scheduler.live[young.request.id].trace["preemptions"] == 1


def test_all_choices_go_and_come_back_together() -> None:
    rig = tight(blocks=9)
    old = rig.add(rig.prompt(7, seed=1), max_tokens=13)
    young = rig.add(rig.prompt(6, seed=2), max_tokens=8, n=2, temperature=1.0, seed=3)
    until_preempted(rig)
    (head,) = rig.scheduler.waiting
    assert (head.request.id, head.width) == (young.request.id, 2)
    rig.drain()
    alone = [
        Rig().run(rig.prompt(6, seed=2), max_tokens=8, temperature=1.0, seed=3 + i)[0].ids() for i in (0, 1)
    ]
    assert [young.ids(0), young.ids(1)] == alone
    assert old.ids() == expected(list(old.request.prompt), 13)


def test_a_choice_that_had_finished_stays_finished() -> None:
    rig = tight()
    prompt = rig.prompt(6, seed=2)
    params: dict[str, Any] = {"max_tokens": 13, "n": 2, "temperature": 1.0, "seed": 3}
    alone = Rig().run(prompt, **params)[0]
    rig.scheduler.eos_ids = frozenset({alone.ids(0)[1]})
    rig.add(rig.prompt(7, seed=1), max_tokens=20)
    young = rig.add(prompt, ignore_eos=False, **params)
    until_preempted(rig)
    (head,) = rig.scheduler.waiting
    assert (head.choice, head.width) == (1, 1)
    rig.drain()
    assert (young.ids(0), young.ids(1)) == (alone.ids(0)[:2], alone.ids(1))


def test_a_preempted_request_can_be_cancelled_while_it_waits() -> None:
    rig = tight()
    old, young = pair(rig)
    until_preempted(rig)
    rig.scheduler.cancel(young.request.id)
    rig.drain()
    assert old.done
    assert (rig.paged.pool.referenced, rig.paged.promised, rig.scheduler.live) == (0, 0, {})


def test_a_follower_takes_over_from_a_preempted_leader_that_leaves() -> None:
    """The leader is dropped in mid-prefill; its follower starts at what it had written (adopt/4)."""
    rig = tight(blocks=10, chunk=4)
    old = rig.add(rig.prompt(7, seed=1), max_tokens=25)
    rig.steps(2)
    shared = rig.prompt(30, seed=2)
    leader, follower = (rig.add([*shared[:25], shared[-i]], max_tokens=1) for i in (1, 2))
    until_preempted(rig)
    assert [seq.request.id for seq in rig.scheduler.waiting] == [leader.request.id, follower.request.id]
    assert (leader.ids(), leader.cached, follower.cached) == ([], 0, None)
    rig.scheduler.cancel(leader.request.id)
    rig.drain()
    assert follower.ids() == expected(list(follower.request.prompt), 1)
    assert old.ids() == expected(list(old.request.prompt), 25)


def test_a_reset_while_a_preempted_request_waits_leaves_it_whole() -> None:
    rig = tight()
    clients = pair(rig)
    until_preempted(rig)
    rig.paged.reset()
    rig.drain()
    assert [c.ids() for c in clients] == [expected(list(c.request.prompt), 13) for c in clients]


def test_a_request_larger_than_the_pool_can_never_be_held() -> None:
    paged = tight().paged
    assert paged.can_ever_hold(7, 32, 1)
    assert not paged.can_ever_hold(7, 33, 1)
