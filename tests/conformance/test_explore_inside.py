"""Workloads performed in process: the same facts that a server would show, without a socket."""

from __future__ import annotations

import pytest

from conformance.explore.hunt import accusers
from conformance.explore.inprocess import configured
from conformance.explore.judging import Inside
from conformance.explore.script import Json, spec_of
from conformance.history import Workload
from conformance.verdict import Status
from engine.config import ConfigError
from engine.faults import parts_for

BASE: Json = {"spec": 1, "id": "a/b", "title": "t", "proves": ["count/1"], "expect": [{"never_fall": {}}]}
TEXTS: Json = {"system": {"tokens": "3G", "seed": 1}}
TAIL: Json = {"unique": 5}


def inside(fault: str | None = None) -> Inside:
    return Inside(configured([]), parts_for(fault))


def run(*steps: Json, expect: list[Json] | None = None, texts: bool = True, **keys: object) -> Workload:
    said = {"expect": expect} if expect else {}
    return inside().perform(
        spec_of({**BASE, **({"texts": TEXTS} if texts else {}), **keys, **said, "steps": list(steps)})
    )


def ask(name: str, **keys: object) -> Json:
    return {"send": name, "prompt": ["system", TAIL], "max_tokens": 2, **keys}


def test_a_prompt_that_was_stored_is_adopted_to_its_last_whole_granule() -> None:
    seen = run(ask("one"), ask("two"))
    assert [o.cached for o in seen.outcomes] == [0, 96]
    assert [len(o.token_ids or []) for o in seen.outcomes] == [2, 2]
    assert seen.outcomes[0].token_ids == seen.outcomes[1].token_ids


def test_another_salt_or_adapter_adopts_nothing() -> None:
    seen = run(ask("one"), ask("two", salt="other"), ask("three", adapter="a"), ask("four", salt="adapter:a"))
    assert [o.cached for o in seen.outcomes] == [0, 0, 0, 0]


def test_a_burst_is_in_flight_at_once_and_moments_never_repeat() -> None:
    seen = run({"burst": "two", "requests": 2, "prompt": ["system", TAIL], "max_tokens": 2})
    assert max(o.sent for o in seen.outcomes) < min(o.ended for o in seen.outcomes)
    assert len({sample.at for sample in seen.samples}) == len(seen.samples)


def test_a_client_that_leaves_gives_back_what_it_held() -> None:
    leave = {"phase": "decoding", "tokens": 2}
    seen = run({"mark": "a"}, ask("gone", max_tokens=40, leave=leave), {"wait": "idle"}, {"mark": "b"})
    assert seen.outcomes[0].left == "decoding"
    assert len(seen.outcomes[0].tokens_at) == 2
    at = seen.at_mark("b")
    assert at is not None
    assert (at.values["referenced"], at.values["running"]) == (0, 0)


def test_a_client_leaves_a_prefill_that_is_held() -> None:
    steps: list[Json] = [
        {"hold": "prefilling", "after": 256},
        {"start": "gone", "prompt": [{"unique": 700}], "leave": {"phase": "prefilling", "fraction": 0.9}},
        {"join": "gone"},
        {"hold": "off"},
    ]
    seen = run(*steps, texts=False)
    assert seen.outcomes[0].left == "prefilling"
    assert seen.outcomes[0].token_ids == []


def test_a_started_request_goes_on_and_is_joined_at_the_end() -> None:
    steps: list[Json] = [
        {"start": "long", "prompt": [{"unique": 40}], "max_tokens": 20},
        {"when": {"request": "long", "phase": "decoding", "tokens": 3}},
        ask("short"),
    ]
    seen = run(*steps)
    [long], [short] = seen.of("long"), seen.of("short")
    assert long.sent < short.sent < long.ended
    assert any(span.detail.get("reached") for span in seen.spans if span.kind == "when")


def test_a_forward_that_fails_is_the_servers_error() -> None:
    seen = run({"fail": "f", "forward": "prefill"}, ask("struck"), ask("after"))
    assert [o.status for o in seen.outcomes] == [500, 200]
    assert "asked to fail" in (seen.outcomes[0].error or "")


def test_a_reset_empties_the_cache() -> None:
    seen = run(ask("one"), {"wait": "idle"}, {"reset": "r"}, ask("two"))
    assert [o.cached for o in seen.outcomes] == [0, 0]
    assert next(s.detail["done"] for s in seen.spans if s.kind == "reset") is True


