"""evict/1 to evict/4 on hand-made workloads: B = G = 32, requests of 224 ids (law 192, seven blocks)."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.history import Facts, Outcome, Workload
from conformance.judges.base import Case, Stop
from conformance.judges.evict import pool_blocks, risen
from conformance.verdict import Status, Verdict
from tests.conformance.builders import (
    PREFIX,
    ask,
    facts,
    judge,
    reply,
    sample,
    seed,
    solo,
    suffix,
    workload,
)

PROMPT = [*PREFIX, *suffix(1)]
POOL = 40
"""Blocks; a stranger below takes four of them, a tenth of the pool."""


def small(**changes: Any) -> Facts:
    return facts(pool_blocks=POOL, evict_unit="block", one_tier=True, **changes)


def stranger(index: int, sent: float, took: float = 0.5, **changes: Any) -> Outcome:
    """A cold prompt of 100 ids and 8 generated: four blocks."""
    plan = ask("strangers", [9000 + index, *range(100, 199)], index, salt=f"private-{index}")
    return reply(plan, sent, sent + took, **changes)


def strangers(count: int, start: float) -> list[Outcome]:
    return [stranger(i, start + i) for i in range(count)]


def use(step: str, sent: float, cached: int, index: int | None = None, **changes: Any) -> Outcome:
    return reply(ask(step, PROMPT, index), sent, sent + 0.5, cached=cached, **changes)


# ---- counting


def test_a_counter_rises_between_two_moments() -> None:
    read = [sample(at, "x", evictions=at * 10) for at in (1, 2, 5)]
    case = Case(workload(*read), "evict/1")
    assert risen(case, "evictions", 2.5, 9) == 30
    assert risen(case, "evictions", 0.5, 9) is None
    assert risen(case, "preemptions", 2.5, 9) is None


def test_a_pool_that_is_not_told_is_unobservable() -> None:
    with pytest.raises(Stop) as stop:
        pool_blocks(Case(workload(facts=facts(pool_blocks=None)), "evict/1"))
    assert stop.value.status is Status.UNOBSERVABLE


# ---- evict/1


def hot(
    cached: int = 192,
    rounds: int = 8,
    each: int = 4,
    evictions: float | None = 60.0,
    target: Facts | None = None,
) -> Workload:
    """Uses of a stored prompt, each after `each` strangers: at four, 0.4 pools between two uses."""
    events: list[Any] = [seed()]
    for at in range(rounds):
        events += [stranger(at * each + i, 10 * at + 2 + i) for i in range(each)]
        events.append(use("use", 10 * at + 9, cached if at == rounds - 1 else 192, at))
    if evictions is not None:
        events += [sample(0, "use", evictions=0.0), sample(1000, "use", evictions=1e9)]
        events.append(sample(10 * rounds - 2, "use", evictions=evictions))
    return workload(*events, facts=target or small())


def stays(made: Workload) -> Verdict:
    return judge("stays", made, of="use", churn="strangers")


def test_a_prefix_in_use_stays() -> None:
    verdict = stays(hot())
    assert (verdict.status, verdict.witness) == (Status.PASS, "")
    assert verdict.observed[0] == "use[0]  n 224  cached 192  lawful 192  0.40 pools since its last use"


def test_evictions_need_not_be_counted() -> None:
    assert stays(hot(evictions=None)).status is Status.PASS


@pytest.mark.parametrize("cached", [0, 160])
def test_a_prefix_that_was_lost_in_spite_of_its_use_fails(cached: int) -> None:
    verdict = stays(hot(cached))
    assert (verdict.status, verdict.request) == (Status.FAIL, "use[7]")
    assert verdict.witness.startswith(f"use[7] reports {cached} cached tokens, although use[0] had stored")
    assert verdict.witness.endswith("only 0.40 pools had passed")


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"rounds": 7}, "2.80 pools passed between uses, not 3"),
        ({"each": 5, "cached": 0}, "0.00 pools passed between uses, not 3"),
        ({"evictions": 0.0}, "nothing was evicted, so nothing could be lost"),
    ],
)
def test_what_shows_nothing_of_recency_is_vacuous(how: dict[str, Any], reason: str) -> None:
    verdict = stays(hot(**how))
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, reason)


def test_uses_that_the_law_asks_no_hit_of_are_vacuous() -> None:
    """Prompts of 224 ids on a granule of 256."""
    made = hot(target=small(granule=256))
    made.outcomes = [o.model_copy(update={"cached": 0}) for o in made.outcomes]
    verdict = stays(made)
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, "nothing was stored that a use could adopt")


def test_recency_needs_the_size_of_the_pool() -> None:
    assert stays(hot(target=facts(pool_blocks=None))).status is Status.UNOBSERVABLE


# ---- evict/2


def chain(cached: int, evicted: float | None = 2, count: int = 2, target: Facts | None = None) -> Verdict:
    """A chain of six blocks that may be adopted; two were evicted, so at least three must be left."""
    told = {} if evicted is None else {"evictions": 10.0}
    later = {} if evicted is None else {"evictions": 10 + evicted}
    made = workload(
        use("whole", 0, 0),
        sample(1, "stored", **told, live=1),
        *strangers(count, 2),
        sample(8, "pressed", **later, live=1),
        use("again", 9, cached),
        facts=target or small(),
    )
    return judge("tail_first", made, of="again", since="stored", until="pressed")


@pytest.mark.parametrize("cached", [96, 128, 160])
def test_a_chain_that_lost_its_tail_passes(cached: int) -> None:
    verdict = chain(cached)
    assert verdict.status is Status.PASS
    assert verdict.observed == (
        f"again  n 224  cached {cached}  lawful 192  2 blocks evicted, so at least 96 are due",
    )


@pytest.mark.parametrize("cached", [0, 64])
def test_a_chain_that_lost_its_head_fails(cached: int) -> None:
    verdict = chain(cached)
    assert (verdict.status, verdict.request) == (Status.FAIL, "again")
    assert verdict.witness == (
        f"again reports {cached} cached tokens of the 192 that were stored, although only 2 blocks were "
        "evicted: the chain lost its head before its tail"
    )


def test_a_chain_that_is_adopted_beyond_its_end_fails() -> None:
    assert chain(224).status is Status.FAIL


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"cached": 192}, "the chain is whole: nothing of it was evicted"),
        ({"cached": 0, "evicted": 5}, "5 evictions may have taken all 192 tokens of the chain"),
    ],
)
def test_a_chain_that_is_whole_or_gone_is_vacuous(how: dict[str, Any], reason: str) -> None:
    verdict = chain(**how)
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, reason)


@pytest.mark.parametrize(
    ("cached", "status"), [(32, Status.PASS), (0, Status.VACUOUS), (192, Status.VACUOUS)]
)
def test_a_head_without_its_tail_shows_the_order_also_where_all_may_have_gone(
    cached: int, status: Status
) -> None:
    assert chain(cached, evicted=None, count=9).status is status


def test_without_a_counter_what_strangers_took_may_all_have_been_evicted() -> None:
    assert chain(96, evicted=None, count=1).observed[0].endswith("4 blocks evicted, so at least 32 are due")
    assert chain(0, evicted=None, count=1).status is Status.FAIL


@pytest.mark.parametrize("unit", ["entry", "unknown"])
def test_a_target_that_does_not_evict_by_the_block_is_unobservable(unit: str) -> None:
    assert chain(96, target=facts(evict_unit=unit)).status is Status.UNOBSERVABLE


# ---- evict/3


def decoding(
    count: int = 10, target: Facts | None = None, text: str = "", late: bool = False, fill: bool = True
) -> Workload:
    """A decode from 2 s to 60 s beside strangers, and two requests that fill the pool later."""
    long, filling = ask("long", PROMPT), [ask("fill", suffix(i, 200), i) for i in range(2)]
    events: list[Any] = [reply(long, 1, 60, first=2)]
    events += strangers(count, 55 if late else 5)
    events += [reply(plan, 70, 71) for plan in filling] if fill else []
    if text:
        next(o for o in events if o.id == text).token_ids = [7] * 8
    solos = {plan.key: [solo(plan), solo(plan)] for plan in (long, *filling)}
    return workload(*events, facts=target or small(), solos=solos)


def unrecycled(made: Workload, **args: Any) -> Verdict:
    return judge("unrecycled", made, of="long", churn="strangers", **args)


def test_a_decode_that_is_left_alone() -> None:
    verdict = unrecycled(decoding(), fill="fill")
    assert (verdict.status, verdict.expected) == (Status.PASS, "long and fill = solo")
    assert verdict.observed[-1] == "40 blocks were taken by strangers while long decoded"
    assert unrecycled(decoding(fill=False)).status is Status.PASS


@pytest.mark.parametrize("who", ["long", "fill[1]"])
def test_rows_of_others_in_a_decode_fail(who: str) -> None:
    verdict = unrecycled(decoding(text=who), fill="fill")
    assert (verdict.status, verdict.request) == (Status.FAIL, who)
    assert "parts from its solo run" in verdict.witness


@pytest.mark.parametrize(("how", "taken"), [({"count": 9}, 36), ({"late": True}, 20)])
def test_too_little_taken_during_the_decode_is_vacuous(how: dict[str, Any], taken: int) -> None:
    verdict = unrecycled(decoding(**how), fill="fill")
    assert verdict.reason == f"{taken} blocks were taken during the decode, less than the pool of 40"
    assert verdict.status is Status.VACUOUS


def test_a_decode_without_a_solo_run_is_unobservable() -> None:
    made = decoding()
    made.solos.clear()
    assert unrecycled(made).status is Status.UNOBSERVABLE


# ---- evict/4


def gone(
    cached: int = 0, evicted: float | None = 40, tokens: list[int] | None = None, count: int = 3,
    target: Facts | None = None, stored: bool = True,
) -> Verdict:  # fmt: skip
    plan = ask("again", PROMPT)
    told = {} if evicted is None else {"evictions": 0.0}
    later = {} if evicted is None else {"evictions": evicted}
    answer: dict[str, Any] = {} if tokens is None else {"token_ids": tokens}
    made = workload(
        *([use("first", 0, 0)] if stored else []),
        sample(1, "stored", **told, live=1),
        *strangers(count, 2),
        sample(90, "pressed", **later, live=1),
        reply(plan, 91, 92, cached=cached, **answer),
        facts=target or small(),
        solos={plan.key: [solo(plan), solo(plan)]},
    )
    return judge("recycled", made, of="again", since="stored", until="pressed")


def test_what_was_recycled_is_computed_again() -> None:
    verdict = gone()
    assert (verdict.status, verdict.expected) == (Status.PASS, "again = solo and adopts nothing")


def test_a_hit_on_what_was_recycled_fails() -> None:
    verdict = gone(192)
    assert (verdict.status, verdict.request) == (Status.FAIL, "again")
    assert verdict.witness.startswith("again reports 192 cached tokens, although more than the whole pool")


def test_another_tier_may_bring_it_back_but_not_another_reply() -> None:
    slow = facts(pool_blocks=POOL, one_tier=False)
    assert gone(192, target=slow).status is Status.PASS
    assert gone(192, tokens=[7] * 8, target=slow).status is Status.FAIL
    assert gone(224, target=slow).status is Status.FAIL


def test_another_reply_fails_whatever_was_evicted() -> None:
    assert gone(0, evicted=0, tokens=[7] * 8).status is Status.FAIL


def test_too_few_evictions_are_vacuous_even_with_a_hit() -> None:
    assert gone(192, evicted=39).reason == "39 blocks were evicted, less than the pool of 40"


@pytest.mark.parametrize(("count", "status"), [(20, Status.PASS), (19, Status.VACUOUS)])
def test_without_a_counter_two_pools_must_have_passed(count: int, status: Status) -> None:
    assert gone(evicted=None, count=count).status is status


def test_what_was_never_stored_is_vacuous() -> None:
    assert gone(stored=False).reason == "not all of 'again' had been stored before"
