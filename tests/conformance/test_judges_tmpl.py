"""tmpl/1 and tmpl/2 on hand-made chats: B = G = 32, ids after the template told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from conformance.history import Outcome
from conformance.verdict import Status, Verdict
from tests.conformance.builders import ask, judge, reply, workload

FIRST = [*range(200)]
SECOND = [*FIRST, *range(0, 8), *range(500, 540)]
"""The first turn, its reply (0 to 7), and forty ids more."""


def turn(index: int, ids: Sequence[int] | None, cached: int) -> Outcome:
    plan = ask("chat", "", index).model_copy(
        update={"prompt_text": None, "messages": [{"role": "user", "content": str(index)}]}
    )
    told = None if ids is None else list(ids)
    return reply(plan, 10 * index, 10 * index + 1, cached=cached, rendered_ids=told, token_ids=[*range(8)])


def chat(name: str, second: Sequence[int] | None, cached: int, first: Sequence[int] = FIRST) -> Verdict:
    return judge(name, workload(turn(0, first, 0), turn(1, second, cached)), of="chat")


# ---- tmpl/1


def test_what_the_template_kept_is_adopted() -> None:
    verdict = chat("told_apart", SECOND, 192)
    assert verdict.status is Status.PASS
    assert verdict.observed[1] == "chat[1]  n 248  cached 192  lawful 192  LCP of the rendered ids 207"


@pytest.mark.parametrize("cached", [160, 224])
def test_an_engine_that_does_not_adopt_what_was_kept_fails(cached: int) -> None:
    verdict = chat("told_apart", SECOND, cached)
    assert (verdict.status, verdict.request) == (Status.FAIL, "chat[1]")
    assert verdict.witness.startswith(f"the engine, not the template: chat[1] reports {cached} cached tokens")


def test_an_engine_is_not_blamed_for_a_template_that_keeps_nothing() -> None:
    verdict = chat("told_apart", [9999, *SECOND], 0)
    assert verdict.status is Status.VACUOUS
    assert verdict.reason == "the template keeps no granule of any prompt, so the engine is owed nothing"


@pytest.mark.parametrize("name", ["told_apart", "rerendered"])
def test_ids_that_are_not_told_are_unobservable(name: str) -> None:
    verdict = chat(name, None, 192)
    assert verdict.status is Status.UNOBSERVABLE
    assert verdict.reason == "chat[1]: the ids after the chat template are not told"


# ---- tmpl/2


def test_a_turn_that_keeps_the_last_one() -> None:
    verdict = chat("rerendered", SECOND, 0)
    assert verdict.status is Status.PASS
    assert verdict.observed == ("chat[1]  keeps 200 of the 200 ids of the turn before",)


@pytest.mark.parametrize(("kept", "status"), [(192, Status.PASS), (191, Status.FAIL), (0, Status.FAIL)])
def test_a_few_ids_at_the_end_may_be_rendered_anew(kept: int, status: Status) -> None:
    verdict = chat("rerendered", [*FIRST[:kept], *range(900, 960)], 0)
    assert verdict.status is status
    if status is Status.FAIL:
        assert verdict.request == "chat[1]"
        assert verdict.witness == (
            "the template, not the engine: chat[1] renders the 200 ids of the turn before as others from "
            f"id {kept} on, so no cache can serve them"
        )


def test_a_short_turn_and_a_single_one_are_vacuous() -> None:
    short = chat("rerendered", [*FIRST[:128], *range(900, 960)], 0, first=FIRST[:128])
    assert short.reason == "128 ids in common are no more than 4 granules, 128"
    single = judge("rerendered", workload(turn(0, FIRST, 0)), of="chat")
    assert (single.status, single.reason) == (Status.VACUOUS, "'chat' is one turn")


def test_turns_may_be_several_steps() -> None:
    other = turn(1, SECOND, 192)
    other.step = other.plan.step = "then"
    other.index = other.plan.index = 0
    other.id = other.plan.id = "then"
    made = workload(turn(0, FIRST, 0), other)
    assert judge("rerendered", made, of="chat", others=["then"]).status is Status.PASS
