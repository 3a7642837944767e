"""count/1, key/6 and life/1 on hand-made workloads."""

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
    judge,
    reply,
    sample,
    seed,
    span,
    suffix,
    workload,
)


def counted(*outcomes: Outcome, **target: Any) -> Verdict:
    return judge("counted", workload(seed(), *outcomes, facts=facts(**target)), of="eight")


def test_counts_within_the_law_pass() -> None:
    assert counted(*burst([192, 0, 160])).status is Status.PASS


def test_a_count_above_the_law_fails() -> None:
    verdict = counted(*burst([192, 193, 0]))
    assert (verdict.status, verdict.request) == (Status.FAIL, "eight[1]")
    assert verdict.witness == (
        "eight[1] reports 193 cached tokens, but nothing sent under its identity shares more than 200 tokens "
        "with it: at most floor(min(LCP 200, n - 1 = 223) / 32) * 32 = 192"
    )


def test_a_count_of_the_whole_prompt_fails() -> None:
    verdict = counted(*burst([192, 224]))
    assert verdict.witness == "eight[1] reports 224 of 224 prompt tokens cached; the last is always computed"


def test_a_count_below_nothing_fails() -> None:
    verdict = counted(*burst([192, -1]))
    assert verdict.witness == "eight[1] reports -1 cached tokens; a count is never below 0"


def test_absent_counts_are_not_zero() -> None:
    verdict = counted(*burst([192, None]))
    assert (verdict.status, verdict.reason) == (Status.UNOBSERVABLE, "eight[1] reports no cached tokens")


def walked(outcome: Outcome, **changes: Any) -> Outcome:
    """The same request, its client gone before an answer came."""
    left = {"left": "queued", "status": None, "cached": None, "first": None, "token_ids": None, "text": ""}
    return outcome.model_copy(update=left | changes)


def test_a_client_that_left_is_noted_and_the_others_are_judged() -> None:
    stay, leave, over = burst([192, None, 193])
    verdict = counted(stay, walked(leave), over.model_copy(update={"cached": 0}))
    assert verdict.status is Status.PASS
    assert verdict.observed[-1] == "eight[1]  left while queued, not judged"
    assert (counted(stay, walked(leave), over).status, counted(stay, walked(leave), over).request) == (
        Status.FAIL,
        "eight[2]",
    )


def test_a_count_that_came_although_the_client_left_is_judged() -> None:
    stay, leave = burst([192, 193])
    assert counted(stay, walked(leave, cached=193)).request == "eight[1]"


def test_one_that_stayed_without_a_count_is_still_unobservable() -> None:
    stay, leave, silent = burst([192, None, None])
    assert counted(stay, walked(leave), silent).reason == "eight[2] reports no cached tokens"


def test_a_request_that_failed_beside_a_leaver_is_still_an_error() -> None:
    stay, leave, failed = burst([192, None, 0])
    failed = failed.model_copy(update={"status": 500, "error": "out of order"})
    assert counted(stay, walked(leave), failed).status is Status.ERROR


def test_where_all_clients_left_there_is_nothing_to_judge() -> None:
    verdict = counted(*map(walked, burst([0, 0])))
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "every client of 'eight' left before a count could come",
    )


def test_zero_everywhere_is_vacuous() -> None:
    assert counted(*burst([0, 0])).status is Status.VACUOUS


def test_a_hit_in_another_step_guards_the_counts() -> None:
    warm = reply(ask("warm", [*PREFIX, *suffix(9)]), 5, 6, cached=192)
    assert judge("counted", workload(seed(), warm, *burst([0, 0])), of="eight").status is Status.PASS


def test_a_hit_in_another_arm_does_not() -> None:
    warm = reply(ask("warm", [*PREFIX, *suffix(9)]), 5, 6, cached=192, arm="other")
    made = workload(seed(), warm, *burst([0, 0]), arms={"other": facts()})
    assert judge("counted", made, of="eight").status is Status.VACUOUS


def unlike(cached: int, positive: int = 192) -> Workload:
    """A prompt with a first block of its own beside one that hits."""
    hit = reply(ask("hit", [*PREFIX, *suffix(9)]), 5, 6, cached=positive)
    return workload(seed(), hit, reply(ask("miss", [7, *PREFIX, *suffix(8)]), 7, 8, cached=cached))


def miss(made: Workload) -> Verdict:
    return judge("no_false_hit", made, of="miss", positive="hit")


def test_a_unique_first_block_hits_nothing() -> None:
    verdict = miss(unlike(0))
    assert (verdict.status, verdict.observed) == (Status.PASS, ("miss  n 225  cached 0  lawful 0",))


def test_a_false_hit_fails_even_when_nothing_else_hits() -> None:
    verdict = miss(unlike(32, positive=0))
    assert (verdict.status, verdict.request) == (Status.FAIL, "miss")
    assert "shares more than 0 tokens" in verdict.witness


def test_a_cache_that_is_off_is_vacuous() -> None:
    verdict = miss(unlike(0, positive=0))
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "the positive arm 'hit' never hit, so a cache that is off would pass",
    )


IDLE = {"referenced": 0.0, "running": 0.0, "waiting": 0.0}


