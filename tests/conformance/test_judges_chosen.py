"""out/4, out/5 and out/7 on hand-made workloads."""

from __future__ import annotations

import math
from typing import Any

import pytest

from conformance.history import Choice, Outcome, Workload
from conformance.verdict import Status, Verdict
from tests.conformance.builders import PREFIX, ask, facts, judge, reply, seed, solo, suffix, workload

PROMPT = [*PREFIX, *suffix(1)]
PENALTY = {"repetition_penalty": 1.3}


def asked(step: str, sampling: dict[str, Any], index: int | None = None, **changes: Any) -> Outcome:
    plan = ask(step, PROMPT, index).model_copy(update={"sampling": sampling, "key": f"key-{sampling}"})
    return reply(plan, 10 + plan.index, 10.9 + plan.index, **changes)


def chosen(
    sampling: dict[str, Any] | None = None, target: dict[str, Any] | None = None, **changes: Any
) -> Workload:
    """A warm request with an option, its solo runs, and the same prompt without the option."""
    warm = asked("chosen", PENALTY if sampling is None else sampling, cached=192)
    runs = [solo(warm.plan, prompt_logprobs=warm.prompt_logprobs) for _ in range(2)]
    plain = reply(ask("plain", PROMPT), 5, 6, token_ids=[5] * 8, text="5 5 5 5 5 5 5 5")
    warm = warm.model_copy(update=changes)
    return workload(seed(), plain, warm, solos={warm.plan.key: runs}, facts=facts(**target or {}))


def alike(made: Workload, **args: Any) -> Verdict:
    return judge("chosen_alike", made, of="chosen", **{"plain": "plain"} | args)


def test_an_option_that_acts_warm_as_it_does_cold_passes() -> None:
    verdict = alike(chosen())
    assert verdict.status is Status.PASS
    assert verdict.observed == ("chosen  repetition_penalty 1.3  cached 192  equal",)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"token_ids": [0, 1, 9]}, "token 2 is 9, alone it is 2"),
        ({"finish_reason": "stop"}, "it ended by stop, alone by length"),
        ({"text": "0 1 2 3 4 5 6 "}, "its text is '0 1 2 3 4 5 6 ' at the end, alone '0 1 2 3 4 5 6 7'"),
        ({"prompt_logprobs": [None, -1.0]}, "2 prompt logprobs came back, alone 0"),
    ],
)
def test_a_difference_names_the_option(changes: dict[str, Any], said: str) -> None:
    verdict = alike(chosen(None, None, **changes))
    assert (verdict.status, verdict.request) == (Status.FAIL, "chosen")
    assert verdict.witness.startswith(
        "chosen with repetition_penalty 1.3 (cached 192) parts from its solo run: "
    )
    assert said in verdict.witness


def test_a_difference_on_a_target_that_never_repeats_itself_is_inconclusive() -> None:
    made = chosen(None, None, token_ids=[0, 1, 9])
    (runs,) = made.solos.values()
    runs[1].token_ids = [3]
    assert alike(made).status is Status.INCONCLUSIVE


def test_an_option_without_effect_is_vacuous() -> None:
    made = chosen()
    made.outcomes[0].token_ids = [9] * 8
    made.outcomes[1].token_ids = made.outcomes[2].token_ids
    verdict = alike(made)
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "repetition_penalty 1.3 changes nothing in chosen",
    )


def test_an_option_at_a_server_that_always_says_the_same_is_vacuous() -> None:
    made = chosen()
    made.outcomes[0].token_ids = made.outcomes[1].token_ids = made.outcomes[2].token_ids
    assert alike(made).reason == "all replies to 2 prompts are the same text, so equality shows nothing"


@pytest.mark.parametrize("cached", [0, -5])
def test_a_request_that_adopted_nothing_is_vacuous(cached: int) -> None:
    assert alike(chosen(None, None, cached=cached)).reason == (
        "chosen adopted nothing, so warm was not compared with cold"
    )


def test_a_type_that_forbids_reuse_need_not_adopt() -> None:
    assert alike(chosen(None, None, cached=0), reuse=False).status is Status.PASS


def test_plain_requests_that_do_not_pair_up_are_vacuous() -> None:
    made = chosen()
    made.outcomes += [reply(ask("more", PROMPT, i), 20, 21) for i in range(2)]
    assert alike(made, plain="more").reason == "1 requests are compared with 2"


def scored(
    values: list[float | None] | None, alone: list[float | None] | None, grade: str = "bits"
) -> Workload:
    made = chosen({"prompt_logprobs": True}, {"grade": grade}, prompt_logprobs=values)
    for run in next(iter(made.solos.values())):
        run.prompt_logprobs = alone
    return made


