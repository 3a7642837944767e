"""Carries many exchanges in one thread: each is told to go on when its socket is ready or its time has come.

Knows sockets and moments. Does not know HTTP, nor what an exchange does with its turn (`wire.py`). A thread
for each would spend most of its time waiting for the interpreter's lock: 64 streams of 50 tokens a second
took half a core that way (docs/decisions/0010).
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Sequence
from threading import Barrier, BrokenBarrierError
from typing import Protocol

_LONGEST = 3600.0
"""Seconds of one wait: systems take no number of any size."""


class Carried(Protocol):
    """An exchange, seen from here. `wake` is on the clock; a `step` raises nothing and ends at once."""

    over: bool
    wake: float
    sock: socket.socket | None

    @property
    def wants(self) -> int: ...

    def step(self) -> None: ...

    def give_up(self, why: str) -> None: ...


def carry(
    exchanges: Sequence[Carried], clock: Callable[[], float], timeout: float, barrier: Barrier | None = None
) -> None:
    """Waits at the barrier, at most `timeout` seconds, then goes on until every exchange is over.

    What a step raises in spite of its promise leaves here once all of them were given up: no socket stays
    open, and nobody waits for one of them.
    """
    try:
        with selectors.DefaultSelector() as selector:
            if barrier is not None:
                barrier.wait(timeout)
            _Round(selector, clock, exchanges).run()
    except BrokenBarrierError:
        _give_up(exchanges, "the other requests of the burst were never ready")
    except OSError as error:  # of the selector: a step keeps its own
        if barrier is not None:
            barrier.abort()
        _give_up(exchanges, f"nothing can be waited for: {error.strerror}")
    finally:
        _give_up(exchanges, "its client failed")


def _give_up(exchanges: Sequence[Carried], why: str) -> None:
    for exchange in exchanges:
        if not exchange.over:
            exchange.give_up(why)


class _Round:
    """All that is still going on."""

    def __init__(
        self, selector: selectors.BaseSelector, clock: Callable[[], float], exchanges: Sequence[Carried]
    ) -> None:
        self._selector, self._clock, self._going = selector, clock, list(exchanges)
        self._watched: dict[socket.socket, int] = {}
        self._soonest = 0.0
        """No exchange has to be woken before."""

    def run(self) -> None:
        while self._going:
            if self._clock() >= self._soonest:
                self._wake()
            left = min(max(0.0, self._soonest - self._clock()), _LONGEST)
            for key, _ in self._selector.select(left):
                self._step(key.data)

    def _wake(self) -> None:
        now = self._clock()
        for exchange in [each for each in self._going if each.wake <= now]:
            self._step(exchange)
        self._soonest = min((each.wake for each in self._going), default=0.0)

    def _step(self, exchange: Carried) -> None:
        sock = exchange.sock
        exchange.step()
        if sock is not None:
            self._watch(sock, exchange)
        if exchange.over:
            self._going.remove(exchange)
        # It may have set itself an earlier end than it had: who leaves by half lingers only so long.
        self._soonest = min(self._soonest, exchange.wake)

    def _watch(self, sock: socket.socket, exchange: Carried) -> None:
        """Has the selector look for what is wanted now; of one that is over, for nothing."""
        wants, before = 0 if exchange.over else exchange.wants, self._watched.get(sock, 0)
        if wants == before:
            return
        self._watched[sock] = wants
        if not wants:
            self._selector.unregister(sock)  # a closed one is known by what it was
        elif before:
            self._selector.modify(sock, wants, exchange)
        else:
            self._selector.register(sock, wants, exchange)
