"""store/1, store/2, store/3 and store/6 on hand-made workloads.

Each request of the standard burst has 224 + 8 tokens in ceil(232 / 32) = 8 blocks and adopts 6 of them, so
it brings 2 of its own; four requests bring 8.
"""

from __future__ import annotations

from typing import Any

import pytest

from conformance.history import Outcome, Sample, Workload
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
    span,
    suffix,
    workload,
)


def four(peak: float, *more: Any, cached: int = 192, **changes: Any) -> Workload:
    """A burst of four over 7 live blocks at the mark `before`, with one sample of `peak` while all decode."""
    return workload(
        seed(),
        sample(5, "before", live=7),
        *burst([cached] * 4, step="four"),
        span("four", 10, 12),
        sample(11.5, "four", live=peak, running=4),
        *more,
        facts=facts(**changes),
    )


def once(made: Workload, **args: Any) -> Verdict:
    return judge("stored_once", made, of="four", since="before", **args)


@pytest.mark.parametrize("rise", [6, 7, 8])
def test_the_bundled_engine_stays_within_two_below_the_bound(rise: int) -> None:
    verdict = once(four(7 + rise))
    assert (verdict.status, verdict.expected) == (Status.PASS, "rise of live blocks between 6 and 8")
    assert verdict.observed[1] == "four[0]  blocks 8 - adopted 6 = 2"


def test_one_block_too_many_fails() -> None:
    verdict = once(four(7 + 9))
    assert (verdict.status, verdict.request) == (Status.FAIL, "four[0]")
    assert verdict.witness.startswith("1 blocks more than 4 requests need")
    assert "floor(cached / 32) = 8, slack 0" in verdict.witness


def test_three_below_the_bound_fails_on_the_bundled_engine() -> None:
    verdict = once(four(7 + 5))
    assert verdict.status is Status.FAIL
    assert verdict.witness.startswith("3 blocks less than the requests need")


@pytest.mark.parametrize(("second", "status"), [(11.4, Status.FAIL), (11.8, Status.VACUOUS)])
def test_who_ends_before_another_took_its_last_block_gives_its_own_back(
    second: float, status: Status
) -> None:
    """The last block begins with the prompt's end; its first generated row is there with the second token."""
    made = four(7 + 5)
    for outcome in made.outcomes[1:]:
        outcome.tokens_at = [11.2, second, *(11.9 + i / 100 for i in range(6))]
    made.outcomes[1].tokens_at = [11 + i / 10 for i in range(8)]
    verdict = once(made)
    assert verdict.status is status
    assert (verdict.reason == "one of 'four' had ended before all had their last block") is (
        status is Status.VACUOUS
    )


def test_requests_that_took_turns_need_not_rise_together() -> None:
    """Each is done before the next one decodes: blocks of the first may be gone by then."""
    taken = in_turn(burst([192] * 4, step="four"))
    low = [sample(5, "before", live=7), sample(11.5, "four", live=9, running=1)]
    made = workload(seed(), *taken, *low, span("four", 10, 30), facts=facts())
    verdict = once(made)
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, "the requests of 'four' took turns")


def test_slack_is_given_on_top_only() -> None:
    assert once(four(7 + 10), slack_blocks=2).status is Status.PASS
    assert once(four(7 + 5), slack_blocks=2).status is Status.FAIL


def test_a_granule_of_several_blocks_may_share_more_than_is_reported() -> None:
    # Each reports 4 of 8 blocks: 16 are their own by the law, of which 3 each may be pinned: 16 - 2 - 12 = 2.
    made = four(7 + 12, cached=128, granule=128)
    verdict = once(made)
    assert (verdict.status, verdict.expected) == (Status.PASS, "rise of live blocks between 2 and 16")


def test_lookahead_blocks_are_part_of_the_need() -> None:
    # 232 + 25 tokens need 9 blocks: 3 of their own, 12 in all.
    assert once(four(7 + 12, lookahead=25)).status is Status.PASS
    assert once(four(7 + 12, lookahead=24)).status is Status.FAIL


def test_counts_that_hide_copies_are_found() -> None:
    # Every request reports six adopted blocks, but the pool grew by all eight of each.
    verdict = once(four(7 + 32))
    assert verdict.witness.startswith("24 blocks more")


def test_a_gauge_without_idle_blocks_adds_the_adopted_ones_once() -> None:
    # 8 of their own and the 6 shared ones, which were idle and not counted at the mark.
    assert once(four(7 + 14, idle_blocks_live=False)).status is Status.PASS
    assert once(four(7 + 15, idle_blocks_live=False)).status is Status.FAIL


