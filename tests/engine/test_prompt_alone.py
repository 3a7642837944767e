"""max_tokens 0: a prompt is computed, stored and scored, and nothing is sampled."""

from __future__ import annotations

from typing import Any

import pytest

from engine.messages import Done, Finished, Prompted, Started
from tests.engine.fakes import Client as HttpClient
from tests.engine.fakes import chunks, error_of
from tests.engine.rig import Rig, expected
from tests.engine.served import engine

STORAGES = pytest.mark.parametrize("storage", ["paged", "dense"])


def idle(rig: Rig) -> None:
    """Nothing is held by anybody; with `problems` empty, nothing was given back twice."""
    assert (rig.scheduler.running, rig.scheduler.waiting, rig.scheduler.live) == ([], [], {})
    assert rig.scheduler.problems() == []


@STORAGES
def test_a_request_ends_after_its_prompt(storage: str) -> None:
    rig = Rig(storage=storage)
    client = rig.run(rig.prompt(18), max_tokens=0)[0]
    assert client.events == [Started(0), Finished(0, "length"), Done(18, 0, 0)]
    counts = rig.scheduler.counts
    assert (counts["computed_tokens_total"], counts["generated_tokens_total"]) == (18, 0)
    idle(rig)


@STORAGES
def test_the_prompt_is_stored_for_whoever_comes(storage: str) -> None:
    rig = Rig(storage=storage)
    prompt = rig.prompt(18)
    rig.run(prompt, max_tokens=0)
    after = rig.run(prompt)[0]
    assert (after.cached, after.ids()) == (16, expected(prompt, 4))


@STORAGES
def test_a_stored_prompt_is_adopted(storage: str) -> None:
    rig = Rig(storage=storage)
    prompt = rig.prompt(18)
    rig.run(prompt)
    assert rig.run(prompt, max_tokens=0)[0].events == [Started(16), Finished(0, "length"), Done(18, 16, 0)]


@pytest.mark.parametrize("model", ["digest", "tiny"])
def test_its_logprobs_are_those_of_a_request_that_goes_on(model: str) -> None:
    rig = Rig(model=model)
    prompt = rig.prompt(18)
    alone, on = (rig.run(prompt, max_tokens=n, prompt_logprobs=2, salt=str(n))[0] for n in (0, 4))
    assert alone.prompted == on.prompted
    assert [type(event) for event in alone.events] == [Started, Prompted, Finished, Done]
    assert rig.run(prompt, salt="0")[0].cached == 16


@STORAGES
def test_each_choice_ends_once(storage: str) -> None:
    rig = Rig(storage=storage)
    client = rig.run(rig.prompt(18), max_tokens=0, n=3)[0]
    ends = [Finished(choice, "length") for choice in range(3)]
    assert client.events == [Started(0), *ends, Done(18, 0, 0)]
    idle(rig)


@STORAGES
def test_a_prompt_that_fills_the_pool_fits(storage: str) -> None:
    """16 blocks of 4; one token more would need a row more only from the second sampled token on."""
    rig = Rig(storage=storage, blocks=16)
    store = rig.engine.storage
    first, second = (rig.add(rig.prompt(64, seed=seed), max_tokens=0) for seed in (1, 2))
    assert store.can_ever_hold(64, first.request.longest, 1)
    rig.drain()
    assert (first.done, second.done) == (True, True)
    assert not store.can_ever_hold(64, rig.add(rig.prompt(64), max_tokens=2).request.longest, 1)


@pytest.mark.parametrize("steps", range(4))
def test_a_cancel_on_the_way_gives_everything_back(steps: int) -> None:
    rig = Rig()
    client = rig.add(rig.prompt(18), max_tokens=0)
    rig.steps(steps)
    rig.scheduler.cancel(client.request.id)
    idle(rig)
    assert rig.paged.pool.referenced == 0
    assert client.done == (steps == 3)