def gone(before: dict[str, float], after: dict[str, float], *phases: str | None) -> Verdict:
    """A step whose clients left in these phases (None stayed), between two marks."""
    left = [
        reply(ask("leavers", [*PREFIX, *suffix(i)], i), 2, 3, left=phase) for i, phase in enumerate(phases)
    ]
    made = workload(sample(1, "before", **before), *left, sample(9, "after", **after))
    return judge("released", made, before="before", after="after", left="leavers", phase="decoding")


def test_everything_is_released() -> None:
    verdict = gone(IDLE, IDLE, "decoding", "prefilling", None)
    assert verdict.status is Status.PASS
    assert verdict.observed[-1] == "left: 1 prefilling, 1 decoding of 3"


@pytest.mark.parametrize("gauge", ["referenced", "running", "waiting"])
def test_a_gauge_that_does_not_return_fails(gauge: str) -> None:
    verdict = gone(IDLE, IDLE | {gauge: 3.0}, None, "decoding")
    assert (verdict.status, verdict.request) == (Status.FAIL, "leavers[1]")
    assert verdict.witness.startswith(f"{gauge} was 0 at before and is 3 at after")
    assert verdict.witness.endswith("+3 not released")


def test_a_leak_fails_whatever_phase_was_reached() -> None:
    assert gone(IDLE, IDLE | {"referenced": 3.0}, "prefilling").status is Status.FAIL


def test_a_baseline_above_zero_is_a_baseline() -> None:
    busy = {"referenced": 5.0, "running": 1.0, "waiting": 0.0}
    assert gone(busy, busy, "decoding").status is Status.PASS


def test_a_phase_that_was_not_reached_is_vacuous() -> None:
    verdict = gone(IDLE, IDLE, "prefilling", None)
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "no client of 'leavers' was seen to leave while decoding",
    )


def test_hidden_gauges_are_unobservable() -> None:
    verdict = gone({"running": 0.0}, {"running": 0.0}, "decoding")
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "the target does not expose referenced, waiting",
    )


def test_a_visible_leak_fails_where_other_gauges_are_hidden() -> None:
    assert gone({"running": 0.0}, {"running": 1.0}, "decoding").status is Status.FAIL


def test_without_leavers_only_the_gauges_count() -> None:
    still = workload(sample(1, "start", **IDLE), sample(9, "end", **IDLE))
    assert judge("released", still, before="start", after="end").status is Status.PASS
    moved = workload(sample(1, "start", **IDLE), sample(9, "end", **(IDLE | {"running": 1.0})))
    assert judge("released", moved, before="start", after="end").status is Status.FAIL


@pytest.mark.parametrize("args", [{"left": "leavers"}, {"phase": "decoding"}])
def test_who_left_and_when_belong_together(args: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="`left` and `phase` belong together"):
        judge("released", workload(), before="start", after="end", **args)


def recorded(*cached: int | None, of: str | None = "eight", live: bool = True, **target: Any) -> Verdict:
    values = {"live": 9.0} if live else {"running": 0.0}
    made = workload(
        *burst(list(cached)),
        span("eight", 10, 12),
        sample(11, "eight", **values),
        facts=facts(**target),
    )
    return judge("recorded", made, of=of)


def test_a_scenario_with_counts_and_live_blocks_is_recorded() -> None:
    verdict = recorded(0, 192)
    assert verdict.status is Status.PASS
    assert verdict.observed == (
        "eight[0]  cached 0",
        "eight[1]  cached 192",
        "live blocks  9..9 in 1 samples",
    )


def test_a_scenario_notes_a_client_that_left() -> None:
    left = walked(burst([0, 0])[1])
    made = workload(burst([0])[0], left, span("eight", 10, 12), sample(11, "eight", live=9.0))
    verdict = judge("recorded", made, of="eight")
    assert verdict.status is Status.PASS
    assert verdict.observed[1] == "eight[1]  left while queued, not judged"


def test_one_request_without_a_count_fails() -> None:
    verdict = recorded(0, None, 192)
    assert (verdict.status, verdict.request) == (Status.FAIL, "eight[1]")
    assert verdict.witness == "eight[1] reports no cached tokens, though 2 others do"


def test_no_counts_at_all_are_unobservable() -> None:
    assert recorded(None, None).status is Status.UNOBSERVABLE


def test_a_scenario_without_statistics_is_unobservable() -> None:
    assert recorded(0, has_stats=False).status is Status.UNOBSERVABLE


def test_a_target_without_live_blocks_cannot_show_them() -> None:
    verdict = recorded(0, live=False)
    assert (verdict.status, verdict.reason) == (Status.UNOBSERVABLE, "the statistics hold no live blocks")


def test_a_scenario_without_samples_is_vacuous() -> None:
    made = workload(*burst([0], step="eight"))
    assert judge("recorded", made, of="eight").status is Status.VACUOUS


def test_a_scenario_that_sends_nothing_needs_samples_alone() -> None:
    made = workload(sample(1, "mark", live=4))
    assert judge("recorded", made).status is Status.PASS
    assert judge("recorded", workload()).status is Status.VACUOUS