def test_prompt_logprobs_are_compared_to_the_bit() -> None:
    assert alike(scored([None, -1.0], [None, -1.0]), plain=None).status is Status.PASS
    verdict = alike(scored([None, -1.0000001], [None, -1.0]), plain=None)
    assert verdict.witness.endswith("the logprob of prompt token 1 is -1.0000001, alone -1.0")


def test_prompt_logprobs_have_a_margin_where_bits_are_not_promised() -> None:
    assert alike(scored([None, -1.04], [None, -1.0], "tokens"), plain=None).status is Status.PASS
    assert alike(scored([None, -1.06], [None, -1.0], "tokens"), plain=None).status is Status.FAIL
    assert alike(scored([-1.0, -1.0], [None, -1.0], "tokens"), plain=None).status is Status.FAIL


def test_prompt_logprobs_that_never_came_are_unobservable() -> None:
    verdict = alike(scored(None, None), plain=None)
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "chosen asked for prompt logprobs and got none",
    )


def test_drawn_tokens_are_compared_at_exact_grades_alone() -> None:
    draw = {"temperature": 1.0, "seed": 3}
    assert alike(chosen(draw)).status is Status.PASS
    assert alike(chosen(draw, {"grade": "decided"})).status is Status.UNOBSERVABLE


def choice(index: int, *ids: int) -> Choice:
    return Choice(
        index=index, token_ids=list(ids), text=str(ids), logprobs=[-0.5] * len(ids), finish_reason="length"
    )


def single(index: int, seed: int | None, *ids: int) -> Outcome:
    sampling = {} if seed is None else {"temperature": 1.0, "seed": seed}
    return asked("alone", sampling, index, token_ids=list(ids), logprobs=[-0.5] * len(ids))


def drawn(*choices: Choice, seeds: tuple[int, ...] = (7, 8), **target: Any) -> Workload:
    """Two choices from seed 7, and what seeds 7 and 8 draw alone: 1 2 and 3 4."""
    many = asked("many", {"temperature": 1.0, "seed": 7, "n": 2}, choices=list(choices))
    alone = [single(0, seeds[0], 1, 2), single(1, seeds[1], 3, 4)]
    solos = {o.plan.key: [solo(o.plan), solo(o.plan)] for o in alone}
    return workload(*alone, many, solos=solos, facts=facts(**{"child_seeds": "seed+index"} | target))


def choices(made: Workload) -> Verdict:
    return judge("choices_alone", made, of="many", alone="alone")


def test_choices_that_are_what_their_seeds_draw_pass() -> None:
    assert choices(drawn(choice(0, 1, 2), choice(1, 3, 4))).status is Status.PASS


@pytest.mark.parametrize(("status", "verdict"), [(400, Status.UNOBSERVABLE), (500, Status.ERROR)])
def test_choices_that_are_refused_cannot_be_judged(status: int, verdict: Status) -> None:
    made = drawn(choice(0, 1, 2), choice(1, 3, 4))
    (many,) = made.of("many")
    many.status, many.error = status, f"status {status}: n must be 1"
    assert choices(made).status is verdict
    assert f"status {status}: n must be 1" in choices(made).reason


@pytest.mark.parametrize(("has_salt", "status"), [(False, Status.UNOBSERVABLE), (True, Status.PASS)])
def test_choices_of_another_prompt_than_alone_show_nothing(has_salt: bool, status: Status) -> None:
    made = drawn(choice(0, 1, 2), choice(1, 3, 4), has_salt=has_salt)
    (many,) = made.of("many")
    many.plan = many.plan.model_copy(update={"prompt_ids": [9, *(many.plan.prompt_ids or [])]})
    assert choices(made).status is status


def test_a_choice_that_is_not_what_its_seed_draws_fails() -> None:
    verdict = choices(drawn(choice(0, 1, 2), choice(1, 3, 2)))
    assert (verdict.status, verdict.request) == (Status.FAIL, "many")
    assert (
        verdict.witness
        == "choice 1 of many is not what alone[1] is: token 1 is 2, alone it is 4, top-2 gap there 1"
    )


def test_a_choice_on_a_target_that_never_repeats_itself_is_inconclusive() -> None:
    made = drawn(choice(0, 1, 2), choice(1, 3, 2))
    made.solos.clear()
    assert choices(made).status is Status.INCONCLUSIVE


def test_a_choice_that_is_missing_fails() -> None:
    assert choices(drawn(choice(0, 1, 2))).witness == "many came back with 1 of 2 choices"


def test_choices_that_all_agree_are_vacuous() -> None:
    made = drawn(choice(0, 1, 2), choice(1, 1, 2))
    made.outcomes[1].token_ids = [1, 2]
    assert choices(made).reason == "every choice is the same, so which is whose shows nothing"


def test_seeds_that_are_not_those_of_the_choices_are_vacuous() -> None:
    made = drawn(choice(0, 1, 2), choice(1, 3, 4), seeds=(7, 7))
    assert choices(made).reason == "the seeds of 'alone' are [7, 7], those of the choices [7, 8]"


