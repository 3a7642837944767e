"""Each family is known by the GET answers of its servers, and by no other's.

The pages are what each server's source or documentation shows, cut down to a few fields; a family whose pages
also fit another is tried before it.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from conformance.dialect import Check, dialects
from conformance.probe import _holds, recognise
from conformance.target import Target

Page = dict[str, Any] | str
UVICORN = {"server": "uvicorn"}


def models(owner: str) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": owner}]}


PAGES: dict[str, dict[str, Page]] = {
    "engine": {
        "/version": {"name": "conformance-engine", "version": "1"},
        "/v1/cache/stats": {"paged_block_size": 32, "granule": 32},
        "/v1/models": models("conformance"),
        "/health": {"status": "ok"},
    },
    "vllm": {
        "/v1/models": models("vllm"),
        "/version": {"version": "0.33.0"},
        "/health": "",
        "/metrics": 'vllm:cache_config_info{block_size="16"} 1.0\n',
    },
    "sglang": {
        "/": "SGLang is running.",
        "/model_info": {"model_path": "m", "is_generation": True},
        "/server_info": {"page_size": 1, "version": "0.5.23"},
        "/v1/models": models("sglang"),
        "/api/tags": {"models": []},
        "/health": "",
    },
    "llama-server": {
        "/props": {"build_info": "b10621-abc", "total_slots": 4, "model_path": "m"},
        "/health": {"status": "ok"},
        "/v1/models": models("llamacpp"),
        "/slots": "[]",
    },
    "mlx-lm": {"/health": {"status": "ok"}, "/v1/models": models("")},
    "vllm-mlx": {
        "/health": {"status": "healthy", "engine_type": "simple", "model_name": "m"},
        "/v1/models": models("vllm-mlx"),
        "/v1/cache/stats": {"engine_cache": {"hits": 0}},
    },
    "rapid-mlx": {
        "/health": {"status": "healthy", "engine_type": "batched", "model_name": "m"},
        "/v1/models": models("rapid-mlx"),
        "/v1/cache/stats": {"model_type": "llm", "multimodal_kv_cache": None},
        "/metrics": 'rapid_mlx_build_info{version="0.16.10",model="m"} 1\n',
    },
    "omlx": {
        "/v1/models": models("omlx"),
        "/api/status": {"version": "0.4", "active_requests": 0},
        "/openapi.json": {"info": {"title": "oMLX API"}},
        "/health": {"status": "healthy"},
    },
    "mlxcel": {
        "/v1/cache/stats": {"enabled": True, "apc_enabled": False, "paged_block_size": 32},
        "/health": {"status": "ok", "model": "m", "batch": {}, "observability": {}},
        "/props": {"build_info": "mlxcel", "total_slots": 4},
        "/v1/models": models("mlxcel"),
    },
    "lmdeploy": {"/v1/models": models("lmdeploy"), "/health": "", "/metrics": "lmdeploy:x 1\n"},
    "tensorrt-llm": {
        "/v1/models": models("tensorrt_llm"),
        "/version": {"version": "1.3.0rc1"},
        "/server_info": {"disaggregated_params": None},
        "/health": "",
    },
    "transformers": {"/health": {"status": "ok"}, "/v1/models": models("transformers")},
    "ollama": {
        "/": "Ollama is running",
        "/api/version": {"version": "0.14.0"},
        "/api/tags": {"models": []},
        "/v1/models": models("library"),
    },
    "openai": {},
    "anthropic": {},
    "deepseek": {},
    "generic": {"/v1/models": models("somebody"), "/health": {"status": "healthy"}},
}
HOSTS = {
    "openai": "api.openai.com",
    "anthropic": "api.anthropic.com",
    "deepseek": "api.deepseek.com",
}
HEADERS = {
    "mlx-lm": {"server": "BaseHTTP/0.6 Python/3.11.2", "access-control-allow-methods": "*"},
    "llama-server": {"server": "llama.cpp"},
    "transformers": {**UVICORN, "x-request-id": "5f0a"},
}
ALSO = {"mlxcel": {"llama-server"}}
"""Later families that the pages of a more specific one fit as well."""


class Canned:
    """Answers GET from pages; counts nothing as an answer that is not there."""

    def __init__(self, pages: dict[str, Page], host: str = "127.0.0.1", headers: Any = UVICORN) -> None:
        self.pages, self.headers = pages, headers
        self.address = SimpleNamespace(host=host)
        self.asked: list[str] = []

    def page(self, route: str) -> Any:
        self.asked.append(route)
        page = self.pages.get(route)
        text = page if isinstance(page, str) else json.dumps(page)
        return SimpleNamespace(status=404 if page is None else 200, text=text, headers=self.headers)


def canned(name: str) -> Canned:
    return Canned(PAGES[name], HOSTS.get(name, "127.0.0.1"), HEADERS.get(name, UVICORN))


def test_there_are_pages_for_every_family() -> None:
    assert set(PAGES) == {known.dialect for known in dialects()}


@pytest.mark.parametrize("name", PAGES)
def test_a_family_is_known_by_its_pages(name: str) -> None:
    assert recognise(cast(Target, canned(name)), dialects()).dialect == name


@pytest.mark.parametrize("name", PAGES)
def test_the_pages_of_a_family_fit_no_other(name: str) -> None:
    server = cast(Target, canned(name))
    fits = {known.dialect for known in dialects() if all(_holds(server, sign) for sign in known.recognise)}
    assert fits == {name, "generic"} | ALSO.get(name, set())


@pytest.mark.parametrize("name", HOSTS)
def test_a_hosted_service_is_known_without_asking_it(name: str) -> None:
    server = canned(name)
    recognise(cast(Target, server), dialects())
    assert server.asked == []


@pytest.mark.parametrize(
    ("host", "fits"), [("api.x.com", True), ("eu.api.x.com", True), ("notapi.x.com", False), ("x.com", False)]
)
def test_a_host_sign_fits_the_host_and_those_below_it(host: str, fits: bool) -> None:
    assert _holds(cast(Target, Canned({}, host)), Check(host="api.x.com")) == fits


@pytest.mark.parametrize(("words", "fits"), [("is up", True), ("is down", False)])
def test_a_text_sign_looks_into_the_page(words: str, fits: bool) -> None:
    assert _holds(cast(Target, Canned({"/": "Yes, it is up."})), Check(get="/", text=words)) == fits


@pytest.mark.parametrize("name", PAGES)
def test_no_route_that_computes_is_asked(name: str) -> None:
    server = canned(name)
    recognise(cast(Target, server), dialects())
    assert "/health_generate" not in server.asked


def test_a_page_whose_reading_takes_it_away_from_others_is_never_read() -> None:
    known = next(known for known in dialects() if known.dialect == "tensorrt-llm")
    assert {stats.get for stats in known.stats} == {"/prometheus/metrics"}


def test_a_python_server_that_is_healthy_is_not_taken_for_mlx_lm() -> None:
    server = Canned(PAGES["mlx-lm"], headers={"server": "BaseHTTP/0.6 Python/3.11.2"})
    assert recognise(cast(Target, server), dialects()).dialect == "generic"
