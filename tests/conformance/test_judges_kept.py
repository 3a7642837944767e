"""store/4, store/5, store/7, store/8 and store/9 on hand-made workloads with blocks of 32 tokens.

Four prompts of 200 shared and 40 own ids with replies of 8: 6 shared blocks, and each has 240 + 7 written
tokens in one more whole block (7 of 32) and a tail. Whole blocks: 6 + 4 = 10; with tails 6 + 4 * 2 = 14.
"""

from __future__ import annotations

from typing import Any

import pytest

from conformance.history import Outcome, Workload
from conformance.verdict import Status, Verdict
from tests.conformance.builders import (
    PREFIX,
    ask,
    burst,
    facts,
    in_turn,
    judge,
    reply,
    sample,
    seed,
    solo,
    span,
    suffix,
    workload,
)


def four(step: str, start: float, cached: list[int], salt: str = "shared") -> list[Outcome]:
    plans = [ask(step, [*PREFIX, *suffix(i, 40)], i, salt if salt == "shared" else f"p{i}") for i in range(4)]
    return [
        reply(p, start + i, start + i + 0.9, cached=c)
        for i, (p, c) in enumerate(zip(plans, cached, strict=True))
    ]


def stored(rise: float, again: int = 224, apart: float = 32, **target: Any) -> Workload:
    """Four in turn over 7 live blocks, the same again, and the same under private salts."""
    return workload(
        sample(1, "before", live=7, running=0),
        *four("four", 10, [0, 192, 192, 192]),
        sample(15, "after", live=7 + rise, running=0),
        *four("again", 20, [again] * 4),
        sample(25, "apart", live=100, running=0),
        *four("unshared", 30, [0] * 4, salt="private"),
        sample(35, "end", live=100 + apart, running=0),
        facts=facts(**target),
    )


def kept(made: Workload, **args: Any) -> Verdict:
    return judge("kept_once", made, of="four", again="again", since="before", until="after", **args)


@pytest.mark.parametrize("rise", [10, 12, 14])
def test_the_different_blocks_of_all_prompts_are_kept_once(rise: float) -> None:
    verdict = kept(stored(rise))
    assert (verdict.status, verdict.expected) == (Status.PASS, "kept blocks rise by 10 to 14")


def test_copies_fail() -> None:
    verdict = kept(stored(28))
    assert verdict.witness == (
        "14 blocks more are kept than the different blocks of 4 requests: tokens that they share are stored "
        "more than once"
    )
    assert verdict.status is Status.FAIL


def test_on_the_bundled_engine_nothing_that_ended_may_be_missing() -> None:
    verdict = kept(stored(9))
    assert verdict.witness == "1 blocks of 4 requests are not kept, although all of them ended well"


def test_elsewhere_less_is_fine_where_the_control_costs_more() -> None:
    made = stored(5, how="serve")
    assert kept(made, control="unshared").expected == "kept blocks rise by at most 14"
    assert kept(made, control="unshared").status is Status.PASS


def test_elsewhere_a_control_within_the_bound_is_vacuous() -> None:
    verdict = kept(stored(5, apart=14, how="serve"), control="unshared")
    assert verdict.reason == "the no-sharing arm 'unshared' keeps 14 blocks, within the bound of 14"
    assert verdict.status is Status.VACUOUS


def test_elsewhere_no_control_is_vacuous() -> None:
    assert kept(stored(5, how="serve")).reason == "the case has no no-sharing arm (control)"


def test_a_control_without_readings_is_unobservable() -> None:
    made = stored(5, how="serve")
    made.samples.pop()
    assert kept(made, control="unshared").status is Status.UNOBSERVABLE


def test_prompts_that_are_not_found_again_are_vacuous() -> None:
    verdict = kept(stored(12, again=192))
    assert verdict.reason == "again[0] did not find its prompt, so not all were stored"
    assert verdict.status is Status.VACUOUS


def test_what_was_stored_before_is_not_owed_again() -> None:
    made = stored(4)
    made.outcomes.insert(0, seed(sent=-3, ended=-2))
    # Its six blocks and a tail of another content stand there already: 4 whole blocks are new.
    assert kept(made).expected == "kept blocks rise by 4 to 8"


def test_a_gauge_without_idle_blocks_needs_another_beside_it() -> None:
    made = stored(12, idle_blocks_live=False)
    assert kept(made).status is Status.UNOBSERVABLE
    for reading in made.samples:
        reading.values = {"live": 0, "cached_idle": reading.values["live"]}
    assert kept(made).status is Status.PASS


