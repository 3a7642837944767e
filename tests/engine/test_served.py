"""A whole engine over HTTP: what the routes promise, kept by the parts together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.fakes import Client, chunks, error_of
from tests.engine.served import engine

PROMPT = list(range(40, 80))


@pytest.fixture(scope="module", params=["digest", "tiny"])
def server(request: pytest.FixtureRequest) -> Iterator[Client]:
    with engine(model=request.param) as client:
        yield client


@pytest.fixture
def client(server: Client) -> Client:
    server.post("/v1/cache/reset", {})
    return server


def ask(client: Client, **fields: Any) -> dict[str, Any]:
    response = client.complete(**{"prompt": PROMPT, "max_tokens": 6, "return_token_ids": True, **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def cached(body: dict[str, Any]) -> int:
    count: int = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


WAYS: list[dict[str, Any]] = [
    {"presence_penalty": 2, "frequency_penalty": 1},
    {"repetition_penalty": 1.5},
    {"logit_bias": {"40": 5, "41": -5}, "logprobs": 4},
    {"temperature": 0.9, "seed": 3, "n": 3},
    {"temperature": 1.5, "seed": 3, "n": 3, "top_k": 40, "top_p": 0.8, "min_p": 0.02},
    {"min_tokens": 4, "stop": ["a", "b"]},
]


@pytest.mark.parametrize("way", WAYS)
def test_warm_replies_are_cold_ones(client: Client, way: dict[str, Any]) -> None:
    cold, warm = ask(client, **way), ask(client, **way)
    assert (cached(cold), cached(warm)) == (0, 32)
    assert warm["choices"] == cold["choices"]


def test_echo_with_logprobs_is_computed_on_a_hit(client: Client) -> None:
    cold = ask(client, echo=True, logprobs=2, trace=True)
    warm = ask(client, echo=True, logprobs=2, trace=True)
    assert cached(ask(client)) == 32
    assert (cached(warm), warm["trace"]["missed"]) == (0, "prompt_logprobs")
    assert warm["choices"] == cold["choices"]
    values = cold["choices"][0]["logprobs"]["token_logprobs"]
    assert (len(values), values[0], None in values[1:]) == (46, None, False)


def test_an_echoed_text_is_its_prompt_streamed_or_not(client: Client) -> None:
    whole = ask(client, prompt="Grüße", echo=True)["choices"][0]["text"]
    *bodies, _ = chunks(client.complete(prompt="Grüße", max_tokens=6, echo=True, stream=True))
    assert "".join(body["choices"][0]["text"] for body in bodies) == whole
    assert whole.startswith("Grüße")


def test_each_choice_is_that_choice_alone(client: Client) -> None:
    several = ask(client, n=4, temperature=1.0, seed=8)["choices"]
    alone = [ask(client, temperature=1.0, seed=8 + i)["choices"][0] for i in range(4)]
    assert [choice["token_ids"] for choice in several] == [choice["token_ids"] for choice in alone]


def test_more_choices_than_run_together_are_refused(client: Client) -> None:
    response = client.complete(n=5)
    assert (response.status_code, error_of(response)["param"]) == (400, "n")


def test_an_adapter_is_reloaded_under_its_name(client: Client) -> None:
    base = client.get("/v1/models").json()["data"][0]["id"]
    name = f"{base}:a"
    old, hit = ask(client, model=name), ask(client, model=name)
    version = client.post("/v1/test/adapter", {"name": "a", "seed": 7}).json()["version"]
    new, again = ask(client, model=name), ask(client, model=name)
    assert client.post("/v1/test/adapter", {"name": "a", "seed": 0}).json()["version"] == version + 1
    assert [cached(body) for body in (old, hit, new, again)] == [0, 32, 0, 32]
    assert old["choices"] == hit["choices"] != new["choices"] == again["choices"]
    assert cached(ask(client)) == 0


def test_an_adapter_that_is_not_there_is_a_400(client: Client) -> None:
    response = client.post("/v1/test/adapter", {"name": "z", "seed": 7})
    assert (response.status_code, error_of(response)["param"]) == (400, "name")


@pytest.mark.parametrize("ids", [[1, 512], [-1], [2**63], [2**31]])
def test_ids_outside_the_vocabulary_are_refused(client: Client, ids: list[int]) -> None:
    response = client.complete(prompt=ids)
    assert (response.status_code, error_of(response)["param"]) == (400, "prompt")


def test_ten_megabytes_of_prompt_are_refused(client: Client) -> None:
    for prompt in ("x" * 10 * 2**20, [40] * 2**21):
        response = client.complete(prompt=prompt)
        assert (response.status_code, error_of(response)["param"]) == (400, "prompt")


def test_nothing_stays_behind(client: Client) -> None:
    stats = client.get("/v1/cache/stats").json()
    assert (stats["running"], stats["waiting"], stats["paged_blocks_referenced"]) == (0, 0, 0)
    assert client.get("/v1/test/integrity").json()["ok"]