def test_a_conversation_goes_on_from_its_reply() -> None:
    turns: Json = {"turns": "t", "count": 2, "opening": ["system"], "each": [TAIL], "max_tokens": 2}
    first, second = run(turns).outcomes
    assert (second.plan.prompt_ids or [])[:103] == [*(first.plan.prompt_ids or []), *(first.token_ids or [])]


def test_a_chat_tells_its_rendered_ids() -> None:
    [seen] = run(
        {"send": "s", "messages": [{"role": "user", "content": ["system"]}], "max_tokens": 1}
    ).outcomes
    assert len(seen.rendered_ids or []) == seen.prompt_tokens


def test_choices_and_prompt_logprobs_come_back() -> None:
    seen = run(ask("n", sampling={"n": 2}), ask("p", sampling={"prompt_logprobs": True}))
    assert [choice.index for choice in seen.outcomes[0].choices] == [0, 1]
    assert len(seen.outcomes[1].prompt_logprobs or []) == 101


def test_a_request_that_can_never_fit_is_refused() -> None:
    serve = {"profile": "tight", "fresh": True}
    [seen] = run({"send": "s", "prompt": [{"unique": "pool+1"}]}, texts=False, serve=serve).outcomes
    assert (seen.status, seen.rejected, seen.ok) == (400, True, False)


def test_requests_that_are_held_for_ever_time_out() -> None:
    seen = run({"hold": "queued"}, ask("stuck"))
    assert seen.outcomes[0].timed_out
    assert "timed out" in (seen.trouble or "")


def test_a_workload_that_cannot_be_is_unobservable() -> None:
    assert "no adapter" in (run(ask("one", adapter="z")).unobservable or "")


def test_what_is_judged_has_its_solo_runs_and_one_of_them_twice() -> None:
    expect: list[Json] = [{"same_as_solo": {"of": "two", "grade": "bits", "as": "out/2"}}]
    seen = run({"burst": "two", "requests": 2, "prompt": ["system", TAIL], "max_tokens": 2}, expect=expect)
    assert sorted(len(runs) for runs in seen.solos.values()) == [1, 2]
    assert all(run.cached == 0 for runs in seen.solos.values() for run in runs)


def test_after_new_weights_were_loaded_solo_runs_are_of_those() -> None:
    expect: list[Json] = [{"same_as_solo": {"of": "new", "grade": "bits"}}]
    steps: list[Json] = [ask("old", adapter="b"), {"reload": "r", "adapter": "b"}, ask("new", adapter="b")]
    seen = run(*steps, expect=expect)
    old, new = (outcome.token_ids for outcome in seen.outcomes)
    assert old != new
    assert all(solo.token_ids == new for runs in seen.solos.values() for solo in runs)


def test_gauges_that_a_storage_does_not_tell_are_left_out() -> None:
    steps = [{"mark": "m"}]
    seen = run(*steps, texts=False, serve={"profile": "dense", "fresh": True}).at_mark("m")
    assert seen is not None
    assert "running" in seen.values
    assert "referenced" not in seen.values


def test_churn_tells_how_many_tokens_passed() -> None:
    churn: Json = {"churn": "c", "pools": 0.5, "each": "pool/4"}
    seen = run(churn, texts=False, serve={"profile": "tight", "fresh": True})
    assert next(span.detail["tokens"] for span in seen.spans if span.kind == "churn") == 24 * 32


WRONG: Json = {
    **BASE,
    "texts": TEXTS,
    "steps": [ask("one"), ask("two"), ask("other", salt="x"), {"wait": "idle"}, {"mark": "m"}],
    "expect": [{"counted": {"of": "other"}}, {"balanced": {"at": "m"}}],
}


@pytest.mark.parametrize(
    ("fault", "judge"), [("ignore_salt", "counted"), ("cached_counts_as_free", "balanced")]
)
def test_a_fault_is_seen_by_its_judge_alone(fault: str, judge: str) -> None:
    assert [expect.judge for expect, _ in accusers(inside(fault)(WRONG))] == [judge]


def test_the_healthy_engine_passes_the_same() -> None:
    assert [verdict.status for _, verdict in inside()(WRONG)] == [Status.PASS, Status.PASS]


def test_flags_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="chunk"):
        configured(["--chunk", "33"])