def test_without_ids_the_sum_of_the_law_bounds_it() -> None:
    # Each has ceil((240 + 8) / 32) = 8 blocks: 32 less 3 * 6 adopted are 14.
    made = stored(14, how="serve")
    for outcome in made.outcomes:
        outcome.token_ids = None
    assert kept(made, control="unshared").expected == "kept blocks rise by at most 14"


def twins(rise: float, cached: int = 192, prompt: int = 224, **changes: Any) -> Workload:
    """Four equal prompts of seven whole blocks: each computes the last one, and 7 tokens of a tail."""
    plans = [ask("twins", range(1000, 1000 + prompt), i) for i in range(4)]
    got = [
        reply(p, 10, 12, cached=cached if i else 0, token_ids=list(range(8)), **changes)
        for i, p in enumerate(plans)
    ]
    return workload(sample(1, "before", live=7), *got, sample(15, "after", live=7 + rise))


def once(made: Workload) -> Verdict:
    return judge("twins_once", made, of="twins", since="before", until="after")


@pytest.mark.parametrize("rise", [7, 8])
def test_twins_cost_what_one_costs(rise: float) -> None:
    assert once(twins(rise)).status is Status.PASS


def test_a_block_that_is_kept_by_each_twin_fails() -> None:
    verdict = once(twins(10))
    assert (verdict.status, verdict.request) == (Status.FAIL, "twins[3]")
    assert verdict.witness.startswith("2 blocks more are kept than the different blocks of 4 requests")


def test_twins_of_which_one_computed_are_vacuous() -> None:
    # With half a block behind the last whole one, each adopts all seven: nothing was computed twice.
    verdict = once(twins(7, cached=224, prompt=240))
    assert verdict.reason == "1 of 4 computed a whole block, so nothing was computed twice"


def test_twins_that_took_turns_are_vacuous() -> None:
    made = twins(7)
    made.outcomes = in_turn(made.outcomes)
    made.samples[1] = sample(90, "after", live=14)
    assert once(made).reason == "the requests of 'twins' took turns"


def test_prompts_that_differ_are_no_twins() -> None:
    made = twins(7)
    made.outcomes[0].plan = made.outcomes[0].plan.model_copy(update={"key": "other"})
    assert once(made).reason == "the requests of 'twins' are not identical"


def branched(**target: Any) -> Workload:
    """Four that share 200 ids, six blocks and 8 ids into a seventh."""
    got = burst([192] * 4, step="four")
    solos = {o.plan.key: [solo(o.plan), solo(o.plan)] for o in got}
    return workload(seed(), *got, solos=solos, facts=facts(**target))


def branches(made: Workload) -> Verdict:
    return judge("branches", made, of="four")


def test_branches_that_answer_as_alone_pass() -> None:
    assert branches(branched()).status is Status.PASS


def test_a_branch_that_reads_what_its_sibling_wrote_fails() -> None:
    made = branched()
    made.outcomes[2].token_ids = [9] * 8
    verdict = branches(made)
    assert (verdict.status, verdict.request) == (Status.FAIL, "four[1]")
    assert verdict.witness.startswith("four[1] parts from its solo run: token 0 is 9, alone it is 100")


def test_branches_that_answer_alike_alone_are_vacuous() -> None:
    made = branched()
    for outcome in made.of("four"):
        outcome.token_ids = [1]
        for run in made.solos[outcome.plan.key]:
            run.token_ids = [1]
    assert "answer alike, so content shows no owner" in branches(made).reason


def test_branches_that_took_turns_are_vacuous() -> None:
    made = branched()
    made.outcomes = [made.outcomes[0], *in_turn(made.of("four"))]
    assert branches(made).reason == "the branches of 'four' took turns"


def test_branches_at_the_edge_of_a_block_are_vacuous() -> None:
    verdict = branches(branched(block=8, granule=8))
    assert verdict.reason == "the branches part after [200, 200, 200] tokens, at the edge of a block of 8"


def test_blocks_of_one_token_are_never_partly_filled() -> None:
    verdict = branches(branched(block=1, granule=1))
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "a block of one token is never partly filled",
    )


def test_branches_that_adopt_nothing_are_vacuous() -> None:
    made = branched()
    for outcome in made.of("four"):
        outcome.cached = 0
    assert branches(made).reason == "no branch of 'four' adopted anything"


def test_drawn_branches_need_exact_tokens() -> None:
    made = branched(grade="text")
    for outcome in made.of("four"):
        outcome.plan = outcome.plan.model_copy(update={"sampling": {"temperature": 1.0}})
    verdict = branches(made)
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "drawn tokens cannot be compared at grade text",
    )


def declined(cached: int = 0, again: int = 192, missed: float = 1, **changes: Any) -> Workload:
    plan = ask("asked", [*PREFIX, *suffix(1)])
    return workload(
        seed(),
        sample(2, "before", missed_requests=3),
        reply(plan, 5, 6, cached=cached, trace={"missed": "prompt_logprobs"}, **changes),
        sample(8, "after", missed_requests=3 + missed),
        reply(ask("again", [*PREFIX, *suffix(2)]), 10, 11, cached=again),
    )


