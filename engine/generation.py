"""One generation reply: requests go to the worker, their events become a body or a stream.

Knows the order of events and what each adds to the reply. Does not know routes, how bodies look
(engine.replies builds them) or how the engine computes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.api import ApiError
from engine.exchange import Exchange, Exchanges, while_connected
from engine.fields import Json
from engine.messages import (
    Done,
    Finished,
    Progress,
    Prompted,
    Request,
    RequestError,
    Started,
    Token,
    WorkerLike,
)
from engine.replies import Choice, Reply, Usage
from engine.responses import EventStream, error_response, json_response


class Generation(Response):
    """An ASGI response that runs `requests` on the worker for as long as the client stays connected.

    Choices are numbered over all prompts: prompt i's choice k has index i * n + k. `echoes`: each prompt's
    text by tokens, or nothing. `trace` begins every prompt's trace. `exchanges` know it by the reply's id,
    and by the `name` that the client gave, if any.
    """

    def __init__(
        self,
        worker: WorkerLike,
        reply: Reply,
        requests: Sequence[Request],
        echoes: Sequence[Sequence[str]],
        *,
        stream: bool,
        trace: Json,
        exchanges: Exchanges,
        name: str | None,
    ) -> None:
        super().__init__()
        self._worker, self._reply, self._requests, self._stream = worker, reply, requests, stream
        self._exchanges, self._names = exchanges, [reply.id, *([name] if name else [])]
        self._usages = [Usage() for _ in requests]
        self._traces: list[Json] = [dict(trace) for _ in requests]
        self._choices = [
            Choice(which * request.params.n + k, request.prompt, echo)
            for which, (request, echo) in enumerate(zip(requests, echoes, strict=True))
            for k in range(request.params.n)
        ]

    @property
    def _usage(self) -> Usage:
        return Usage.total(self._usages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Only a server that goes down cancels a response, and then the connection goes with it.
        with suppress(asyncio.CancelledError):
            exchange = self._exchanges.open(self._worker)
            with self._exchanges.holding(exchange, self._names):
                await while_connected(receive, self._run(exchange, scope, receive, send))

    async def _run(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._submit(exchange)
            if self._stream:
                await self._send_stream(exchange, EventStream(send))
            else:
                response = json_response(await self._collect(exchange))
                await response(scope, receive, send)
        except ApiError as error:
            await error_response(error)(scope, receive, send)
        finally:
            exchange.close()

    def _submit(self, exchange: Exchange) -> None:
        try:
            for request in self._requests:
                exchange.submit(request)
        except RequestError as error:
            exchange.close()
            raise ApiError(400, str(error), param=error.param or "prompt") from None

    async def _collect(self, exchange: Exchange) -> Json:
        async for which, event in exchange.events():
            self._take(which, event)
        traced = self._requests[0].trace
        traces = self._traces if len(self._traces) > 1 else self._traces[0]
        return self._reply.whole(self._choices, self._usage) | ({"trace": traces} if traced else {})

    async def _send_stream(self, exchange: Exchange, stream: EventStream) -> None:
        """The status leaves with the first event, so that a refusal still has its own."""
        try:
            await self._send_events(exchange, stream)
        except ApiError as error:
            if not stream.started:
                raise
            await stream.fail(error)
        else:
            if self._reply.wants.usage:
                await stream.send(self._reply.tail(self._usage))
            await stream.finish()

    async def _send_events(self, exchange: Exchange, stream: EventStream) -> None:
        """One chunk a token. A last chunk waits for the next event: Done, right behind it, ends its trace."""
        held: Json | None = None
        async for which, event in exchange.events():
            await stream.start()
            piece = self._take(which, event)
            if held is not None:
                await stream.send(held | self._trace(which, event))
            held = piece if isinstance(event, Finished) else None
            if piece is not None and held is None:
                await stream.send(piece)

    def _trace(self, which: int, event: Progress) -> Json:
        wanted = isinstance(event, Done) and self._requests[which].trace
        return {"trace": self._traces[which]} if wanted else {}

    def _take(self, which: int, event: Progress) -> Json | None:
        """Take an event in; returns the chunk it makes in a stream, None where it makes none."""
        self._count(which, event)
        if not isinstance(event, Token | Prompted):
            self._traces[which].update(event.trace or {})
        if isinstance(event, Prompted):
            for choice in self._choices_of(which):
                choice.add(event)
        if not isinstance(event, Token | Finished):
            return None
        choice = self._choices_of(which)[event.choice]
        choice.add(event)
        return self._reply.piece(choice, self._usage) if self._stream else None

    def _choices_of(self, which: int) -> Sequence[Choice]:
        count = self._requests[which].params.n
        return self._choices[which * count : (which + 1) * count]

    def _count(self, which: int, event: Progress) -> None:
        """What is used so far; the last event says what it was in the end."""
        usage = self._usages[which]
        if isinstance(event, Started):
            usage.prompt, usage.cached = len(self._requests[which].prompt), event.cached_tokens
        elif isinstance(event, Token):
            usage.completion += 1
        elif isinstance(event, Done):
            usage.prompt, usage.completion = event.prompt_tokens, event.completion_tokens
            usage.cached = event.cached_tokens
