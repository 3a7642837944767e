"""A plan is exact: the same spec, facts and seed give the same prompts, with the target's numbers in them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from conformance.drafts import MissingReply, completed
from conformance.history import Facts, Outcome, PlannedRequest
from conformance.plan import (
    Plan,
    PlanError,
    PlannedStep,
    Unobservable,
    make_plan,
)
from conformance.rungs import rungs, spec_digest
from conformance.spec import Spec

WORDS = [f"w{i:03}" for i in range(60)]


class Ids:
    is_ids = True

    def __init__(self, size: int = 90) -> None:
        self.plain = range(100, 100 + size)

    def ids(self, count: int, seed: int) -> list[int]:
        return random.Random(seed).choices(self.plain, k=count)

    def text(self, count: int, seed: int) -> str:
        raise AssertionError("a target that takes ids gets no text")

    def encode(self, text: str) -> list[int]:
        if not text.isascii():
            raise ValueError("not plain")
        return [ord(c) for c in text]


class Text:
    is_ids = False

    def ids(self, count: int, seed: int) -> list[int]:
        raise AssertionError("a text target gets no ids")

    def text(self, count: int, seed: int) -> str:
        return " ".join(random.Random(seed).choices(WORDS, k=count))

    def encode(self, text: str) -> list[int]:
        raise AssertionError("a text target gets no ids")


def facts(**changes: Any) -> Facts:
    known: dict[str, Any] = {
        "dialect": "engine",
        "name": "e",
        "how": "engine",
        "block": 8,
        "granule": 4,
        "chunk": 16,
        "pool_blocks": 100,
        "has_salt": True,
        "has_reset": True,
    }
    return Facts(**known | changes)


def case(steps: list[dict[str, Any]], **more: Any) -> Spec:
    data: dict[str, Any] = {
        "spec": 1,
        "id": "area/case",
        "title": "t",
        "proves": ["out/1"],
        "texts": {"system": {"tokens": "4B", "seed": 7}},
        "steps": steps,
        "expect": [{"judge": "counted", "args": {}, "requirement": "count/1", "id": "c"}],
    }
    return Spec.model_validate(data | more)


def plan(steps: list[dict[str, Any]], *, arm: str = "main", salt: str = "run", **more: Any) -> Plan:
    spec = case(steps, **more)
    return make_plan(spec, rungs(spec)[0], facts(), "ci", salt, Ids(), arm=arm)


def ids(request: PlannedRequest) -> list[int]:
    assert request.prompt_ids is not None
    return request.prompt_ids


def test_parts_follow_each_other_in_their_lengths() -> None:
    [step] = plan(
        [{"send": "one", "prompt": ["system", {"head_of": "system", "tokens": 5}, {"unique": 3}]}]
    ).steps
    [request] = step.requests
    text = Ids().ids(32, 7)
    assert request.parts == [32, 5, 3]
    assert ids(request)[:37] == text + text[:5]
    assert (request.id, request.step, request.index) == ("one", "one", 0)


def test_a_literal_is_sent_as_ids() -> None:
    [step] = plan([{"send": "one", "prompt": [{"literal": "hey"}]}]).steps
    assert ids(step.requests[0]) == [104, 101, 121]


def test_a_literal_that_has_no_ids_is_named() -> None:
    with pytest.raises(PlanError, match="cannot be sent as token ids: not plain") as caught:
        plan([{"send": "one", "prompt": ["system", {"literal": "é"}]}])
    assert caught.value.loc == ("steps", 0, "prompt", 1)


def test_unique_parts_differ_in_their_first_token_within_a_step() -> None:
    [step] = plan([{"burst": "all", "requests": 60, "prompt": [{"unique": 2}]}]).steps
    assert len({ids(r)[0] for r in step.requests}) == 60
    assert [r.id for r in step.requests[:2]] == ["all[0]", "all[1]"]


def test_unique_parts_differ_in_their_first_token_between_seeds() -> None:
    first, second = plan(
        [{"send": "a", "prompt": [{"unique": 4}]}, {"send": "b", "prompt": [{"unique": 4, "seed": 1}]}]
    ).steps
    assert ids(first.requests[0])[0] != ids(second.requests[0])[0]


def test_the_same_seed_gives_the_same_ids_in_any_step_and_spec() -> None:
    mine = plan([{"burst": "a", "requests": 3, "prompt": [{"unique": 9, "seed": 2}]}])
    other = plan(
        [{"series": "b", "requests": 3, "prompt": [{"unique": 9, "seed": 2}]}], id="other/case", salt="x"
    )
    assert [ids(r) for r in mine.steps[0].requests] == [ids(r) for r in other.steps[0].requests]
    assert [r.key for r in mine.steps[0].requests] == [r.key for r in other.steps[0].requests]


def test_ids_are_the_same_on_every_machine() -> None:
    [step] = plan([{"send": "one", "prompt": [{"unique": 4}]}]).steps
    assert ids(step.requests[0])[1:] == [153, 131, 174]


def test_a_vocabulary_too_small_for_unique_firsts_is_named() -> None:
    spec = case([{"burst": "all", "requests": 9, "prompt": [{"unique": 2}]}])
    with pytest.raises(PlanError, match="request 8 has no first token of its own: 8 plain tokens"):
        make_plan(spec, "", facts(), "ci", "run", Ids(8))


def test_keys_tell_prompts_and_parameters_apart_but_not_salts() -> None:
    steps: list[dict[str, Any]] = [
        {"send": "a", "prompt": ["system"]},
        {"send": "b", "prompt": ["system"], "salt": "private"},
        {"send": "c", "prompt": ["system"], "max_tokens": 17},
        {"send": "d", "prompt": ["system"], "stream": False},
        {"send": "e", "prompt": ["system"], "logprobs": False},
        {"send": "f", "prompt": ["system", {"unique": 1}]},
    ]
    keys = [step.requests[0].key for step in plan(steps).steps]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 5


def test_salts_shared_private_and_labelled() -> None:
    prompt = ["system"]
    steps: list[dict[str, Any]] = [
        {"send": "a", "prompt": prompt},
        {"burst": "b", "requests": 2, "prompt": prompt, "salt": "private"},
        {"send": "c", "prompt": prompt, "salt": "tenant"},
        {"send": "d", "prompt": prompt, "salt": "tenant"},
    ]
    a, b, c, d = ([r.salt for r in step.requests] for step in plan(steps).steps)
    assert a == ["run-area.case"]
    assert b == ["run-area.case-b[0]", "run-area.case-b[1]"]
    assert c == d == ["run-area.case-label-tenant"]


def test_no_salt_has_a_slash_also_where_the_rung_is_a_fraction() -> None:
    fractions: dict[str, Any] = {"for": {"n": ["8C/2", "2C"]}}
    made = plan([{"send": "a", "prompt": [{"unique": "n"}]}], **fractions)
    assert made.steps[0].requests[0].salt == "run-area.case-n=8C.2"


def test_a_salt_may_be_left_out_or_be_an_adapters_name() -> None:
    prompt = ["system"]
    steps: list[dict[str, Any]] = [
        {"send": "a", "prompt": prompt, "salt": "none"},
        {"send": "b", "prompt": prompt, "salt": "adapter:x"},
        {"send": "c", "prompt": prompt},
    ]
    made = make_plan(case(steps), "", facts(adapters=["x"], granule=12), "ci", "run", Ids())
    a, b, c = (step.requests[0] for step in made.steps)
    assert [a.salt, b.salt, c.salt] == ["", "adapter:x", "run-area.case"]
    assert a.parts == b.parts == [12, 32], "a head keeps this workload apart from others"
    assert ids(a) == ids(b)
    assert ids(a)[12:] == ids(c)
    another = make_plan(case(steps), "", facts(adapters=["x"], granule=12), "ci", "else", Ids())
    assert ids(another.steps[0].requests[0])[:12] != ids(a)[:12]


@pytest.mark.parametrize(
    ("salt", "told", "reason"),
    [
        ("none", {"has_salt": False}, "no salt field"),
        ("adapter:x", {"has_salt": False, "adapters": ["x"]}, "no salt field"),
        ("adapter:x", {"adapters": ["y"]}, "serves no adapter 'x'"),
    ],
)
def test_a_bare_salt_needs_a_field_and_an_adapter(salt: str, told: dict[str, Any], reason: str) -> None:
    spec = case([{"send": "a", "prompt": ["system"], "salt": salt}])
    with pytest.raises(Unobservable, match=reason):
        make_plan(spec, "", facts(**told), "ci", "run", Ids())


def test_arms_and_rungs_have_salts_of_their_own() -> None:
    steps = [{"send": "a", "prompt": ["system"]}]
    ladder: dict[str, Any] = {"for": {"n": ["1G", "2G"]}}
    salts = {
        plan(steps, arm=arm, **more).steps[0].requests[0].salt
        for arm in ("main", "cold")
        for more in ({}, ladder)
    }
    assert salts == {"run-area.case", "run-area.case-cold", "run-area.case-n=1G", "run-area.case-n=1G-cold"}


def test_a_salt_holds_nothing_that_vllm_refuses() -> None:
    steps = [{"burst": "b", "requests": 2, "prompt": ["system"], "salt": "private"}]
    made = plan(steps, arm="cold", id="area/case").steps[0].requests
    assert not any(set(request.salt) & set("@/\\\0") for request in made)


def test_without_a_salt_field_a_head_in_whole_granules_takes_its_place() -> None:
    spec = case([{"send": "a", "prompt": ["system"]}, {"send": "b", "prompt": ["system"], "salt": "private"}])
    made = make_plan(spec, "", facts(has_salt=False, granule=12), "ci", "run", Ids())
    one, other = (step.requests[0] for step in made.steps)
    assert one.salt == other.salt == ""
    assert one.parts == other.parts == [12, 32]
    assert ids(one)[12:] == ids(other)[12:]
    assert ids(one)[:12] != ids(other)[:12]
    assert one.key != other.key


def test_another_run_has_another_head() -> None:
    spec = case([{"send": "a", "prompt": ["system"]}])
    made = [
        make_plan(spec, "", facts(has_salt=False), "ci", salt, Ids()).steps[0].requests[0] for salt in "ab"
    ]
    assert ids(made[0])[:8] != ids(made[1])[:8]


def test_a_text_target_gets_words() -> None:
    spec = case([{"burst": "a", "requests": 2, "prompt": ["system", {"unique": 3}, {"literal": "End."}]}])
    made = make_plan(spec, "", facts(granule=None), "ci", "run", Text()).steps[0].requests
    first, second = (request.prompt_text or "" for request in made)
    assert made[0].prompt_ids is None
    assert first.split()[:32] == second.split()[:32] == Text().text(32, 7).split()
    assert first.split()[32] != second.split()[32]
    assert first.endswith(" End.")
    assert len(first.split()) == 36


@pytest.mark.parametrize(
    ("length", "tokens"),
    [
        ("3B+1", 25),
        ("2G", 8),
        ("C", 16),
        ("pool/100", 8),
        ("prefix", 570),
        ("reply", 32),
        ("min_prefix+1", 1),
    ],
)
def test_symbols_have_the_values_of_target_and_scale(length: str, tokens: int) -> None:
    [step] = plan([{"send": "a", "prompt": [{"unique": length}]}]).steps
    assert step.requests[0].parts == [tokens]


def test_the_full_scale_is_longer() -> None:
    spec = case([{"send": "a", "prompt": [{"unique": "prefix"}], "max_tokens": "reply"}])
    [step] = make_plan(spec, None, facts(), "full", "run", Ids()).steps
    assert (step.requests[0].parts, step.requests[0].max_tokens) == ([3700], 128)


def test_a_ladder_gives_a_workload_a_rung() -> None:
    spec = case([{"send": "a", "prompt": [{"unique": "n+1"}]}], **{"for": {"n": ["1G", 10]}})
    assert rungs(spec) == ["n=1G", "n=10"]
    made = [make_plan(spec, rung, facts(), "ci", "run", Ids()) for rung in rungs(spec)]
    assert [p.steps[0].requests[0].parts for p in made] == [[5], [11]]
    assert [p.rung for p in made] == ["n=1G", "n=10"]


def test_no_ladder_is_one_workload_without_a_name() -> None:
    assert rungs(case([{"mark": "m"}])) == [""]


@pytest.mark.parametrize(
    ("part", "loc", "message"),
    [
        ({"unique": "B-8"}, ("steps", 0, "prompt", 0, "unique"), "'B-8' is 0 tokens on this target"),
        ({"unique": "B/0"}, ("steps", 0, "prompt", 0, "unique"), "division by zero"),
        (
            {"head_of": "system", "tokens": 33},
            ("steps", 0, "prompt", 0, "tokens"),
            "a head of 33 tokens of 'system', which has 32",
        ),
    ],
)
def test_lengths_that_cannot_be_are_named_with_their_place(
    part: dict[str, Any], loc: tuple[int | str, ...], message: str
) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        plan([{"send": "a", "prompt": [part]}])
    assert caught.value.loc == loc


def test_a_number_the_target_does_not_tell_is_unobservable() -> None:
    spec = case([{"send": "a", "prompt": [{"unique": "2B"}]}])
    with pytest.raises(Unobservable, match="does not tell B, and the length '2B' needs it"):
        make_plan(spec, "", facts(block=None), "ci", "run", Ids())


def test_steps_without_requests() -> None:
    made = plan([{"wait": "idle"}, {"wait": "settle"}, {"wait": 2}, {"mark": "m"}, {"reset": True}]).steps
    assert [(s.kind, s.name, s.wait) for s in made] == [
        ("wait", "wait[0]", "idle"),
        ("wait", "wait[1]", 0.5),
        ("wait", "wait[2]", 2),
        ("mark", "m", None),
        ("reset", "reset[4]", None),
    ]


def test_a_target_that_needs_longer_settles_longer() -> None:
    [step] = make_plan(case([{"wait": "settle"}]), "", facts(settle=9.0), "ci", "run", Ids()).steps
    assert step.wait == 9.0


def test_a_reset_needs_a_target_that_has_one() -> None:
    with pytest.raises(Unobservable, match="no way to reset"):
        make_plan(case([{"reset": True}]), "", facts(has_reset=False), "ci", "run", Ids())


def test_leaving_is_part_of_the_step() -> None:
    [step] = plan([{"send": "a", "prompt": ["system"], "leave": {"phase": "decoding", "tokens": 2}}]).steps
    leave = step.requests[0].leave
    assert leave is not None
    assert (leave["how"], leave["phase"], leave["tokens"]) == ("rst", "decoding", 2)


def conversation(vocabulary: Ids | Text) -> PlannedStep:
    spec = case(
        [{"turns": "talk", "count": 3, "opening": ["system"], "each": [{"unique": 3}], "max_tokens": 5}]
    )
    [step] = make_plan(spec, "", facts(), "ci", "run", vocabulary).steps
    return step


def replied(id: str, **changes: Any) -> Outcome:
    """The reply of the request `id`: ids 1 and 2, the text " so it is"."""
    told: dict[str, Any] = {"status": 200, "token_ids": [1, 2], "text": " so it is"}
    plan = PlannedRequest(
        id=id, step=id, index=0, prompt_ids=[1], prompt_text=None, parts=[1], max_tokens=2, salt="",
        stream=True, logprobs=True, key="k",
    )  # fmt: skip
    return Outcome(id=id, arm="main", step=id, index=0, plan=plan, sent=0, ended=1, **(told | changes))


def at(step: PlannedStep, place: int, **reply: Any) -> PlannedRequest:
    """A request of a step as it is sent, once what it waits for has come."""
    if place not in step.drafts:
        return step.requests[place]
    return completed(step.requests[place], step.drafts[place], lambda id: replied(id, **reply))


def test_turns_grow_by_reply_and_suffix() -> None:
    step = conversation(Ids())
    first, second, third = (at(step, turn) for turn in range(3))
    assert ids(first)[:32] == Ids().ids(32, 7)
    assert ids(second)[:-3] == [*ids(first), 1, 2]
    assert ids(third)[:-3] == [*ids(second), 1, 2]
    assert (first.id, second.id, second.index) == ("talk[0]", "talk[1]", 1)
    assert first.salt == second.salt == "run-area.case"
    assert (second.max_tokens, second.stream, second.parts) == (5, True, [37, 3])


def test_turns_in_text_keep_the_reply_verbatim() -> None:
    step = conversation(Text())
    first, second = at(step, 0), at(step, 1)
    assert (second.prompt_text or "").startswith(f"{first.prompt_text} so it is w")


def test_a_reply_that_did_not_come_as_ids_is_named() -> None:
    with pytest.raises(MissingReply, match=r"talk\[1\]: the reply of talk\[0\] did not come back as ids"):
        at(conversation(Ids()), 1, token_ids=None)


def test_the_digest_follows_steps_texts_and_serve_alone() -> None:
    steps = [{"send": "a", "prompt": ["system"]}]
    same = [case(steps), case(steps, title="another", proves=["out/2"], kills=["x"])]
    others = [
        case([{"send": "a", "prompt": ["system"], "max_tokens": 4}]),
        case(steps, texts={"system": {"tokens": "4B", "seed": 8}}),
        case(steps, serve={"fresh": True}),
        case(steps, arms={"cold": {"serve": {"profile": "cold"}}}),
    ]
    assert spec_digest(same[0]) == spec_digest(same[1])
    assert len({spec_digest(spec) for spec in [*same, *others]}) == 5


def test_solos_are_the_requests_of_the_steps_asked_for_once_each() -> None:
    spec = case(
        [
            {"burst": "a", "requests": 2, "prompt": ["system", {"unique": 1}]},
            {"series": "b", "requests": 3, "prompt": ["system", {"unique": 1}]},
            {"send": "c", "prompt": ["system"]},
        ]
    )
    made = make_plan(spec, "", facts(), "ci", "run", Ids(), solo_steps=frozenset({"a", "b"}))
    assert [request.id for request in made.solos] == ["a[0]", "a[1]", "b[2]"]