def test_the_peak_gauge_tells_what_sampling_missed() -> None:
    late = sample(11.9, "four", live=10, peak_live=16, running=4)
    assert once(four(7 + 8, late)).status is Status.FAIL


def test_a_peak_from_before_the_mark_is_no_evidence() -> None:
    made = four(7 + 8, sample(11.9, "four", live=10, peak_live=40))
    made.samples[0].values["peak_live"] = 40
    assert once(made).status is Status.PASS


def test_without_a_sample_while_all_decode_it_is_vacuous() -> None:
    made = four(7 + 8)
    made.samples[-1] = sample(10.5, "four", live=15, running=3)
    verdict = once(made)
    assert verdict.reason == "no sample was taken while all 4 requests were decoding"
    assert verdict.status is Status.VACUOUS


def test_times_show_decoding_where_no_gauge_does() -> None:
    made = four(7 + 8)
    made.samples[-1] = sample(11.5, "four", live=15)
    assert once(made).status is Status.PASS


def elsewhere(control_peak: float, peak: float = 15) -> Workload:
    """The same on another server, with a control that starts from 20 live blocks."""
    alone = [reply(ask("apart", [*PREFIX, *suffix(i)], i, salt=f"p{i}"), 20, 22, cached=0) for i in range(4)]
    more = [
        *alone,
        span("apart", 20, 22),
        sample(19, "four", live=20),
        sample(21.5, "apart", live=control_peak),
    ]
    return four(peak, *more, how="serve")


def test_elsewhere_a_control_must_break_the_bound() -> None:
    # The control brings 32 blocks; the bound is 8.
    assert once(elsewhere(20 + 32), control="apart").status is Status.PASS


def test_elsewhere_less_than_the_bound_is_fine() -> None:
    assert once(elsewhere(20 + 32, peak=9), control="apart").status is Status.PASS


def test_a_control_within_the_bound_is_vacuous() -> None:
    verdict = once(elsewhere(20 + 8), control="apart")
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "the no-sharing arm 'apart' rose by 8 blocks, within the bound of 8",
    )


def test_elsewhere_no_control_is_vacuous() -> None:
    verdict = once(elsewhere(20 + 32))
    assert verdict.status is Status.VACUOUS
    assert "has no no-sharing arm" in verdict.reason


def test_a_control_that_was_not_sampled_is_unobservable() -> None:
    made = elsewhere(20 + 32)
    made.samples = [s for s in made.samples if s.step != "apart"]
    assert once(made, control="apart").status is Status.UNOBSERVABLE


def test_a_control_without_a_span_is_unobservable() -> None:
    made = elsewhere(20 + 32)
    made.spans = [s for s in made.spans if s.step != "apart"]
    verdict = once(made, control="apart")
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "live blocks were not sampled during 'apart'",
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"has_stats": False}, "the target exposes no statistics, so live blocks cannot be seen"),
        ({"block": None}, "the target does not say its block size B"),
    ],
)
def test_what_the_target_does_not_say_is_unobservable(change: dict[str, Any], reason: str) -> None:
    verdict = once(four(15, **change))
    assert (verdict.status, verdict.reason) == (Status.UNOBSERVABLE, reason)


def test_a_mark_without_live_blocks_is_unobservable() -> None:
    made = four(15)
    made.samples[0].values.clear()
    assert once(made).reason == "the statistics at 'before' hold no live blocks"


def test_a_step_without_live_blocks_is_unobservable() -> None:
    made = four(15)
    made.samples[-1] = sample(11.5, "four", running=4)
    assert once(made).reason == "live blocks were not sampled during the step"


def test_a_prompt_of_unknown_length_is_unobservable() -> None:
    made = workload(
        sample(5, "before", live=7),
        reply(ask("four", "some text", 0), 10, 12, prompt_tokens=None, cached=0),
        span("four", 10, 12),
        sample(11, "four", live=9),
    )
    assert once(made).reason == "four[0]: no ids were sent and usage.prompt_tokens is absent"


def again(cached: int) -> Outcome:
    return reply(ask("deep", [*PREFIX, *suffix(7)]), 30, 31, cached=cached)


def short(cached: int, shared: int = 70) -> Outcome:
    """A request that shares 70 ids with the entry: two blocks."""
    return reply(ask("short", [*PREFIX[:shared], *suffix(5)]), 20, 21, cached=cached)


