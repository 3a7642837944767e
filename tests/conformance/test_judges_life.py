"""life/1 to life/6 on hand-made workloads; the first cases of life/1 are in test_judges_rest.py."""

from __future__ import annotations

from collections.abc import Sequence
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
    solo,
    span,
    suffix,
    workload,
)

IDLE = {"referenced": 0.0, "running": 0.0, "waiting": 0.0}
ENDS: dict[str, dict[str, Any]] = {
    "length": {},
    "stop": {"finish_reason": "stop"},
    "error": {"status": 500, "error": "the model failed"},
    "rejected": {"status": 400, "error": "too long", "rejected": True},
}


def some(step: str, count: int, at: float, took: float = 1, **changes: Any) -> list[Outcome]:
    """Requests of a step, sent together, each with a prompt of its own."""
    plans = [ask(step, suffix(i, 224), i, salt=step) for i in range(count)]
    return [reply(plan, at, at + took, **changes) for plan in plans]


def ended(by: str, after: float = 0.0, **how: Any) -> Verdict:
    made = workload(
        sample(1, "before", **IDLE),
        *some("ends", 2, 2, **how),
        sample(9, "after", **(IDLE | {"running": after})),
    )
    return judge("released", made, before="before", after="after", ended="ends", by=by)


@pytest.mark.parametrize("by", ENDS)
def test_every_end_gives_back(by: str) -> None:
    verdict = ended(by, **ENDS[by])
    assert (verdict.status, verdict.observed[-1]) == (Status.PASS, f"ended: 2 {by}")


def test_an_end_that_keeps_something_fails() -> None:
    verdict = ended("stop", 1.0, **ENDS["stop"])
    assert (verdict.status, verdict.request) == (Status.FAIL, "ends[0]")


def test_another_end_is_vacuous() -> None:
    assert ended("stop").reason == "no request of 'ends' ended by stop"
    assert ended("error", timed_out=True).observed[-1] == "ended: 2 timeout"


def test_an_end_needs_its_kind() -> None:
    with pytest.raises(ValueError, match="`ended` and `by` belong together"):
        judge("released", workload(), before="before", after="after", ended="ends")


# ---- life/2


def recovering(
    after: float = 1, control: float = 1, leavers: int = 20, pool: int = 130, **how: Any
) -> Workload:
    """Bursts of 16 requests of 8 blocks each (224 + 8 tokens) around 20 leavers of 7 blocks."""
    marks = facts(how="serve", pool_blocks=pool)
    return workload(
        *some("first", 16, 0),
        *some("read", 20, 10, took=10),
        *some("control", 16, 30, control),
        *some("leavers", leavers, 40, left="decoding"),
        *some("last", 16, 60, after, **how),
        facts=marks,
    )


def recovers(made: Workload) -> Verdict:
    return judge(
        "recovers", made, before="first", read="read", control="control", leavers="leavers", after="last"
    )


def test_a_pool_that_recovers() -> None:
    verdict = recovers(recovering(after=3))
    assert (verdict.status, verdict.expected) == (Status.PASS, "last ends within 3 x 1 seconds = 3 seconds")


def test_a_burst_that_is_slow_after_leavers_fails() -> None:
    verdict = recovers(recovering(after=3.1))
    assert (verdict.status, verdict.request) == (Status.FAIL, "last[0]")
    assert verdict.witness == (
        "last took 3.1 seconds, over the bound of 3: what the leavers held is still held"
    )


def test_a_burst_that_never_ends_after_leavers_fails() -> None:
    verdict = recovers(recovering(timed_out=True, error="no end"))
    assert verdict.witness.startswith("last[0] did not end well after the clients of leavers had gone")


def test_a_control_that_is_slow_is_inconclusive() -> None:
    assert recovers(recovering(after=4, control=4)).status is Status.INCONCLUSIVE


def test_too_few_leavers_are_vacuous_and_a_large_pool_unobservable() -> None:
    assert recovers(recovering(leavers=19)).status is Status.VACUOUS
    assert (
        recovers(recovering(pool=140)).reason == "20 leaks would be 140 blocks, which a pool of 140 can bear"
    )
    assert recovers(recovering(pool=0)).reason == "the target does not tell the size of its pool"
    small = recovering(pool=130)
    small.outcomes = [o for o in small.outcomes if o.step != "first" or o.index < 14]
    assert recovers(small).reason == "'first' needs 112 of 130 blocks, not 90%"


def test_a_step_that_is_not_there_is_an_error() -> None:
    made = recovering()
    made.outcomes = [o for o in made.outcomes if o.step != "last"]
    assert recovers(made).status is Status.ERROR


