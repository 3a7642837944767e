"""key/1 to key/5 and key/7 on hand-made workloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from conformance.history import Outcome, Workload
from conformance.verdict import Status, Verdict
from tests.conformance.builders import (
    PREFIX,
    answer_to,
    ask,
    facts,
    judge,
    reply,
    sample,
    solo,
    suffix,
    workload,
)

PROMPT = [*PREFIX, *suffix(1)]


def said(
    step: str, at: float, cached: int, prompt: Sequence[int] = PROMPT, salt: str = "shared", **changes: Any
) -> Outcome:
    """One request of a second."""
    changes.setdefault("token_ids", answer_to(prompt))
    adapter = changes.pop("adapter", None)
    plan = ask(step, prompt, salt=salt).model_copy(update={"adapter": adapter})
    return reply(plan, at, at + 1, cached=cached, **changes)


def world(*outcomes: Outcome, own: Sequence[int] | None = None, **target: Any) -> Workload:
    """The outcomes with a solo of each prompt, run twice; `own` are the ids of the last one's solo."""
    solos = {}
    for outcome in outcomes:
        alone = solo(outcome.plan, token_ids=answer_to(outcome.plan.prompt_ids or []))
        solos[outcome.plan.key] = [alone, alone]
    if own is not None:
        twins = [solo(outcomes[1].plan, token_ids=list(own)) for _ in range(2)]
        solos[outcomes[1].plan.key] = twins
    return workload(*outcomes, solos=solos, facts=facts(**target))


def tenants(cached: int = 0, again: int = 192, **changes: Any) -> Workload:
    """What one salt stored, the same prompt under another, and that one's own repeat."""
    return world(
        said("mine", 0, 0),
        said("theirs", 2, cached, salt="other", **changes),
        said("again", 4, again, salt="other"),
    )


def own(made: Workload, requirement: str = "key/1", **args: Any) -> Verdict:
    told = {"of": "theirs", "positive": "again", "stored": "mine"} | args
    return judge("own_match", made, requirement, **told)


def test_another_salt_shares_nothing() -> None:
    verdict = own(tenants())
    assert (verdict.status, verdict.observed) == (Status.PASS, ("theirs  n 224  cached 0  lawful 0",))


def test_a_hit_across_salts_fails_and_names_the_other() -> None:
    verdict = own(tenants(cached=192))
    assert (verdict.status, verdict.request) == (Status.FAIL, "theirs")
    assert verdict.witness.endswith("; mine has 224 of its tokens, under salt 'shared' and no adapter")


def test_a_foreign_reply_fails_without_a_hit() -> None:
    verdict = own(tenants(token_ids=[9] * 8))
    assert verdict.status is Status.FAIL
    assert "theirs (without reported reuse) parts from its solo run" in verdict.witness


def test_a_cache_that_is_off_is_vacuous() -> None:
    verdict = own(tenants(again=0))
    assert (verdict.status, verdict.reason) == (
        Status.VACUOUS,
        "'again' adopts 0 tokens, no more than the 0 that 'theirs' may: a cache that is off would pass",
    )


def test_nothing_to_mistake_is_vacuous() -> None:
    made = world(
        said("mine", 0, 0, prompt=[*PREFIX[:20], *suffix(7, 99)]),
        said("theirs", 2, 0, salt="other"),
        said("again", 4, 192, salt="other"),
    )
    assert (own(made).status, own(made).reason) == (
        Status.VACUOUS,
        "theirs shares 20 tokens with mine: not one granule to mistake",
    )


def test_without_a_salt_field_salts_are_unobservable() -> None:
    made = world(
        said("mine", 0, 0, salt=""),
        said("theirs", 2, 0, prompt=suffix(3, 64), salt=""),
        said("again", 4, 32, prompt=suffix(3, 64), salt=""),
        has_salt=False,
    )
    assert own(made).status is Status.UNOBSERVABLE


def test_the_same_identity_is_vacuous() -> None:
    made = world(said("mine", 5, 0), said("theirs", 2, 0), said("again", 3.5, 192))
    assert "have the same identity" in own(made).reason


