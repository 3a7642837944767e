"""out/1 to out/3 on hand-made workloads: burst i of the standard scene replies [100 i, 100 i + 1, ...]."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.history import Outcome, Workload
from conformance.judges import JUDGES
from conformance.verdict import Status, Verdict
from tests.conformance.builders import burst, facts, in_turn, judge, seed, solo, span, workload


def alone(outcomes: list[Outcome], **changes: Any) -> dict[str, list[Outcome]]:
    """Solo runs of these requests, the first of them twice."""
    runs = {o.plan.key: [solo(o.plan, **changes)] for o in outcomes}
    first = runs[outcomes[0].plan.key]
    first.append(first[0].model_copy())
    return runs


def scene(cached: list[int | None] | None = None, **target: Any) -> Workload:
    """Three requests in flight together that reply as they do alone."""
    replies = burst(cached or [192, 192, 192], step="three")
    return workload(seed(), *replies, solos=alone(replies), facts=facts(**target))


def change(made: Workload, index: int, **changes: Any) -> Workload:
    """The same with one reply of the burst changed."""
    made.outcomes = [o.model_copy(update=changes) if o.id == f"three[{index}]" else o for o in made.outcomes]
    return made


def change_solo(made: Workload, index: int, run: int = 0, **changes: Any) -> Workload:
    key = made.of("three")[index].plan.key
    made.solos[key][run] = made.solos[key][run].model_copy(update=changes)
    return made


def same(made: Workload, requirement: str = "out/1", **args: Any) -> Verdict:
    return judge("same_as_solo", made, requirement, of="three", **args)


OTHER = [100, 101, 102, 7, 104, 105, 106, 107]


@pytest.mark.parametrize("grade", ["bits", "tokens", "text"])
def test_equal_replies_pass(grade: str) -> None:
    verdict = same(scene(grade=grade))
    assert (verdict.status, verdict.notes) == (Status.PASS, (f"3 of 3 equal to solo at grade {grade}",))


def constant(made: Workload) -> Workload:
    """The same on a server that always says one thing, for as long as it may."""
    for outcome in made.outcomes:
        outcome.token_ids, outcome.text = [7] * (4 + outcome.index), "x" * (4 + outcome.index)
        made.solos[outcome.plan.key] = [outcome, outcome]
    return made


@pytest.mark.parametrize("grade", ["tokens", "text"])
@pytest.mark.parametrize("requirement", ["out/1", "out/2"])
def test_replies_that_are_one_text_whatever_the_prompt_are_vacuous(requirement: str, grade: str) -> None:
    verdict = same(constant(scene(grade=grade)), requirement)
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "all replies to 4 prompts are the same text, so equality shows nothing",
    )


def test_one_other_reply_is_enough_to_tell_prompts_apart() -> None:
    made = constant(scene(grade="tokens"))
    made.outcomes[0].token_ids = [8]
    assert same(made).status is Status.PASS


def test_one_prompt_may_have_one_reply() -> None:
    made = constant(scene(grade="tokens"))
    for outcome in made.outcomes:
        outcome.plan.prompt_ids = [1, 2, 3]
    assert same(made).status is Status.PASS


def test_without_ids_texts_tell_prompts_apart() -> None:
    made = constant(scene(grade="text"))
    made.outcomes[0].token_ids = None
    assert same(made).status is Status.VACUOUS
    made.outcomes[0].text = "other"
    assert same(made).status is Status.PASS


def test_a_difference_fails_even_where_all_else_is_one_text() -> None:
    made = constant(scene(grade="tokens"))
    made.outcomes[1] = made.outcomes[1].model_copy(update={"token_ids": [7, 7, 7, 9]})
    assert same(made).status is Status.FAIL


@pytest.mark.parametrize("grade", ["bits", "tokens"])
def test_another_token_fails_and_is_shown(grade: str) -> None:
    verdict = same(change(scene(grade=grade), 1, token_ids=OTHER))
    assert (verdict.status, verdict.request) == (Status.FAIL, "three[1]")
    assert verdict.witness == (
        "2 of 3 equal. three[1] (with 192 cached tokens) parts from its solo run, which two cold runs agree "
        "on: token 3 is 7, alone it is 103, top-2 gap there 1"
    )


def test_a_missing_token_fails() -> None:
    verdict = same(change(scene(), 1, token_ids=[100, 101]))
    assert "token 2 is missing, alone it is 102" in verdict.witness


def test_a_token_too_many_fails() -> None:
    verdict = same(change(scene(), 1, token_ids=[*range(100, 108), 5]))
    assert verdict.witness.endswith("token 8 is 5, alone it is missing")


def test_one_bit_of_a_logprob_fails_at_grade_bits() -> None:
    verdict = same(change(scene(), 2, logprobs=[-0.5] * 5 + [-0.5000000000000001] + [-0.5] * 2))
    assert verdict.witness.endswith("token 5 is the same, but its logprob is -0.5000000000000001, alone -0.5")


def test_one_bit_of_a_logprob_is_nothing_at_grade_tokens() -> None:
    assert same(change(scene(), 2, logprobs=[-0.6] * 8), grade="tokens").status is Status.PASS


def test_a_missing_logprob_fails_at_grade_bits() -> None:
    assert "logprob is missing, alone -0.5" in same(change(scene(), 2, logprobs=[-0.5] * 7)).witness


def test_bits_without_logprobs_are_unobservable() -> None:
    verdict = same(change(scene(), 1, logprobs=None))
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "three[1]: grade bits needs token ids and logprobs",
    )


def test_tokens_without_ids_are_compared_as_text() -> None:
    made = change(scene(grade="tokens"), 1, token_ids=None, text="100 101 else")
    verdict = same(made)
    assert verdict.expected == "each of 3 replies = its solo run, grade text"
    assert verdict.witness.endswith("character 8: 'else', alone '102 103 104 105 106 '")


def test_a_difference_fails_even_without_a_hit() -> None:
    verdict = same(change(scene([0, 0, 0]), 1, token_ids=OTHER))
    assert verdict.status is Status.FAIL
    assert "(without reported reuse)" in verdict.witness


def test_equality_without_a_hit_is_vacuous() -> None:
    verdict = same(scene([0, 0, 0]))
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, "no request of 'three' reports a hit")


@pytest.mark.parametrize(("in_flight", "status"), [(False, Status.PASS), (True, Status.VACUOUS)])
def test_a_cold_burst_owes_a_hit_only_where_prefixes_in_the_making_are_shared(
    in_flight: bool, status: Status
) -> None:
    replies = burst([0, 0, 0], step="three")
    made = workload(*replies, solos=alone(replies), facts=facts(shares_in_flight=in_flight))
    assert same(made, "out/2").status is status


def test_equality_without_counts_is_unobservable() -> None:
    assert same(scene([None, None, None])).status is Status.UNOBSERVABLE


def test_no_solo_run_is_unobservable() -> None:
    made = scene()
    made.solos.clear()
    verdict = same(made)
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "three[0] could not be run alone with reuse off",
    )


def test_no_solo_run_after_trouble_is_an_error() -> None:
    made = scene()
    made.solos.clear()
    made.spans.append(span("three", 10, 12))
    made.trouble = "the server died"
    assert same(made).reason == "the server died"


@pytest.mark.parametrize(
    ("changes", "status"), [({"error": "cut off"}, Status.ERROR), ({"timed_out": True}, Status.TIMEOUT)]
)
def test_a_failed_solo_run_is_no_reference(changes: dict[str, Any], status: Status) -> None:
    verdict = same(change_solo(scene(), 1, **changes))
    assert verdict.status is status
    assert verdict.reason.startswith("the solo run of three[1] failed")


def test_two_cold_runs_that_differ_are_inconclusive() -> None:
    verdict = same(change_solo(scene(), 0, run=1, token_ids=[1]))
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.reason == (
        "the target differs from itself when cold: three[0], token 0 is 1, alone it is 0, top-2 gap there 1"
    )


def test_no_repeated_cold_run_is_inconclusive() -> None:
    made = scene()
    made.solos = {key: runs[:1] for key, runs in made.solos.items()}
    verdict = same(made)
    assert (verdict.status, verdict.reason) == (
        Status.INCONCLUSIVE,
        "no solo run was repeated, so cold = cold is not known",
    )


def test_a_control_from_another_step_of_the_case_counts() -> None:
    made = scene()
    made.solos = {key: runs[:1] for key, runs in made.solos.items()}
    made.solos["another"] = [solo(seed().plan), solo(seed().plan)]
    assert same(made).status is Status.PASS


def decided(index: int, position: int, gaps: list[float] | None, **target: Any) -> Workload:
    """One reply differs at `position`; every solo run has 20 tokens and these top-2 gaps."""
    made = scene(grade="decided", **target)
    for i in range(3):
        tokens = list(range(100 * i, 100 * i + 20))
        change(made, i, token_ids=tokens)
        for run in range(len(made.solos[made.of("three")[i].plan.key])):
            change_solo(made, i, run, token_ids=tokens, gaps=gaps)
    tokens = list(range(100 * index, 100 * index + 20))
    return change(made, index, token_ids=[*tokens[:position], 9, *tokens[position + 1 :]])


def test_a_decided_token_that_differs_fails() -> None:
    assert same(decided(1, 5, [1.0] * 20)).status is Status.FAIL


def test_the_first_near_tie_ends_what_is_decided() -> None:
    gaps = [1.0] * 16 + [0.04] + [1.0] * 3
    assert same(decided(1, 15, gaps)).status is Status.FAIL
    assert same(decided(1, 16, gaps)).status is Status.PASS
    assert same(decided(1, 18, gaps)).status is Status.PASS


def test_a_gap_at_the_margin_is_decided() -> None:
    assert same(decided(1, 17, [1.0] * 16 + [0.05] + [1.0] * 3)).status is Status.FAIL


def test_too_few_decided_tokens_are_vacuous() -> None:
    verdict = same(decided(1, 17, [1.0] * 15 + [0.01] * 5))
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, "only 0 of 3 prompts have 16 decided tokens")


def test_four_of_five_decided_prompts_are_enough() -> None:
    replies = burst([192] * 5, step="three")
    tokens = list(range(20))
    replies = [o.model_copy(update={"token_ids": tokens}) for o in replies]
    runs = alone(replies, token_ids=tokens, gaps=[1.0] * 20)
    made = workload(seed(token_ids=[5]), *replies, solos=runs, facts=facts(grade="decided"))
    change_solo(made, 4, gaps=[0.01] * 20)
    assert same(made).status is Status.PASS
    assert same(change_solo(made, 3, gaps=[0.01] * 20)).status is Status.VACUOUS


def test_differing_without_logprobs_is_inconclusive() -> None:
    verdict = same(decided(1, 5, None))
    assert verdict.status is Status.INCONCLUSIVE
    assert "without logprobs a near tie cannot be told" in verdict.reason


def test_equal_without_logprobs_is_equal() -> None:
    made = scene(grade="decided")
    for i in range(3):
        change_solo(made, i, gaps=None)
    change_solo(made, 0, run=1, gaps=None)
    assert same(made).status is Status.PASS


def test_logprob_tokens_stand_in_for_ids() -> None:
    made = scene(grade="decided")
    for i in range(3):
        change(made, i, token_ids=None)
        change_solo(made, i, token_ids=None, gaps=[1.0] * 20)
    change_solo(made, 0, run=1, token_ids=None, gaps=[1.0] * 20)
    verdict = same(change(made, 1, logprob_tokens=["100", "x", *map(str, range(102, 108))]))
    assert verdict.witness.endswith("token 1 is 'x', alone it is '101', top-2 gap there 1")


def test_without_any_tokens_the_text_is_compared() -> None:
    made = scene(grade="decided")
    made = change(made, 1, token_ids=None, logprob_tokens=None, text="else")
    assert "character 0: 'else'" in same(made).witness


def test_batch_mates_in_flight_together_pass() -> None:
    assert same(scene(), "out/2").status is Status.PASS


def test_batch_mates_that_took_turns_are_vacuous() -> None:
    made = scene()
    made.outcomes = [seed(), *in_turn(made.of("three"))]
    verdict = same(made, "out/2")
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "the requests of 'three' were not in flight together",
    )


def test_warm_against_cold_needs_no_batch() -> None:
    made = scene()
    made.outcomes = [seed(), *in_turn(made.of("three"))]
    assert same(made, "out/1").status is Status.PASS


def test_a_count_below_zero_is_no_hit() -> None:
    assert same(scene([-5, 192, 192]), "out/1").status is Status.PASS
    verdict = same(scene([-5, 0, -5]), "out/1")
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, "no request of 'three' reports a hit")


@pytest.mark.parametrize(("sharing", "status"), [("all", Status.VACUOUS), ("one_shot", Status.UNOBSERVABLE)])
def test_a_mixed_batch_beside_the_one_taker_is_unobservable(sharing: str, status: Status) -> None:
    made = scene([0, 0, 0])
    made.facts["main"] = made.facts["main"].model_copy(update={"sharing": sharing})
    assert same(made, "out/2", mixed=True).status is status


def test_a_mixed_batch_must_be_mixed() -> None:
    assert same(scene([0, 192, 192]), "out/2", mixed=True).status is Status.PASS
    verdict = same(scene(), "out/2", mixed=True)
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, "no request of 'three' was cold")


def own(made: Workload) -> Verdict:
    return judge("own_content", made, of="three")


def test_every_reply_holds_its_own_content() -> None:
    assert own(scene()).status is Status.PASS


def test_content_is_judged_without_a_hit() -> None:
    assert own(scene([0, 0, 0])).status is Status.PASS


def test_another_requests_content_fails() -> None:
    verdict = own(change(scene([0, 0, 0]), 2, token_ids=list(range(100, 108))))
    assert (verdict.status, verdict.request) == (Status.FAIL, "three[2]")
    assert verdict.witness == (
        "three[2] answers what three[1] answers alone: it holds another request's content"
    )


def test_content_that_is_nobodys_fails() -> None:
    assert own(change(scene(), 2, token_ids=OTHER)).status is Status.FAIL


def test_content_does_not_look_at_logprob_bits() -> None:
    assert own(change(scene(), 2, logprobs=[-0.6] * 8)).status is Status.PASS


def test_content_that_shows_no_owner_is_vacuous() -> None:
    made = change_solo(scene(), 1, token_ids=list(range(8)))
    verdict = own(made)
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "alone, three[0] and three[1] answer alike, so content shows no owner",
    )


def test_goldens_declare_no_solo_steps() -> None:
    found = JUDGES["golden"]
    assert found.solo_steps(found.args.model_validate({"of": "three"})) == frozenset()
