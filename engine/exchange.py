"""One HTTP request's conversation with the worker: submit, receive events, cancel when the client goes.

Knows how events cross from the engine thread to the event loop without either waiting for the other. Does not
know bodies, routes or what the events mean, beyond which of them are last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from starlette.types import Receive

from engine.api import ApiError
from engine.messages import Done, Event, Failed, Progress, Request, WorkerLike

# How long to wait for an event before asking whether the engine thread still lives, seconds.
CHECK_SECONDS = 1.0
ABORTED = 409
"""The status of a request that another one ended."""


class Exchange:
    """Events of one or several requests, as (which, event) in the order the engine sent them."""

    def __init__(self, worker: WorkerLike) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._open: dict[int, str] = {}

    def submit(self, request: Request) -> None:
        """Queue the next request under the next number. Raises RequestError."""
        which = len(self._open)
        request = replace(request, id=f"{request.id}-{which}")
        self._worker.submit(request, lambda event: self._deliver(which, event))
        self._open[which] = request.id

    def _deliver(self, which: int, event: Event) -> None:
        """Called on the engine thread: never waits. A loop that has closed has nobody left to tell."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (which, event))

    async def events(self) -> AsyncIterator[tuple[int, Progress]]:
        """Every event until all requests ended.

        Raises ApiError when the engine died or a request failed, whose siblings are then cancelled first.
        """
        while self._open:
            which, event = await self._next()
            if isinstance(event, Done | Failed):
                del self._open[which]
            if isinstance(event, Failed):
                self.close()
                raise ApiError(event.status, event.message, param=event.param, type=event.type)
            yield which, event

    async def _next(self) -> tuple[int, Event]:
        while True:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    return await self._queue.get()
            except TimeoutError:
                if not self._worker.alive:
                    raise ApiError(503, "the engine has stopped", type="server_error") from None

    def abort(self) -> None:
        """End whatever has not ended as a failure that says so; the reader of the events learns it next."""
        for which, request_id in self._open.items():
            self._worker.cancel(request_id)
            self._queue.put_nowait((which, Failed(ABORTED, "the request was aborted", "aborted")))

    def close(self) -> None:
        """Cancel whatever has not ended."""
        for request_id in self._open.values():
            self._worker.cancel(request_id)
        self._open.clear()


class Exchanges:
    """Those that go on, by every name of their request, so that another connection can end one."""

    def __init__(self, kind: Callable[[WorkerLike], Exchange] = Exchange) -> None:
        self._kind = kind
        self._named: dict[str, Exchange] = {}

    def open(self, worker: WorkerLike) -> Exchange:
        """A new one, which nobody knows yet."""
        return self._kind(worker)

    @contextmanager
    def holding(self, exchange: Exchange, names: Iterable[str]) -> Iterator[None]:
        """Knows the exchange meanwhile; a name that is given twice is that of the later one."""
        mine = dict.fromkeys(names, exchange)
        self._named |= mine
        try:
            yield
        finally:
            self._named = {name: one for name, one in self._named.items() if one is not exchange}

    def abort(self, name: str) -> bool:
        """End the request of that name; False where none goes on."""
        exchange = self._named.get(name)
        if exchange is not None:
            exchange.abort()
        return exchange is not None


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end, or cancel it as soon as the client disconnects. The body must have been read."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
