"""delta, same_as, distinct and lawful on hand-made workloads."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from conformance.history import Outcome, Workload
from conformance.judges import JUDGES
from conformance.verdict import Status, Verdict
from tests.conformance.builders import ask, burst, facts, judge, reply, sample, seed, series, solo, workload


def marks(before: dict[str, float], after: dict[str, float], **target: Any) -> Workload:
    return workload(sample(1, "a", **before), sample(2, "b", **after), facts=facts(**target))


def delta(made: Workload, **args: Any) -> Verdict:
    return judge("delta", made, since="a", until="b", **{"gauge": "evictions"} | args)


@pytest.mark.parametrize(
    ("bound", "status"),
    [
        ({"equals": 5}, Status.PASS),
        ({"equals": 4}, Status.FAIL),
        ({"at_most": 5}, Status.PASS),
        ({"at_most": 4}, Status.FAIL),
        ({"at_least": 5}, Status.PASS),
        ({"at_least": 6}, Status.FAIL),
        ({"at_least": 1, "at_most": 4}, Status.FAIL),
    ],
)
def test_a_change_is_held_against_each_bound(bound: dict[str, int], status: Status) -> None:
    assert delta(marks({"evictions": 2}, {"evictions": 7}), **bound).status is status


def test_a_change_that_is_wrong_is_told_with_both_readings() -> None:
    verdict = delta(marks({"evictions": 2}, {"evictions": 7}), equals=0)
    assert verdict.witness == "evictions changed by 5, equals 0 was due"
    assert verdict.observed == ("evictions  2 at a, 7 at b: +5",)


def test_a_bound_may_be_a_length_of_the_target() -> None:
    made = marks({"live": 0}, {"live": 4096})
    assert delta(made, gauge="live", equals="pool/B").status is Status.PASS


def test_a_length_that_the_target_does_not_tell_is_unobservable() -> None:
    verdict = delta(marks({"live": 0}, {"live": 1}, chunk=None), gauge="live", at_most="2C")
    assert (verdict.status, verdict.reason) == (Status.UNOBSERVABLE, "the target does not tell C")


def test_a_gauge_that_was_not_read_is_unobservable() -> None:
    assert delta(marks({}, {"evictions": 7}), equals=0).status is Status.UNOBSERVABLE


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"gauge": "evicted", "equals": 0}, "'evicted' is no gauge; expected one of"),
        ({"gauge": "live"}, "say what is right with `equals`, `at_most` or `at_least`"),
        ({"gauge": "live", "equals": "reply"}, "'reply' is no number of the target"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(args: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        JUDGES["delta"].args.model_validate({"since": "a", "until": "b", **args})


def twice(**changes: Any) -> Workload:
    """One prompt under two salts, with ten others in between."""
    first, later = (ask(step, range(40), salt=step) for step in ("first", "later"))
    others = [reply(ask("others", range(100 + i, 140), i), 2 + i, 2.5 + i) for i in range(10)]
    solos = {first.key: [solo(first), solo(first)]}
    return workload(reply(first, 0, 1), *others, reply(later, 20, 21, **changes), solos=solos)


def same(made: Workload, **args: Any) -> Verdict:
    return judge("same_as", made, of="later", to="first", **args)


def test_equal_replies_pass_with_ten_between() -> None:
    assert same(twice(), between=10).status is Status.PASS


def test_too_few_between_are_vacuous() -> None:
    verdict = same(twice(), between=11)
    assert verdict.reason == "10 requests ran in between, 11 are asked for"
    assert verdict.status is Status.VACUOUS


def test_another_reply_fails_and_names_both() -> None:
    verdict = same(twice(token_ids=[0, 9]))
    assert verdict.witness == "later parts from first: token 1 is 9, in first it is 1, top-2 gap there 1"
    assert (verdict.status, verdict.request) == (Status.FAIL, "later")


def test_equal_replies_of_a_server_that_always_says_the_same_are_vacuous() -> None:
    made = twice()
    for outcome in made.outcomes:
        outcome.token_ids = [7] * 8
    verdict = same(made)
    assert verdict.status is Status.VACUOUS
    assert verdict.reason == "all replies to 11 prompts are the same text, so equality shows nothing"


def test_a_difference_counts_only_where_the_target_repeats_itself() -> None:
    made = twice(token_ids=[0, 9])
    made.solos.clear()
    assert same(made).status is Status.INCONCLUSIVE


def test_a_hit_may_be_asked_for() -> None:
    assert same(twice(), hit=True).reason == "later adopted nothing"
    assert same(twice(cached=32), hit=True).status is Status.PASS


def test_replies_of_an_arm_are_compared_one_by_one() -> None:
    main = burst([0, 0], step="two")
    other = [o.model_copy(update={"arm": "plain"}) for o in main]
    made = workload(*main, *other, arms={"plain": facts()})
    assert judge("same_as", made, of="two", arm="plain").status is Status.PASS
    made.outcomes[-1].text = made.outcomes[-1].text + "!"
    made.outcomes[-1].token_ids = [1]
    made.solos = {o.plan.key: [solo(o.plan), solo(o.plan)] for o in main}
    verdict = judge("same_as", made, of="two", arm="plain")
    assert verdict.witness.startswith("two[1] parts from two[1] of the arm plain: token 0 is 100")


def test_steps_of_different_size_are_vacuous() -> None:
    made = workload(*burst([0, 0, 0], step="later"), *burst([0, 0], step="first", start=1))
    assert same(made).reason == "3 replies are compared with 2"


def test_one_reply_may_stand_for_all() -> None:
    again = [reply(ask("later", range(9), i), 5 + i, 6 + i, token_ids=[1], logprobs=[-1]) for i in (0, 1)]
    made = workload(reply(ask("first", range(9)), 0, 1, token_ids=[1], logprobs=[-1]), *again)
    assert same(made).status is Status.PASS


@pytest.mark.parametrize(
    ("has_salt", "prompt", "status"),
    [
        (False, range(1, 10), Status.UNOBSERVABLE),
        (True, range(1, 10), Status.PASS),
        (False, range(9), Status.PASS),
    ],
)
def test_a_salt_that_is_a_head_makes_another_prompt(has_salt: bool, prompt: range, status: Status) -> None:
    later = reply(ask("later", prompt), 5, 6, token_ids=[1], logprobs=[-1])
    first = reply(ask("first", range(9)), 0, 1, token_ids=[1], logprobs=[-1])
    other = reply(ask("other", [7]), 2, 3)
    verdict = same(workload(first, other, later, facts=facts(has_salt=has_salt)))
    assert verdict.status is status
    assert ("a head of its own" in verdict.reason) is (status is Status.UNOBSERVABLE)


def test_same_as_needs_something_to_compare_with() -> None:
    with pytest.raises(ValidationError, match="say with `to` or `arm`"):
        JUDGES["same_as"].args.model_validate({"of": "later"})


def test_replies_that_differ_are_distinct() -> None:
    assert judge("distinct", workload(*burst([0, 0, 0])), of="eight").status is Status.PASS


def test_twins_are_named() -> None:
    made = workload(*burst([0, 0, 0]))
    made.outcomes[2].token_ids = made.outcomes[0].token_ids
    verdict = judge("distinct", made, of="eight")
    assert verdict.witness == "eight[0] and eight[2] answer alike: '200 201 202 203 204 205 206 207'"
    assert (verdict.status, verdict.request) == (Status.FAIL, "eight[2]")


def test_distinct_looks_at_other_steps_too() -> None:
    made = workload(*burst([0]), *burst([0], step="more", start=20))
    assert judge("distinct", made, of="eight", others=["more"]).status is Status.FAIL


def test_one_reply_alone_is_vacuous() -> None:
    assert judge("distinct", workload(seed()), of="seed").status is Status.VACUOUS


def lawful(outcomes: list[Outcome], **args: Any) -> Verdict:
    return judge("lawful", workload(seed(), *outcomes), of="series", **args)


def test_lawful_counts_pass() -> None:
    assert lawful(series([192, 192])).status is Status.PASS


@pytest.mark.parametrize("cached", [160, 0, 193, 224])
def test_a_count_below_or_above_the_law_fails(cached: int) -> None:
    verdict = lawful(series([192, cached]))
    assert (verdict.status, verdict.request) == (Status.FAIL, "series[1]")


def test_lawful_counts_beside_a_client_that_left_pass() -> None:
    stay, leave = series([192, 0])
    leave = leave.model_copy(update={"left": "decoding", "cached": None})
    verdict = lawful([stay, leave])
    assert verdict.status is Status.PASS
    assert verdict.observed[-1] == "series[1]  left while decoding, not judged"
    assert lawful([stay, leave.model_copy(update={"cached": 160})]).status is Status.FAIL


def test_lawful_where_nothing_is_due_is_vacuous() -> None:
    verdict = judge("lawful", workload(*series([0])), of="series")
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "nothing that 'series' could adopt was stored",
    )


def test_zero_is_zero_while_another_hits() -> None:
    made = workload(seed(), *series([0]), *burst([192]))
    assert judge("lawful", made, of="series", zero=True, positive="eight").status is Status.PASS


def test_a_count_below_zero_is_no_hit_of_another() -> None:
    made = workload(seed(), *series([0]), *burst([-5]))
    verdict = judge("lawful", made, of="series", zero=True, positive="eight")
    assert verdict.status is Status.VACUOUS


def test_zero_everywhere_is_vacuous() -> None:
    assert lawful(series([0]), zero=True).status is Status.VACUOUS


def test_anything_but_zero_fails() -> None:
    verdict = lawful(series([192]), zero=True)
    assert verdict.witness == "series[0] reports 192 cached tokens, where nothing may be reused"
