"""The application on a socket: from the line that says where it listens to the last request's end.

Knows uvicorn, signals, and how long what still runs may take. Does not know routes or what the worker does:
an application is served, a worker is drained and stopped.
"""

from __future__ import annotations

import asyncio
import socket
import time
from types import FrameType
from typing import Protocol

import uvicorn
from starlette.applications import Starlette

GRACE_SECONDS = 2
DRAIN_CHECK_SECONDS = 0.05
KEEP_ALIVE_SECONDS = 120


class Drainable(Protocol):
    """What a server that goes down asks of its worker."""

    @property
    def drained(self) -> bool: ...

    def drain(self) -> None: ...

    def stop(self) -> None: ...


class EngineServer(uvicorn.Server):
    """Prints where it listens once it answers. A first signal drains: new requests get 503, what runs has
    `drain` seconds to end. A second one, or the end of that time, stops the engine, so no request stays.
    """

    def __init__(self, config: uvicorn.Config, worker: Drainable, drain: float) -> None:
        super().__init__(config)
        self._worker, self._patience, self._hurried = worker, drain, False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            print(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._hurried = self.should_exit
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._drain()
        await asyncio.to_thread(self._worker.stop)
        await super().shutdown(sockets)

    async def _drain(self) -> None:
        self._worker.drain()
        until = time.monotonic() + self._patience
        while time.monotonic() < until and not (self._hurried or self._worker.drained):
            await asyncio.sleep(DRAIN_CHECK_SECONDS)


def run(
    app: Starlette, listener: socket.socket, worker: Drainable, *, drain: float = 0, verbose: bool = False
) -> None:
    """Serve on a bound socket until a signal; then drain for up to `drain` seconds and fail what still runs.

    A client that does not take its last bytes gets GRACE_SECONDS.
    """
    EngineServer(uvicorn_config(app, verbose), worker, drain).run(sockets=[listener])


def uvicorn_config(app: Starlette, verbose: bool = False) -> uvicorn.Config:
    """Plain asyncio and h11. Idle connections stay open long, so that no client meets a closing one."""
    return uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_level="info" if verbose else "warning",
        access_log=verbose,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