def intact(made: Workload, **args: Any) -> Verdict:
    return judge("entry_intact", made, first="seed", short="short", again="deep", **args)


def test_a_short_match_leaves_the_entry_whole() -> None:
    assert intact(workload(seed(), short(64), again(192))).status is Status.PASS


def test_without_a_granule_no_entry_is_judged() -> None:
    verdict = intact(workload(seed(), short(64), again(192), facts=facts(granule=None)))
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "the granule G is neither declared nor calibrated",
    )


def test_an_entry_that_was_trimmed_to_the_match_fails() -> None:
    verdict = intact(workload(seed(), short(64), again(64)))
    assert (verdict.status, verdict.request) == (Status.FAIL, "deep")
    assert verdict.witness.endswith(
        "short matched only its head in between, and the entry did not survive that"
    )


def test_a_head_that_was_not_adopted_fails() -> None:
    verdict = intact(workload(seed(), short(0), again(192)))
    assert (verdict.status, verdict.request) == (Status.FAIL, "short")


def test_a_head_adopted_beyond_the_match_fails() -> None:
    assert intact(workload(seed(), short(96), again(192))).status is Status.FAIL


def test_a_head_below_a_granule_hits_nothing_and_is_vacuous() -> None:
    verdict = intact(workload(seed(), short(0, shared=30), again(192)))
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "no request of 'short' hit a head shorter than the entry of 192",
    )


def test_a_head_below_a_granule_must_do_no_harm() -> None:
    verdict = intact(workload(seed(), short(0, shared=30), again(0)))
    assert (verdict.status, verdict.request) == (Status.FAIL, "deep")


def tiny(cached: int) -> Outcome:
    return reply(ask("tiny", [*PREFIX[:30], *suffix(6)]), 25, 26, cached=cached)


def test_heads_below_a_granule_can_ride_along() -> None:
    assert intact(workload(seed(), short(64), tiny(0), again(192)), below="tiny").status is Status.PASS
    assert intact(workload(seed(), short(64), tiny(32), again(192)), below="tiny").request == "tiny"


def live(before: float, after: float, **running: float) -> list[Sample]:
    return [sample(2, "seed", live=before), sample(22, "short", live=after, **running)]


def test_live_blocks_must_not_fall_over_a_short_match() -> None:
    verdict = intact(workload(seed(), short(64), again(192), *live(9, 5)))
    assert verdict.status is Status.FAIL
    assert verdict.witness == "live blocks fell from 9 to 5 over short: part of what was stored is gone"


def test_live_blocks_may_stay_or_rise() -> None:
    assert intact(workload(seed(), short(64), again(192), *live(9, 9))).status is Status.PASS


def test_live_blocks_without_idle_ones_tell_nothing() -> None:
    made = workload(seed(), short(64), again(192), *live(9, 5), facts=facts(idle_blocks_live=False))
    assert intact(made).status is Status.PASS


def test_readings_while_something_runs_are_not_compared() -> None:
    assert intact(workload(seed(), short(64), again(192), *live(9, 5, running=1))).status is Status.PASS


def back(
    borrowers: list[int], after: dict[str, float], deep: int = 192, before: dict[str, float] | None = None
) -> Workload:
    return workload(
        seed(),
        sample(5, "before", **({"referenced": 0, "cached_idle": 7} if before is None else before)),
        *burst(borrowers, step="four"),
        sample(25, "after", **after),
        again(deep),
    )


def given_back(made: Workload) -> Verdict:
    return judge("returned", made, of="four", again="deep", before="before", after="after")


def test_borrowers_come_and_go() -> None:
    # Four borrowers leave at most 2 blocks each behind: 8 more than before.
    verdict = given_back(back([192] * 4, {"referenced": 0, "cached_idle": 15}))
    assert verdict.status is Status.PASS
    assert "at after  referenced 0  idle 15" in verdict.observed


def test_a_reference_that_stays_fails() -> None:
    verdict = given_back(back([192] * 4, {"referenced": 6, "cached_idle": 9}))
    assert verdict.witness == "6 blocks are still referenced at after, though every request ended"


def test_more_than_the_tails_left_behind_fails() -> None:
    verdict = given_back(back([192] * 4, {"referenced": 0, "cached_idle": 16}))
    assert verdict.witness == "idle stored blocks grew by 9, but the borrowers' tails are 8 blocks"


