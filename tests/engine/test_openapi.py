"""The engine's own OpenAPI document, and generated requests that follow and break it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from engine.openapi import OPERATIONS
from tests.engine.fakes import Client
from tests.engine.served import engine

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
NEEDS_LUCK = {"/v1/test/overwrite", "/v1/test/adapter", "/v1/abort"}
"""A block that is live, an adapter that there is, a request that goes on: seldom guessed."""
REHEARSALS = {"/v1/test/hold", "/v1/test/fail"}
"""What they ask for outlasts them, and must not meet the requests of another test."""
TAKING_BODIES = [path for path, operation in OPERATIONS.items() if operation.body]


@pytest.fixture(scope="module")
def server() -> Iterator[Client]:
    with engine(blocks=32) as client:
        yield client


def attack(
    server: Client, path: str, mode: GenerationMode, examples: int, undocumented: str = ""
) -> set[int]:
    """Send generated requests, of the served model; the statuses that came back.

    Fails at the first answer that is not documented, as whatever is `undocumented` is made to be.
    """
    document = server.get("/openapi.json").json()
    (described,) = document["paths"][path].values()
    described["responses"].pop(undocumented, None)
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url)
    (operation,) = schema[path].values()
    statuses: set[int] = set()

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=examples, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    def send(case: Any) -> None:
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            case.body["model"] = "digest"
        statuses.add(case.call_and_validate(checks=CHECKS, timeout=30).status_code)

    try:
        send()
    finally:
        for rehearsal in REHEARSALS:
            assert server.post(rehearsal, {}).status_code == 200
    return statuses


@pytest.mark.parametrize(
    ("field", "bounds"),
    [
        ("top_k", {"minimum": -1, "default": 0}),
        ("top_p", {"exclusiveMinimum": 0, "maximum": 1, "default": 1.0}),
        ("min_p", {"minimum": 0, "maximum": 1, "default": 0.0}),
        ("max_tokens", {"minimum": 0}),
    ],
)
@pytest.mark.parametrize("body", ["CompletionBody", "ChatBody"])
def test_the_document_says_which_numbers_are_taken(
    server: Client, body: str, field: str, bounds: dict[str, float]
) -> None:
    schemas = server.get("/openapi.json").json()["components"]["schemas"]
    assert schemas[body]["properties"][field].items() >= bounds.items()


@pytest.mark.parametrize("path", TAKING_BODIES)
def test_requests_that_follow_the_document_get_documented_answers(server: Client, path: str) -> None:
    statuses = attack(server, path, GenerationMode.POSITIVE, 40)
    assert statuses <= ({200, 404} if path == "/v1/abort" else {200, 400})
    assert 200 in statuses or path in NEEDS_LUCK


@pytest.mark.parametrize("path", TAKING_BODIES)
def test_requests_that_break_the_document_get_documented_answers(server: Client, path: str) -> None:
    assert 400 in attack(server, path, GenerationMode.NEGATIVE, 40)


@pytest.mark.parametrize("path", [path for path in OPERATIONS if path not in TAKING_BODIES])
def test_routes_without_a_body_answer_as_documented(server: Client, path: str) -> None:
    assert attack(server, path, GenerationMode.POSITIVE, 2) == {200}


def test_an_answer_that_is_not_documented_is_noticed(server: Client) -> None:
    with pytest.raises(FailureGroup, match="Undocumented status code"):
        attack(server, "/detokenize", GenerationMode.NEGATIVE, 20, undocumented="400")


def test_the_engine_is_sound_after_all_that(server: Client) -> None:
    assert server.get("/v1/test/integrity").json() == {"ok": True, "problems": []}
    assert server.get("/v1/cache/stats").json()["running"] == 0
