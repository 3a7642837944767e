"""count/2 to count/6 on hand-made workloads."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.history import Choice, Outcome, Sample, Workload
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

PROMPT = [*PREFIX, *suffix(1)]


def asked(step: str, at: float, stream: bool = True, n: int = 1, **changes: Any) -> Outcome:
    plan = ask(step, PROMPT).model_copy(update={"stream": stream, "sampling": {"n": n} if n > 1 else {}})
    told: dict[str, Any] = {"cached": 192, "usage": {}, "completion_tokens": 8 * n} | changes
    choices = [Choice(index=i, token_ids=[i] * 8) for i in range(n)] if n > 1 else []
    return reply(plan, at, at + 1, **({"choices": choices} | told))


def usage(*outcomes: Outcome) -> Verdict:
    return judge("same_usage", workload(seed(), *outcomes), of=[o.step for o in outcomes])


def test_usage_is_the_same_in_every_form() -> None:
    verdict = usage(asked("a", 2), asked("b", 4, stream=False), asked("c", 6, n=4))
    assert verdict.status is Status.PASS
    assert verdict.observed[-1] == "c (streamed, n = 4)  prompt 224  cached 192  completion 32"


@pytest.mark.parametrize(
    ("wrong", "witness"),
    [
        ({"cached": 768}, "reports cached 768, but a (streamed, n = 1), the same prompt, 192"),
        ({"prompt_tokens": 896}, "reports prompt_tokens 896, but a (streamed, n = 1), the same prompt, 224"),
        ({"completion_tokens": 8}, "reports 8 completion tokens in its last usage, but 32 came"),
    ],
)
def test_usage_that_counts_per_choice_fails(wrong: dict[str, Any], witness: str) -> None:
    verdict = usage(asked("a", 2), asked("c", 6, n=4, **wrong))
    assert (verdict.status, verdict.witness) == (Status.FAIL, f"c (streamed, n = 4) {witness}")


def test_usage_before_the_end_fails() -> None:
    verdict = usage(asked("a", 2), asked("b", 4, stream=False, completion_tokens=3))
    assert verdict.request == "b"


def test_tokens_that_do_not_come_back_are_not_counted() -> None:
    bare = [asked("a", 2, token_ids=None), asked("c", 6, n=4, choices=[])]
    assert usage(*bare).status is Status.PASS


def test_usage_that_is_not_there_is_unobservable() -> None:
    assert usage(asked("a", 2), asked("b", 4, usage=None)).status is Status.UNOBSERVABLE


def test_usage_needs_one_prompt_one_state_a_hit_and_two_forms() -> None:
    other = reply(ask("b", [*PREFIX, *suffix(2)]), 4, 5, cached=192, usage={})
    assert "do not send one prompt" in usage(asked("a", 2), other).reason
    early = asked("b", 0.5, stream=False)
    assert usage(asked("a", 2), early).reason == "the requests stand on different warm states"
    cold = [asked("a", 2, cached=0), asked("b", 4, stream=False, cached=0)]
    assert usage(*cold).reason == "a reports no hit, so equal counts of 0 show nothing"
    assert usage(asked("a", 2), asked("b", 4)).reason.startswith("all requests are streamed alike")


def counted(
    rose: float = 384, waiting: float = 0, preempted: float = 0, requirement: str = "count/3", **target: Any
) -> Verdict:
    """Two hits of 192 between two marks; the counters rise by so much."""
    start = {"hits_tokens": 100.0, "preemptions": 1.0, "waiting": 0.0}
    end = {"hits_tokens": 100 + rose, "preemptions": 1 + preempted, "waiting": 0.0}
    made = workload(
        seed(),
        sample(5, "a", **start),
        *burst([192, 192]),
        sample(11, "eight", waiting=waiting),
        sample(20, "b", **end),
        facts=facts(**target),
    )
    return judge("hits_counted", made, requirement, since="a", until="b")


def test_the_hit_counter_rises_by_what_is_reported() -> None:
    verdict = counted()
    assert (verdict.status, verdict.observed[0]) == (Status.PASS, "hit counter +384")


def test_a_hit_counter_that_differs_fails() -> None:
    verdict = counted(rose=576)
    assert (verdict.status, verdict.request) == (Status.FAIL, "eight[0]")
    assert "report 384: +192 tokens counted that no reply tells of" in verdict.witness


def test_more_hits_on_an_endpoint_may_be_anothers() -> None:
    assert counted(rose=576, how="endpoint").status is Status.INCONCLUSIVE
    assert counted(rose=200, how="endpoint").status is Status.FAIL


def test_queues_and_preemptions_make_the_count_vacuous() -> None:
    assert counted(waiting=2).reason.startswith("2 requests were queued")
    assert counted(preempted=1).reason == "a request was preempted"


def test_recomputation_needs_a_preemption() -> None:
    assert counted(requirement="count/6").reason == "no request was preempted"
    assert counted(preempted=2, requirement="count/6").status is Status.PASS
    assert counted(rose=576, preempted=2, requirement="count/6").status is Status.FAIL


def test_a_preempted_request_that_reports_its_own_rows_fails() -> None:
    start, end = ({"hits_tokens": float(v), "preemptions": v / 416} for v in (0, 416))
    made = workload(seed(), sample(5, "a", **start), *burst([192, 224]), sample(20, "b", **end))
    verdict = judge("hits_counted", made, "count/6", since="a", until="b")
    assert (verdict.status, verdict.request) == (Status.FAIL, "eight[1]")


def test_no_hits_are_vacuous_and_no_counter_unobservable() -> None:
    made = workload(seed(), sample(5, "a", hits_tokens=0), *burst([0]), sample(20, "b", hits_tokens=0))
    assert judge("hits_counted", made, since="a", until="b").status is Status.VACUOUS
    made.samples[-1].values.clear()
    assert judge("hits_counted", made, since="a", until="b").status is Status.UNOBSERVABLE


def test_a_request_across_a_mark_is_an_error() -> None:
    made = workload(seed(), sample(11, "a", hits_tokens=0), *burst([192]), sample(20, "b", hits_tokens=0))
    verdict = judge("hits_counted", made, since="a", until="b")
    assert verdict.reason == "eight[0] ran across a mark, so counters at the mark show part of it"


def test_nothing_between_marks_is_vacuous() -> None:
    made = workload(seed(), sample(5, "a", hits_tokens=0), sample(20, "b", hits_tokens=0))
    assert judge("hits_counted", made, since="a", until="b").status is Status.VACUOUS


def falling(*readings: Sample, reset: bool = False) -> Verdict:
    spans = [span("(start)", 2, 3, kind="reset")] if reset else []
    return judge("never_fall", workload(*readings, *spans))


def test_counters_that_rise_pass() -> None:
    verdict = falling(sample(1, "x", hits_tokens=1, evictions=0), sample(4, "y", hits_tokens=5, evictions=0))
    assert verdict.status is Status.PASS
    assert verdict.observed == ("hits_tokens  1 to 5", "evictions  0 to 0")


def test_a_counter_that_falls_fails() -> None:
    verdict = falling(sample(4, "y", hits_tokens=3), sample(1, "x", hits_tokens=5))
    assert verdict.status is Status.FAIL
    assert verdict.witness.startswith("hits_tokens fell from 5 to 3 between 1.000 s and 4.000 s (during y)")


def test_a_reset_may_let_them_fall() -> None:
    over = [sample(1, "x", hits_tokens=5), sample(4, "y", hits_tokens=0), sample(5, "y", hits_tokens=9)]
    assert falling(*over, reset=True).status is Status.PASS


def test_counters_that_stand_still_are_vacuous_and_none_unobservable() -> None:
    assert falling(sample(1, "x", hits_tokens=1), sample(4, "y", hits_tokens=1)).status is Status.VACUOUS
    assert falling(sample(1, "x", live=1), sample(4, "y", live=0)).status is Status.UNOBSERVABLE
    assert falling(sample(1, "x", hits_tokens=1)).reason == "counters were read once"


SOUND = {
    "free": 90.0,
    "cached_idle": 10.0,
    "referenced": 0.0,
    "total": 100.0,
    "live": 10.0,
    "bytes_in_use": 640.0,
}


def balance(**changes: float) -> Verdict:
    made = workload(sample(1, "end", **(SOUND | changes)), facts=facts(bytes_per_block=64))
    return judge("balanced", made, at="end")


def test_a_ledger_that_adds_up_passes() -> None:
    assert balance().status is Status.PASS


def test_a_ledger_that_does_not_fails() -> None:
    assert balance(free=89).witness == (
        "free 89 + cached_idle 10 + referenced 0 = 99, but the pool has 100: -1 blocks"
    )
    assert balance(bytes_in_use=600).witness == (
        "bytes in use are 600, but 10 live blocks of 64 bytes are 640"
    )


def test_an_empty_or_busy_ledger_is_vacuous() -> None:
    assert balance(free=100, cached_idle=0, live=0, bytes_in_use=0).status is Status.VACUOUS
    assert balance(running=1).reason == "the target was not idle"


def test_a_pool_that_is_not_shown_is_unobservable() -> None:
    made = workload(sample(1, "end", free=4, total=4))
    assert judge("balanced", made, at="end").status is Status.UNOBSERVABLE


def test_without_bytes_the_blocks_are_judged() -> None:
    values = {name: value for name, value in SOUND.items() if name != "bytes_in_use"}
    verdict = judge("balanced", workload(sample(1, "end", **values)), at="end")
    assert (verdict.status, verdict.notes) == (Status.PASS, ("the target does not expose bytes in use",))


FATES = ("adopted_requests", "missed_requests", "rejected_requests")


def fated(*rose: float, **changes: Any) -> Verdict:
    """A hit, a miss and a refusal between two marks; the three counters rise by so much."""
    no = {"status": 400, "error": "too long", "rejected": True, "cached": None}
    refused = reply(ask("no", PROMPT), 14, 15, **(no | changes))
    end = dict(zip(FATES, rose, strict=False))
    made: Workload = workload(
        seed(), sample(5, "a", **dict.fromkeys(FATES, 0.0)), *burst([192, 0]), refused, sample(20, "b", **end)
    )
    return judge("accounted", made, since="a", until="b")


def test_each_request_is_accounted_once() -> None:
    assert fated(1, 1, 1).status is Status.PASS


def test_one_that_is_counted_twice_or_never_fails() -> None:
    assert fated(1, 2, 1).witness == (
        "1 of 3 requests missed, but the counter rose by 2; all together rose by 4"
    )
    assert fated(1, 1, 0).status is Status.FAIL


def test_a_fate_that_nobody_met_is_vacuous() -> None:
    verdict = fated(1, 2, 0, status=200, error=None, rejected=False, cached=0)
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, "no request between the marks were rejected")


def test_a_request_without_a_column_is_an_error() -> None:
    assert fated(1, 1, 1, rejected=False, status=500).status is Status.ERROR


def test_hidden_reasons_are_unobservable() -> None:
    assert fated(1, 1).status is Status.UNOBSERVABLE