def test_a_prefix_that_no_longer_adopts_fails() -> None:
    verdict = given_back(back([192] * 4, {"referenced": 0, "cached_idle": 15}, deep=0))
    assert (verdict.status, verdict.request) == (Status.FAIL, "deep")


def test_a_lost_prefix_fails_even_without_statistics() -> None:
    assert given_back(workload(seed(), *burst([192] * 4, step="four"), again(0))).status is Status.FAIL


def test_three_borrowers_are_too_few() -> None:
    verdict = given_back(back([192] * 3 + [0], {"referenced": 0, "cached_idle": 15}))
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "only 3 of 4 borrowers adopted; the law asks for 4",
    )


def test_hidden_references_are_unobservable() -> None:
    verdict = given_back(back([192] * 4, {"cached_idle": 15}))
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "the target does not expose referenced blocks",
    )


@pytest.mark.parametrize("where", ["before", "after"])
def test_hidden_idle_blocks_are_unobservable(where: str) -> None:
    values = {"before": {"cached_idle": 7.0}, "after": {"referenced": 0.0, "cached_idle": 15.0}}
    values[where].pop("cached_idle")
    verdict = given_back(back([192] * 4, values["after"], before=values["before"]))
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "the target does not expose idle cached blocks",
    )


DENSE = facts(sharing="one_shot")


def shot(cached: list[int], deep: int = 192, **changes: Any) -> Workload:
    return workload(seed(), *burst(cached, step="four", **changes), again(deep), facts=DENSE)


def dense(made: Workload) -> Verdict:
    return judge("one_shot", made, of="four", again="deep")


def test_without_a_granule_no_borrower_is_judged() -> None:
    target = facts(sharing="one_shot", granule=None)
    made = workload(seed(), *burst([0, 192, 0, 0], step="four"), again(192), facts=target)
    assert dense(made).status is Status.UNOBSERVABLE


def test_one_borrower_takes_the_dense_entry() -> None:
    assert dense(shot([0, 192, 0, 0])).status is Status.PASS


def test_a_dense_entry_may_be_taken_to_the_token() -> None:
    # Dense storage moves whole sequences: the law's lower bound is floored, what is taken need not be.
    assert dense(shot([0, 160, 0, 0])).status is Status.PASS


def test_nobody_taking_it_fails() -> None:
    verdict = dense(shot([0] * 4))
    assert verdict.witness.startswith("none of 4 took the entry, although seed had stored the 200 tokens")


def test_two_borrowers_at_once_fail() -> None:
    verdict = dense(shot([192, 192, 0, 0]))
    assert verdict.witness == "four[0] and four[1] both adopted one entry that only one of them can hold"


@pytest.mark.parametrize(("running", "status"), [(1.0, Status.VACUOUS), (2.0, Status.FAIL)])
def test_two_borrowers_of_whom_one_at_a_time_ran_are_vacuous(running: float, status: Status) -> None:
    """The client may read the end of the first reply later than the start of the second."""
    made = shot([192, 192, 0, 0])
    made.spans.append(span("four", 10, 12))
    made.samples.append(sample(11, "four", running=running))
    assert dense(made).status is status


def test_a_second_borrower_after_the_first_gave_back_is_vacuous() -> None:
    taken = in_turn(burst([192, 192], step="four"))
    verdict = dense(workload(seed(), *taken, again(192), facts=DENSE))
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, "four[1] began after four[0] had ended")


def test_taking_more_than_is_shared_fails() -> None:
    assert dense(shot([0, 223, 0, 0])).request == "four[1]"


def test_an_entry_that_does_not_come_back_fails() -> None:
    verdict = dense(shot([0, 192, 0, 0], deep=0))
    assert verdict.witness == "deep adopted nothing, although four[1] had ended and given the entry back"


def test_paged_storage_is_not_one_shot() -> None:
    made = workload(seed(), *burst([192] * 4, step="four"), again(192))
    verdict = dense(made)
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "the target's storage is 'all', not one-shot",
    )


def test_with_nothing_stored_nothing_can_be_taken() -> None:
    verdict = dense(workload(*burst([0] * 4, step="four"), again(192), facts=DENSE))
    assert verdict.reason == "nothing was stored that the burst could have taken"


def test_siblings_that_took_turns_are_vacuous() -> None:
    taken = [
        o.model_copy(update={"sent": 10 + 3 * i, "ended": 12 + 3 * i})
        for i, o in enumerate(burst([192, 0], step="four"))
    ]
    verdict = dense(workload(seed(), *taken, again(192), facts=DENSE))
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, "the requests of 'four' took turns")
