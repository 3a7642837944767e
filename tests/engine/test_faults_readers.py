"""Faults of readers, seen on what carries events from the engine thread to a client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from engine.exchange import Exchange, Exchanges
from engine.faults import parts_for
from engine.messages import Request, SamplingParams, Token
from tests.engine.fakes import PATIENCE, FakeWorker

MOMENT = 0.05
"""Seconds in which an engine thread that waits must not have gone on."""


def held_up(fault: str | None, then: Callable[[Exchange], None]) -> tuple[bool, bool]:
    """Whether the engine thread waits for a client that reads nothing, and whether it does after `then`."""

    async def seen() -> tuple[bool, bool]:
        exchange = Exchanges(parts_for(fault).exchange(Exchange)).open(cast(Any, FakeWorker(lambda _: [])))
        exchange.submit(Request("r", (1,), SamplingParams()))
        for _ in range(16):
            exchange._queue.put_nowait((0, Token(0, 97, "a")))
        engine = threading.Thread(target=exchange._deliver, args=(0, Token(0, 98, "b")), daemon=True)
        engine.start()
        await asyncio.to_thread(engine.join, MOMENT if fault else PATIENCE)
        before = engine.is_alive()
        then(exchange)
        await asyncio.to_thread(engine.join, PATIENCE)
        return before, engine.is_alive()

    return asyncio.run(seen())


def read_on(exchange: Exchange) -> None:
    for _ in range(12):
        exchange._queue.get_nowait()


@pytest.mark.parametrize("then", [read_on, Exchange.close])
def test_wait_for_readers_holds_the_engine_until_its_client_reads_or_goes(
    then: Callable[[Exchange], None],
) -> None:
    assert held_up("wait_for_readers", then) == (True, False)


def test_the_healthy_engine_waits_for_nobody() -> None:
    assert held_up(None, Exchange.close) == (False, False)
