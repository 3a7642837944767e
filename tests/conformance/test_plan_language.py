"""Plans of what the language can say beyond plain prompts: what is exact, what waits, what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.drafts import Draft, MissingReply, StopOf, completed
from conformance.history import Facts, PlannedRequest
from conformance.law import LawUnknownError, lawful
from conformance.plan import Plan, PlanError, PlannedStep, Unobservable, make_plan
from conformance.prompts import ReplyOf
from conformance.rungs import rungs
from tests.conformance.builders import ask, reply, workload
from tests.conformance.test_plan import Ids, Text, at, case, facts, ids, replied

TEXT_ONLY: dict[str, Any] = {"has_salt": False, "granule": 1}


class Spoken(Ids):
    """Ids, and words for messages."""

    def text(self, count: int, seed: int) -> str:
        return Text().text(count, seed)


def made(
    steps: list[dict[str, Any]], words: Ids | Text | None = None, arm: str = "main", more: Any = None,
    **known: Any,
) -> Plan:  # fmt: skip
    """The plan of these steps on a target that has everything, but for `known`."""
    spec = case(steps, **(more or {}))
    able = {"has_chat": True, "has_test": True, "can_reload": True, "can": ["seed", "stop", "logit_bias"]}
    told = facts(**(able | {"adapters": ["a"]} | known))
    return make_plan(spec, rungs(spec)[0], told, "ci", "run", words or Spoken(), arm=arm)


def one(plan: Plan, step: int = -1, place: int = 0, **replies: Any) -> PlannedRequest:
    return at(plan.steps[step], place, **replies)


def test_a_repeated_prompt_of_several_is_that_of_the_same_place() -> None:
    steps: list[dict[str, Any]] = [
        {"burst": "a", "requests": 3, "prompt": ["system", {"unique": 2}]},
        {"series": "b", "requests": 2, "prompt": [{"repeat_of": "a"}, {"unique": 1}]},
    ]
    first, second = made(steps).steps
    assert [ids(r)[:-1] for r in second.requests] == [ids(r) for r in first.requests[:2]]
    steps[1]["requests"] = 4
    with pytest.raises(PlanError, match="'a' has 3 requests, and this is number 4"):
        made(steps)


def test_a_repeated_prompt_has_one_head_where_a_salt_is_text() -> None:
    plan = made(
        [
            {"send": "a", "prompt": ["system"], "salt": "private"},
            {"send": "b", "prompt": [{"repeat_of": "a"}]},
            {"send": "c", "prompt": ["system"]},
        ],
        Text(),
        **TEXT_ONLY,
    )
    first, second, third = ((one(plan, i).prompt_text or "") for i in range(3))
    assert second == third != first
    assert len(first.split()) == len(second.split()) == 8 + 32


@pytest.mark.parametrize("words", [Spoken(), Text()])
@pytest.mark.parametrize("at", [0, 5, "B-B"])
def test_one_place_is_changed(words: Ids | Text, at: int | str) -> None:
    plan = made(
        [{"send": "a", "prompt": ["system"]}, {"send": "b", "prompt": [{"changed": "system", "at": at}]}],
        words,
    )
    sent = [one(plan, 0), one(plan, 1)]
    whole, other = ([*(r.prompt_ids or ()), *(r.prompt_text or "")] for r in sent)
    differ = [i for i, (a, b) in enumerate(zip(whole, other, strict=True)) if a != b]
    assert len(differ) == 1
    assert differ == [5 if at == 5 else 0] or (words.is_ids is False and at == 5)


def test_a_place_beyond_the_text_is_named() -> None:
    with pytest.raises(PlanError, match=r"no token stands at 32 of 'system', which has 32: 0 to 31"):
        made([{"send": "a", "prompt": [{"changed": "system", "at": "4B"}]}])


def test_sampling_is_part_of_the_key_and_nothing_else_is_new() -> None:
    steps: list[dict[str, Any]] = [
        {"send": "a", "prompt": ["system"]},
        {"send": "b", "prompt": ["system"], "sampling": {"seed": 3}},
    ]
    plain, seeded = (one(made(steps), i) for i in range(2))
    assert plain.key != seeded.key
    assert (plain.sampling, seeded.sampling) == ({}, {"seed": 3})


def test_what_the_dialect_does_not_list_is_unobservable() -> None:
    with pytest.raises(Unobservable, match="not known to take min_tokens, n"):
        made([{"send": "a", "prompt": ["system"], "sampling": {"n": 2, "min_tokens": 1, "seed": 1}}])


@pytest.mark.parametrize(
    ("step", "known", "reason"),
    [
        ({"send": "a", "prompt": ["system"], "adapter": "b"}, {}, r"no adapter 'b' \(a\)"),
        ({"reload": "a", "adapter": "a"}, {"adapters": []}, r"no adapter 'a' \(none is known\)"),
        ({"reload": "a", "adapter": "a"}, {"can_reload": False}, "no way to load new weights"),
        ({"hold": "queued"}, {"has_test": False}, "no test build"),
        ({"send": "a", "messages": [{"role": "user", "content": ["system"]}]},
         {"has_chat": False}, "no chat"),
        ({"turns": "a", "count": 2, "opening": ["system"], "each": ["system"], "chat": True},
         {"has_chat": False}, "no chat"),
        ({"churn": "a", "pools": 1.0}, {"pool_blocks": None}, "does not tell its pool"),
        ({"send": "a", "prompt": ["system"], "leave": {"how": "abort", "phase": "decoding"}}, {}, "no route"),
    ],
)  # fmt: skip
def test_what_a_target_lacks_is_unobservable(
    step: dict[str, Any], known: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Unobservable, match=reason):
        made([step, {"send": "z", "prompt": ["system"]}], **known)


def test_a_reload_and_a_hold_are_planned_where_they_can_be() -> None:
    steps: list[dict[str, Any]] = [
        {"reload": "a", "adapter": "a"},
        {"hold": "off"},
        {"send": "z", "prompt": ["system"]},
    ]
    assert [step.name for step in made(steps).steps] == ["a", "hold[1]", "z"]


FREE: list[dict[str, Any]] = [{"send": "free", "prompt": ["system"]}]


def test_stops_and_bans_are_filled_from_replies() -> None:
    sampling = {
        "stop": ["x", {"reply_of": "free", "token": 1}],
        "logit_bias": {"ban_first_of": "free"},
        "seed": 2,
    }
    plan = made([*FREE, {"send": "b", "prompt": ["system"], "sampling": sampling}])
    sent = one(plan, logprob_tokens=["p", "q"])
    assert sent.sampling == {"seed": 2, "stop": ["x", "q"], "logit_bias": {"1": -100.0}}
    assert plan.steps[-1].requests[0].sampling == {"seed": 2}


def test_plain_stops_and_biases_wait_for_nothing() -> None:
    sampling = {"stop": ["x"], "logit_bias": {"7": -5.0}}
    plan = made([{"send": "b", "prompt": ["system"], "sampling": sampling}])
    assert plan.steps[0].drafts == {}
    assert one(plan).sampling == sampling


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        ({"logprob_tokens": None}, Unobservable, "does not tell the text of each token"),
        ({"logprob_tokens": ["p"]}, MissingReply, "stops at token 1 of free, which has 1"),
        ({"status": 500}, MissingReply, "needs the reply of free, which failed: HTTP status 500"),
    ],
)
def test_a_stop_that_cannot_be_made_is_named(reply: Any, error: type[Exception], message: str) -> None:
    draft = Draft((((1, 2),),), stops=(StopOf("free", 1),))
    with pytest.raises(error, match=message):
        completed(one(made(FREE)), draft, lambda id: replied(id, **reply))


def test_a_ban_needs_ids() -> None:
    with pytest.raises(Unobservable, match="returns no token ids"):
        completed(one(made(FREE)), Draft((((1,),),), bans=("free",)), lambda id: replied(id, token_ids=None))


def test_a_reply_that_has_not_come_is_named() -> None:
    with pytest.raises(MissingReply, match="free needs the reply of long, which has not ended"):
        completed(one(made(FREE)), Draft(((ReplyOf("long"),),)), lambda id: None)


def test_a_repeat_may_ask_otherwise() -> None:
    plan = made([*FREE, {"repeat": "r", "of": "free", "stream": False, "max_tokens": 3, "times": 2}])
    first, second = plan.steps[-1].requests
    assert (first.id, second.id, first.stream, first.max_tokens) == ("r[0]", "r[1]", False, 3)
    assert first.key == second.key != one(plan, 0).key


def test_a_repeat_waits_for_what_its_original_waited_for() -> None:
    late = {"send": "late", "prompt": ["system", {"reply_of": "free"}]}
    plan = made([*FREE, late, {"repeat": "r", "of": "late"}])
    assert ids(one(plan)) == ids(one(plan, 1))


@pytest.mark.parametrize(
    ("says", "lengths"),
    [
        ({"tokens": 100, "each": 40}, [40] * 3),
        ({"pools": 0.5, "each": "pool/4"}, [200] * 2),
        ({"pools": 1}, [200] * 4),
    ],
)
def test_a_churn_is_as_many_prompts_as_are_asked_for(says: dict[str, Any], lengths: list[int]) -> None:
    [step] = made([{"churn": "c", **says}]).steps
    assert [len(ids(r)) for r in step.requests] == lengths
    assert len({r.salt for r in step.requests}) == len(lengths)
    assert len({tuple(ids(r)[:2]) for r in step.requests}) == len(lengths)


def test_rounds_are_told_apart() -> None:
    loop = {"loop": 2, "steps": [{"send": "a", "prompt": [{"unique": 4}]}, {"wait": "idle"}, {"mark": "m"}]}
    steps = made([loop]).steps
    assert [(s.name, s.round) for s in steps] == [
        ("a", 0), ("wait[0.1]", 0), ("m", 0), ("a", 1), ("wait[0.1]", 1), ("m", 1),
    ]  # fmt: skip
    assert [s.requests[0].id for s in steps if s.requests] == ["a[0]", "a[1]"]
    assert ids(steps[0].requests[0])[0] != ids(steps[3].requests[0])[0]


def test_a_loop_may_have_more_rounds_than_there_are_plain_tokens() -> None:
    loop = {"loop": 70, "steps": [{"send": "a", "prompt": [{"unique": 8}]}]}
    prompts = [tuple(ids(s.requests[0])) for s in made([loop], Ids(60)).steps]
    assert len(set(prompts)) == 70


def burst(arm: dict[str, Any]) -> PlannedStep:
    steps = [{"burst": "b", "requests": 2, "prompt": ["system"]}]
    return made(steps, arm="other", more={"arms": {"other": arm}}).steps[0]


def test_an_arm_changes_how_the_same_is_sent() -> None:
    assert (burst({}).kind, burst({}).together) == ("burst", True)
    assert (burst({"one_by_one": True}).kind, burst({"one_by_one": True}).together) == ("series", False)
    assert [r.salt for r in burst({"salt": "private"}).requests] == [
        "run-area.case-other-b[0]", "run-area.case-other-b[1]",
    ]  # fmt: skip
    assert {r.stream for r in burst({"stream": False}).requests} == {False}


def test_a_client_that_leaves_streams_in_every_arm() -> None:
    leave = {"phase": "decoding"}
    steps = [{"send": "a", "prompt": ["system"], "leave": leave}]
    plan = made(steps, arm="whole", more={"arms": {"whole": {"stream": False}}})
    assert one(plan).stream


def test_a_chat_has_its_salt_in_front_where_that_is_text() -> None:
    messages = [{"role": role, "content": ["system"]} for role in ("system", "user")]
    plan = made([{"send": "a", "messages": messages}], Text(), **TEXT_ONLY)
    first, second = (message["content"].split() for message in one(plan).messages or [])
    assert (len(first), len(second)) == (8 + 32, 32)
    assert first[8:] == second


def test_entries_of_a_burst_are_numbered_together() -> None:
    each = [
        {"name": "warm", "requests": 2, "prompt": ["system", {"unique": 2}]},
        {"prompt": [{"unique": 2}], "max_tokens": 3},
        {"name": "cold", "messages": [{"role": "user", "content": [{"marker": True}]}]},
    ]
    [step] = made([{"burst": "b", "each": each, "max_tokens": 9, "salt": "private"}]).steps
    assert [(r.id, r.step, r.group, r.index) for r in step.requests] == [
        ("warm[0]", "warm", "b", 0), ("warm[1]", "warm", "b", 1),
        ("b[2]", "b", None, 2), ("cold", "cold", "b", 3),
    ]  # fmt: skip
    assert [r.max_tokens for r in step.requests] == [9, 9, 3, 9]
    assert len({r.salt for r in step.requests}) == 4
    cold = step.requests[3]
    assert cold.messages == [{"role": "user", "content": cold.marker}]


def test_solo_steps_hold_entries_by_either_name() -> None:
    spec = case([{"burst": "b", "each": [{"name": "x", "prompt": ["system"]}, {"prompt": [{"unique": 2}]}]}])
    for name, wanted in (("b", ["x", "b[1]"]), ("x", ["x"])):
        made = make_plan(spec, "", facts(), "ci", "run", Ids(), solo_steps=frozenset({name}))
        assert [r.id for r in made.solos] == wanted


def chat(step: str, rendered: list[int] | None, sent: float, **changes: Any) -> Any:
    plan = ask(step, "x").model_copy(
        update={"messages": [{"role": "user", "content": "x"}], "prompt_text": None, **changes}
    )
    return reply(plan, sent, sent + 1, rendered_ids=rendered)


def test_the_law_of_a_chat_is_that_of_its_rendered_ids() -> None:
    first, second = chat("a", list(range(100)), 1), chat("b", [*range(70), 5, 6], 5)
    law = lawful(workload(first, second), second)
    assert (law.n, law.lcp.low, law.low, law.high) == (72, 70, 64, 64)


def test_a_chat_without_rendered_ids_has_no_law() -> None:
    first, second = chat("a", None, 1), chat("b", None, 5)
    with pytest.raises(LawUnknownError, match="does not tell its rendered ids"):
        lawful(workload(first, second), second)


def test_another_adapter_is_another_identity() -> None:
    first = chat("a", list(range(100)), 1)
    second = chat("b", list(range(100)), 5, adapter="a")
    assert lawful(workload(first, second), second).high == 0


def test_facts_of_before_load_without_what_came_later() -> None:
    old = facts().model_dump(exclude={"has_test", "can", "adapters", "renders", "evict_unit", "ttl"})
    assert Facts.model_validate(old).evict_unit == "unknown"