def test_the_engine_counts_its_steps() -> None:
    made = recovering(after=50)
    made.facts["main"] = facts(pool_blocks=130)
    for step, start, steps in (("first", 0, 100), ("control", 30, 110), ("last", 60, 300)):
        made.spans.append(span(step, start, start + 5, requests=16))
        made.samples += [sample(start, step, sequence=0.0), sample(start + 1, step, sequence=float(steps))]
    assert recovers(made).expected == "last ends within 3 x 100 steps = 300 steps"
    assert recovers(made).status is Status.PASS
    made.samples[-1].values["sequence"] = 301.0
    assert recovers(made).status is Status.FAIL


# ---- life/3


def mates(left_at: float = 11, cached: int = 192, prompt: Sequence[int] = PREFIX, **how: Any) -> Verdict:
    """Two that stay and one whose client leaves, all on the stored prefix."""
    stay = burst([192, cached], step="stay")
    gone = reply(ask("gone", [*prompt, *suffix(9)]), 10, left_at, **({"left": "decoding"} | how))
    solos = {o.plan.key: [solo(o.plan), solo(o.plan)] for o in stay}
    return judge("survivors", workload(seed(), *stay, gone, solos=solos), of="stay", left="gone")


def test_survivors_answer_as_alone() -> None:
    assert mates().status is Status.PASS


def test_a_survivor_that_answers_otherwise_fails() -> None:
    stay = burst([192, 192], step="stay")
    gone = reply(ask("gone", [*PREFIX, *suffix(9)]), 10, 11, left="decoding")
    solos = {o.plan.key: [solo(o.plan), solo(o.plan)] for o in stay}
    stay[1].token_ids = [5] * 8
    verdict = judge("survivors", workload(seed(), *stay, gone, solos=solos), of="stay", left="gone")
    assert (verdict.status, verdict.request) == (Status.FAIL, "stay[1]")


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"left": None}, "no client of 'gone' was seen to leave"),
        ({"cached": 0}, "not all of 'stay' adopted, so no blocks were shared"),
        ({"prompt": [1, 2, 3]}, "those who left share 0 tokens with those who stayed, no granule"),
        ({"left_at": 13}, "no client of 'gone' left while 'stay' ran"),
    ],
)
def test_survivors_of_nothing_are_vacuous(how: dict[str, Any], reason: str) -> None:
    verdict = mates(**how)
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, reason)


@pytest.mark.parametrize("sharing", ["slots", "one_shot"])
@pytest.mark.parametrize(("wrong", "status"), [(False, Status.UNOBSERVABLE), (True, Status.FAIL)])
def test_siblings_with_rows_of_their_own_share_no_blocks_but_must_answer_right(
    wrong: bool, status: Status, sharing: str
) -> None:
    stay = burst([192, 0], step="stay")
    gone = reply(ask("gone", [*PREFIX, *suffix(9)]), 10, 11, left="decoding")
    solos = {o.plan.key: [solo(o.plan), solo(o.plan)] for o in stay}
    if wrong:
        stay[1].token_ids = [5] * 8
    made = workload(seed(), *stay, gone, solos=solos, facts=facts(sharing=sharing))
    assert judge("survivors", made, of="stay", left="gone").status is status


# ---- life/4


def stopping(
    done: float = 20, more: float = 0, tokens: int = 2, reply_tokens: int = 100, **told: Any
) -> Verdict:
    """One client left after `tokens` of a long reply; `done` generated by then, `more` later."""
    plan = ask("gone", suffix(1, 1024)).model_copy(update={"max_tokens": reply_tokens})
    gone = reply(plan, 2, 3, **({"left": "decoding", "tokens_at": [2.5] * tokens} | told))
    made = workload(
        sample(1, "before", generated_tokens=0, computed_tokens=0),
        gone,
        sample(4, "since", generated_tokens=done, computed_tokens=1000.0),
        sample(6, "until", generated_tokens=done + more, computed_tokens=1000.0),
    )
    return judge("work_stops", made, left="gone", before="before", since="since", until="until")


def test_work_stops_with_its_client() -> None:
    verdict = stopping()
    assert verdict.status is Status.PASS
    assert verdict.observed[-1] == "tokens generated  20 by since, +0 by until, 100 asked"


def test_work_that_goes_on_fails() -> None:
    verdict = stopping(more=3)
    assert (verdict.status, verdict.request) == (Status.FAIL, "gone")
    assert verdict.witness.startswith("3 more tokens generated between since and until")


