"""The rounds of a hunt on several cores: this process does some, helpers with engines of their own others.

Knows processes, and which round is the next. Does not know what a round is. Rounds are told in their order,
whoever did them, so that a hunt comes to the same end on one core and on many. Nothing is shared but a pipe
with each helper, so that one that dies takes nothing along: the rounds that it was given are done again.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Protocol

from conformance.explore.ground import inside
from conformance.explore.hunt import Hunt, Round, in_turn
from conformance.workers import kept_to

if TYPE_CHECKING:
    Pipe = Connection[Any, Any]

ALONE = 5
"""Rounds before help is called: most faults are found in them, and a helper takes seconds to start."""
_WORTH = 5
"""Rounds for each helper at least."""
_MOST = 7
"""Helpers: each takes about 100 MB, and a container may have more cores to see than to use."""
_AHEAD = 2
"""Rounds that a helper has: one at hand and the next one, for this process looks up only between its own."""


@dataclass(frozen=True)
class Target:
    """What a helper must know: the first two are what `inside` is called with, `seconds` is for the hunt."""

    engine_args: str
    fault: str | None
    seconds: float | None


class Chasing(Protocol):
    """What does rounds here (`hunt.Chase`)."""

    start: float

    def __call__(self, round: Round) -> Hunt: ...


def told(
    chase: Chasing, rounds: Sequence[Round], spare: Sequence[int], target: Target
) -> Generator[Hunt, None, None]:
    """What came of each round, in their order, until the time is up; with a helper on each of the `spare`
    cores as far as there is work for it."""
    rest = rounds[ALONE:]
    cores = spare[: min(_MOST, len(rest) // _WORTH)]
    for part in in_turn(chase, rounds[:ALONE]):
        yield part
        if part.is_late:
            return
    with _helpers(cores, target, chase.start) as helpers:
        yield from _in_order(chase, rest, helpers)


class Helper:
    """A process of its own, on a core of its own, that does the rounds it is given one after another."""

    def __init__(self, core: int, target: Target, start: float) -> None:
        context = multiprocessing.get_context("spawn")  # MLX does not outlive a fork
        self.pipe, theirs = context.Pipe()
        self.owes: list[int] = []
        """Rounds that were given to it and are not told yet."""
        said = os.getpid(), target, start, theirs
        self._process = context.Process(target=_help, args=said, daemon=True)
        with kept_to([core]), _uninterrupted():
            self._process.start()
        theirs.close()  # so that the pipe ends with the helper

    def give(self, number: int, round: Round) -> None:
        """Raises OSError where it has died."""
        self.owes.append(number)
        self.pipe.send((number, round))

    def hear(self) -> tuple[int, Hunt]:
        """Raises EOFError or OSError where it has died, perhaps in the middle of a word."""
        number, part = self.pipe.recv()
        self.owes.remove(number)
        return number, part

    def end(self) -> None:
        """Whatever it is at."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


@contextmanager
def _helpers(cores: Sequence[int], target: Target, start: float) -> Iterator[list[Helper]]:
    """As many as can be started."""
    started: list[Helper] = []
    try:
        with suppress(OSError):
            for core in cores:
                started.append(Helper(core, target, start))
        yield list(started)
    finally:
        for helper in started:
            helper.end()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """What is started meanwhile takes no notice of Ctrl-C: this process ends it, without a word."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _in_order(
    chase: Callable[[Round], Hunt], rounds: Sequence[Round], helpers: list[Helper]
) -> Iterator[Hunt]:
    shift = _Shift(chase, rounds, helpers)
    for number in range(len(rounds)):
        while number not in shift.done:
            if not shift.is_coming(number):
                return  # the time was up before anybody began it
            shift.work()
        yield shift.done.pop(number)


class _Shift:
    """Which round is where: still to do, with a helper, or done."""

    def __init__(
        self, chase: Callable[[Round], Hunt], rounds: Sequence[Round], helpers: list[Helper]
    ) -> None:
        self._chase, self._rounds, self._helpers = chase, rounds, helpers
        self._todo = deque(range(len(rounds)))
        self.done: dict[int, Hunt] = {}

    def is_coming(self, number: int) -> bool:
        return number in self._todo or any(number in helper.owes for helper in self._helpers)

    def work(self) -> None:
        """Give helpers what they lack, do a round, and hear what was done meanwhile."""
        for helper in list(self._helpers):
            self._fill(helper)
        if not self._todo:
            self._hear(None)
            return
        number = self._todo.popleft()
        self._note(number, self._chase(self._rounds[number]))
        self._hear(0)

    def _fill(self, helper: Helper) -> None:
        while self._todo and len(helper.owes) < _AHEAD:
            number = self._todo.popleft()
            try:
                helper.give(number, self._rounds[number])
            except OSError:
                self._lose(helper)
                return

    def _hear(self, patience: float | None) -> None:
        """What helpers have to tell; where there is nothing else to do, once one of them does."""
        owing = {helper.pipe: helper for helper in self._helpers if helper.owes}
        for pipe in wait(list(owing), patience) if owing else []:
            helper = owing[pipe]  # type: ignore[index]
            try:
                self._note(*helper.hear())
            except (EOFError, OSError):
                self._lose(helper)

    def _lose(self, helper: Helper) -> None:
        """It has died: its rounds are done by others."""
        self._helpers.remove(helper)
        self._todo = deque(sorted([*self._todo, *helper.owes]))

    def _note(self, number: int, part: Hunt) -> None:
        """After a failure, or when the time is up, only what comes before it matters."""
        self.done[number] = part
        if part.has_failed or part.is_late:
            self._todo = deque(before for before in self._todo if before < number)


def _help(parent: int, target: Target, start: float, pipe: Pipe) -> None:
    """A helper's life: until its pipe ends, or whoever started it does."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG; there are helpers on Linux alone
    with inside(target.engine_args, target.fault) as ground:
        chase = ground.chase(target.seconds, start)
        while os.getppid() == parent:
            number, round = pipe.recv()
            pipe.send((number, chase(round)))
