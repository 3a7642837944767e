"""What every judge has in common: errors, timeouts, claims, and evidence that is missing."""

from __future__ import annotations

import pytest

from conformance.history import NotClaimed, Outcome
from conformance.judges import JUDGES
from conformance.judges.base import Case, Stop
from conformance.requirements import REQUIREMENTS
from conformance.verdict import Status
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
    workload,
)


def test_every_judge_has_a_requirement_that_exists_and_explains_itself() -> None:
    assert all(j.requirement in REQUIREMENTS and len(j.doc) > 20 for j in JUDGES.values())


def test_the_registry_holds_the_words_of_the_language() -> None:
    assert set(JUDGES) == {
        "adopters", "same_total", "computed_once", "turns_adopt", "released", "work_stops", "same_as_solo",
        "own_content", "golden", "recovers", "survivors", "undelayed", "contained", "chosen_alike",
        "choices_alone", "logprobs_true", "counted", "recorded", "footprint_within", "delta", "same_as",
        "distinct", "lawful", "stored_once", "entry_intact", "returned", "one_shot", "kept_once",
        "twins_once", "branches", "declined", "index_bounded", "no_false_hit", "own_match", "quiet_timing",
        "ladder", "same_usage", "hits_counted", "never_fall", "balanced", "accounted", "same_cached",
        "followers_go_on", "retry_reuses", "queued_truly",
        "stays", "tail_first", "unrecycled", "recycled", "in_budget", "no_growth", "all_end",
        "refused_at_once", "resumed", "written_only", "forgotten", "reset_meant", "renewed",
        "nothing_carried",
        "told_apart", "rerendered",
        "within_baseline", "footprint_returned", "grown_in_place", "footprint_reset",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["same_as_solo", "own_content"])
def test_judges_of_outputs_ask_for_solo_runs(name: str) -> None:
    found = JUDGES[name]
    assert found.solo_steps(found.args.model_validate({"of": "eight"})) == {"eight"}


def test_other_judges_ask_for_none() -> None:
    found = JUDGES["counted"]
    assert found.solo_steps(found.args.model_validate({"of": "eight"})) == frozenset()


def test_a_failed_request_is_an_error_that_names_it() -> None:
    broken = [*burst([192] * 7), *burst([192] * 8, error="connection reset")[7:]]
    verdict = judge("adopters", workload(seed(), *broken), of="eight")
    assert (verdict.status, verdict.request) == (Status.ERROR, "eight[7]")
    assert verdict.reason == "eight[7] failed: connection reset"


def test_a_refusal_is_an_error_with_its_status() -> None:
    verdict = judge("adopters", workload(seed(), *burst([192] * 8, status=503)), of="eight")
    assert (verdict.status, verdict.reason) == (Status.ERROR, "eight[0] failed: HTTP status 503")


def test_a_request_that_never_ended_is_a_timeout() -> None:
    verdict = judge("adopters", workload(seed(), *burst([192] * 8, timed_out=True)), of="eight")
    assert verdict.status is Status.TIMEOUT


def test_a_step_that_never_ran_gives_the_trouble() -> None:
    verdict = judge("adopters", workload(seed(), trouble="the server died"), of="eight")
    assert (verdict.status, verdict.reason) == (Status.ERROR, "the server died")


def test_a_step_without_requests_is_an_error_even_without_trouble() -> None:
    verdict = judge("adopters", workload(seed()), of="eight")
    assert (verdict.status, verdict.reason) == (Status.ERROR, "no request of 'eight' is on record")


def test_a_step_that_broke_off_is_an_error() -> None:
    made = workload(
        seed(), *burst([192] * 8), span("eight", 10, 12, trouble="reply without ids"), trouble="eight: x"
    )
    assert judge("adopters", made, of="eight").status is Status.ERROR


def test_a_step_that_completed_before_the_trouble_is_judged() -> None:
    made = workload(seed(), *burst([192] * 8), span("eight", 10, 12), trouble="the server died later")
    assert judge("adopters", made, of="eight").status is Status.PASS


def test_a_step_cut_off_in_the_file_is_an_error() -> None:
    made = workload(seed(), *burst([192] * 8))
    made.cut = True
    verdict = judge("adopters", made, of="eight")
    assert (verdict.status, verdict.reason) == (Status.ERROR, "the history ends before 'eight' did")


def without(index: int) -> list[Outcome]:
    return [outcome for outcome in burst([192] * 8) if outcome.index != index]


