"""A reply made an outcome: what it said, and in words what was wrong with it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from conformance.dialect import Answer
from conformance.history import Outcome
from conformance.replies import carries_token, excerpt, is_completion, to_outcome
from conformance.wire import RawReply
from tests.conformance.fakeserver import planned

ANSWER = Answer(ids="choices[0].token_ids", cached=["usage.first", "usage.second"], trace="trace")


def outcome(raw: RawReply, answer: Answer = ANSWER) -> Outcome:
    return to_outcome(raw, planned("seed", [1, 2]), "main", answer)


def streamed(*payloads: Any, done: bool = True, **fields: Any) -> Outcome:
    """The outcome of a stream; payload i came at time i + 1."""
    datas = [payload if isinstance(payload, bytes) else json.dumps(payload).encode() for payload in payloads]
    events = [(1.0 + i, data) for i, data in enumerate([*datas, *([b"[DONE]"] if done else [])])]
    return outcome(RawReply(sent=0.5, ended=9.0, status=200, streamed=True, events=events, **fields))


def whole(body: Any, status: int = 200) -> Outcome:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return outcome(RawReply(sent=0.5, ended=9.0, status=status, body=data))


def token(text: str, number: int, **more: Any) -> dict[str, Any]:
    return {"choices": [{"text": text, "token_ids": [number], "finish_reason": None, **more}]}


def logprobs(letter: str, *values: float) -> dict[str, Any]:
    top = {f"{letter}{i}": value for i, value in enumerate(values)}
    return {"tokens": [letter], "token_logprobs": [values[0]], "top_logprobs": [top]}


def test_a_stream_adds_up() -> None:
    found = streamed(
        {"choices": [{"text": ""}]},
        token("a", 5, logprobs=logprobs("a", -0.5, -2.0)),
        token("", 6, logprobs=logprobs("b", -0.25, -3.25)),
        token("c", 7, finish_reason="length", logprobs=logprobs("c", -1.0, -1.5)),
        {
            "choices": [],
            "usage": {"prompt_tokens": 9, "completion_tokens": 3, "second": 4},
            "trace": {"x": 1},
        },
    )
    assert found.ok
    assert (found.text, found.token_ids, found.finish_reason) == ("ac", [5, 6, 7], "length")
    assert (found.logprobs, found.gaps) == ([-0.5, -0.25, -1.0], [1.5, 3.0, 0.5])
    assert found.logprob_tokens == ["a", "b", "c"]
    assert (found.first, found.tokens_at, found.sent, found.ended) == (2.0, [2.0, 3.0, 4.0], 0.5, 9.0)
    assert (found.prompt_tokens, found.completion_tokens, found.cached) == (9, 3, 4)
    assert found.trace == {"x": 1}
    assert found.usage == {"prompt_tokens": 9, "completion_tokens": 3, "second": 4}


def test_several_tokens_in_one_piece_share_its_time() -> None:
    found = streamed({"choices": [{"text": "ab", "token_ids": [1, 2]}]}, token("c", 3))
    assert found.tokens_at == [1.0, 1.0, 2.0]


def test_the_last_usage_counts() -> None:
    found = streamed({"choices": [], "usage": {"first": 3}}, {"choices": [], "usage": {"first": 0}})
    assert found.cached == 0


def test_choices_that_are_no_list_are_an_error() -> None:
    assert whole({"choices": "no"}).error == 'a reply whose choices are no list: "no"'


END = {"choices": [{"text": "", "finish_reason": "length"}]}


@pytest.mark.parametrize(
    ("payloads", "holds"),
    [
        ([{"choices": [{"text": "a", "finish_reason": "stop"}]}], True),
        ([token("a", 1), END, {"choices": [], "usage": {}}, b"[DONE]"], True),
        ([token("a", 1), b"[DONE]"], False),
        ([{"choices": [{"finish_reason": "stop"}]}], False),
        ([{"choices": "no"}], False),
        ([{"choices": []}], False),
        ([b"<html>"], False),
        ([[1]], False),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_completion_has_a_text_and_a_finish(payloads: list[Any], holds: bool, stream: bool) -> None:
    if len(payloads) > 1 and not stream:
        payloads = [payloads[0] if not holds else END]
    datas = [data if isinstance(data, bytes) else json.dumps(data).encode() for data in payloads]
    events = [(1.0, data) for data in datas] if stream else []
    raw = RawReply(0.0, status=200, streamed=stream, events=events, body=b"" if stream else datas[0])
    assert is_completion(raw) == holds


def test_an_excerpt_says_what_kind_of_thing_came() -> None:
    raw = RawReply(0.0, status=200, headers={"content-type": "text/html"}, body=b"<p>\n" + b"x" * 100)
    assert excerpt(raw) == f"text/html, '<p> {'x' * 76}'…"
    assert excerpt(RawReply(0.0, streamed=True, events=[(1.0, b"{}")])) == "no content type, '{}'"


@pytest.mark.parametrize("usage", [{}, {"first": None}, {"first": "4"}, {"first": True}, None, [1], 7])
def test_a_count_that_is_not_there_is_not_0(usage: Any) -> None:
    assert streamed(token("a", 1), {"choices": [], "usage": usage}).cached is None


@pytest.mark.parametrize(
    ("usages", "cached"),
    [([{}], 0), ([{"first": None}], 0), ([{"first": 4}, {}], 4), ([{}, {"second": 4}], 4), ([], None)],
)
def test_where_a_server_leaves_out_a_count_of_nothing_absent_is_0(
    usages: list[dict[str, Any]], cached: int | None
) -> None:
    answer = ANSWER.model_copy(update={"absent_is_zero": True})
    pieces = [token("a", 1), *({"choices": [], "usage": usage} for usage in usages)]
    events = [(1.0, json.dumps(piece).encode()) for piece in pieces]
    raw = RawReply(sent=0.5, ended=9.0, status=200, streamed=True, events=[*events, (2.0, b"[DONE]")])
    assert outcome(raw, answer).cached == cached


@pytest.mark.parametrize("value", ["4", True, [4]])
def test_a_count_that_is_none_is_not_absent(value: Any) -> None:
    answer = ANSWER.model_copy(update={"absent_is_zero": True})
    body = json.dumps({**token("a", 1), "usage": {"first": value}}).encode()
    assert outcome(RawReply(sent=0.5, ended=9.0, status=200, body=body), answer).cached is None


def test_a_whole_reply_is_read_the_same_way() -> None:
    content = [{"token": "a", "logprob": -0.5, "top_logprobs": [{"logprob": -2.0}, {"logprob": -0.5}]}]
    found = whole(
        {**token("a", 5, finish_reason="stop", logprobs={"content": content}), "usage": {"first": 2}}
    )
    assert (found.text, found.token_ids, found.logprobs, found.gaps) == ("a", [5], [-0.5], [1.5])
    assert (found.cached, found.first, found.tokens_at) == (2, None, [])


def test_gaps_need_two_top_tokens_everywhere() -> None:
    both = streamed(token("a", 1, logprobs=logprobs("a", -1, -2)), token("b", 2, logprobs=logprobs("b", -1)))
    assert both.logprobs == [-1, -1]
    assert both.gaps is None


def test_logprobs_without_top_ones_have_no_gaps() -> None:
    found = streamed(token("a", 1, logprobs={"tokens": ["a"], "token_logprobs": [-1.0]}))
    assert (found.logprobs, found.gaps) == ([-1.0], None)


def test_a_logprob_that_is_no_number_is_kept_for_the_judges() -> None:
    found = streamed(b'{"choices": [{"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": [NaN]}}]}')
    assert found.logprobs is not None
    assert math.isnan(found.logprobs[0])


def test_what_came_before_the_fault_is_kept() -> None:
    found = streamed(token("a", 5), done=False)
    assert found.error == "the stream ended after 1 events without [DONE]"
    assert (found.text, found.token_ids, found.first) == ("a", [5], 1.0)
    assert not found.ok


def test_a_broken_connection_says_more_than_the_missing_end() -> None:
    assert streamed(token("a", 5), done=False, error="connection reset").error == "connection reset"


def test_a_client_that_left_gets_no_error() -> None:
    found = streamed(token("a", 5), done=False, left="decoding")
    assert (found.error, found.left, found.token_ids) == (None, "decoding", [5])


def test_a_refusal_after_the_client_left_is_no_error() -> None:
    body = b'{"error": {"message": "aborted"}}'
    found = outcome(RawReply(sent=0.5, ended=9.0, status=409, body=body, left="queued"))
    assert (found.error, found.status, found.rejected) == (None, 409, True)


def test_a_timeout_is_marked() -> None:
    assert streamed(done=False, error="no end", timed_out=True).timed_out


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"{oh", "event 2 of the stream is no JSON: {oh"),
        ([1], "a reply that is no JSON object: [1]"),
        ({"error": {"message": "out of memory"}}, "the server reports: out of memory"),
        ({"error": "plain words"}, "the server reports: plain words"),
        ({"error": {"code": 5}}, 'the server reports: {"code": 5}'),
        ({"choices": [{"text": 7}]}, "a reply of an unexpected shape: "),
        (
            {"choices": [{"logprobs": {"content": [{}]}}]},
            "a reply of an unexpected shape: KeyError 'logprob'",
        ),
        (
            {"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": []}}]},
            "a reply of an unexpected shape: ",
        ),
        ({"choices": [{"text": "x", "token_ids": ["no"]}]}, "a reply with a wrong value for token_ids.1"),
        ({"usage": {"prompt_tokens": "many"}}, "a reply with a wrong value for prompt_tokens"),
    ],
)
def test_a_bad_event_is_an_error_in_words(payload: Any, error: str) -> None:
    found = streamed(token("a", 5), payload)
    assert (found.error or "").startswith(error)
    assert not found.ok


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (429, {"error": {"message": "slow down"}}, "status 429: slow down"),
        (503, {"message": "loading"}, "status 503: loading"),
        (500, {"detail": "x"}, 'status 500: {"detail": "x"}'),
        (404, b"no\n  such route", "status 404: no such route"),
        (501, b"\n<html>\n  none  </html>", "status 501: an HTML page"),
        (500, b"x" * 500, "status 500: " + "x" * 119 + "…"),
        (200, b"{oh", "the reply (no content type) is no JSON: {oh"),
        (200, b"", "the reply (no content type) is no JSON: "),
    ],
)
def test_a_refusal_is_an_error_in_words(status: int, body: Any, error: str) -> None:
    found = whole(body, status)
    assert (found.error, found.status, found.cached) == (error, status, None)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (whole({"error": "no room"}, 500), True),
        (streamed(token("a", 5), {"error": "no room"}, done=False), True),
        (streamed(token("a", 5), {"error": "no room"}, done=False, error="cut"), False),
        (streamed(token("a", 5), done=False, error="cut"), False),
        (streamed(token("a", 5), b"{oh"), False),
        (streamed(token("a", 5)), False),
    ],
)
def test_who_said_what_went_wrong_is_kept(found: Outcome, told: bool) -> None:
    assert found.told is told


def test_no_reply_at_all_keeps_the_reason() -> None:
    found = outcome(RawReply(sent=1.0, ended=1.0, error="cannot connect"))
    assert (found.error, found.status, found.ok) == ("cannot connect", None, False)


@pytest.mark.parametrize(
    ("payload", "carries"),
    [
        (token("a", 5), True),
        (token("", 5), True),
        ({"choices": [{"text": "", "finish_reason": "stop"}]}, False),
        ({"choices": [], "usage": {}}, False),
        ("[DONE]", False),
    ],
)
def test_a_leaving_client_counts_generated_content_only(payload: Any, carries: bool) -> None:
    assert carries_token(json.dumps(payload).encode(), ANSWER) is carries


def test_text_alone_counts_where_no_ids_come_back() -> None:
    assert carries_token(json.dumps({"choices": [{"text": "a"}]}).encode(), Answer())
    assert not carries_token(b"[DONE]", Answer())


def chunk(index: int, number: int) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": chr(number), "token_ids": [number], "finish_reason": None}]}


def test_choices_are_told_apart_by_their_index() -> None:
    found = streamed(chunk(1, 98), chunk(0, 97), chunk(1, 99), {"choices": [], "usage": {}})
    assert (found.token_ids, found.text, found.tokens_at) == ([97], "a", [2.0])
    assert [(c.index, c.token_ids, c.text) for c in found.choices] == [(0, [97], "a"), (1, [98, 99], "bc")]
    assert streamed(chunk(0, 97)).choices == []


def test_a_chat_is_read_whole_and_in_pieces() -> None:
    entry = {"token": "h", "logprob": -0.5, "top_logprobs": [{"logprob": -0.5}, {"logprob": -1.5}]}
    pieces = streamed(
        {"choices": [{"delta": {"role": "assistant", "content": "h"}, "logprobs": {"content": [entry]}}]},
        {"choices": [{"delta": {"content": "i"}, "finish_reason": "stop"}]},
    )
    assert (pieces.text, pieces.finish_reason, pieces.gaps) == ("hi", "stop", [1.0])
    assert whole({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}).text == "hi"
    assert carries_token(b'{"choices": [{"delta": {"content": "h"}}]}', ANSWER)
    assert not carries_token(b'{"choices": [{"delta": {"role": "assistant", "content": ""}}]}', ANSWER)
    assert not carries_token(b'{"choices": [{"index": 1, "text": "h"}]}', ANSWER)


def test_rendered_ids_are_those_of_a_chat_alone() -> None:
    answer = Answer(rendered=["choices[0].prompt_token_ids", "prompt_token_ids"])
    body = json.dumps({"choices": [{"text": "a"}], "prompt_token_ids": [1, 2, 3]}).encode()
    raw = RawReply(sent=0.5, ended=9.0, status=200, body=body)
    chat = planned("seed", [1]).model_copy(update={"messages": [{"role": "user", "content": "x"}]})
    assert to_outcome(raw, chat, "main", answer).rendered_ids == [1, 2, 3]
    assert to_outcome(raw, planned("seed", [1, 2]), "main", answer).rendered_ids is None


@pytest.mark.parametrize(
    ("given", "scores"),
    [
        ([None, {"2": {"logprob": -0.5}, "9": {"logprob": -0.1}}], [None, -0.5]),
        ([None, {"9": {"logprob": -0.1}}], [None, None]),
        ([None], None),
        ("nothing", None),
    ],
)
def test_the_prompts_own_logprobs_are_picked_out(given: Any, scores: Any) -> None:
    assert whole({"choices": [{"text": "a", "prompt_logprobs": given}]}).prompt_logprobs == scores


@pytest.mark.parametrize(
    ("status", "body", "rejected"),
    [
        (400, {"error": {"message": "no"}}, True),
        (503, {"detail": "full"}, True),
        (500, {"error": {"message": "no"}}, False),
        (400, {}, False),
        (404, b"no JSON", False),
        (200, {"choices": [{"text": "a"}]}, False),
    ],
)
def test_a_refusal_is_one_that_says_why(status: int, body: Any, rejected: bool) -> None:
    assert whole(body, status).rejected is rejected


def test_a_refusal_may_say_when_to_come_again() -> None:
    for told, seconds in (("2.5", 2.5), ("tomorrow", None)):
        raw = RawReply(sent=0.0, ended=1.0, status=503, body=b"{}", headers={"retry-after": told})
        assert outcome(raw).retry_after == seconds


def test_every_usage_is_counted() -> None:
    assert (
        streamed(token("a", 5), {"usage": {"prompt_tokens": 1}}, {"usage": {"prompt_tokens": 2}}).usages == 2
    )
    assert streamed(token("a", 5)).usages == 0


def test_a_chat_stream_adds_up_like_any_other() -> None:
    pieces = [{"choices": [{"delta": {"content": text}}]} for text in ("a", "b")]
    role, end = {"choices": [{"delta": {"role": "assistant"}}]}, {"delta": {}, "finish_reason": "stop"}
    found = streamed(role, *pieces, {"choices": [end]})
    assert (found.text, found.finish_reason, found.tokens_at) == ("ab", "stop", [2.0, 3.0])


def test_a_whole_chat_reply_says_its_text_in_a_message() -> None:
    body = {"choices": [{"message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop"}]}
    assert whole(body).text == "ab"
    assert is_completion(RawReply(sent=0.0, status=200, body=json.dumps(body).encode()))


@pytest.mark.parametrize(("delta", "carries"), [({"content": "a"}, True), ({"role": "assistant"}, False)])
def test_a_piece_of_chat_is_a_token_only_with_content(delta: dict[str, str], carries: bool) -> None:
    assert carries_token(json.dumps({"choices": [{"delta": delta}]}).encode(), ANSWER) == carries


@pytest.mark.parametrize("told", ["nan", "inf", "-inf"])
def test_no_time_to_come_again_is_endless(told: str) -> None:
    raw = RawReply(sent=0.0, ended=1.0, status=503, body=b"{}", headers={"retry-after": told})
    assert outcome(raw).retry_after is None


def test_a_refusal_says_when_to_come_again_and_that_nobody_will() -> None:
    raw = RawReply(sent=0.0, ended=1.0, status=429, body=b"slow down", headers={"retry-after": "7"})
    expected = "status 429: slow down (Retry-After: 7; a prompt that was sent is not sent again)"
    assert outcome(raw).error == expected


def test_a_redirect_says_where_to_and_that_nobody_goes() -> None:
    raw = RawReply(sent=0.0, ended=1.0, status=308, headers={"location": "https://x/v1"})
    expected = "status 308: a redirect to https://x/v1; no prompt goes to another address than was given"
    assert outcome(raw).error == expected


@pytest.mark.parametrize(
    "payload",
    [
        {"choices": [{"index": "one", "text": "a"}]},
        {"choices": [{"index": None, "text": "a"}, {"index": 1, "text": "a"}]},
        {"choices": [{"index": [1], "text": "a"}]},
        {"choices": [{"text": "a", "prompt_logprobs": [1, 2]}]},
        {
            "choices": [
                {"text": "a", "logprobs": {"content": [{"logprob": 0, "top_logprobs": {"a": "x", "b": "y"}}]}}
            ]
        },
        {"choices": [{"text": "a", "logprobs": "none"}]},
        {"choices": 7},
        {"choices": [7]},
        {"error": {"message": ["no"]}},
        {"usage": {"prompt_tokens": 1e400}},
        b'{"choices": [' + b"[" * 100_000,
        b'{"usage": {"prompt_tokens": ' + b"9" * 5000 + b"}}",
    ],
)
def test_whatever_stands_where_makes_an_outcome(payload: Any) -> None:
    found = streamed(token("a", 5), payload)
    assert not found.ok or payload == {"choices": [7]}


def test_halves_of_a_character_are_joined_and_a_lone_one_replaced() -> None:
    assert streamed(token("\ud83d", 1), token("\ude00", 2)).text == "\U0001f600"
    assert streamed(token("a\ud83d", 1)).text == "a\ufffd"


def test_more_cached_tokens_than_any_prompt_has_are_no_count() -> None:
    found = streamed(token("a", 5), {"usage": {"first": 2**60}})
    assert found.error == f"a reply whose cached tokens are no count: {2**60}"
    assert found.cached is None


def test_a_stream_that_goes_on_after_its_end_is_an_error() -> None:
    assert streamed(token("a", 5), b"[DONE]", token("b", 6)).error is not None
    assert streamed(token("a", 5), b"[DONE]").ok
