"""adopt/4, adopt/5, adopt/8 and adopt/9 on hand-made workloads."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.history import Outcome, PlannedRequest, Workload
from conformance.verdict import Status, Verdict
from tests.conformance.builders import PREFIX, ask, facts, judge, reply, sample, seed, solo, suffix, workload


def one(step: str, cached: int, sent: float, stream: bool = True, number: int = 1) -> Outcome:
    plan = ask(step, [*PREFIX, *suffix(number)]).model_copy(update={"stream": stream})
    return reply(plan, sent, sent + 1, cached=cached)


def ways(*cached: int, **target: Any) -> Workload:
    """The same prefix adopted by a stream, by a whole reply, and later."""
    return workload(
        seed(),
        one("streamed", cached[0], 5, number=1),
        one("whole", cached[1], 10, stream=False, number=2),
        one("later", cached[2], 30, number=3),
        facts=facts(**target),
    )


def alike(made: Workload) -> Verdict:
    return judge("same_cached", made, of=["streamed", "whole", "later"])


def test_equal_counts_pass_and_tell_how_each_was_sent() -> None:
    verdict = alike(ways(192, 192, 192))
    assert verdict.status is Status.PASS
    assert verdict.observed[1] == "whole  n 224  cached 192  lawful 192  not streamed, 9.0 s after seed"


@pytest.mark.parametrize(("cached", "culprit"), [((192, 0, 192), "whole"), ((192, 192, 160), "later")])
def test_a_count_that_depends_on_the_way_fails(cached: tuple[int, ...], culprit: str) -> None:
    verdict = alike(ways(*cached))
    assert (verdict.status, verdict.request) == (Status.FAIL, culprit)
    assert verdict.witness.startswith(f"{culprit} (")
    assert verdict.witness.endswith("192, although the same tokens were stored for both")


def test_a_cache_that_is_off_is_vacuous() -> None:
    assert alike(ways(0, 0, 0)).reason == "no arm hits, so a cache that is off would pass"


def test_arms_on_different_states_are_vacuous() -> None:
    made = ways(192, 192, 192)
    made.outcomes[-1].plan = made.outcomes[-1].plan.model_copy(update={"salt": "other"})
    assert "the arms stand on different states" in alike(made).reason


def test_steps_of_different_size_are_vacuous() -> None:
    made = ways(192, 192, 192)
    made.outcomes[-1] = reply(ask("later", PREFIX, 0), 30, 31, cached=192)
    made.outcomes.append(reply(ask("later", PREFIX, 1), 32, 33, cached=192))
    assert alike(made).reason == "the steps have [1, 2] requests"


def test_text_may_be_off_by_what_its_lengths_are() -> None:
    texts = [
        reply(ask(step, "word " * 40 + step), 5 + i, 6 + i, prompt_tokens=100, cached=cached)
        for i, (step, cached) in enumerate([("seed", 0), ("streamed", 96), ("whole", 97), ("later", 96)])
    ]
    assert alike(workload(*texts, facts=facts(granule=1, lcp_slack=2, grade="text"))).status is Status.PASS


LEADER = [*PREFIX, *suffix(99)]


def cancelled(
    *cached: int, written: float = 128, left: str = "prefilling", sent: float = 1, **changes: Any
) -> Workload:
    """A leader that leaves at 2 s after so many tokens; its followers were sent at 1 s."""
    leader = reply(ask("leader", LEADER), 0.5, 2, status=None, error="left", left=left, cached=None)
    plans = [ask("four", [*PREFIX, *suffix(i)], i) for i in range(len(cached))]
    got = [reply(p, sent, 5, cached=c, **changes) for p, c in zip(plans, cached, strict=True)]
    solos = {o.plan.key: [solo(o.plan), solo(o.plan)] for o in got}
    readings = [
        sample(0.1, "four", computed_tokens=1000),
        sample(0.4, "leader", computed_tokens=1000),
        sample(1.9, "leader", computed_tokens=1000 + written),
        sample(5, "four", computed_tokens=5000),
    ]
    return workload(leader, *got, *readings, solos=solos)


def follow(made: Workload) -> Verdict:
    return judge("followers_go_on", made, of="four", leader="leader")


def test_followers_that_go_on_from_where_the_leader_stopped_pass() -> None:
    # The first computes 224 - 128 = 96, three the last 32 each: the bound is 200 - 128 + 4 * 24 + 4 * 32.
    verdict = follow(cancelled(128, 192, 192, 192))
    assert verdict.status is Status.PASS
    assert verdict.observed[0] == "leader left after 128 computed tokens"


def test_a_follower_that_begins_from_zero_fails() -> None:
    verdict = follow(cancelled(0, 192, 192, 192))
    assert (verdict.status, verdict.request) == (Status.FAIL, "four[0]")
    assert verdict.witness == "four[0] began again from zero, although leader had computed 128 tokens"


def test_followers_that_each_compute_the_rest_fail() -> None:
    # 4 * (224 - 32) = 768 tokens, where 72 + 96 + 128 = 296 were left.
    verdict = follow(cancelled(32, 32, 32, 32))
    assert verdict.witness == "after leader 768 tokens were computed, 472 over the 296 left to do once"


def test_a_follower_with_another_reply_fails() -> None:
    verdict = follow(cancelled(128, 192, 192, 192, token_ids=[1]))
    assert verdict.witness.startswith("four[0] parts from its solo run: token 0 is 1, alone it is 0")


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (
            cancelled(128, 192, left="decoding"),
            "the client of leader was not seen to leave in mid-prefill",
        ),
        (cancelled(0, 0, written=31), "leader left after 31 computed tokens, less than one granule"),
        (
            cancelled(128, 192, sent=3),
            "four[0] was not sent while leader was prefilling",
        ),
    ],
)
def test_a_cancel_that_came_too_early_or_too_late_is_vacuous(made: Workload, reason: str) -> None:
    verdict = follow(made)
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, reason)


def test_of_several_rounds_those_count_in_which_the_cancel_landed() -> None:
    made = cancelled(128, 192)
    missed = made.outcomes[0].model_copy(update={"id": "leader[1]", "index": 1, "left": "decoding"})
    more = [
        o.model_copy(update={"id": f"four[{o.index + 2}]", "index": o.index + 2, "cached": 0})
        for o in made.of("four")
    ]
    made.outcomes += [missed, *more]
    assert follow(made).status is Status.PASS
    made.outcomes[1].cached = 0
    assert follow(made).request == "four[0]"


def test_a_prefix_that_was_stored_before_is_vacuous() -> None:
    made = cancelled(192, 192)
    made.outcomes.append(seed(sent=-3, ended=-2))
    assert follow(made).reason == "the cache was not empty: seed had stored a prefix before"


def test_without_a_counter_what_the_leader_wrote_is_unobservable() -> None:
    made = cancelled(128, 192)
    made.samples.clear()
    verdict = follow(made)
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "the target does not tell how many tokens it has computed",
    )


def test_a_leader_that_is_not_on_record_is_unobservable() -> None:
    made = cancelled(128)
    made.outcomes.pop(0)
    assert follow(made).reason == "no request of 'leader' is on record"


def retried(cached: int, written: float = 160, sent: float = 3) -> Workload:
    made = cancelled(written=written)
    made.outcomes.append(reply(ask("again", LEADER), sent, sent + 1, cached=cached))
    made.facts["main"] = facts(chunk=64)
    return made


def retry(made: Workload) -> Verdict:
    return judge("retry_reuses", made, left="leader", again="again")


@pytest.mark.parametrize("cached", [96, 160])
def test_a_retry_that_adopts_all_but_the_chunk_in_flight_passes(cached: int) -> None:
    # 160 tokens were written, of which the last chunk of 64 may not be stored yet.
    assert retry(retried(cached)).status is Status.PASS


@pytest.mark.parametrize("cached", [0, 64])
def test_a_retry_that_pays_again_fails(cached: int) -> None:
    verdict = retry(retried(cached))
    assert (verdict.status, verdict.request) == (Status.FAIL, "again")
    assert verdict.witness == (
        f"again reports {cached} cached tokens, although leader had computed 160 of the same prompt before "
        "its client left: at least 96 were owed"
    )


def test_a_retry_after_too_little_is_vacuous() -> None:
    assert retry(retried(0, written=64)).reason == "every client left too early to be owed a hit"


def test_a_retry_whose_first_try_was_not_sampled_is_vacuous() -> None:
    made = retried(0)
    made.samples = [reading for reading in made.samples if reading.at != 1.9]
    assert retry(made).reason == "every client left too early to be owed a hit"


@pytest.mark.parametrize(("running", "passes"), [(1, True), (0, False)])
def test_what_an_earlier_request_still_computed_is_not_owed(running: int, passes: bool) -> None:
    # Readings have a gap: the last one before the leader was sent lacks 96 tokens of an earlier request.
    made = retried(64)
    earlier = reply(ask("four", suffix(7)), 0.05, 0.3, status=None, error="left", left="prefilling")
    made.outcomes.insert(0, earlier)
    made.samples = [
        sample(0.1 if running else 0.4, "four", computed_tokens=1000, running=running, waiting=0),
        sample(0.6, "leader", computed_tokens=1096, running=1, waiting=0),
        sample(1.9, "leader", computed_tokens=1224, running=1, waiting=0),
    ]
    assert (retry(made).status is Status.PASS) is passes


def test_a_retry_before_the_client_left_is_vacuous() -> None:
    reason = "no client of 'leader' was seen to leave in mid-prefill before its retry"
    assert retry(retried(0, sent=1.5)).reason == reason
    late = retried(0)
    late.outcomes[0].left = None
    assert retry(late).reason == reason


def test_every_cancelled_request_needs_a_retry() -> None:
    made = retried(96)
    made.outcomes[-1] = reply(ask("again", LEADER, 0), 3, 4, cached=96)
    made.outcomes.append(reply(ask("again", LEADER, 1), 4, 5, cached=96))
    assert retry(made).reason == "1 requests were cancelled, 2 sent again"


def test_of_several_those_count_that_left_in_time() -> None:
    made = retried(0, written=160)
    left, again = made.outcomes
    early = left.model_copy(update={"index": 1, "id": "leader[1]", "left": None})
    made.outcomes = [left, early, again, again.model_copy(update={"index": 1, "id": "again[1]"})]
    assert retry(made).request == "again"
    made.outcomes[2].cached = 96
    assert retry(made).status is Status.PASS


def queued(cached: int, computed: float, evicted: float = 9, waiting: float = 1, **changes: Any) -> Workload:
    """A hog of 300 tokens runs from 2 to 9 s; the queued one is sent at 3 s and starts after it."""
    hog = reply(ask("hog", range(5000, 5300), salt="own"), 2, 9, token_ids=[5] * 8)
    plan: PlannedRequest = ask("late", [*PREFIX, *suffix(4)])
    late = reply(plan, 3, 12, **({"cached": cached} | changes))
    readings = [
        sample(1.5, "before", computed_tokens=1000, evictions=2),
        sample(2.9, "hog", evictions=2, waiting=0),
        sample(6, "late", evictions=2 + evicted, waiting=waiting),
        sample(15, "after", computed_tokens=1000 + computed, evictions=2 + evicted),
    ]
    return workload(seed(), hog, late, *readings, solos={plan.key: [solo(plan), solo(plan)]})


def truly(made: Workload) -> Verdict:
    return judge("queued_truly", made, of="late", since="before", until="after")


def test_a_server_that_always_says_the_same_proves_no_reply() -> None:
    made = queued(64, computed=460)
    for outcome in made.outcomes:
        outcome.token_ids = list(range(8))
    assert truly(made).reason == "all replies to 3 prompts are the same text, so equality shows nothing"


def test_what_is_computed_is_what_is_reported() -> None:
    # 300 of the hog and 224 - 64 of the queued one.
    verdict = truly(queued(64, computed=460))
    assert verdict.status is Status.PASS
    assert verdict.observed[1] == "computed tokens rose by 460, the reports add up to 460"


def test_a_count_of_what_was_matched_in_the_queue_fails() -> None:
    # It reports the 192 that stood stored when it came, and computed 160.
    verdict = truly(queued(192, computed=460))
    assert (verdict.status, verdict.request) == (Status.FAIL, "late")
    assert verdict.witness == (
        "128 tokens more were computed than the reports say: late reports 192 cached tokens as it was "
        "queued, not as it was started"
    )


def test_rows_that_nobody_tells_of_fail() -> None:
    verdict = truly(queued(0, computed=332))
    assert verdict.witness.startswith("192 tokens fewer were computed than the reports say")


def test_rows_of_another_request_fail_by_the_reply() -> None:
    verdict = truly(queued(192, computed=332, token_ids=[4, 4]))
    assert verdict.witness.startswith("late parts from its solo run: token 0 is 4")


def test_a_count_above_the_law_fails() -> None:
    assert "at most floor(min(LCP 200" in truly(queued(224, computed=300)).witness


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (
            queued(64, 460, evicted=0),
            "nothing was evicted between the queueing and the start of late",
        ),
        (queued(64, 460, waiting=0), "late was not seen to wait"),
        (
            queued(192, 332),
            "late still found all 192 tokens of its prefix: another entry was evicted",
        ),
    ],
)
def test_without_an_eviction_in_the_queue_it_is_vacuous(made: Workload, reason: str) -> None:
    verdict = truly(made)
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, reason)


def test_a_prefix_that_was_never_stored_is_vacuous() -> None:
    made = queued(0, 524)
    made.outcomes.pop(0)
    assert truly(made).reason == "no prefix of late had been stored"


def test_a_neighbour_that_failed_leaves_the_sum_unknown() -> None:
    made = queued(64, 460)
    made.outcomes[1].error = "broken"
    assert truly(made).reason == "hog did not come to its end, so the sum of reports is not known"


def test_without_evictions_it_is_unobservable() -> None:
    made = queued(64, 460)
    for reading in made.samples:
        reading.values.pop("evictions", None)
    verdict = truly(made)
    assert (verdict.status, verdict.reason) == (Status.UNOBSERVABLE, "the target does not tell its evictions")


def test_a_granule_of_several_blocks_may_hide_some_adopted_tokens() -> None:
    made = queued(128, computed=300 + 96 - 64)
    made.facts["main"] = facts(granule=128)
    assert "fewer were computed" not in truly(made).witness
