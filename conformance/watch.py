"""Readings taken while a step runs: statistics and memory, all the time, each in a thread of its own.

Knows what to read from a target and where to note it. Does not know what runs meanwhile (`drive.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from conformance.footprint import Meter
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
        self._taking = threading.Lock()
        """Held from the question to the note: of two steps that are watched at once, neither notes an answer
        after a later one of the other's, which would look as if a counter fell."""

    def during(self, step: str) -> Watch:
        """Readings all through a step, one at its start and one at its end among them."""
        self._target.mark()
        readers: list[Callable[[], object]] = []
        if self._target.facts.has_stats:
            readers.append(lambda: self._stats(step))
        return Watch([*readers, *self._meters(step)])

    def footprint(self, step: str = "") -> Watch:
        """Readings of memory alone: while nothing is sent, but things may settle."""
        return Watch(self._meters(step))

    def mark(self, step: str) -> None:
        """One reading of each kind, now."""
        self._target.mark()
        if self._target.facts.has_stats:
            tries = (self._stats(step) for _ in range(_MARK_TRIES))
            any(tries)
        for read in self._meters(step):
            read()

    def _stats(self, step: str) -> bool:
        with self._taking:
            values = self._target.sample()
            if values:
                at = self._recorder.now()
                self._recorder.sample(Sample(at=at, arm=self._arm, step=step, values=values))
        return bool(values)

    def _meters(self, step: str) -> list[Callable[[], object]]:
        meter = self._target.meter()
        return [lambda: self._memory(step, meter)] if meter is not None else []

    def _memory(self, step: str, meter: Meter) -> None:
        if reading := meter.read():
            at, held = self._recorder.now(), {"bytes": reading.bytes, "device": reading.device}
            self._recorder.memory(Memory.model_validate({"at": at, "arm": self._arm, "step": step, **held}))


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
        due = time.monotonic() + EVERY
        while not self._over.wait(max(0.0, due - time.monotonic())):
            read()
            due = max(due + EVERY, time.monotonic())  # a slow reading does not put off those after it
        read()
