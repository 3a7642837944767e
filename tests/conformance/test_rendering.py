"""Requests in a dialect's words: what a history is enough to send again is what the server was sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conformance.history import PlannedRequest
from conformance.rendering import rendering_of
from tests.conformance.builders import ask, facts
from tests.conformance.fakeserver import Behaviour, planned
from tests.conformance.targets import dialect, fake_target

SAID = [{"role": "user", "content": "hello"}]


def again(plan: PlannedRequest, **told: Any) -> dict[str, Any]:
    """The body for a server of which only the facts are known."""
    body: dict[str, Any] = json.loads(rendering_of(facts(**told)).encoded(plan))
    return body


@pytest.mark.parametrize(
    ("behaviour", "options"),
    [(Behaviour(), {}), (Behaviour(), {"model": "another"}), (Behaviour(refuses_logprobs=True), {})],
)
@pytest.mark.parametrize("changes", [{}, {"stream": False}, {"salt": ""}, {"sampling": {"seed": 3}}])
def test_the_facts_are_enough_to_send_the_same_again(
    behaviour: Behaviour, options: dict[str, Any], changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conformance.rendering.dialects", lambda: (dialect(),))
    plan = planned("seed", [1, 2, 3]).model_copy(update=changes)
    with fake_target(behaviour, **options) as (target, server):
        target.send(plan)
        sent, told = server.state.seen[-1], target.facts
    assert json.loads(rendering_of(told).encoded(plan)) == sent
    assert sent.get("model") == options.get("model", "fake-model")
    assert ("logprobs" in sent) is not behaviour.refuses_logprobs


def test_the_dialect_says_how_salt_and_counts_are_asked_for() -> None:
    body = again(ask("eight", [1, 2, 3], 0), model="tiny")
    assert (body["cache_salt"], body["trace"], body["return_token_ids"]) == ("shared", True, True)
    assert body["logprobs"] == 2
    bare = again(ask("eight", "text", 0), dialect="mlx-lm", model="tiny")
    assert not {"cache_salt", "trace", "return_token_ids"} & set(bare)


def test_a_family_that_is_not_known_any_more_is_asked_in_the_common_form() -> None:
    body = again(ask("eight", [1, 2, 3], 0), dialect="gone", model="tiny")
    assert body == {
        "model": "tiny",
        "prompt": [1, 2, 3],
        "max_tokens": 8,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_salt": "shared",
    }
    assert "cache_salt" not in again(ask("eight", "text", 0), dialect="gone", has_salt=False)


def test_a_chat_with_an_adapter_has_its_route_and_its_model() -> None:
    changes = {"messages": SAID, "prompt_text": None, "sampling": {"seed": 3}, "adapter": "a"}
    plan = ask("eight", "text", 0).model_copy(update=changes)
    for family in ("engine", "gone"):
        body = again(plan, dialect=family, model="tiny")
        assert (body["messages"], body["model"], body["seed"]) == (SAID, "tiny:a", 3)
        assert "prompt" not in body
    asked = rendering_of(facts())
    assert asked.route(plan) == "/v1/chat/completions"
    assert asked.route(ask("eight", "text", 0)) == "/v1/completions"
