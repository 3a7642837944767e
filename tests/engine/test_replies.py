"""Reply bodies: whole and in pieces, on both routes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from engine.api import Wants
from engine.messages import Finished, Prompted, Token
from engine.replies import ChatReply, Choice, CompletionReply, Reply, Usage
from engine.responses import dump
from tests.engine.fakes import FakeCodec


def reply(kind: type[Reply], **wanted: Any) -> Reply:
    return kind("id-1", "fake", FakeCodec(), Wants(**wanted), "fp_1", created=11)


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
        "system_fingerprint": "fp_1",
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
    choice = reply(CompletionReply, logprobs=2).whole([spoken()], Usage())["choices"][0]
    assert choice["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -2.5],
        "top_logprobs": [{"a": -0.5, "A": -1.5}, {"B": -0.25, "b": -2.5}],
        "text_offset": [0, 1],
    }


def test_completion_logprobs_carry_ids_where_asked() -> None:
    choice = reply(CompletionReply, logprobs=2, token_ids=True).whole([spoken()], Usage())["choices"][0]
    assert choice["logprobs"]["token_ids"] == [97, 98]


def test_chat_logprobs_body() -> None:
    choice = reply(ChatReply, logprobs=2).whole([spoken()], Usage())["choices"][0]
    second = choice["logprobs"]["content"][1]
    top = [{"token": "B", "logprob": -0.25, "bytes": [66]}]
    assert second == {"token": "b", "logprob": -2.5, "bytes": [98], "top_logprobs": top}


def test_chat_logprobs_carry_ids_where_asked() -> None:
    choice = reply(ChatReply, logprobs=2, token_ids=True).whole([spoken()], Usage())["choices"][0]
    entry = choice["logprobs"]["content"][0]
    assert (entry["token_id"], [pair["token_id"] for pair in entry["top_logprobs"]]) == (97, [97, 65])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_a_logprob_that_json_cannot_say_is_null(value: float | None) -> None:
    choice = Choice(0, (7,))
    choice.add(Token(0, 97, "a", logprob=value, top=[(97, value if value is not None else math.nan)]))
    body = reply(CompletionReply, logprobs=2).whole([choice], Usage())
    logprobs = json.loads(dump(body))["choices"][0]["logprobs"]
    assert (logprobs["token_logprobs"], logprobs["top_logprobs"]) == ([None], [{"a": None}])


def test_pieces_of_a_stream() -> None:
    """Each chunk holds its own token; the first has the prompt, the last the reason and the held text."""
    choice, made = Choice(1, (7, 8)), reply(CompletionReply, token_ids=True)
    bodies = []
    for event in (Token(1, 97, "a"), Token(1, 98, ""), Finished(1, "length", "b")):
        choice.add(event)
        bodies.append(made.piece(choice, Usage())["choices"][0])
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
        deltas.append(made.piece(choice, Usage())["choices"][0]["delta"])
    assert deltas == [{"role": "assistant", "content": "a"}, {"content": ""}]


def test_a_reply_without_tokens_still_has_role_and_prompt() -> None:
    choice, event = Choice(0, (7,)), Finished(0, "stop")
    choice.add(event)
    body = reply(ChatReply, token_ids=True).piece(choice, Usage())["choices"][0]
    assert (body["delta"]["role"], body["prompt_token_ids"]) == ("assistant", [7])


def test_logprobs_of_a_piece_are_its_tokens_alone() -> None:
    choice, made = Choice(0, (7,)), reply(CompletionReply, logprobs=2)
    for event in (Token(0, 97, "a", -0.5), Token(0, 98, "b", -0.75)):
        choice.add(event)
        logprobs = made.piece(choice, Usage())["choices"][0]["logprobs"]
    assert (logprobs["tokens"], logprobs["text_offset"]) == (["b"], [1])


def test_tail_has_usage_and_no_choice() -> None:
    body = reply(CompletionReply).tail(Usage(5, 2, 4))
    assert (body["choices"], body["usage"]["prompt_tokens_details"]) == ([], {"cached_tokens": 4})


def test_usage_adds_up_over_prompts() -> None:
    usage = Usage.total([Usage(10, 2, 4), Usage(5, 1, 0)])
    assert (usage.prompt, usage.completion, usage.cached) == (15, 3, 4)


# ---- the prompt in the reply


PROMPTED = Prompted((Token(0, 7, ""), Token(0, 8, "", -1.5, [(9, -0.25), (8, -1.5)])))


def echoed(**wanted: Any) -> tuple[Choice, Reply]:
    """A choice that echoes `xyz`, its prompt, and has said `a`."""
    choice = Choice(0, (7, 8), ("xy", "z"))
    choice.add(PROMPTED)
    choice.add(Token(0, 97, "a", -0.5, [(97, -0.5), (65, -1.0)]))
    return choice, reply(CompletionReply, echo=True, **wanted)


def test_an_echo_begins_text_and_logprobs_but_not_the_ids() -> None:
    choice, made = echoed(logprobs=1, token_ids=True)
    body = made.whole([choice], Usage())["choices"][0]
    assert (body["text"], body["token_ids"]) == ("xyza", [97])
    assert body["logprobs"] == {
        "tokens": ["\x07", "\x08", "a"],
        "token_logprobs": [None, -1.5, -0.5],
        "top_logprobs": [None, {"\t": -0.25, "\x08": -1.5}, {"a": -0.5}],
        "text_offset": [0, 2, 3],
        "token_ids": [7, 8, 97],
    }


def test_the_first_piece_has_the_echo() -> None:
    choice, made = echoed(logprobs=0, token_ids=True)
    first = made.piece(choice, Usage())["choices"][0]
    choice.add(Token(0, 98, "b", -0.75))
    second = made.piece(choice, Usage())["choices"][0]
    assert (first["text"], first["logprobs"]["token_logprobs"]) == ("xyza", [None, -1.5, -0.5])
    assert (second["text"], second["logprobs"]["token_logprobs"]) == ("b", [-0.75])
    assert (first["token_ids"], second["token_ids"]) == ([97], [98])


def test_an_echo_without_logprobs_is_text_alone() -> None:
    choice = Choice(0, (7, 8), ("xy", "z"))
    choice.add(Token(0, 97, "a"))
    body = reply(CompletionReply, echo=True, token_ids=True).whole([choice], Usage())["choices"][0]
    assert (body["text"], body["logprobs"], body["token_ids"]) == ("xyza", None, [97])


@pytest.mark.parametrize("kind", [CompletionReply, ChatReply])
def test_prompt_logprobs_by_id(kind: type[Reply]) -> None:
    choice = Choice(0, (7, 8))
    choice.add(PROMPTED)
    choice.add(Token(0, 97, "a"))
    made = reply(kind, prompt_logprobs=1)
    first = made.piece(choice, Usage())["choices"][0]["prompt_logprobs"]
    assert first == [
        None,
        {"9": {"logprob": -0.25, "decoded_token": "\t"}, "8": {"logprob": -1.5, "decoded_token": "\x08"}},
    ]
    assert "prompt_logprobs" not in made.piece(choice, Usage())["choices"][0]


# ---- usage in a stream


@pytest.mark.parametrize(
    ("wanted", "extra"),
    [
        ({}, {}),
        ({"running_usage": True}, {}),
        ({"usage": True}, {"usage": None}),
        ({"usage": True, "running_usage": True}, {"usage": Usage(5, 1, 4).body()}),
    ],
)
def test_usage_of_a_piece(wanted: dict[str, bool], extra: dict[str, Any]) -> None:
    choice = Choice(0, (7,))
    choice.add(Token(0, 97, "a"))
    body = reply(CompletionReply, **wanted).piece(choice, Usage(5, 1, 4))
    assert {key: value for key, value in body.items() if key == "usage"} == extra
