"""Request bodies: what is accepted, how a wrong field is named."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest

from engine.api import (
    ApiError,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    parse,
)
from engine.responses import dump


def completion(**fields: Any) -> CompletionBody:
    return parse(CompletionBody, json.dumps({"prompt": "hi"} | fields).encode())


def chat(**fields: Any) -> ChatBody:
    return parse(ChatBody, json.dumps({"messages": [{"role": "user", "content": "hi"}]} | fields).encode())


# ---- prompts


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("one", ("one",)),
        ([1, 2], ((1, 2),)),
        (["one", "two"], ("one", "two")),
        ([[1], [2, 3]], ((1,), (2, 3))),
        (["one", [4]], ("one", (4,))),
    ],
)
def test_prompt_forms(given: object, read: object) -> None:
    assert completion(prompt=given).prompt == read


@pytest.mark.parametrize(
    "given", ["", [], [[]], [""], {"a": 1}, 7, True, [1, "a"], [1.5], [True], [[1, False]], [None], [[[1]]]]
)
def test_prompt_that_is_none_of_the_forms_is_named(given: object) -> None:
    with pytest.raises(ApiError) as caught:
        completion(prompt=given)
    assert (caught.value.status, caught.value.param) == (400, "prompt")


def test_prompt_count_is_bounded() -> None:
    assert len(completion(prompt=["a"] * 128).prompt) == 128
    with pytest.raises(ApiError, match="holds 129 prompts, at most 128"):
        completion(prompt=["a"] * 129)


def test_missing_prompt_is_named() -> None:
    with pytest.raises(ApiError, match="prompt: Field required") as caught:
        parse(CompletionBody, b"{}")
    assert caught.value.param == "prompt"


# ---- fields


def test_absent_fields_take_their_defaults() -> None:
    params = completion().params()
    assert (params.max_tokens, params.temperature, params.seed, params.stop) == (16, 0.0, None, ())
    assert (params.ignore_eos, params.logprobs, params.logit_bias, params.n) == (False, None, {}, 1)
    assert (params.top_k, params.top_p, params.min_p) == (0, 1.0, 0.0)


def test_every_sampling_field_arrives() -> None:
    body = completion(
        max_tokens=5,
        temperature=1,
        seed=9,
        stop=["x", "y"],
        ignore_eos=True,
        logprobs=3,
        logit_bias={"12": -2.5},
        n=2,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.25,
        min_tokens=4,
        prompt_logprobs=1,
        top_k=7,
        top_p=0.5,
        min_p=0.25,
        best_of=2,
        user="u",
    )
    params = body.params()
    assert (params.presence_penalty, params.frequency_penalty) == (0.5, -0.5)
    assert (params.repetition_penalty, params.min_tokens, params.prompt_logprobs) == (1.25, 4, 1)
    assert (params.top_k, params.top_p, params.min_p) == (7, 0.5, 0.25)
    assert (params.max_tokens, params.temperature, params.seed, params.stop) == (5, 1.0, 9, ("x", "y"))
    assert (params.ignore_eos, params.logprobs, params.logit_bias, params.n) == (True, 3, {12: -2.5}, 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [("top_k", -1), ("top_k", 0), ("top_k", 1), ("top_p", 1), ("top_p", 5e-324), ("min_p", 0), ("min_p", 1)],
)
def test_the_bounds_of_what_narrows_a_draw_are_taken(field: str, value: float) -> None:
    assert getattr(completion(**{field: value}).params(), field) == value
    assert getattr(chat(**{field: value}).params(), field) == value


def test_null_counts_as_absent() -> None:
    body = completion(
        max_tokens=None, stop=None, logprobs=None, stream_options=None, echo=None, cache_salt=None
    )
    assert body == completion()


def test_unknown_fields_are_ignored_and_named() -> None:
    body = completion(tail_free=3, made_up={"x": 1}, absent=None)
    assert body.params() == completion().params()
    assert (body.ignored_fields, completion().ignored_fields) == (["made_up", "tail_free"], [])


def test_a_single_stop_string_is_a_list_of_one() -> None:
    assert completion(stop="\n").params().stop == ("\n",)


BAD_FIELDS = [
    ("max_tokens", -1),
    ("max_tokens", 1.5),
    ("max_tokens", "5"),
    ("max_tokens", True),
    ("max_tokens", 10**30),
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", "hot"),
    ("temperature", True),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("top_k", -2),
    ("top_k", 1.5),
    ("top_k", True),
    ("top_k", 2**31),
    ("top_p", 0),
    ("top_p", -0.5),
    ("top_p", 1.01),
    ("top_p", math.nan),
    ("top_p", "all"),
    ("min_p", -0.01),
    ("min_p", 1.01),
    ("min_p", math.nan),
    ("min_p", True),
    ("seed", -1),
    ("seed", 2**63),
    ("stop", 5),
    ("stop", {"a": 1}),
    ("stop", ["a", "b", "c", "d", "e"]),
    ("logprobs", -1),
    ("logprobs", 21),
    ("logprobs", True),
    ("n", 0),
    ("n", 1025),
    ("n", 2.0),
    ("echo", 1),
    ("best_of", 0),
    ("presence_penalty", 2.1),
    ("presence_penalty", math.nan),
    ("frequency_penalty", -2.1),
    ("frequency_penalty", math.inf),
    ("frequency_penalty", "1"),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1),
    ("repetition_penalty", 1e30),
    ("repetition_penalty", math.nan),
    ("min_tokens", -1),
    ("min_tokens", 1.5),
    ("prompt_logprobs", -1),
    ("prompt_logprobs", 21),
    ("prompt_logprobs", True),
    ("temperature", -math.inf),
    ("temperature", 10**400),
    ("stream", "yes"),
    ("stream_options", 5),
    ("logit_bias", [1]),
    ("cache_salt", 5),
    ("cache_salt", "s" * 1025),
    ("return_token_ids", 1),
    ("ignore_eos", "no"),
    ("trace", "on"),
    ("model", 5),
    ("user", 5),
]


@pytest.mark.parametrize(("field", "value"), BAD_FIELDS)
def test_a_wrong_completion_field_is_named(field: str, value: object) -> None:
    with pytest.raises(ApiError) as caught:
        completion(**{field: value})
    assert (caught.value.status, caught.value.param) == (400, field)
    assert caught.value.message.startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("stop", [""], "stop.0"),
        ("stop", ["a", 5], "stop.1"),
        ("logit_bias", {"x": 1}, "logit_bias.x"),
        ("logit_bias", {"-1": 1}, "logit_bias.-1"),
        ("logit_bias", {"1": 101}, "logit_bias.1"),
        ("logit_bias", {"1": math.nan}, "logit_bias.1"),
        ("logit_bias", {"1": "a"}, "logit_bias.1"),
        ("stream_options", {"include_usage": 1}, "stream_options.include_usage"),
    ],
)
def test_a_wrong_value_inside_a_field_is_named(field: str, value: object, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        completion(**{field: value})
    assert caught.value.param == param


def test_a_long_wrong_value_is_quoted_in_part() -> None:
    with pytest.raises(ApiError) as caught:
        completion(temperature="x" * 10_000)
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(("n", "best_of"), [(1, 1), (3, 3), (3, 1), (3, None)])
def test_best_of_that_ranks_nothing_is_taken(n: int, best_of: int | None) -> None:
    assert completion(n=n, best_of=best_of).params().n == n


@pytest.mark.parametrize(("n", "best_of"), [(1, 2), (3, 2), (3, 4)])
def test_best_of_that_would_rank_is_refused(n: int, best_of: int) -> None:
    with pytest.raises(ApiError, match="not ranked here") as caught:
        completion(n=n, best_of=best_of).params()
    assert caught.value.param == "best_of"


def test_min_tokens_above_max_tokens_is_refused() -> None:
    assert completion(min_tokens=5, max_tokens=5).params().min_tokens == 5
    with pytest.raises(ApiError, match=r"above max_tokens \(5\)") as caught:
        completion(min_tokens=6, max_tokens=5).params()
    assert caught.value.param == "min_tokens"


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ({}, None),
        ({"echo": True}, None),
        ({"logprobs": 2}, None),
        ({"echo": True, "logprobs": 2}, 2),
        ({"echo": True, "logprobs": 2, "prompt_logprobs": 5}, 5),
        ({"prompt_logprobs": 0}, 0),
    ],
)
def test_which_requests_need_the_prompts_logprobs(fields: dict[str, Any], needed: int | None) -> None:
    assert completion(**fields).params().prompt_logprobs == needed


def test_stream_options_need_a_stream() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    wants = completion(stream=True, stream_options=options).wants(None)
    assert (wants.usage, wants.running_usage) == (True, True)
    with pytest.raises(ApiError, match="needs stream") as caught:
        completion(stream_options=options).wants(None)
    assert caught.value.param == "stream_options"


def test_the_number_of_biases_is_bounded() -> None:
    assert len(completion(logit_bias=dict.fromkeys(range(4096), 1)).logit_bias) == 4096
    with pytest.raises(ApiError, match="names 4097 ids, at most 4096") as caught:
        completion(logit_bias=dict.fromkeys(range(4097), 1))
    assert caught.value.param == "logit_bias"


def test_only_the_first_of_many_wrong_ids_is_looked_at() -> None:
    with pytest.raises(ApiError) as caught:
        parse(DetokenizeBody, json.dumps({"tokens": ["x"] * 100_000}).encode())
    assert caught.value.param == "tokens.0"


def test_unknown_fields_within_fields_are_named_by_their_path() -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "user", "content": "x", "name": "y"}]
    body = chat(messages=messages, stream=True, stream_options={"why": 1}, echo=True)
    assert body.ignored_fields == ["echo", "messages.1.name", "stream_options.why"]


# ---- chat


@pytest.mark.parametrize("content", ["hi", [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]])
def test_content_is_text_or_text_parts(content: object) -> None:
    assert chat(messages=[{"role": "user", "content": content}]).messages[0].content == "hi"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ([{"role": "pope", "content": "x"}], "messages.0.role"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "user", "content": 5}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages.0.content"),
        ([{"role": "user", "content": "x"}, 5], "messages.1"),
    ],
)
def test_a_wrong_message_is_named(messages: object, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(messages=messages)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 4}, 4),
        ({"logprobs": False}, None),
    ],
)
def test_chat_logprobs(fields: dict[str, Any], logprobs: int | None) -> None:
    assert chat(**fields).params().logprobs == logprobs


def test_chat_top_logprobs_need_logprobs() -> None:
    with pytest.raises(ApiError) as caught:
        chat(top_logprobs=2).params()
    assert caught.value.param == "top_logprobs"


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, 256),
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 4}, 4),
        ({"max_tokens": 3, "max_completion_tokens": 4}, 4),
        ({"max_tokens": 3, "max_completion_tokens": 0}, 0),
        ({"max_tokens": 0}, 0),
    ],
)
def test_chat_length(fields: dict[str, Any], count: int) -> None:
    assert chat(**fields).params().max_tokens == count


# ---- JSON


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"nonsense", b"[" * 100_000, b'{"prompt": "\\ud800"}', b'\xff{"prompt": "a"}']
)
def test_what_is_not_json_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError, match="not JSON") as caught:
        parse(CompletionBody, raw)
    assert caught.value.status == 400


@pytest.mark.parametrize("raw", [b"[]", b"5", b"null", b'"text"'])
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError, match="must be a JSON object"):
        parse(CompletionBody, raw)


def test_a_negative_id_to_detokenize_is_named() -> None:
    with pytest.raises(ApiError) as caught:
        parse(DetokenizeBody, b'{"tokens": [1, -2]}')
    assert caught.value.param == "tokens.1"


def test_error_body_has_the_openai_shape() -> None:
    body = ApiError(404, "gone", param="model", code="model_not_found").body()
    assert body == {
        "error": {
            "message": "gone",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }


def test_floats_keep_their_bits() -> None:
    single = struct.unpack("<f", b"\x9d\x3b\x12\xc1")[0]
    assert json.loads(dump({"x": single}))["x"].hex() == float(single).hex()


def test_dumped_text_is_one_line_for_every_reader() -> None:
    assert dump({"x": "a\u2028b\x85c\n\ud800"}).decode().splitlines() == [
        '{"x":"a\\u2028b\\u0085c\\n\\ud800"}'
    ]