def test_it_decodes_nothing_while_others_do() -> None:
    rig = Rig()
    prompt = rig.prompt(9, seed=1)
    other = rig.add(prompt, max_tokens=12)
    rig.steps(3)
    rig.run(rig.prompt(18), max_tokens=0)
    assert other.ids() == expected(prompt, 12)


# ---- over HTTP


@pytest.fixture(scope="module")
def server() -> Any:
    with engine() as client:
        yield client


@pytest.fixture
def client(server: HttpClient) -> HttpClient:
    server.post("/v1/cache/reset", {})
    return server


PROMPT = list(range(40, 80))
TEXT = "".join(map(chr, PROMPT))


def test_a_harness_scores_a_prompt(client: HttpClient) -> None:
    scored, on = (client.complete(prompt=TEXT, max_tokens=n, echo=True, logprobs=1).json() for n in (0, 1))
    choice, longer = scored["choices"][0], on["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (TEXT, "length")
    assert scored["usage"]["completion_tokens"] == 0
    assert scored["usage"]["total_tokens"] == scored["usage"]["prompt_tokens"]
    for name, values in choice["logprobs"].items():
        assert values == longer["logprobs"][name][: len(TEXT)], name
    assert [len(choice["logprobs"]["tokens"]), len(longer["logprobs"]["tokens"])] == [40, 41]


def test_it_scores_streamed_as_whole(client: HttpClient) -> None:
    ways = {"prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 1, "return_token_ids": True}
    whole = client.complete(**ways).json()
    options = {"include_usage": True}
    piece, usage, end = chunks(client.complete(**ways, stream=True, stream_options=options))
    assert piece["choices"] == whole["choices"]
    assert (usage["usage"], usage["choices"], end) == (whole["usage"], [], "[DONE]")
    assert (whole["choices"][0]["prompt_token_ids"], whole["choices"][0]["token_ids"]) == (PROMPT, [])


def test_prompt_logprobs_alone(client: HttpClient) -> None:
    choice = client.complete(prompt=PROMPT, max_tokens=0, prompt_logprobs=0).json()["choices"][0]
    assert (choice["text"], len(choice["prompt_logprobs"]), choice["prompt_logprobs"][0]) == ("", 40, None)
    assert [list(entry) for entry in choice["prompt_logprobs"][1:]] == [[str(id)] for id in PROMPT[1:]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_warm_up_says_nothing_and_stores_the_prompt(client: HttpClient, stream: bool) -> None:
    response = client.complete(prompt=PROMPT, max_tokens=0, stream=stream)
    body = chunks(response)[0] if stream else response.json()
    assert body["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}]
    after = client.complete(prompt=PROMPT).json()
    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] == 32


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_chat_is_warmed_up(client: HttpClient, field: str) -> None:
    body = client.chat(**{field: 0}).json()
    assert body["choices"][0]["message"] == {"role": "assistant", "content": ""}
    assert (body["choices"][0]["finish_reason"], body["usage"]["completion_tokens"]) == ("length", 0)


def test_several_prompts_with_several_choices(client: HttpClient) -> None:
    body = client.complete(prompt=[PROMPT, PROMPT[:5]], n=2, max_tokens=0, echo=True).json()
    assert [choice["text"] for choice in body["choices"]] == [TEXT, TEXT, TEXT[:5], TEXT[:5]]
    assert {choice["finish_reason"] for choice in body["choices"]} == {"length"}


def test_tokens_that_must_come_cannot(client: HttpClient) -> None:
    response = client.complete(max_tokens=0, min_tokens=1)
    assert (response.status_code, error_of(response)["param"]) == (400, "min_tokens")


def test_nothing_stays_behind(client: HttpClient) -> None:
    client.complete(prompt=PROMPT, max_tokens=0, n=3)
    stats = client.get("/v1/cache/stats").json()
    assert (stats["running"], stats["waiting"], stats["paged_blocks_referenced"]) == (0, 0, 0)
    assert client.get("/v1/test/integrity").json()["ok"]