def test_without_a_declared_rule_drawn_choices_are_unobservable() -> None:
    assert choices(drawn(choice(0, 1, 2), choice(1, 3, 4), child_seeds=None)).status is Status.UNOBSERVABLE


def test_one_choice_alone_is_vacuous() -> None:
    made = drawn(choice(0, 1, 2), choice(1, 3, 4))
    made.outcomes[-1].plan = made.outcomes[-1].plan.model_copy(update={"sampling": {}})
    assert choices(made).reason == "many asks for 1 choice"


@pytest.mark.parametrize(("second", "status"), [((1, 2), Status.PASS), ((1, 3), Status.FAIL)])
def test_greedy_choices_are_all_the_one_reply(second: tuple[int, int], status: Status) -> None:
    many = asked("many", {"n": 2}, choices=[choice(0, 1, 2), choice(1, *second)])
    alone = asked("alone", {}, token_ids=[1, 2], logprobs=[-0.5, -0.5])
    solos = {alone.plan.key: [solo(alone.plan), solo(alone.plan)]}
    assert choices(workload(alone, many, solos=solos)).status is status


def told(target: dict[str, Any] | None = None, **changes: Any) -> Verdict:
    made = workload(asked("one", {}, **changes), facts=facts(**{"vocab": 512} | (target or {})))
    return judge("logprobs_true", made, of="one")


def test_logprobs_of_the_replys_own_tokens_pass() -> None:
    assert told(logprob_tokens=[*"0 1 2 3 4 5 6 7"]).status is Status.PASS


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"logprobs": [-0.5] * 3 + [0.1] + [-0.5] * 4}, "the logprob of token 3 of one is 0.1"),
        ({"logprobs": [-math.inf] * 8}, "the logprob of token 0 of one is -inf"),
        ({"logprobs": [math.nan] * 8}, "the logprob of token 0 of one is nan"),
        (
            {"token_ids": [1, 2, 3, 4, 5, 6, 7, 512]},
            "one holds the id 512, outside the vocabulary of 512 tokens",
        ),
        ({"logprobs": [-0.5] * 7}, "one has 8 tokens and 7 logprobs"),
        (
            {"logprob_tokens": ["0", "1", "9", "3", "4", "5", "6", "7"]},
            "the tokens of the logprobs of one spell '934567' where the reply says '234567': they are not "
            "the tokens of the reply",
        ),
    ],
)
def test_what_cannot_be_a_logprob_of_the_reply_fails(changes: dict[str, Any], said: str) -> None:
    verdict = told(**changes)
    assert (verdict.status, verdict.request, verdict.witness) == (Status.FAIL, "one", said)


def test_probability_one_may_round_to_a_hair_above_zero() -> None:
    spelled = [*map(str, range(8))]
    assert told(logprobs=[1e-7] * 8, logprob_tokens=spelled).status is Status.PASS


def test_an_id_below_zero_is_outside_any_vocabulary() -> None:
    verdict = told({"vocab": None}, token_ids=[-1] * 8)
    assert verdict.witness == "one holds the id -1, outside the vocabulary"


@pytest.mark.parametrize(
    ("text", "status"),
    [("Grüße да", Status.PASS), ("Grüße дa", Status.FAIL), ("Größe да", Status.FAIL)],
)
def test_tokens_that_are_spelled_byte_by_byte_are_read(text: str, status: Status) -> None:
    tokens = ["Gr", "Ã¼", "ÃŁ", "e", "ĠÐ", "´", "Ð°", "<|end|>"]
    assert told(text=text, logprob_tokens=tokens).status is status


@pytest.mark.parametrize(
    "tokens",
    [
        ["Ġ0", "Ġ1", "▁2", "3", "Ċ", "4", "5", "6", "7"],
        [*"01234567", "<0x0A>"],
        [*"01234567", "<|im_end|>"],
        [*"01234567", r"bytes:\xe2\x96"],
    ],
)
def test_how_a_tokenizer_spells_spaces_and_ends_does_not_matter(tokens: list[str]) -> None:
    assert told(logprob_tokens=tokens).status is Status.PASS


@pytest.mark.parametrize(("text", "status"), [("0123456Ą", Status.PASS), ("0123756Ą", Status.FAIL)])
def test_letters_that_could_be_bytes_are_letters_where_they_are_the_reply(text: str, status: Status) -> None:
    assert told(text=text, logprob_tokens=[*"0123456Ą"]).status is status


def test_a_reply_without_logprobs_is_unobservable() -> None:
    assert told(logprobs=None, logprob_tokens=None).reason == "1 of 1 replies came without logprobs"


def test_a_reply_without_text_shows_no_tokens() -> None:
    verdict = told(text="", logprob_tokens=None)
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "no reply has text to compare the tokens of the logprobs with",
    )
