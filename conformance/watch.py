"""Readings taken while a step runs: statistics and memory, all the time, each in a thread of its own.

Knows what to read from a target and where to note it. Does not know what runs meanwhile (`drive.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from conformance.footprint import measure
from conformance.history import Memory, Sample
from conformance.record import Recorder
from conformance.target import Target

EVERY = 0.05
"""Seconds between readings during a step."""
_MARK_TRIES = 3


class Readings:
    """Notes what a target says of itself, under the name of a step."""

    def __init__(self, target: Target, recorder: Recorder, arm: str) -> None:
        self._target, self._recorder, self._arm = target, recorder, arm

    def during(self, step: str) -> Watch:
        """Readings all through a step, one at its start and one at its end among them."""
        self._target.mark()
        pids = self._target.process_ids()
        readers: list[Callable[[], object]] = []
        if self._target.facts.has_stats:
            readers.append(lambda: self._stats(step))
        if pids:
            readers.append(lambda: self._memory(step, pids))
        return Watch(readers)

    def mark(self, step: str) -> None:
        """One reading of each kind, now."""
        self._target.mark()
        if self._target.facts.has_stats:
            tries = (self._stats(step) for _ in range(_MARK_TRIES))
            any(tries)
        self._memory(step, self._target.process_ids())

    def _stats(self, step: str) -> bool:
        values = self._target.sample()
        if values:
            self._recorder.sample(Sample(at=self._recorder.now(), arm=self._arm, step=step, values=values))
        return bool(values)

    def _memory(self, step: str, pids: Sequence[int]) -> None:
        if total := measure(pids):
            memory = Memory(at=self._recorder.now(), arm=self._arm, step=step, bytes=total)
            self._recorder.memory(memory)


class Watch:
    """Calls readers all the time, each in a thread of its own; once at the start and once at the end."""

    def __init__(self, readers: Sequence[Callable[[], object]]) -> None:
        self._readers, self._over = readers, threading.Event()
        self._threads = [threading.Thread(target=self._loop, args=(r,), daemon=True) for r in readers]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _loop(self, read: Callable[[], object]) -> None:
        read()
        while not self._over.wait(EVERY):
            read()
        read()
