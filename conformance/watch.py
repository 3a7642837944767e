"""Readings taken while a step runs: statistics and memory, all the time, each in a thread of its own.

Knows what to read from a target and where to note it. Does not know what runs meanwhile (`drive.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conformance.footprint import Meter
from conformance.history import Memory, Sample
from conformance.record import Recorder
from conformance.target import Target

EVERY = 0.05
"""Seconds between readings of statistics during a step."""
MEMORY_EVERY = 0.01
"""The same of memory, which only cases that judge it read: a quick machine is through a burst in half a
second, and a peak that falls between two readings is not seen."""
_MARK_TRIES = 3
_REST_TRIES = 40
"""Readings, one each 50 ms, after which a mark takes a server that never rests as it is."""


class Readings:
    """Notes what a target says of itself, under the name of a step."""

    def __init__(self, target: Target, recorder: Recorder, arm: str, memory: bool = False) -> None:
        self._target, self._recorder, self._arm, self._memory = target, recorder, arm, memory
        self._taking = threading.Lock()
        """Held from the question to the note: of two steps that are watched at once, neither notes an answer
        after a later one of the other's, which would look as if a counter fell."""

    def during(self, step: str) -> Watch:
        """Readings all through a step, one at its start and one at its end among them."""
        self._target.mark()
        readers: list[Reader] = []
        if self._target.facts.has_stats:
            readers.append(Reader(lambda: self._note(step, self._target.sample), EVERY))
        return Watch([*readers, *self._meters(step)])

    def footprint(self, step: str = "") -> Watch:
        """Readings of memory alone: while nothing is sent, but things may settle."""
        return Watch(self._meters(step))

    def mark(self, step: str, resting: bool = False) -> None:
        """One reading of each kind, now; where this run is `resting`, soon, when others rest as well."""
        self._target.mark()
        if self._target.facts.has_stats:
            calm = resting and self._target.facts.how == "endpoint"
            self._note(step, self._at_rest if calm else self._read)
        for reader in self._meters(step):
            reader.read()

    def _read(self) -> dict[str, float]:
        """What is told now; a reading that fails is asked for again."""
        tries = (self._target.sample() for _ in range(_MARK_TRIES))
        return next(filter(None, tries), {})

    def _at_rest(self) -> dict[str, float]:
        """A reading while nobody is served: other clients of an endpoint come and go."""
        for _ in range(_REST_TRIES):
            values = self._read()
            if not values.get("running") and not values.get("waiting"):
                break
            time.sleep(EVERY)
        return values

    def _note(self, step: str, read: Callable[[], dict[str, float]]) -> None:
        with self._taking:
            if values := read():
                at = self._recorder.now()
                self._recorder.sample(Sample(at=at, arm=self._arm, step=step, values=values))

    def _meters(self, step: str) -> list[Reader]:
        meter = self._target.meter() if self._memory else None
        return [Reader(lambda: self._measure(step, meter), MEMORY_EVERY)] if meter is not None else []

    def _measure(self, step: str, meter: Meter) -> None:
        if reading := meter.read():
            at, held = self._recorder.now(), {"bytes": reading.bytes, "device": reading.device}
            self._recorder.memory(Memory.model_validate({"at": at, "arm": self._arm, "step": step, **held}))


@dataclass(frozen=True)
class Reader:
    """Something to call, and after how many seconds again."""

    read: Callable[[], object]
    every: float


class Watch:
    """Calls readers all the time, each in a thread of its own; once at the start and once at the end."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers, self._over = readers, threading.Event()
        self._threads = [threading.Thread(target=self._loop, args=(r,), daemon=True) for r in readers]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _loop(self, reader: Reader) -> None:
        reader.read()
        due = time.monotonic() + reader.every
        while not self._over.wait(max(0.0, due - time.monotonic())):
            reader.read()
            due = max(due + reader.every, time.monotonic())  # a slow reading does not put off those after it
        reader.read()
