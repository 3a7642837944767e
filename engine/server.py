"""The engine's HTTP routes, OpenAI-compatible, on Starlette.

Knows routes, statuses, streaming and disconnects. Does not know arrays, blocks or scheduling: everything goes
through a worker that takes requests and sends events, and a client that stops reading never makes it wait.
Nor does it know sockets, signals or how a server ends (engine.serving).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

import engine
from engine import metrics, openapi
from engine.api import (
    AbortBody,
    AdapterBody,
    ApiError,
    B,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    FailBody,
    GenerationBody,
    HoldBody,
    Message,
    OverwriteBody,
    TokenizeBody,
    parse,
)
from engine.config import EngineConfig
from engine.exchange import Exchange, Exchanges
from engine.fields import Ids, Json
from engine.generation import Generation
from engine.messages import Adapter, Request, RequestError, SamplingParams, WorkerLike
from engine.output import pieces
from engine.replies import ChatReply, CompletionReply, Reply
from engine.responses import error_response, json_response

Handler = Callable[[HttpRequest], Awaitable[Response]]
Row = tuple[str, str, Handler]
"""Method, path and handler of a route."""

NAME = "conformance-engine"
MAX_BODY_BYTES = 32 * 2**20
LARGE_BODY_BYTES = 2**16
LONGEST_TOKEN = 128
"""Characters; a text of more than this for every token that fits is refused without being encoded."""
BODY_SECONDS = 60.0
CALL_SECONDS = 30.0

ReplyPart = Callable[[type[Reply]], type[Reply]]
ExchangePart = Callable[[type[Exchange]], type[Exchange]]


def create_app(
    worker: WorkerLike,
    config: EngineConfig,
    reply: ReplyPart = lambda kind: kind,
    exchange: ExchangePart = lambda kind: kind,
) -> Starlette:
    """The application around a started worker. Test routes exist only where config.test_mode is set.

    `reply` and `exchange` turn a type into the one that is built (`build.Parts`).
    """
    routes = Routes(worker, config, reply, Exchanges(exchange(Exchange)))
    table = [_route(*row) for row in routes.table(config.test_mode)]
    errors: Any = {ApiError: _api_error, HTTPException: _http_error, Exception: _crash}
    return Starlette(routes=table, exception_handlers=errors)


def _route(method: str, path: str, handler: Handler) -> Route:
    """A route of one method: what answers GET has nothing to say to HEAD, which Starlette would add."""
    route = Route(path, handler, methods=[method])
    route.methods = {method}
    return route


async def _api_error(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _http_error(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return error_response(ApiError(error.status_code, message), dict(error.headers or {}))


async def _crash(_: HttpRequest, error: Exception) -> Response:
    return error_response(ApiError(500, f"internal error: {type(error).__name__}", type="server_error"))


async def read_body(request: HttpRequest) -> bytes:
    """The whole body. Raises ApiError 413 above the limit, 408 when it does not arrive in time."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > MAX_BODY_BYTES:
                    raise ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
                parts.append(part)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_SECONDS:.0f} s") from None
    except ClientDisconnect:
        raise ApiError(400, "the body was cut short") from None
    return b"".join(parts)


async def read(model: type[B], request: HttpRequest) -> B:
    """The parsed body; a large one is parsed in a thread, since the event loop has others to serve."""
    raw = await read_body(request)
    if len(raw) < LARGE_BODY_BYTES:
        return parse(model, raw)
    return await asyncio.to_thread(parse, model, raw)


def fingerprint(config: EngineConfig) -> str:
    """Names what decides outputs: replies with the same one may be compared."""
    facts = (
        f"{engine.__version__} {config.model} {config.model_seed} {config.grid} {config.blas} {config.fault}"
    )
    return f"fp_{hashlib.blake2b(facts.encode(), digest_size=5).hexdigest()}"