def decline(made: Workload) -> Verdict:
    return judge("declined", made, of="asked", again="again", since="before", until="after")


def test_a_request_that_cannot_adopt_computes_all_and_is_counted() -> None:
    verdict = decline(declined())
    assert verdict.status is Status.PASS
    assert verdict.observed[1] == "missed requests rose by 1, reasons prompt_logprobs"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (declined(cached=192), "asked cannot be served from stored rows, but reports 192 cached"),
        (declined(cached=-5), "asked reports -5 cached tokens; a count is never below 0"),
        (declined(again=0), "again reports 0 cached tokens, although seed had stored"),
        (declined(missed=0), "1 requests declined what was stored, 0 are counted as missed"),
    ],
)
def test_a_decline_that_takes_harms_or_is_not_counted_fails(made: Workload, said: str) -> None:
    verdict = decline(made)
    assert verdict.status is Status.FAIL
    assert verdict.witness.startswith(said)


def test_a_decline_without_an_offer_is_vacuous() -> None:
    made = declined()
    made.outcomes.pop(0)
    assert decline(made).status is Status.VACUOUS


def test_without_a_count_of_misses_a_decline_is_unobservable() -> None:
    made = declined()
    made.samples[0].values.clear()
    assert decline(made).status is Status.UNOBSERVABLE


def churned(*entries: float, total: float = 20, prompts: int = 10, **target: Any) -> Workload:
    """Prompts of 224 ids, seven blocks each: ten of them are 3.5 pools of 20 blocks."""
    got = [reply(ask("churn", range(i * 300, i * 300 + 224), i), i, i + 0.9) for i in range(prompts)]
    readings = [sample(2 + i, "churn", index_entries=e, total=total) for i, e in enumerate(entries)]
    return workload(*got, span("churn", 0, 20, "churn"), *readings, facts=facts(**target))


def bounded(made: Workload, **args: Any) -> Verdict:
    return judge("index_bounded", made, of="churn", **args)


def test_an_index_that_stays_within_the_pool_passes() -> None:
    verdict = bounded(churned(7, 14, 20, 20))
    assert verdict.status is Status.PASS
    assert verdict.observed == ("3.5 pools passed", "at most 20 entries in 4 readings")


def test_an_index_that_outgrows_the_pool_fails() -> None:
    verdict = bounded(churned(7, 14, 21, 28))
    assert (verdict.status, verdict.request) == (Status.FAIL, "churn[4]")
    assert verdict.witness == (
        "21 entries name 20 blocks: those of recycled blocks are still there after 5 of 10 prompts"
    )


def test_too_little_churn_is_vacuous() -> None:
    verdict = bounded(churned(7, prompts=5))
    assert verdict.reason == "only 1.8 pools of prompts passed, 3 are asked for"
    assert bounded(churned(7, prompts=5), pools=1.5).status is Status.PASS


def test_the_pool_may_be_known_from_the_facts_alone() -> None:
    made = churned(7, 21, pool_blocks=20)
    for reading in made.samples:
        del reading.values["total"]
    assert bounded(made).status is Status.FAIL


@pytest.mark.parametrize("gauge", ["index_entries", "total"])
def test_an_index_that_is_not_shown_is_unobservable(gauge: str) -> None:
    made = churned(7, pool_blocks=None)
    for reading in made.samples:
        del reading.values[gauge]
    assert bounded(made).status is Status.UNOBSERVABLE


def test_too_few_of_the_prompts_sent_again_are_vacuous() -> None:
    made = stored(12)
    made.outcomes = [o for o in made.outcomes if o.id != "again[3]"]
    assert kept(made).reason == "3 of 4 prompts were sent again"


def test_prompts_under_a_granule_cannot_be_looked_for() -> None:
    """Prompts of 240 on a granule of 256: a miss is all that the law asks of them."""
    verdict = kept(stored(12, again=0, granule=256))
    assert verdict.reason == "no prompt has a whole granule to be found by"
    assert verdict.status is Status.VACUOUS


def test_what_is_kept_needs_a_gauge_of_it() -> None:
    made = stored(12)
    del made.samples[1].values["live"]
    verdict = kept(made)
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "the statistics at 'after' hold no live blocks",
    )


def test_where_text_parts_in_a_block_is_unobservable() -> None:
    made = branched()
    for outcome in made.outcomes:
        outcome.plan.prompt_text, outcome.plan.prompt_ids = "words", None
    assert "where they part in a block is not known" in branches(made).reason
