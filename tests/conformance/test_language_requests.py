"""What one request can say, shown on the bundled engine: prompt parts, messages, sampling, adapters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.history import Outcome, Workload
from tests.conformance.demo import Engine, demo_engine


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with demo_engine(tmp_path_factory.mktemp("demo")) as running:
        yield running


def the(workload: Workload, step: str) -> Outcome:
    """The one outcome of a step, a good one."""
    assert workload.trouble is None
    assert workload.unobservable is None
    [outcome] = workload.of(step)
    assert outcome.ok, outcome.error
    return outcome


def ids(outcome: Outcome) -> list[int]:
    assert outcome.plan.prompt_ids is not None
    return outcome.plan.prompt_ids


def test_prompts_are_made_of_earlier_ones_and_their_replies(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - send: first
            prompt: [system, {unique: 5}]
            max_tokens: 4
          - send: longer
            prompt: [{repeat_of: first}, {reply_of: first}, {unique: 3, seed: 1}]
            max_tokens: 4
          - send: longest
            prompt: [{repeat_of: longer}, {reply_of: longer}]
            max_tokens: 4
        """,
        "longest",
    )
    first, longer, longest = (the(seen, name) for name in ("first", "longer", "longest"))
    assert ids(longer)[:-3] == ids(first) + (first.token_ids or [])
    assert ids(longest) == ids(longer) + (longer.token_ids or [])
    assert longer.plan.parts == [len(ids(first)), 4, 3]
    assert longer.cached == 128


def test_a_chat_goes_on_as_the_ids_it_was_rendered_to(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - send: chat
            messages:
              - {role: user, content: [system]}
            max_tokens: 4
          - send: bare
            prompt: [{rendered_of: chat}, {unique: 3}]
            max_tokens: 4
        """,
        "bare",
    )
    chat, bare = the(seen, "chat"), the(seen, "bare")
    assert ids(bare)[:-3] == chat.rendered_ids
    assert bare.cached == len(ids(bare)[:-3]) // 32 * 32


def test_one_token_is_changed_and_nothing_else(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - send: whole
            prompt: [system]
          - send: other
            prompt: [{changed: system, at: 2G}]
        """,
        "other",
    )
    whole, other = ids(the(seen, "whole")), ids(the(seen, "other"))
    assert [i for i, (a, b) in enumerate(zip(whole, other, strict=True)) if a != b] == [64]
    assert the(seen, "other").cached == 64


def test_a_marker_stands_in_the_prompt_and_in_no_other(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - burst: all
            requests: 2
            prompt: [system, {marker: true}]
        """,
        "all",
    )
    first, second = seen.of("all")
    assert first.plan.marker != second.plan.marker
    assert [chr(id) for id in ids(first)[-12:]] == list(first.plan.marker or "")


def test_a_chat_is_sent_as_messages_and_its_rendered_ids_come_back(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - send: hello
            messages:
              - {role: system, content: [system]}
              - {role: user, content: [{literal: "Who is it?"}]}
            max_tokens: 4
          - send: again
            messages:
              - {role: system, content: [system]}
              - {role: user, content: [{literal: "Who is it?"}]}
              - {role: assistant, content: [{reply_of: hello}]}
              - {role: user, content: [{literal: "Really?"}]}
            max_tokens: 4
        """,
        "again",
    )
    hello, again = the(seen, "hello"), the(seen, "again")
    assert [message["role"] for message in again.plan.messages or []] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert (again.plan.messages or [])[2]["content"] == hello.text != ""
    assert hello.plan.prompt_ids is None
    assert len(hello.rendered_ids or []) == hello.prompt_tokens
    assert (again.cached or 0) >= 128


def test_a_conversation_of_messages_carries_its_replies(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - turns: talk
            chat: true
            count: 3
            opening: [system]
            each: [{unique: 8}]
            max_tokens: 4
        """,
        "talk",
    )
    assert seen.trouble is None
    first, second, third = seen.of("talk")
    said = [message["content"] for message in third.plan.messages or []]
    assert (said[2], said[4]) == (first.text, second.text)
    assert [len(turn.plan.messages or []) for turn in (first, second, third)] == [2, 4, 6]


def test_sampling_is_sent_and_several_choices_come_back(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - send: two
            prompt: [system]
            max_tokens: 6
            sampling: {temperature: 1.0, seed: 7, n: 2, prompt_logprobs: true}
          - send: greedy
            prompt: [system]
            max_tokens: 6
        """,
        "two",
    )
    two, greedy = the(seen, "two"), the(seen, "greedy")
    assert two.plan.sampling == {"temperature": 1.0, "seed": 7, "n": 2, "prompt_logprobs": True}
    assert [choice.index for choice in two.choices] == [0, 1]
    assert two.choices[0].token_ids == two.token_ids
    assert two.choices[0].token_ids != two.choices[1].token_ids
    assert all(len(choice.token_ids or []) == 6 for choice in two.choices)
    scores = two.prompt_logprobs or []
    assert (len(scores), scores[0]) == (128, None)
    assert all(score is not None and score < 0 for score in scores[1:])
    assert (greedy.choices, greedy.prompt_logprobs, greedy.usages) == ([], None, 1)


def test_a_stop_string_and_a_ban_come_from_an_earlier_reply(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - send: free
            prompt: [system, {unique: 4}]
            max_tokens: 8
          - send: forced
            prompt: [system, {unique: 4}]
            max_tokens: 8
            sampling: {logit_bias: {ban_first_of: free}}
          - send: stopped
            prompt: [system, {unique: 4}]
            max_tokens: 8
            sampling: {stop: [{reply_of: free, token: 3}]}
        """,
        "free",
    )
    free, forced, stopped = (the(seen, name) for name in ("free", "forced", "stopped"))
    assert (free.token_ids or [])[0] not in (forced.token_ids or [])
    assert forced.plan.sampling["logit_bias"] == {str((free.token_ids or [])[0]): -100.0}
    assert stopped.plan.sampling["stop"] == [(free.logprob_tokens or [])[3]]
    assert stopped.finish_reason == "stop"
    assert len(stopped.token_ids or []) <= 4


def test_an_adapter_is_another_identity_until_it_is_reloaded(engine: Engine) -> None:
    seen = engine.run(
        """
        steps:
          - send: base
            prompt: [system, {unique: 4}]
          - send: first
            prompt: [system, {unique: 4}]
            adapter: b
          - send: again
            prompt: [system, {unique: 4}]
            adapter: b
          - reload: fresh
            adapter: b
          - send: after
            prompt: [system, {unique: 4}]
            adapter: b
        """,
        "base",
    )
    base, first, again, after = (the(seen, name) for name in ("base", "first", "again", "after"))
    assert (first.cached, again.cached, after.cached) == (0, 128, 0)
    assert (first.plan.adapter, base.plan.adapter) == ("b", None)
    assert first.token_ids == again.token_ids != after.token_ids
    span = seen.span("fresh")
    assert span is not None
    assert (span.kind, span.detail["done"], span.detail["status"]) == ("reload", True, 200)