class Routes:
    """One handler per route."""

    def __init__(
        self, worker: WorkerLike, config: EngineConfig, reply: ReplyPart, exchanges: Exchanges
    ) -> None:
        self._worker, self._reply = worker, reply
        self._pool_tokens = config.blocks * config.block_size
        self._fingerprint = fingerprint(config)
        self._document = openapi.document(NAME, [route[:2] for route in self.table(config.test_mode)])
        self._created = int(time.time())
        self._exchanges = exchanges
        self._metrics = metrics.registry(worker.stats)

    def table(self, test_mode: bool) -> list[Row]:
        """(method, path, handler) of every route."""
        routes: list[Row] = [
            ("POST", "/v1/completions", self.completions),
            ("POST", "/v1/chat/completions", self.chat),
            ("POST", "/tokenize", self.tokenize),
            ("POST", "/detokenize", self.detokenize),
            ("GET", "/v1/models", self.models),
            ("GET", "/health", self.health),
            ("GET", "/version", self.version),
            ("GET", "/metrics", self.metrics),
            ("GET", "/openapi.json", self.openapi),
            ("GET", "/v1/cache/stats", self.stats),
            ("POST", "/v1/abort", self.abort),
            ("POST", "/v1/cache/reset", self.reset),
            ("POST", "/v1/cache/mark", self.mark),
        ]
        test: list[Row] = [
            ("POST", "/v1/test/overwrite", self.overwrite),
            ("POST", "/v1/test/adapter", self.adapter),
            ("GET", "/v1/test/integrity", self.integrity),
            ("POST", "/v1/test/hold", self.hold),
            ("POST", "/v1/test/fail", self.fail),
        ]
        return routes + (test if test_mode else [])

    # ---- generation

    async def completions(self, request: HttpRequest) -> Response:
        body = await read(CompletionBody, request)
        params = self._params(body)
        prompts = [await self._encode(prompt) for prompt in body.prompt]
        return await self._generate(CompletionReply, body, params, prompts)

    async def chat(self, request: HttpRequest) -> Response:
        body = await read(ChatBody, request)
        params = self._params(body)
        return await self._generate(ChatReply, body, params, [await self._render(body.messages)])

    def _params(self, body: CompletionBody | ChatBody) -> SamplingParams:
        """What is asked for. Whatever is wrong with it comes out before a long prompt is encoded."""
        params = body.params()
        body.wants(params.logprobs)
        self._check_bias(params)
        self._adapter(body.model)
        return params

    async def _generate(
        self, kind: type[Reply], body: GenerationBody, params: SamplingParams, prompts: list[Ids]
    ) -> Response:
        adapter = self._adapter(body.model)
        wants = body.wants(params.logprobs)
        reply = self._reply(kind)(
            id=f"{'chatcmpl' if kind is ChatReply else 'cmpl'}-{uuid.uuid4().hex}",
            model=body.model or self._worker.model_name,
            codec=self._worker.tokenizer,
            wants=wants,
            fingerprint=self._fingerprint,
        )
        requests = [
            Request(reply.id, prompt, params, body.cache_salt, body.trace, adapter) for prompt in prompts
        ]
        echoes = [await self._echo(prompt) if wants.echo else () for prompt in prompts]
        trace = {"ignored_fields": body.ignored_fields}
        return Generation(
            self._worker,
            reply,
            requests,
            echoes,
            stream=body.stream,
            trace=trace,
            exchanges=self._exchanges,
            name=body.request_id,
        )

    async def abort(self, request: HttpRequest) -> Response:
        name = (await read(AbortBody, request)).request_id
        if not self._exchanges.abort(name):
            raise ApiError(404, f"request_id: no request {name!r} goes on here", param="request_id")
        return json_response({"aborted": name})

    def _adapter(self, name: str | None) -> Adapter | None:
        """The adapter that a model's name asks for; None for the model itself."""
        base = self._worker.model_name
        served = {base: None} | {f"{base}:{key}": value for key, value in self._worker.adapters.items()}
        if name is not None and name not in served:
            message = f"the model {name!r} is not served here; {', '.join(map(repr, served))} are"
            raise ApiError(404, message, param="model", code="model_not_found")
        return served[name or base]

    async def _echo(self, prompt: Ids) -> Sequence[str]:
        return await asyncio.to_thread(pieces, self._worker.tokenizer, prompt)

    def _check_bias(self, params: SamplingParams) -> None:
        limit = self._worker.tokenizer.vocab_size
        for id in params.logit_bias:
            if id >= limit:
                raise ApiError(400, f"logit_bias: id {id} is not below {limit}", param="logit_bias")

    async def _encode(self, prompt: str | Ids) -> Ids:
        """Token ids of a prompt; text is encoded off the event loop, since a long one takes a while."""
        if isinstance(prompt, tuple):
            return prompt
        self._check_length(prompt, "prompt")
        return tuple(await asyncio.to_thread(self._worker.tokenizer.encode, prompt))

    def _check_length(self, text: str, field: str) -> None:
        tokens = min(self._worker.max_positions, self._pool_tokens)
        if len(text) > tokens * LONGEST_TOKEN:
            message = f"{field}: {len(text)} characters can never be encoded in {tokens} tokens"
            raise ApiError(400, f"{message}; at most {tokens * LONGEST_TOKEN} are looked at", param=field)

    async def _render(self, messages: list[Message], add_generation_prompt: bool = True) -> Ids:
        for place, message in enumerate(messages):
            self._check_length(message.content, f"messages.{place}.content")
        plain = [{"role": message.role, "content": message.content} for message in messages]
        render = self._worker.tokenizer.render_chat
        try:
            return tuple(await asyncio.to_thread(render, plain, add_generation_prompt))
        except Exception as error:  # a chat template refuses in whatever way its author chose
            raise ApiError(400, f"messages: the chat template refuses: {error}", param="messages") from error

    # ---- text and ids

    async def tokenize(self, request: HttpRequest) -> Response:
        body = await read(TokenizeBody, request)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "give either prompt or messages", param="prompt")
        if body.messages is not None:
            ids = await self._render(body.messages, body.add_generation_prompt)
        else:
            ids = await self._encode(body.prompt or "")
        limit = self._worker.max_positions
        return json_response({"tokens": list(ids), "count": len(ids), "max_model_len": limit})

    async def detokenize(self, request: HttpRequest) -> Response:
        ids = (await read(DetokenizeBody, request)).tokens
        limit = self._worker.tokenizer.vocab_size
        for place, id in enumerate(ids):
            if id >= limit:
                raise ApiError(400, f"tokens.{place}: id {id} is not below {limit}", param=f"tokens.{place}")
        return json_response({"prompt": await asyncio.to_thread(self._worker.tokenizer.decode, ids)})

    # ---- facts

    async def models(self, _: HttpRequest) -> Response:
        base = self._worker.model_name
        cards = [self._card(base, None), *(self._card(f"{base}:{a}", base) for a in self._worker.adapters)]
        return json_response({"object": "list", "data": cards})

    def _card(self, name: str, parent: str | None) -> Json:
        card = {"id": name, "object": "model", "created": self._created, "owned_by": NAME}
        return card | {"max_model_len": self._worker.max_positions, "parent": parent}

    async def openapi(self, _: HttpRequest) -> Response:
        return json_response(self._document)

    async def health(self, _: HttpRequest) -> Response:
        if not self._worker.alive:
            return error_response(ApiError(503, "the engine has stopped", type="server_error"))
        if self._worker.stats().get("draining"):
            return error_response(ApiError(503, "the server is draining", type="server_error"))
        return json_response({"status": "ok"})

    async def version(self, _: HttpRequest) -> Response:
        return json_response({"name": NAME, "version": engine.__version__})

    async def metrics(self, _: HttpRequest) -> Response:
        return Response(metrics.render(self._metrics), headers={"Content-Type": metrics.CONTENT_TYPE})

    # ---- cache

    async def stats(self, _: HttpRequest) -> Response:
        return json_response(self._worker.stats())

    async def reset(self, _: HttpRequest) -> Response:
        return json_response({"cleared": True, **await self._call("reset")})

    async def mark(self, _: HttpRequest) -> Response:
        return json_response({"marked": True, **await self._call("mark")})

    async def overwrite(self, request: HttpRequest) -> Response:
        body = await read(OverwriteBody, request)
        return json_response({"overwritten": body.block, **await self._call("overwrite", block=body.block)})

    async def adapter(self, request: HttpRequest) -> Response:
        body = await read(AdapterBody, request)
        return json_response(await self._call("adapter", adapter=body.name, seed=body.seed))

    async def integrity(self, _: HttpRequest) -> Response:
        return json_response({"ok": True, **await self._call("integrity")})

    async def hold(self, request: HttpRequest) -> Response:
        body = parse(HoldBody, await read_body(request))
        return json_response(await self._call("hold", phase=body.phase, after=body.after))

    async def fail(self, request: HttpRequest) -> Response:
        body = parse(FailBody, await read_body(request))
        return json_response(await self._call("fail", method=body.method, after_steps=body.after_steps))

    async def _call(self, name: str, **arguments: Any) -> Json:
        """Run a named action on the engine thread; what it returns as a dict goes into the body."""
        future: Future[Any] = self._worker.call(name, **arguments)
        try:
            result = await asyncio.wait_for(asyncio.wrap_future(future), CALL_SECONDS)
        except TimeoutError:
            raise ApiError(503, f"the engine did not {name} in time", type="server_error") from None
        except RequestError as error:
            raise ApiError(400, str(error), param=error.param) from None
        return result if isinstance(result, dict) else {}