def test_work_that_was_done_to_its_end_fails() -> None:
    verdict = stopping(done=100)
    assert (
        verdict.witness == "all that the 1 clients had asked for was computed to its end after they had gone"
    )


@pytest.mark.parametrize(
    ("seen", "status"), [(488, Status.FAIL), (489, Status.VACUOUS), (1000, Status.VACUOUS)]
)
def test_a_prefill_that_was_done_to_its_end_fails_where_the_client_left_well_before(
    seen: float, status: Status
) -> None:
    """Two chunks of 256 must have been left at the first reading after the client had gone."""
    assert stopping(done=0, first=None, left="prefilling").status is Status.PASS
    plan = ask("gone", suffix(1, 1000))
    gone = reply(plan, 2, 3, first=None, left="prefilling")
    work = {"generated_tokens": 0.0, "computed_tokens": 1000.0}
    still = [sample(4, "since", **work), sample(6, "until", **work)]
    first = sample(3.1, "gone", generated_tokens=0, computed_tokens=seen)
    made = workload(sample(1, "before", generated_tokens=0, computed_tokens=0), gone, first, *still)
    verdict = judge("work_stops", made, left="gone", before="before", since="since", until="until")
    assert verdict.status is status


@pytest.mark.parametrize(
    ("how", "done", "status"),
    [
        ("serve", 4.9, Status.VACUOUS),
        ("serve", 5.0, Status.FAIL),
        ("endpoint", 4.9, Status.VACUOUS),
        ("engine", 4.9, Status.FAIL),
    ],
)
def test_a_prefill_that_ended_soon_after_its_client_accuses_no_foreign_server(
    how: str, done: float, status: Status
) -> None:
    """The client was gone at 3 s, and a server may look for that once in two seconds."""
    gone = reply(ask("gone", suffix(1, 1000)), 2, 3, first=None, left="prefilling")
    counted = [(1.0, "before", 0.0), (3.1, "gone", 0.0), (done, "since", 1000.0), (6.0, "until", 1000.0)]
    made = workload(
        gone,
        *(sample(at, name, generated_tokens=0, computed_tokens=value) for at, name, value in counted),
        facts=facts(how=how),
    )
    verdict = judge("work_stops", made, left="gone", before="before", since="since", until="until")
    assert verdict.status is status


def test_nothing_to_stop_is_vacuous() -> None:
    assert stopping(left=None).reason == "no client of 'gone' was seen to leave"
    assert stopping(tokens=51).reason == "gone had most of its reply when its client left"
    plan = ask("gone", suffix(1, 512))
    work = {"generated_tokens": 0.0, "computed_tokens": 256.0}
    still = [sample(4, "since", **work), sample(6, "until", **work)]
    before = sample(1, "before", generated_tokens=0, computed_tokens=0)
    made = workload(before, reply(plan, 2, 3, first=None, left="prefilling"), *still)
    verdict = judge("work_stops", made, left="gone", before="before", since="since", until="until")
    assert verdict.reason == "gone is no longer than two chunks, so nothing can be stopped"


def test_a_client_that_waits_for_a_request_that_hangs_is_a_timeout() -> None:
    verdict = stopping(left=None, timed_out=True)
    assert (verdict.status, verdict.request) == (Status.TIMEOUT, "gone")
    assert verdict.reason == "gone did not end in time"
    assert stopping(timed_out=True).status is Status.PASS


def test_hidden_work_is_unobservable() -> None:
    gone = reply(ask("gone", suffix(1)), 2, 3, left="decoding")
    bare = [sample(at, name) for at, name in ((1, "before"), (4, "since"), (6, "until"))]
    args = {"left": "gone", "before": "before", "since": "since", "until": "until"}
    assert judge("work_stops", workload(gone, *bare), **args).status is Status.UNOBSERVABLE
    for reading in bare:
        reading.values["computed_tokens"] = 5.0
    verdict = judge("work_stops", workload(gone, *bare), **args)
    assert verdict.reason == "the target does not count tokens generated, which these clients left behind"


# ---- life/5


def beside(took: float = 1, until: float = 30, how: str = "stop_reading", **changes: Any) -> Verdict:
    """Four alone for a second, four beside a silent client; the engine's steps stand still."""
    plan = ask("stalled", suffix(7)).model_copy(update={"leave": {"how": how}})
    stalled = reply(plan, 9, until, left="decoding")
    made = workload(
        *some("alone", 4, 0),
        stalled,
        *some("others", 4, 10, took, **changes),
        *(span(step, at, at + 5, requests=4) for step, at in (("alone", 0), ("others", 10))),
        *(sample(at, step, sequence=at * 10) for step, at in (("alone", 0), ("alone", 1), ("others", 10))),
        sample(10.1, "others", sequence=101),
    )
    return judge("undelayed", made, of="others", alone="alone", stalled="stalled")