def test_a_request_that_was_taken_from_the_history_is_an_error() -> None:
    verdict = judge("adopters", workload(seed(), *without(3)), of="eight")
    assert (verdict.status, verdict.reason) == (Status.ERROR, "eight[3] is missing from the history")


def test_the_last_request_of_a_step_is_missed_where_its_span_counts() -> None:
    told = workload(seed(), *without(7), span("eight", 10, 12, requests=8))
    verdict = judge("adopters", told, of="eight")
    assert (verdict.status, verdict.reason) == (Status.ERROR, "eight[7] is missing from the history")
    whole = workload(seed(), *burst([192] * 8), span("eight", 10, 12, requests=8))
    assert judge("adopters", whole, of="eight").status is Status.PASS


def test_a_gap_in_one_step_spoils_what_another_shows() -> None:
    made = workload(span("seed", 0, 1, "send"), *burst([0] * 8))
    verdict = judge("counted", made, of="eight")
    assert (verdict.status, verdict.reason) == (Status.ERROR, "seed is missing from the history")


def test_a_request_that_is_there_twice_is_an_error() -> None:
    verdict = judge("adopters", workload(seed(), *burst([192] * 8), *burst([192] * 2)), of="eight")
    assert (verdict.status, verdict.reason) == (Status.ERROR, "eight[0] is in the history more than once")


def test_a_solo_run_that_was_taken_from_the_history_is_an_error() -> None:
    made = workload(seed(), *burst([192] * 2), span("(solos)", 20, 30, "solos", runs=2))
    verdict = judge("same_as_solo", made, of="eight")
    reason = "the solo run of eight[0] is missing from the history"
    assert (verdict.status, verdict.reason) == (Status.ERROR, reason)


def test_solo_runs_that_could_not_be_made_are_unobservable() -> None:
    made = workload(seed(), *burst([192] * 2), span("(solos)", 20, 30, "solos", reason="no way"))
    assert judge("same_as_solo", made, of="eight").status is Status.UNOBSERVABLE


def test_a_workload_that_could_not_run_is_unobservable() -> None:
    made = workload()
    made.unobservable = "no launch profile 'tight'"
    verdict = judge("adopters", made, of="eight")
    assert (verdict.status, verdict.reason) == (Status.UNOBSERVABLE, "no launch profile 'tight'")


def test_an_arm_that_never_started_is_an_error() -> None:
    verdict = judge("footprint_within", workload(*burst([192] * 8)), of="eight", control="no-sharing")
    assert (verdict.status, verdict.reason) == (Status.ERROR, "the arm 'no-sharing' was never started")


def test_a_mark_without_a_reading_is_unobservable() -> None:
    verdict = judge("released", workload(), before="a", after="b", left="eight", phase="decoding")
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "no statistics were read at the mark 'a'",
    )


def test_a_mark_that_was_never_reached_is_an_error() -> None:
    made = workload(trouble="the server died")
    verdict = judge("released", made, before="a", after="b", left="eight", phase="decoding")
    assert (verdict.status, verdict.reason) == (Status.ERROR, "the server died")


CLAIM = {"adopt/1": NotClaimed(reason="one slot per entry", link="https://example.org/doc")}


def test_what_a_target_does_not_claim_is_reported_and_not_judged() -> None:
    made = workload(seed(), *burst([192, *[0] * 7]), facts=facts(claims=CLAIM))
    verdict = judge("adopters", made, of="eight")
    assert (verdict.status, verdict.reason) == (
        Status.NOT_CLAIMED,
        "one slot per entry (https://example.org/doc)",
    )
    assert verdict.notes == ("1 of 8 adopted", "seen all the same: fail")


@pytest.mark.parametrize(
    ("claims", "status", "reason"),
    [
        (CLAIM, Status.NOT_CLAIMED, "one slot per entry (https://example.org/doc)"),
        ({}, Status.UNOBSERVABLE, "the target does not tell B"),
    ],
)
def test_a_claim_counts_also_where_nothing_could_be_asked(
    claims: dict[str, NotClaimed], status: Status, reason: str
) -> None:
    made = workload(facts=facts(claims=claims))
    made.unobservable = "the target does not tell B"
    verdict = judge("adopters", made, of="eight")
    assert (verdict.status, verdict.reason) == (status, reason)


def test_a_claim_without_a_link_gives_its_reason_alone() -> None:
    made = workload(seed(), *burst([192] * 8), facts=facts(claims={"adopt/1": NotClaimed(reason="why")}))
    verdict = judge("adopters", made, of="eight")
    assert (verdict.reason, verdict.notes[-1]) == ("why", "seen all the same: pass")


