"""adopt/1 to adopt/3 on hand-made workloads."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.history import Outcome
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
    series,
    span,
    suffix,
    workload,
)


def test_eight_of_eight_adopt() -> None:
    verdict = judge("adopters", workload(seed(), *burst([192] * 8)), of="eight")
    assert verdict.status is Status.PASS
    assert verdict.observed[3] == "eight[3]  n 224  cached 192  lawful 192"
    assert verdict.notes == ("8 of 8 adopted",)


def test_seven_of_eight_are_enough() -> None:
    # The eighth did not adopt, so its 0 is no unlawful adoption.
    assert judge("adopters", workload(seed(), *burst([192] * 7 + [0])), of="eight").status is Status.PASS


def test_one_adopter_of_eight_fails_and_names_the_first_that_missed() -> None:
    verdict = judge("adopters", workload(seed(), *burst([192] + [0] * 7)), of="eight")
    assert (verdict.status, verdict.request) == (Status.FAIL, "eight[1]")
    assert verdict.witness == (
        "only 1 of 8 adopted. eight[1] adopted nothing, although seed had stored the 200 tokens that they "
        "share before it was sent: floor(min(LCP 200, n - 1 = 223) / 32) * 32 = 192"
    )


def test_a_count_below_zero_is_no_adoption() -> None:
    verdict = judge("adopters", workload(seed(), *burst([192] * 6 + [-5, -5])), of="eight")
    assert (verdict.status, verdict.request) == (Status.FAIL, "eight[6]")
    assert verdict.witness == "eight[6] reports -5 cached tokens; a count is never below 0"
    enough = judge("adopters", workload(seed(), *burst([192] * 7 + [-5])), of="eight")
    assert (enough.status, enough.request) == (Status.FAIL, "eight[7]")


def test_at_least_can_ask_for_all() -> None:
    made = workload(seed(), *burst([192] * 7 + [0]))
    assert judge("adopters", made, of="eight", at_least=8).status is Status.FAIL


def test_more_adopters_than_requests_are_an_error() -> None:
    verdict = judge("adopters", workload(seed(), *burst([192] * 8)), of="eight", at_least=99)
    assert (verdict.status, verdict.reason) == (
        Status.ERROR,
        "at_least is 99, but 'eight' has 8 requests",
    )


def test_all_but_one_of_a_single_request_is_vacuous() -> None:
    verdict = judge("adopters", workload(seed(), *burst([0])), of="eight")
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "'eight' is one request, so all but one is none",
    )


def test_adopting_too_little_fails() -> None:
    verdict = judge("adopters", workload(seed(), *burst([192] * 7 + [160])), of="eight")
    assert (verdict.status, verdict.request) == (Status.FAIL, "eight[7]")
    assert verdict.witness.startswith("eight[7] reports 160 cached tokens, although seed had stored")


@pytest.mark.parametrize(
    ("cached", "why"),
    [
        (223, "eight[0] reports 223 cached tokens, but shares no more than 200 of its 224"),
        (224, "eight[0] reports 224 of 224 prompt tokens cached; the last is always computed"),
    ],
)
def test_adopting_too_much_fails(cached: int, why: str) -> None:
    verdict = judge("adopters", workload(seed(), *burst([cached] + [192] * 7)), of="eight")
    assert (verdict.status, verdict.request) == (Status.FAIL, "eight[0]")
    assert why in verdict.witness


def test_no_multiple_of_the_granule_fails() -> None:
    peers = [reply(ask("two", [*PREFIX, *suffix(i)], i), 10, 12, cached=c) for i, c in enumerate([0, 90])]
    verdict = judge("adopters", workload(*peers), "adopt/3", of="two")
    assert verdict.status is Status.FAIL
    assert verdict.witness == "two[1] reports 90 cached tokens, which is no multiple of the granule of 32"


def test_a_stored_prefix_below_four_granules_is_vacuous() -> None:
    short = reply(ask("seed", [*PREFIX[:127], 1]), 0, 1)
    verdict = judge("adopters", workload(short, *burst([96] * 8)), of="eight")
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "no prefix worth 4 granules was stored: law_lo is 96, 4G is 128",
    )


def test_four_granules_are_enough() -> None:
    short = reply(ask("seed", [*PREFIX[:128], 1]), 0, 1)
    assert judge("adopters", workload(short, *burst([128] * 8)), of="eight").status is Status.PASS


def test_requests_that_took_turns_prove_nothing() -> None:
    verdict = judge("adopters", workload(seed(), *in_turn(burst([192] * 8))), of="eight")
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, "the 8 requests of 'eight' took turns")


def test_a_running_gauge_of_n_shows_that_they_did_not() -> None:
    taken = in_turn(burst([192] * 8))
    made = workload(seed(), *taken, span("eight", 10, 60), sample(11, "eight", running=8))
    assert judge("adopters", made, of="eight").status is Status.PASS


def test_a_running_gauge_below_n_does_not() -> None:
    taken = in_turn(burst([192] * 8))
    made = workload(seed(), *taken, span("eight", 10, 60), sample(11, "eight", running=7))
    assert judge("adopters", made, of="eight").status is Status.VACUOUS


def test_replies_that_were_not_streamed_need_the_gauge() -> None:
    made = workload(seed(), *burst([192] * 8, first=None))
    assert judge("adopters", made, of="eight").status is Status.VACUOUS


def test_missing_adoption_fails_even_when_they_took_turns() -> None:
    made = workload(seed(), *in_turn(burst([0] * 8)))
    assert judge("adopters", made, of="eight").status is Status.FAIL


def test_absent_counts_are_unobservable() -> None:
    verdict = judge("adopters", workload(seed(), *burst([None] * 8)), of="eight")
    assert (verdict.status, verdict.reason) == (Status.UNOBSERVABLE, "eight[0] reports no cached tokens")


def test_an_unknown_granule_is_unobservable() -> None:
    made = workload(seed(), *burst([192] * 8), facts=facts(granule=None))
    assert judge("adopters", made, of="eight").status is Status.UNOBSERVABLE


def test_a_text_of_unknown_length_is_unobservable() -> None:
    made = workload(reply(ask("eight", "some text", 0), 0, 1, prompt_tokens=None))
    assert judge("adopters", made, of="eight").status is Status.UNOBSERVABLE


def test_a_cold_burst_adopts_in_flight() -> None:
    verdict = judge("adopters", workload(*burst([0] + [192] * 7)), "adopt/3", of="eight")
    assert (verdict.status, verdict.requirement) == (Status.PASS, "adopt/3")


def test_a_cold_burst_without_adoption_fails() -> None:
    verdict = judge("adopters", workload(*burst([0] * 8)), "adopt/3", of="eight")
    assert verdict.status is Status.FAIL
    assert "share 200 tokens with it" in verdict.witness


def test_a_cold_burst_on_a_warm_cache_is_vacuous() -> None:
    verdict = judge("adopters", workload(seed(), *burst([192] * 8)), "adopt/3", of="eight")
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "the cache was not empty: seed had stored a prefix before",
    )


def test_a_cold_burst_that_shares_less_than_a_granule_is_vacuous() -> None:
    peers = [reply(ask("two", [*PREFIX[:31], *suffix(i)], i), 10, 12) for i in range(2)]
    verdict = judge("adopters", workload(*peers), "adopt/3", of="two")
    assert verdict.reason == "the requests share 31 tokens, less than one granule of 32"


def test_a_cold_burst_one_after_another_is_vacuous() -> None:
    taken = [
        o.model_copy(update={"sent": 10 + i, "ended": 12.5 + i}) for i, o in enumerate(burst([0] + [192] * 3))
    ]
    verdict = judge("adopters", workload(*taken), "adopt/3", of="eight")
    assert verdict.status is Status.VACUOUS


def test_burst_and_series_report_the_same_total() -> None:
    made = workload(seed(), *burst([192] * 4), *series([192] * 4))
    verdict = judge("same_total", made, of="eight", as_series="series")
    assert verdict.status is Status.PASS
    assert verdict.observed[0] == "eight  192 + 192 + 192 + 192 = 768"


def test_a_burst_that_reports_less_fails() -> None:
    made = workload(seed(), *burst([192, 192, 0, 192]), *series([192] * 4))
    verdict = judge("same_total", made, of="eight", as_series="series")
    assert (verdict.status, verdict.request) == (Status.FAIL, "eight[2]")
    assert verdict.witness.endswith(
        "report 576 cached tokens, one after another 768: 192 tokens less on the same warm state"
    )


def test_a_burst_that_reports_more_fails() -> None:
    made = workload(seed(), *burst([192] * 4), *series([192, 192, 160, 192]))
    verdict = judge("same_total", made, of="eight", as_series="series")
    assert "32 tokens more" in verdict.witness


def test_a_series_that_never_hit_is_vacuous() -> None:
    made = workload(seed(), *burst([0] * 4), *series([0] * 4))
    verdict = judge("same_total", made, of="eight", as_series="series")
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, "the sequential arm 'series' never hit")


def test_arms_of_different_size_are_vacuous() -> None:
    made = workload(seed(), *burst([192] * 4), *series([192] * 3))
    assert (
        judge("same_total", made, of="eight", as_series="series").reason == "4 requests are compared with 3"
    )


def repeated(outcomes: list[Outcome]) -> list[Outcome]:
    """The very prompts of a burst once more, which now share everything with what the burst stored."""
    return [
        reply(ask("series", o.plan.prompt_ids or [], i), 30 + i, 30.5 + i, cached=192)
        for i, o in enumerate(outcomes)
    ]


def test_arms_on_different_states_are_vacuous() -> None:
    together = burst([192] * 4)
    made = workload(seed(), *together, *repeated(together))
    # The same 224 ids again: at most 223 may be cached, so 192 stays due, as in the burst.
    assert judge("same_total", made, of="eight", as_series="series").status is Status.PASS
    longer = [reply(ask("eight", [*PREFIX, *suffix(i, 64)], i), 10, 12, cached=192) for i in range(4)]
    made = workload(seed(), *longer, *repeated(longer))
    verdict = judge("same_total", made, of="eight", as_series="series")
    assert verdict.reason == "the arms stand on different states: 768 tokens due at once, 1024 in turn"


def test_equal_totals_of_a_burst_in_turn_are_vacuous() -> None:
    made = workload(seed(), *in_turn(burst([192] * 4)), *series([192] * 4, start=60))
    verdict = judge("same_total", made, of="eight", as_series="series")
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, "the requests of 'eight' took turns")


def test_a_cold_burst_computes_its_prefix_once() -> None:
    verdict = judge("computed_once", workload(*burst([0] + [192] * 7)), of="eight")
    # Computed: 224 + 7 * 32 = 448, which is also the least; bound: 200 + 8 * 24 + 8 * 32 = 648.
    assert verdict.status is Status.PASS
    assert verdict.expected.endswith("= 648 tokens")
    assert verdict.notes == ("computed / minimal = 448 / 448 = 1.000",)


def test_computing_the_prefix_twice_fails() -> None:
    # The bound is 200 + 8 * 24 + 8 * 32 = 648; three leaders compute 3 * 224 + 5 * 32 = 832.
    verdict = judge("computed_once", workload(*burst([0] * 3 + [192] * 5)), of="eight")
    assert (verdict.status, verdict.request) == (Status.FAIL, "eight[0]")
    assert verdict.witness.startswith("832 prompt tokens were computed, 184 over the bound of 648")
    assert "3 of 8 did not adopt all of it (eight[0], eight[1], eight[2])" in verdict.witness


def test_computing_half_of_the_prefix_again_fails() -> None:
    # 224 + 7 * 128 = 1120 are computed, over 648.
    verdict = judge("computed_once", workload(*burst([0] + [96] * 7)), of="eight")
    assert verdict.status is Status.FAIL
    assert "8 of 8 did not adopt all of it" in verdict.witness


def test_a_warm_cache_computes_nothing_worth_counting() -> None:
    assert judge("computed_once", workload(seed(), *burst([192] * 8)), of="eight").status is Status.VACUOUS


def test_a_cold_series_computes_once_by_itself() -> None:
    taken = [
        o.model_copy(update={"sent": 10 + i, "ended": 12.5 + i}) for i, o in enumerate(burst([0] + [192] * 3))
    ]
    verdict = judge("computed_once", workload(*taken), of="eight")
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "the requests of 'eight' were not in flight together",
    )


def talk(*cached: int, exact: bool = True, ids: bool = True) -> list[Outcome]:
    """Turns of a conversation: 217 ids, then each time the reply of 8 and 24 new ones."""
    turns: list[Outcome] = []
    prompt = [*PREFIX, *suffix(99, 17)]
    for i, count in enumerate(cached):
        turns.append(reply(ask("talk", prompt, i), i, i + 0.9, cached=count))
        prompt = [*prompt, *(turns[-1].token_ids or [])[: 8 if exact else 7], *suffix(i)]
    return turns if ids else [o.model_copy(update={"token_ids": None}) for o in turns]


def conversation(*turns: Outcome, **target: Any) -> Verdict:
    return judge("turns_adopt", workload(*turns, facts=facts(**target)), of="talk")


def test_turns_adopt_what_came_before() -> None:
    # 217 + 7 of 8 generated = 224 are stored after the first turn; 249 + 7 = 256 after the second.
    assert conversation(*talk(0, 224, 256)).status is Status.PASS


def test_a_turn_that_adopts_too_little_fails() -> None:
    verdict = conversation(*talk(0, 224, 192))
    assert (verdict.status, verdict.request) == (Status.FAIL, "talk[2]")


def test_generated_tokens_are_due_only_where_declared() -> None:
    assert conversation(*talk(0, 192), generated_reusable=False).status is Status.PASS
    assert conversation(*talk(0, 192)).status is Status.FAIL


def test_without_a_granule_turns_are_unobservable() -> None:
    verdict = conversation(*talk(0, 224, 256), granule=None)
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "the granule G is neither declared nor calibrated",
    )
    assert conversation(*talk(0, 240), granule=None).status is Status.FAIL


def test_turns_without_counts_are_unobservable() -> None:
    silent = [turn.model_copy(update={"cached": None}) for turn in talk(0, 224)]
    verdict = conversation(*silent, granule=None)
    assert (verdict.status, verdict.reason) == (Status.UNOBSERVABLE, "talk[1] reports no cached tokens")


@pytest.mark.parametrize("changes", [{"exact": False}, {"ids": False}])
def test_a_history_that_is_not_exact_is_vacuous(changes: dict[str, bool]) -> None:
    verdict = conversation(*talk(0, 192, **changes), generated_reusable=False)
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "talk[1] does not continue the turn before it token by token",
    )


def test_a_conversation_of_one_turn_is_vacuous() -> None:
    verdict = conversation(*talk(0))
    assert verdict.reason == "no turn of 'talk' has a granule of history that must be adopted"


def in_text(said: str) -> Verdict:
    """A second turn of 120 characters and tokens that begins with the first one's 100 and with `said`."""
    first = reply(ask("talk", "a" * 100, 0), 0, 1, text="b" * 10)
    second = reply(ask("talk", "a" * 100 + said + "c" * 10, 1), 2, 3, cached=96, prompt_tokens=120)
    return conversation(first, second, generated_reusable=False)


def test_turns_in_text_continue_in_text() -> None:
    assert in_text("b" * 10).status is Status.PASS
    assert in_text("b" * 9 + "x").status is Status.VACUOUS