def test_others_take_their_time() -> None:
    assert beside(3).status is Status.PASS


def test_delayed_others_fail() -> None:
    verdict = beside(3.5)
    assert (verdict.status, verdict.request) == (Status.FAIL, "others[0]")
    assert verdict.witness == "others took 3.5 seconds, over the bound of 3, while stalled read nothing"


def test_others_that_never_end_fail() -> None:
    verdict = beside(1, timed_out=True, error="no end")
    assert verdict.witness == "others[0] did not end well beside a client that stopped reading: timeout"


def test_a_client_that_went_on_is_vacuous() -> None:
    assert beside(how="rst").reason == "no client of 'stalled' stopped reading"
    assert beside(until=10.5).reason == "'stalled' did not stand by from the start of 'others' to its end"


# ---- life/6


def failing(*fates: str, cached: int = 0, referenced: float = 0, again: Any = None) -> Verdict:
    """A burst whose requests end in these ways, between two marks, and the first one's prompt again."""
    got = [
        o.model_copy(update=ENDS[fate]) for o, fate in zip(some("four", len(fates), 2), fates, strict=True)
    ]
    twice = reply(ask("again", got[0].plan.prompt_ids or [], salt="four"), 12, 13, cached=cached)
    twice.token_ids = again or twice.token_ids
    solos = {o.plan.key: [solo(o.plan), solo(o.plan)] for o in (*got, twice)}
    made = workload(
        sample(1, "before", **IDLE),
        *got,
        sample(9, "after", **(IDLE | {"referenced": referenced})),
        twice,
        solos=solos,
    )
    return judge("contained", made, of="four", again="again", before="before", after="after")


def test_a_failure_stays_with_its_own() -> None:
    assert failing("error", "length", "length").status is Status.PASS


def test_a_failure_that_spreads_fails() -> None:
    verdict = failing("error", "error", "length")
    assert (verdict.status, verdict.request) == (Status.FAIL, "four[1]")
    assert verdict.witness == "2 failed, though the forward held 1: the model failed"


def test_a_failure_that_leaks_fails() -> None:
    assert failing("error", "length", referenced=3).witness.startswith("referenced was 0 at before and is 3")


def test_a_failure_that_publishes_fails() -> None:
    verdict = failing("error", "length", cached=32)
    assert (verdict.status, verdict.request) == (Status.FAIL, "again")
    assert "which sent them before, failed when 0 were written" in verdict.witness


def test_a_failure_that_spoils_a_later_reply_fails() -> None:
    verdict = failing("error", "length", again=[9] * 8)
    assert (verdict.status, verdict.request) == (Status.FAIL, "again")


def test_a_request_that_is_never_answered_fails() -> None:
    ENDS_LATE = {"status": None, "error": "connection reset"}
    got = [o.model_copy(update=ENDS_LATE) for o in some("four", 1, 2)]
    twice = reply(ask("again", suffix(5)), 12, 13)
    made = workload(sample(1, "before", **IDLE), *got, sample(9, "after", **IDLE), twice)
    verdict = judge("contained", made, of="four", again="again", before="before", after="after")
    assert verdict.witness == "four[0] was never answered: connection reset"


def beside_failing(ended: float, **how: Any) -> Verdict:
    """One that fails at 3 s, and one that is sent at 1.5 s and runs in another forward."""
    own = some("four", 1, 2)[0].model_copy(update=ENDS["error"])
    other = reply(ask("other", suffix(8)), 1.5, ended, **how)
    twice = reply(ask("again", own.plan.prompt_ids or [], salt="four"), 12, 13, token_ids=[4] * 8)
    solos = {o.plan.key: [solo(o.plan, token_ids=o.token_ids)] * 2 for o in (other, twice)}
    made = workload(sample(1, "before", **IDLE), own, other, sample(9, "after", **IDLE), twice, solos=solos)
    return judge("contained", made, of="four", beside="other", again="again", before="before", after="after")


def test_those_of_another_forward_go_on() -> None:
    assert beside_failing(4).status is Status.PASS
    assert beside_failing(2.5).reason == "'other' did not run while 'four' failed"
    verdict = beside_failing(4, status=500, error="the model failed")
    assert verdict.witness == "other failed, though it was in no forward of four: the model failed"


def test_no_failure_is_vacuous() -> None:
    assert failing("length", "length").reason == "no request of 'four' failed"
