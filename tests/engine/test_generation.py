"""Generation over real sockets, with a scripted worker: bodies, streams, chat, trace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.messages import Done, Event, Finished, Prompted, Request, Started, Token
from tests.engine.fakes import (
    Client,
    FakeWorker,
    chunks,
    error_of,
)

# ---- completions


def test_completion(client: Client) -> None:
    body = client.complete().json()
    assert body["choices"] == [{"index": 0, "text": "abc", "logprobs": None, "finish_reason": "length"}]
    assert body["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


def test_request_reaches_the_worker_as_asked(client: Client, worker: FakeWorker) -> None:
    client.complete(prompt=[1, 2], cache_salt="s", trace=True, ignore_eos=True, stop="x")
    request = worker.submitted[0]
    assert (request.prompt, request.salt, request.trace) == ((1, 2), "s", True)
    assert (request.params.max_tokens, request.params.ignore_eos, request.params.stop) == (3, True, ("x",))


def test_text_prompts_are_encoded(client: Client, worker: FakeWorker) -> None:
    client.complete(prompt="AB")
    assert worker.submitted[0].prompt == (65, 66)


def test_ids_come_back_where_asked(client: Client) -> None:
    choice = client.complete(return_token_ids=True).json()["choices"][0]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([104, 101, 108, 108, 111], [97, 98, 99])


def test_several_prompts_with_several_choices_are_numbered_through(client: Client) -> None:
    body = client.complete(prompt=["hello", [1, 2]], n=2, return_token_ids=True).json()
    numbered = [(choice["index"], choice["prompt_token_ids"][0]) for choice in body["choices"]]
    assert numbered == [(0, 104), (1, 104), (2, 1), (3, 1)]


def test_usage_sums_over_prompts(client: Client) -> None:
    usage = client.complete(prompt=["hello", [1, 2]]).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (7, 6)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 6}


def test_request_ids_are_distinct(client: Client, worker: FakeWorker) -> None:
    client.complete(prompt=["a", "b"])
    client.complete()
    assert len({request.id for request in worker.submitted}) == 3


def test_a_finished_request_is_not_cancelled(client: Client, worker: FakeWorker) -> None:
    assert client.complete().status_code == 200
    assert client.complete(stream=True).status_code == 200
    assert worker.cancelled == []


# ---- streams


def test_stream_has_one_chunk_a_token(client: Client) -> None:
    response = client.complete(stream=True)
    *bodies, last = chunks(response)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert [body["choices"][0]["text"] for body in bodies] == ["a", "b", "c", ""]
    assert [body["choices"][0]["finish_reason"] for body in bodies] == [None, None, None, "length"]
    assert last == "[DONE]"


def test_stream_ends_with_usage_where_asked(client: Client) -> None:
    *_, tail, last = chunks(client.complete(stream=True, stream_options={"include_usage": True}))
    assert (tail["choices"], last) == ([], "[DONE]")
    assert tail["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


def test_stream_carries_ids_prompt_first(client: Client) -> None:
    *bodies, _ = chunks(client.complete(stream=True, return_token_ids=True))
    choices = [body["choices"][0] for body in bodies]
    assert choices[0]["prompt_token_ids"] == [104, 101, 108, 108, 111]
    assert all("prompt_token_ids" not in choice for choice in choices[1:])
    assert [choice["token_ids"] for choice in choices] == [[97], [98], [99], []]


def test_stream_and_whole_have_the_same_logprobs(client: Client) -> None:
    whole = client.complete(logprobs=2).json()["choices"][0]["logprobs"]["token_logprobs"]
    *bodies, _ = chunks(client.complete(logprobs=2, stream=True))
    parts = [body["choices"][0]["logprobs"] for body in bodies]
    assert [part["token_logprobs"][0] for part in parts if part] == whole == [-0.5, -1.5, -2.5]


def test_stream_numbers_the_choices(client: Client) -> None:
    *bodies, _ = chunks(client.complete(stream=True, n=2, max_tokens=1))
    assert [body["choices"][0]["index"] for body in bodies] == [0, 0, 1, 1]


def test_one_id_for_all_chunks(client: Client) -> None:
    *bodies, _ = chunks(client.complete(stream=True))
    assert len({body["id"] for body in bodies}) == 1


@pytest.mark.parametrize("n", [1, 2])
def test_running_usage_ends_as_the_whole_replys(client: Client, n: int) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *bodies, tail, _ = chunks(client.complete(stream=True, n=n, stream_options=options))
    counts = [body["usage"]["completion_tokens"] for body in bodies]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert bodies[-1]["usage"] == tail["usage"] == client.complete(n=n).json()["usage"]


def test_usage_is_null_until_the_end(client: Client) -> None:
    *bodies, tail, _ = chunks(client.complete(stream=True, stream_options={"include_usage": True}))
    assert [body["usage"] for body in bodies] == [None] * 4
    assert tail["usage"]["total_tokens"] == 8


def prompted(request: Request) -> Iterator[Event]:
    yield Started(0)
    tokens = [Token(0, id, "", None if at == 0 else -1.0 * at) for at, id in enumerate(request.prompt)]
    yield Prompted(tuple(tokens))
    for choice in range(request.params.n):
        yield Token(choice, 97, "a", -0.5)
        yield Finished(choice, "length")
    yield Done(len(request.prompt), 0, request.params.n)


@pytest.mark.parametrize("stream", [False, True])
def test_echo_comes_first_in_every_choice(client: Client, worker: FakeWorker, stream: bool) -> None:
    worker.script = prompted
    response = client.complete(echo=True, logprobs=0, n=2, prompt=["hey", "you"], stream=stream)
    bodies = chunks(response)[:-1] if stream else [response.json()]
    texts: dict[int, str] = {}
    logprobs: dict[int, list[float | None]] = {}
    for choice in (choice for body in bodies for choice in body["choices"]):
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        known = choice["logprobs"]["token_logprobs"] if choice["logprobs"] else []
        logprobs[choice["index"]] = logprobs.get(choice["index"], []) + known
    assert texts == {0: "heya", 1: "heya", 2: "youa", 3: "youa"}
    assert list(logprobs.values()) == [[None, -1.0, -2.0, -0.5]] * 4
    assert [request.params.prompt_logprobs for request in worker.submitted] == [0, 0]


def test_echo_without_logprobs_asks_nothing_of_the_engine(client: Client, worker: FakeWorker) -> None:
    assert client.complete(echo=True).json()["choices"][0]["text"] == "helloabc"
    assert worker.submitted[0].params.prompt_logprobs is None


def test_prompt_logprobs_of_a_chat(client: Client, worker: FakeWorker) -> None:
    worker.script = prompted
    entries = client.chat(prompt_logprobs=0).json()["choices"][0]["prompt_logprobs"]
    assert [entry and list(entry) for entry in entries] == [None, ["104"], ["105"], ["62"]]


# ---- chat


def test_chat(client: Client, worker: FakeWorker) -> None:
    body = client.chat().json()
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "abc"}
    assert worker.submitted[0].prompt == tuple(b"uhi>")


def test_chat_stream(client: Client) -> None:
    *bodies, last = chunks(client.chat(stream=True))
    deltas = [body["choices"][0]["delta"] for body in bodies]
    assert deltas[0] == {"role": "assistant", "content": "a"}
    assert ("".join(delta["content"] for delta in deltas), last) == ("abc", "[DONE]")


def test_chat_logprobs(client: Client) -> None:
    logprobs = client.chat(logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]
    assert [entry["logprob"] for entry in logprobs["content"]] == [-0.5, -1.5, -2.5]


def test_what_the_chat_template_refuses_is_a_400(client: Client) -> None:
    response = client.chat(messages=[{"role": "tool", "content": "x"}])
    assert (response.status_code, error_of(response)["param"]) == (400, "messages")
    assert "cannot begin with a tool" in error_of(response)["message"]


# ---- trace


def traced(request: Request) -> Iterator[Event]:
    yield Started(0, {"adopted_blocks": [4]})
    yield Token(0, 97, "a")
    yield Finished(0, "stop", trace={"last": 9})
    yield Done(1, 0, 1, {"step": 5})


TRACE = {"ignored_fields": [], "adopted_blocks": [4], "last": 9, "step": 5}


def test_trace_is_at_the_top(client: Client, worker: FakeWorker) -> None:
    worker.script = traced
    assert client.complete(trace=True).json()["trace"] == TRACE


def test_trace_is_on_the_last_chunk_of_a_stream(client: Client, worker: FakeWorker) -> None:
    worker.script = traced
    first, last, _ = chunks(client.complete(trace=True, stream=True))
    assert ("trace" in first, last["trace"]) == (False, TRACE)


def test_traces_of_several_prompts_are_a_list(client: Client, worker: FakeWorker) -> None:
    worker.script = traced
    assert client.complete(prompt=["a", "b"], trace=True).json()["trace"] == [TRACE, TRACE]


@pytest.mark.parametrize("stream", [False, True])
def test_no_trace_unless_asked(client: Client, worker: FakeWorker, stream: bool) -> None:
    worker.script = traced
    assert "adopted_blocks" not in client.complete(stream=stream).text


@pytest.mark.parametrize("stream", [False, True])
def test_a_trace_names_the_fields_that_were_ignored(client: Client, stream: bool) -> None:
    response = client.complete(trace=True, stream=stream, tail_free=4, made_up=None, zeal=[1])
    body = chunks(response)[-2] if stream else response.json()
    assert body["trace"]["ignored_fields"] == ["tail_free", "zeal"]


def test_a_fingerprint_is_in_every_body(client: Client) -> None:
    *bodies, _ = chunks(client.complete(stream=True, stream_options={"include_usage": True}))
    prints = {body["system_fingerprint"] for body in [*bodies, client.chat().json()]}
    assert len(prints) == 1
    assert prints.pop().startswith("fp_")