def test_a_claim_about_another_requirement_changes_nothing() -> None:
    made = workload(seed(), *burst([192] * 8), facts=facts(claims=CLAIM))
    assert judge("counted", made, of="eight").status is Status.PASS


def test_a_claim_does_not_hide_an_error() -> None:
    made = workload(seed(), *burst([192] * 8, error="reset"), facts=facts(claims=CLAIM))
    assert judge("adopters", made, of="eight").status is Status.ERROR


def test_a_claim_tells_why_the_rest_could_not_be_judged() -> None:
    made = workload(seed(), *burst([None] * 8), facts=facts(claims=CLAIM))
    verdict = judge("adopters", made, of="eight")
    assert verdict.notes == ("seen all the same: unobservable, eight[0] reports no cached tokens",)


def test_goldens_are_left_to_the_item() -> None:
    made = workload(reply(seed().plan, 0, 1))
    assert judge("golden", made, of="seed").status is Status.NOT_RUN


def marked() -> Case:
    """A case with two marks and a step that was waited for twice."""
    made = workload(
        sample(1, "before", live=3, evictions=1),
        sample(2, "after", live=5),
        span("when[1]", 1, 2, "when", request="long", reached=True),
        span("when[2]", 2, 3, "when", request="long", reached=True),
        span("when[3]", 2, 3, "when", request="late", reached=False),
        span("emptied", 3, 4, "reset", done=False, status=409),
    )
    return Case(made, "count/1")


def test_gauges_are_read_at_marks() -> None:
    assert marked().mark("before") == {"live": 3, "evictions": 1}
    assert (marked().gauge("live", "after"), marked().delta("live", "before", "after")) == (5, 2)


@pytest.mark.parametrize(("gauge", "mark"), [("evictions", "after"), ("live", "nowhere")])
def test_a_gauge_that_was_not_read_is_unobservable(gauge: str, mark: str) -> None:
    with pytest.raises(Stop) as stop:
        marked().gauge(gauge, mark)
    assert stop.value.status is Status.UNOBSERVABLE


def test_reached_is_what_every_wait_saw() -> None:
    assert marked().reached("long")
    assert not marked().reached("late")
    assert not marked().reached("never")


def test_the_detail_of_a_step_is_what_the_driver_noted() -> None:
    assert marked().detail("emptied")["status"] == 409
    with pytest.raises(Stop):
        marked().detail("nothing")


def entry(step: str, index: int, sent: float) -> Outcome:
    """A request of an entry of the burst `mixed`."""
    plan = ask(step, [*PREFIX, index], index).model_copy(update={"group": "mixed"})
    return reply(plan, sent, sent + 1)


def test_entries_of_a_burst_are_found_by_either_name() -> None:
    found = [entry("warm", 0, 1), entry("warm", 1, 1), entry("cold", 2, 1)]
    case = Case(workload(*found, span("mixed", 1, 3, requests=3)), "count/1")
    assert [o.index for o in case.requests("mixed")] == [0, 1, 2]
    assert [o.index for o in case.requests("cold")] == [2]
    with pytest.raises(Stop, match=r"mixed\[1\] is missing"):
        Case(workload(found[0], found[2], span("mixed", 1, 3, requests=3)), "count/1").requests("mixed")


def test_rounds_of_a_loop_are_one_step() -> None:
    spans = [span("one", 1, 2, "send", requests=1, round=0), span("one", 5, 6, "send", requests=1, round=1)]
    found = [reply(ask("one", PREFIX, i), 1 + 4 * i, 2 + 4 * i) for i in range(2)]
    samples = [sample(at, "one", live=at) for at in (1.5, 3.0, 5.5)]
    case = Case(workload(*found, *samples, *spans), "count/1")
    assert len(case.requests("one")) == 2
    assert [s.at for s in case.workload.during("one")] == [1.5, 5.5]
    with pytest.raises(Stop, match="is missing"):
        Case(workload(found[0], *spans), "count/1").requests("one")


@pytest.mark.parametrize(
    ("sampling", "code", "status"),
    [({"n": 4}, 400, Status.UNOBSERVABLE), ({"n": 4}, 500, Status.ERROR), ({}, 400, Status.ERROR)],
)
def test_an_option_that_the_target_refuses_is_unobservable(
    sampling: dict[str, int], code: int, status: Status
) -> None:
    plan = ask("eight", [*range(40)]).model_copy(update={"sampling": sampling})
    refused = reply(plan, 1, 2, status=code, error="at most 1", finish_reason=None)
    assert judge("counted", workload(refused), of="eight").status is status
