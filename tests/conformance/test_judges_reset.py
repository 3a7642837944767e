"""reset/1 to reset/4 on hand-made workloads: a prompt of 224 ids (law 192) before and after a reset."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.history import Outcome, Workload
from conformance.verdict import Status, Verdict
from tests.conformance.builders import (
    PREFIX,
    answer_to,
    ask,
    judge,
    reply,
    sample,
    solo,
    span,
    suffix,
    workload,
)

PROMPT = [*PREFIX, *suffix(1)]
OTHER = [*PREFIX, *suffix(2)]
DONE: dict[str, Any] = {"done": True, "status": 200, "answer": "cleared"}
REFUSED: dict[str, Any] = {"done": False, "status": 409, "answer": "busy"}
NOTHING: dict[str, Any] = {"done": None, "status": None, "answer": "no answer came"}


def ask_for(step: str, sent: float, cached: int, prompt: list[int] = PROMPT, **changes: Any) -> Outcome:
    changes.setdefault("token_ids", answer_to(prompt))
    return reply(ask(step, prompt), sent, changes.pop("ended", sent + 1), cached=cached, **changes)


def with_solos(made: Workload) -> Workload:
    for prompt in (PROMPT, OTHER):
        plan = ask("alone", prompt)
        made.solos[plan.key] = [solo(plan, token_ids=answer_to(prompt))] * 2
    return made


# ---- reset/1


def idle(
    cached: int = 0, warm: int = 192, live: float | None = 0, held: float = 0, sent: float = 8, **answer: Any
) -> Verdict:
    gauges = {} if live is None else {"live": live, "referenced": held}
    made = workload(
        ask_for("first", 0, 0),
        ask_for("warm", 2, warm),
        span("emptied", 5, 6, "reset", **(DONE | answer)),
        sample(7, "after", **gauges, running=0),
        ask_for("again", sent, cached),
    )
    return judge("forgotten", made, of="again", warm="warm", reset="emptied", after="after")


def test_a_reset_that_forgot_everything() -> None:
    verdict = idle()
    assert verdict.status is Status.PASS
    assert verdict.observed[-1] == "0 live and 0 referenced blocks at after"


def test_blocks_of_running_requests_may_live_on() -> None:
    assert idle(live=7, held=7).status is Status.PASS
    assert idle(live=None).status is Status.PASS


def test_a_hit_after_a_reset_fails() -> None:
    verdict = idle(192)
    assert (verdict.status, verdict.request) == (Status.FAIL, "again")
    assert verdict.witness.startswith(
        "again reports 192 cached tokens, although emptied said that it was done"
    )


def test_blocks_that_nobody_holds_after_a_reset_fail() -> None:
    verdict = idle(live=9, held=7)
    assert verdict.witness == "2 blocks live on after the reset though no request holds them"


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"warm": 0}, "the cache was not warm before the reset"),
        ({"sent": 5.5}, "'again' was sent before the reset was done"),
        (REFUSED, "emptied: refused (status 409: busy)"),
        (NOTHING, "emptied: no answer (status None: no answer came)"),
    ],
)
def test_a_reset_that_shows_nothing_is_vacuous(how: dict[str, Any], reason: str) -> None:
    verdict = idle(**how)
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, reason)


def test_a_reset_that_never_ran_is_an_error() -> None:
    made = workload(ask_for("warm", 2, 192), ask_for("again", 8, 0))
    verdict = judge("forgotten", made, of="again", warm="warm", reset="emptied", after="after")
    assert verdict.status is Status.ERROR


# ---- reset/2


def decoding(
    cached: int = 0,
    answer: dict[str, Any] = DONE,
    warm: int = 192,
    first: float = 4,
    last: float = 9,
    **how: Any,
) -> Verdict:
    made = workload(
        ask_for("first", 0, 0),
        ask_for("warm", 2, warm),
        ask_for("long", 3.5, 192, OTHER, first=first, ended=last, **how.pop("long", {})),
        span("emptied", 5, 6, "reset", **answer),
        ask_for("again", 7, cached, **how),
    )
    return judge("reset_meant", with_solos(made), reset="emptied", running="long", warm="warm", of="again")


def test_a_reset_that_is_done_and_one_that_is_refused() -> None:
    done, refused = decoding(), decoding(192, REFUSED)
    assert (done.status, refused.status) == (Status.PASS, Status.PASS)
    assert done.observed[0] == "emptied: done (status 200: cleared)"
    assert refused.observed[0] == "emptied: refused (status 409: busy)"


def test_a_reset_that_says_done_and_keeps_all_fails() -> None:
    assert decoding(192).request == "again"
    assert decoding(192).status is Status.FAIL


def test_a_reset_that_is_refused_and_forgets_all_the_same_fails() -> None:
    verdict = decoding(0, REFUSED)
    assert verdict.status is Status.FAIL
    assert verdict.witness.startswith("emptied was refused, and yet: again reports 0 cached tokens")


@pytest.mark.parametrize(
    ("how", "who"), [({"long": {"token_ids": [7] * 8}}, "long"), ({"token_ids": [7] * 8}, "again")]
)
def test_another_reply_over_a_reset_fails(how: dict[str, Any], who: str) -> None:
    verdict = decoding(**how)
    assert (verdict.status, verdict.request) == (Status.FAIL, who)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"first": 5.5}, "'long' did not decode while the reset was asked for"),
        ({"last": 5.5}, "'long' did not decode while the reset was asked for"),
        ({"warm": 0}, "the cache was not warm before the reset"),
        ({"answer": NOTHING}, "emptied: status None: no answer came"),
    ],
)
def test_a_reset_beside_no_decode_is_vacuous(how: dict[str, Any], reason: str) -> None:
    verdict = decoding(**how)
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, reason)


# ---- reset/3

OLD: dict[str, Any] = {"token_ids": [5] * 8}


def reloaded(cached: int = 0, old: dict[str, Any] = OLD, warm: int = 192, **how: Any) -> Verdict:
    answer = how.pop("answer", DONE)
    made = workload(
        ask_for("old", 0, 0, **old),
        ask_for("warm", 2, warm, **old),
        span("renewed", 5, 6, "reload", **answer),
        ask_for("new", 7, cached, **how),
    )
    return judge("renewed", with_solos(made), of="new", old="old", warm="warm", reload="renewed")


def test_new_weights_answer_as_themselves() -> None:
    assert reloaded().status is Status.PASS


def test_a_hit_on_what_the_old_weights_made_fails() -> None:
    assert reloaded(192).witness.startswith("new reports 192 cached tokens, although renewed said")


def test_a_reply_of_the_old_weights_fails() -> None:
    verdict = reloaded(**OLD)
    assert (verdict.status, verdict.request) == (Status.FAIL, "new")


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"old": {}}, "the new weights answer as the old ones do"),
        ({"warm": 0}, "the cache was not warm before the reset"),
        ({"answer": REFUSED}, "renewed: refused (status 409: busy)"),
    ],
)
def test_a_reload_that_shows_nothing_is_vacuous(how: dict[str, Any], reason: str) -> None:
    verdict = reloaded(**how)
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, reason)


def test_another_request_after_the_reload_is_vacuous() -> None:
    made = workload(
        ask_for("old", 0, 0, OTHER, **OLD),
        ask_for("warm", 2, 192),
        span("renewed", 5, 6, "reload", **DONE),
        ask_for("new", 7, 0),
    )
    verdict = judge("renewed", with_solos(made), of="new", old="old", warm="warm", reload="renewed")
    assert verdict.reason == "'new' does not send the requests of 'old' again after the reload"


# ---- reset/4


def begun(
    cached: int = 0, answer: dict[str, Any] = DONE, first: float = 7, control: int = 192, **again: Any
) -> Verdict:
    made = workload(
        ask_for("begun", 4, 0, first=first, ended=8),
        span("emptied", 5, 6, "reset", **answer),
        ask_for("again", 9, cached, **again),
        ask_for("control", 11, control),
    )
    return judge(
        "nothing_carried", with_solos(made), reset="emptied", begun="begun", of="again", control="control"
    )


def test_a_prefill_that_publishes_nothing_over_a_reset() -> None:
    assert begun().status is Status.PASS


def test_a_prefill_that_publishes_over_a_reset_fails() -> None:
    verdict = begun(192)
    assert (verdict.status, verdict.request) == (Status.FAIL, "again")
    assert verdict.witness.startswith("again reports 192 cached tokens: begun, begun before emptied")


def test_another_reply_after_a_prefill_over_a_reset_fails() -> None:
    assert begun(token_ids=[7] * 8).status is Status.FAIL


def test_a_prefill_that_was_over_is_vacuous() -> None:
    assert begun(first=5.5).reason == "'begun' was not in its prefill while the reset was done"
    assert begun(answer=NOTHING).status is Status.VACUOUS


def test_a_target_that_refuses_while_it_works_is_unobservable() -> None:
    verdict = begun(answer=REFUSED)
    assert verdict.status is Status.UNOBSERVABLE
    assert verdict.reason == "the target refuses a reset while it works: status 409: busy"


def test_a_cache_that_is_off_is_inconclusive() -> None:
    assert begun(control=0).status is Status.INCONCLUSIVE