def adapters(ids: Sequence[int], cached: int = 0) -> Workload:
    """The model stores, then an adapter of it is asked the same; `ids` is what the adapter says alone."""
    return world(
        said("mine", 0, 0),
        said("theirs", 2, cached, adapter="a", token_ids=list(ids)),
        said("again", 4, 192, adapter="a"),
        own=ids,
    )


def keyed(made: Workload) -> Workload:
    """An adapter's request has a solo of its own, so keys differ by adapter."""
    for outcome in made.outcomes:
        if outcome.plan.adapter and outcome.step == "theirs":
            outcome.plan.key = "adapted"
    made.solos["adapted"] = [solo(made.outcomes[1].plan, token_ids=made.outcomes[1].token_ids)] * 2
    return made


def test_an_adapter_is_another_identity() -> None:
    assert own(keyed(adapters([7] * 8))).status is Status.PASS


def test_an_adapter_that_adopts_the_models_rows_fails() -> None:
    verdict = own(keyed(adapters([7] * 8, cached=192)))
    assert (verdict.status, verdict.request) == (Status.FAIL, "theirs")


def test_an_adapter_that_answers_like_the_model_is_vacuous() -> None:
    made = keyed(adapters(answer_to(PROMPT)))
    assert own(made).reason == "theirs answers alone what mine answers, so weights show no owner"


def test_a_changed_token_ends_the_match_there() -> None:
    changed = [*PREFIX[:100], 7, *PREFIX[101:], *suffix(2)]
    events = [said("mine", 0, 0), said("again", 4, 192)]
    at = {"stored": None}
    lawful = world(events[0], said("theirs", 2, 96, prompt=changed), events[1])
    assert own(lawful, "key/2", **at).status is Status.PASS
    over = world(events[0], said("theirs", 2, 128, prompt=changed), events[1])
    assert own(over, "key/2", **at).status is Status.FAIL
    shallow = world(events[0], said("theirs", 2, 96, prompt=changed), said("again", 4, 96))
    assert own(shallow, "key/2", **at).status is Status.VACUOUS


def test_other_parents_must_be_stored() -> None:
    other = [*suffix(5, 32), *PREFIX]
    events = [said("mine", 0, 0), said("theirs", 2, 0, prompt=other), said("again", 4, 192)]
    verdict = own(world(*events), "key/3", stored=None)
    assert verdict.reason == "nothing was stored under the own parent of 'theirs', so only one parent was"
    stored = said("parent", 1, 0, prompt=[*suffix(5, 32), *suffix(6, 40)])
    events[1] = said("theirs", 2, 32, prompt=other)
    assert own(world(*events, stored), "key/3", stored=None).status is Status.PASS


def collided(entries: float | None, evicted: float = 0, cached: int = 0) -> Verdict:
    """Two prompts of seven full blocks and two of one, then the index is read."""
    made = world(
        said("mine", 0, 0), said("theirs", 2, cached, prompt=suffix(3, 64)), said("again", 4, 192), own=None
    )
    values = {} if entries is None else {"index_entries": entries, "evictions": evicted}
    made.samples.append(sample(6, "index", **values))
    return own(made, "key/4", stored=None, collided_at="index")


def test_a_collision_is_a_miss() -> None:
    assert collided(8).status is Status.PASS
    assert collided(8, cached=32).status is Status.FAIL


@pytest.mark.parametrize(
    ("entries", "evicted", "reason"),
    [
        (9, 0, "9 distinct full blocks were sent and 9 are in the index: no hash collided"),
        (8, 1, "1 blocks were evicted, so the index may be small"),
    ],
)
def test_without_a_collision_it_is_vacuous(entries: float, evicted: float, reason: str) -> None:
    verdict = collided(entries, evicted)
    assert (verdict.status, verdict.reason) == (Status.VACUOUS, reason)


def test_a_hidden_index_is_unobservable() -> None:
    assert collided(None).status is Status.UNOBSERVABLE


