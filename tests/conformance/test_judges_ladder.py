"""adopt/6 on hand-made ladders: B = G = 32, rungs of 31, 32, 33, 64 and 65 tokens, each sent twice.

The second time each may report floor((n - 1) / 32) * 32: 0, 0, 32, 32, 64.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from conformance.history import Workload
from conformance.judges import JUDGES
from conformance.verdict import Status, Verdict
from tests.conformance.builders import ask, facts, judge, reply, solo, workload

LENGTHS = (31, 32, 33, 64, 65)
LAW = (0, 0, 32, 32, 64)


def scene(cached: tuple[int, ...] = LAW, lengths: tuple[int, ...] = LENGTHS, **target: Any) -> Workload:
    prompts = [[10 + i, *range(1000, 999 + n)] for i, n in enumerate(lengths)]
    first = [reply(ask("first", p, i), 0, 1) for i, p in enumerate(prompts)]
    again = [
        reply(ask("again", p, i), 10 + i, 10.5 + i, cached=c)
        for i, (p, c) in enumerate(zip(prompts, cached, strict=True))
    ]
    solos = {o.plan.key: [solo(o.plan), solo(o.plan)] for o in again}
    return workload(*first, *again, solos=solos, facts=facts(**target))


def ladder(made: Workload) -> Verdict:
    return judge("ladder", made, of=["first"], again=["again"])


def change(made: Workload, id: str, **changes: Any) -> Workload:
    made.outcomes = [o.model_copy(update=changes) if o.id == id else o for o in made.outcomes]
    return made


def test_counts_that_step_up_at_the_edges_pass() -> None:
    assert ladder(scene()).status is Status.PASS


def test_a_prompt_that_is_cached_to_its_last_token_fails() -> None:
    verdict = ladder(scene((0, 32, 32, 32, 64)))
    assert verdict.witness == (
        "again[1] reports all 32 of its prompt tokens cached; the last one is always computed"
    )
    assert (verdict.status, verdict.request) == (Status.FAIL, "again[1]")


def test_a_block_too_few_fails() -> None:
    verdict = ladder(scene((0, 0, 32, 32, 32)))
    assert verdict.witness.startswith("again[4] reports 32 cached tokens, although first[4] had stored")


def test_a_longer_prompt_must_not_report_less() -> None:
    # With partial reuse 33..64 are lawful for 65 tokens, and 33..63 for 64.
    verdict = ladder(scene((30, 31, 32, 63, 64), partial_reuse=True))
    assert verdict.status is Status.PASS
    verdict = ladder(scene((30, 0, 32, 63, 64), partial_reuse=True))
    assert verdict.witness == (
        "again[1] with n = 32 reports 0 cached tokens, fewer than the 30 of again[0] with n = 31"
    )


def test_another_reply_the_second_time_fails() -> None:
    verdict = ladder(change(scene(), "again[2]", token_ids=[200, 7]))
    assert verdict.witness == (
        "again[2] with n = 33 is another reply: token 1 is 7, the first time (first[2]) it is 201, "
        "top-2 gap there 1"
    )


def test_another_reply_on_a_target_that_never_repeats_itself_is_inconclusive() -> None:
    made = change(scene(), "again[2]", token_ids=[200, 7])
    made.solos.clear()
    assert ladder(made).status is Status.INCONCLUSIVE


@pytest.mark.parametrize("id", ["first[3]", "again[3]"])
def test_an_error_at_one_length_is_a_fail(id: str) -> None:
    verdict = ladder(change(scene(), id, status=500, error="status 500: list index out of range"))
    assert (verdict.status, verdict.request) == (Status.FAIL, id)
    assert verdict.witness == f"{id} with n = 64 failed: status 500: list index out of range"


def test_a_server_that_died_is_an_error() -> None:
    made = change(scene(), "again[3]", status=None, error="connection reset")
    assert ladder(made).status is Status.ERROR


def test_without_a_granule_it_is_unobservable() -> None:
    assert ladder(scene(granule=None)).status is Status.UNOBSERVABLE


def test_rungs_between_the_same_two_edges_are_vacuous() -> None:
    verdict = ladder(scene((32, 32), (33, 64)))
    assert verdict.reason == "every rung reports {32} cached tokens, so no edge was crossed"


def test_without_a_whole_multiple_it_is_vacuous() -> None:
    assert "no length is a multiple of the granule of 32" in ladder(scene((0, 32), (31, 33))).reason


def test_lengths_that_all_came_out_alike_are_unobservable() -> None:
    verdict = ladder(scene((32, 32), (50, 50)))
    assert (verdict.status, verdict.reason) == (
        Status.UNOBSERVABLE,
        "prompts of these lengths cannot be written for the target",
    )


def test_a_ladder_may_be_climbed_in_several_steps() -> None:
    made = scene()
    for outcome in made.outcomes:
        if outcome.index > 2:
            outcome.step, outcome.index = f"{outcome.step}-high", outcome.index - 3
    steps: dict[str, Any] = {"of": ["first", "first-high"], "again": ["again", "again-high"]}
    assert judge("ladder", made, **steps).status is Status.PASS
    made.outcomes[-1].cached = 32
    assert judge("ladder", made, **steps).request == "again[4]"


def test_every_step_of_a_ladder_has_its_repeat() -> None:
    with pytest.raises(ValidationError, match="every step and its repeat"):
        JUDGES["ladder"].args.model_validate({"of": ["a", "b"], "again": ["c"]})


def test_a_repeat_of_other_prompts_is_vacuous() -> None:
    made = scene()
    made.outcomes[-1].plan = made.outcomes[-1].plan.model_copy(update={"key": "other"})
    assert ladder(made).reason == "again[4] is another request than the one before it"


def test_a_prompt_that_was_not_sent_again_is_vacuous() -> None:
    made = scene()
    made.outcomes.pop()
    assert ladder(made).reason == "5 prompts were sent first, 4 again"
