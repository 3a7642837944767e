"""The engine's own OpenAPI 3.1 document: every route, its body, every status it answers with.

Knows the shapes of bodies and which route returns which status. Does not know handlers or the worker; the
server asks it for a document about the routes that it serves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

import engine
from engine import api
from engine.fields import Json

_REFS = "#/components/schemas/{model}"


# ---- reply shapes, for the document alone: replies are built as plain values


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    error: ErrorDetail


class PromptDetails(BaseModel):
    cached_tokens: int


class UsageCounts(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class AnyChoice(BaseModel):
    index: int
    finish_reason: str
    logprobs: dict[str, Any] | None
    prompt_token_ids: list[int] = []
    token_ids: list[int] = []
    prompt_logprobs: list[dict[str, Any] | None] = []


class TextChoice(AnyChoice):
    text: str


class ChatMessage(BaseModel):
    role: str
    content: str


class ChatChoice(AnyChoice):
    message: ChatMessage


class AnyReply(BaseModel):
    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    usage: UsageCounts
    trace: dict[str, Any] | list[dict[str, Any]] = {}


class Completion(AnyReply):
    choices: list[TextChoice]


class ChatCompletion(AnyReply):
    choices: list[ChatChoice]


class Tokens(BaseModel):
    tokens: list[int]
    count: int
    max_model_len: int


class Text(BaseModel):
    prompt: str


class Card(BaseModel):
    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int
    parent: str | None


class Models(BaseModel):
    object: str
    data: list[Card]


class Facts(BaseModel):
    """Named values."""

    model_config = {"extra": "allow"}


class Health(BaseModel):
    status: str = Field(examples=["ok"])


# ---- routes


@dataclass(frozen=True)
class Operation:
    """What a route is for, the bodies it takes and gives, and its statuses beside 200."""

    summary: str
    reply: type[BaseModel] | None
    body: type[BaseModel] | None = None
    statuses: tuple[int, ...] = ()
    streams: bool = False


_BODY = (400, 408, 413)
_GENERATION = (*_BODY, 404, 409, 500, 503)
_CALL = (500, 503)

OPERATIONS = {
    "/v1/completions": Operation("Complete", Completion, api.CompletionBody, _GENERATION, True),
    "/v1/chat/completions": Operation("Answer", ChatCompletion, api.ChatBody, _GENERATION, True),
    "/tokenize": Operation("Ids of a text or a chat", Tokens, api.TokenizeBody, _BODY),
    "/detokenize": Operation("Text of ids", Text, api.DetokenizeBody, _BODY),
    "/v1/models": Operation("The model and its adapters", Models),
    "/health": Operation("Whether the engine lives", Health, statuses=(503,)),
    "/version": Operation("Name and version", Facts),
    "/metrics": Operation("Statistics for Prometheus", None),
    "/openapi.json": Operation("This document", Facts),
    "/v1/cache/stats": Operation("One consistent snapshot of the statistics", Facts),
    "/v1/abort": Operation("End a request that goes on", Facts, api.AbortBody, statuses=(*_BODY, 404)),
    "/v1/cache/reset": Operation("Forget every stored prefix", Facts, statuses=_CALL),
    "/v1/cache/mark": Operation("Start the peak gauge again", Facts, statuses=_CALL),
    "/v1/test/overwrite": Operation(
        "Spoil a live block", Facts, api.OverwriteBody, statuses=(*_BODY, *_CALL)
    ),
    "/v1/test/adapter": Operation(
        "Other weights for an adapter", Facts, api.AdapterBody, statuses=(*_BODY, *_CALL)
    ),
    "/v1/test/hold": Operation("Hold requests in a phase", Facts, api.HoldBody, statuses=(*_BODY, *_CALL)),
    "/v1/test/fail": Operation("Let a forward fail", Facts, api.FailBody, statuses=(*_BODY, *_CALL)),
    "/v1/test/integrity": Operation("What is inconsistent", Facts, statuses=_CALL),
}
_MEANINGS = {
    200: "Done",
    400: "A field is wrong; `param` names it",
    404: "No such model or request",
    408: "The body did not arrive in time",
    409: "The request was aborted",
    413: "The body is too large",
    500: "The engine failed at this",
    503: "Busy or stopping; `Retry-After` says when to come back",
}


def document(title: str, routes: Iterable[tuple[str, str]]) -> Json:
    """The document about routes given as (method, path); each must be in OPERATIONS."""
    paths: dict[str, Json] = {}
    for method, path in routes:
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, OPERATIONS[path])
    info = {"title": title, "version": engine.__version__}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": _schemas()}}


def _operation(method: str, path: str, operation: Operation) -> Json:
    name = (method.lower() + path).replace("/", "_").replace(".", "_")
    responses = {"200": _success(operation)}
    responses |= {str(status): _response(status, _json(Error)) for status in sorted(operation.statuses)}
    made: Json = {"operationId": name, "summary": operation.summary, "responses": responses}
    if operation.body is not None:
        made["requestBody"] = {"required": True, "content": _json(operation.body)}
    return made


def _success(operation: Operation) -> Json:
    plain = {"text/plain": {"schema": {"type": "string"}}}
    content = plain if operation.reply is None else _json(operation.reply)
    events: Json = {"text/event-stream": {}} if operation.streams else {}
    return _response(200, content | events)


def _response(status: int, content: Json) -> Json:
    return {"description": _MEANINGS[status], "content": content}


def _json(model: type[BaseModel]) -> Json:
    return {"application/json": {"schema": {"$ref": _REFS.format(model=model.__name__)}}}


def _schemas() -> Json:
    asked = [op.body for op in OPERATIONS.values() if op.body is not None]
    given = [op.reply for op in OPERATIONS.values() if op.reply is not None]
    models: list[type[BaseModel]] = [*asked, *given, Error]
    named: list[tuple[type[BaseModel], Literal["validation"]]] = [
        (model, "validation") for model in dict.fromkeys(models)
    ]
    _, made = models_json_schema(named, ref_template=_REFS)
    schemas: Json = made["$defs"]
    return schemas