def timed(step: str, *millis: float) -> list[Outcome]:
    plans = [ask(step, [*PREFIX, *suffix(i)], i, salt=f"{step}-{i}") for i in range(len(millis))]
    return [reply(p, 10, 12, first=10 + ms / 1000) for p, ms in zip(plans, millis, strict=True)]


def timing(across: Sequence[float], cold: Sequence[float], same: Sequence[float], **target: Any) -> Verdict:
    made = workload(
        *timed("across", *across), *timed("cold", *cold), *timed("same", *same), facts=facts(**target)
    )
    return judge("quiet_timing", made, across="across", control="cold", same="same")


COLD = (100, 104, 98, 101, 99)


@pytest.mark.parametrize(("started", "status"), [(15, Status.FAIL), (19, Status.INCONCLUSIVE)])
def test_times_that_another_client_may_have_changed_accuse_nobody(started: int, status: Status) -> None:
    steps = (("across", (50, 51, 49, 50, 52)), ("cold", COLD), ("same", (20, 21, 19, 20, 22)))
    counts = [sample(at, "", adopted_requests=0, missed_requests=n) for at, n in ((1, 0), (20, started))]
    replies = [outcome for step, millis in steps for outcome in timed(step, *millis)]
    made = workload(*replies, *counts, facts=facts(how="endpoint"))
    assert judge("quiet_timing", made, across="across", control="cold", same="same").status is status


def test_a_stored_prefix_of_another_salt_takes_its_time() -> None:
    verdict = timing((97, 100, 103, 99, 101), COLD, (20, 21, 19, 20, 22))
    assert verdict.status is Status.PASS
    assert verdict.expected == "across within 0.0099 s of 0.099 s"


def test_a_stored_prefix_that_shows_across_salts_fails() -> None:
    verdict = timing((30, 31, 29, 30, 32), COLD, (20, 21, 19, 20, 22))
    assert (verdict.status, verdict.request) == (Status.FAIL, "across[0]")
    assert verdict.witness.startswith("across comes 0.069 s sooner than cold")


def test_a_control_that_varies_twofold_is_inconclusive() -> None:
    verdict = timing((30, 31, 29, 30, 32), (100, 204, 48, 101, 201), (20, 21, 19))
    assert verdict.status is Status.INCONCLUSIVE


def test_reuse_that_saves_no_time_is_vacuous() -> None:
    assert timing((97, 100, 103), COLD, (95, 96, 97)).status is Status.VACUOUS


def test_times_need_streams_salts_one_length_and_three_of_each() -> None:
    assert timing(COLD, COLD, (1, 1, 1), has_salt=False).status is Status.UNOBSERVABLE
    assert timing(COLD[:2], COLD, (1, 1, 1)).status is Status.VACUOUS
    made = workload(*timed("across", *COLD), *timed("cold", *COLD), *timed("same", 1, 1, 1))
    made.outcomes[0].plan.prompt_ids = [1, 2, 3]
    uneven = judge("quiet_timing", made, across="across", control="cold", same="same")
    assert uneven.reason == "the prompts of 'across' are of different lengths"
    made = workload(*timed("across", *COLD), *timed("cold", *COLD), *timed("same", 1, 1, 1))
    made.outcomes[0] = made.outcomes[0].model_copy(update={"first": None})
    silent = judge("quiet_timing", made, across="across", control="cold", same="same")
    assert silent.status is Status.UNOBSERVABLE


def stepped(across: int) -> Verdict:
    """Requests whose times say nothing, and whose traces tell their steps."""
    made = workload(*timed("across", *COLD), *timed("cold", *COLD), *timed("same", *COLD))
    steps = {"across": across, "cold": 6, "same": 2}
    for outcome in made.outcomes:
        outcome.trace = {"step_admitted": 10, "step_finished": 10 + steps[outcome.step]}
    return judge("quiet_timing", made, across="across", control="cold", same="same")


def test_the_engine_counts_steps() -> None:
    assert stepped(6).expected == "across within 0.6 steps of 6 steps"
    assert stepped(6).status is Status.PASS
    assert stepped(2).witness.startswith("across comes 4 steps sooner than cold")
