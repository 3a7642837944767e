"""Reply bodies: whole and in pieces, on both routes."""

from __future__ import annotations

import json
import math

import pytest

from engine.api import ChatReply, Choice, CompletionReply, Reply, Usage, dump
from engine.messages import Finished, Token
from tests.engine.fakes import FakeCodec


def reply(kind: type[Reply], *, token_ids: bool = False, logprobs: bool = False) -> Reply:
    return kind("id-1", "fake", FakeCodec(), token_ids, logprobs, created=11)


def spoken() -> Choice:
    """A choice that said `ab`, holding back the second text until the end."""
    choice = Choice(0, (7, 8))
    choice.add(Token(0, 97, "a", logprob=-0.5, top=[(97, -0.5), (65, -1.5)]))
    choice.add(Token(0, 98, "", logprob=-2.5, top=[(66, -0.25)]))
    choice.add(Finished(0, "stop", "b"))
    return choice


def test_whole_completion() -> None:
    assert reply(CompletionReply).whole([spoken()], Usage(2, 2, 1)) == {
        "id": "id-1",
        "object": "text_completion",
        "created": 11,
        "model": "fake",
        "choices": [{"index": 0, "text": "ab", "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 2,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }


def test_whole_chat() -> None:
    body = reply(ChatReply).whole([spoken()], Usage())
    message = {"role": "assistant", "content": "ab"}
    assert body["object"] == "chat.completion"
    assert body["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]


def test_token_ids_of_a_whole_reply() -> None:
    choice = reply(CompletionReply, token_ids=True).whole([spoken()], Usage())["choices"][0]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([7, 8], [97, 98])


def test_completion_logprobs_add_the_chosen_token_to_the_top() -> None:
    choice = reply(CompletionReply, logprobs=True).whole([spoken()], Usage())["choices"][0]
    assert choice["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -2.5],
        "top_logprobs": [{"a": -0.5, "A": -1.5}, {"B": -0.25, "b": -2.5}],
        "text_offset": [0, 1],
    }


def test_completion_logprobs_carry_ids_where_asked() -> None:
    choice = reply(CompletionReply, logprobs=True, token_ids=True).whole([spoken()], Usage())["choices"][0]
    assert choice["logprobs"]["token_ids"] == [97, 98]


def test_chat_logprobs_body() -> None:
    choice = reply(ChatReply, logprobs=True).whole([spoken()], Usage())["choices"][0]
    second = choice["logprobs"]["content"][1]
    top = [{"token": "B", "logprob": -0.25, "bytes": [66]}]
    assert second == {"token": "b", "logprob": -2.5, "bytes": [98], "top_logprobs": top}


def test_chat_logprobs_carry_ids_where_asked() -> None:
    choice = reply(ChatReply, logprobs=True, token_ids=True).whole([spoken()], Usage())["choices"][0]
    entry = choice["logprobs"]["content"][0]
    assert (entry["token_id"], [pair["token_id"] for pair in entry["top_logprobs"]]) == (97, [97, 65])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_a_logprob_that_json_cannot_say_is_null(value: float | None) -> None:
    choice = Choice(0, (7,))
    choice.add(Token(0, 97, "a", logprob=value, top=[(97, value if value is not None else math.nan)]))
    body = reply(CompletionReply, logprobs=True).whole([choice], Usage())
    logprobs = json.loads(dump(body))["choices"][0]["logprobs"]
    assert (logprobs["token_logprobs"], logprobs["top_logprobs"]) == ([None], [{"a": None}])


def test_pieces_of_a_stream() -> None:
    """Each chunk holds its own token; the first has the prompt, the last the reason and the held text."""
    choice, made = Choice(1, (7, 8)), reply(CompletionReply, token_ids=True)
    bodies = []
    for event in (Token(1, 97, "a"), Token(1, 98, ""), Finished(1, "length", "b")):
        choice.add(event)
        bodies.append(made.piece(choice, event)["choices"][0])
    assert bodies == [
        {
            "index": 1,
            "text": "a",
            "logprobs": None,
            "finish_reason": None,
            "prompt_token_ids": [7, 8],
            "token_ids": [97],
        },
        {"index": 1, "text": "", "logprobs": None, "finish_reason": None, "token_ids": [98]},
        {"index": 1, "text": "b", "logprobs": None, "finish_reason": "length", "token_ids": []},
    ]


def test_the_first_chat_piece_has_the_role() -> None:
    choice, made = Choice(0, (7,)), reply(ChatReply)
    deltas = []
    for event in (Token(0, 97, "a"), Finished(0, "stop")):
        choice.add(event)
        deltas.append(made.piece(choice, event)["choices"][0]["delta"])
    assert deltas == [{"role": "assistant", "content": "a"}, {"content": ""}]


def test_a_reply_without_tokens_still_has_role_and_prompt() -> None:
    choice, event = Choice(0, (7,)), Finished(0, "stop")
    choice.add(event)
    body = reply(ChatReply, token_ids=True).piece(choice, event)["choices"][0]
    assert (body["delta"]["role"], body["prompt_token_ids"]) == ("assistant", [7])


def test_logprobs_of_a_piece_are_its_tokens_alone() -> None:
    choice, made = Choice(0, (7,)), reply(CompletionReply, logprobs=True)
    for event in (Token(0, 97, "a", -0.5), Token(0, 98, "b", -0.75)):
        choice.add(event)
        logprobs = made.piece(choice, event)["choices"][0]["logprobs"]
    assert (logprobs["tokens"], logprobs["text_offset"]) == (["b"], [1])


def test_tail_has_usage_and_no_choice() -> None:
    body = reply(CompletionReply).tail(Usage(5, 2, 4))
    assert (body["choices"], body["usage"]["prompt_tokens_details"]) == ([], {"cached_tokens": 4})


def test_usage_adds_up_over_prompts() -> None:
    usage = Usage()
    usage.add(prompt=10, completion=2, cached=4)
    usage.add(prompt=5, completion=1, cached=0)
    assert (usage.prompt, usage.completion, usage.cached) == (15, 3, 4)
