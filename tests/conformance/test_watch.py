"""Readings while steps run: in the order in which they were told, whoever asked."""

from __future__ import annotations

import threading
from typing import cast

from conformance.history import Facts, Sample
from conformance.record import Recorder
from conformance.target import Target
from conformance.watch import Readings

OVERTAKING = 0.2
"""Seconds that the first answer is under way at most: long enough to be overtaken where that is possible."""


class SlowFirst:
    """A target whose first answer is long under way: a counter that rises with each."""

    facts = Facts(dialect="generic", name="g", how="endpoint", has_stats=True)

    def __init__(self) -> None:
        self.told = 0
        self.asked, self.overtaken = threading.Event(), threading.Event()

    def sample(self) -> dict[str, float]:
        self.told += 1
        number = self.told
        if number == 1:
            self.asked.set()
            self.overtaken.wait(OVERTAKING)
        else:
            self.overtaken.set()
        return {"sequence": float(number)}

    def mark(self) -> None:
        """Nothing to note."""

    def meter(self) -> None:
        """No memory to read."""


class Notes:
    """A recorder that keeps what it is given."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.sample = self.samples.append

    def now(self) -> float:
        return float(len(self.samples))


def test_of_two_steps_that_are_watched_at_once_neither_notes_what_is_out_of_date() -> None:
    target, notes = SlowFirst(), Notes()
    readings = Readings(cast(Target, target), cast(Recorder, notes), "main")
    early = threading.Thread(target=readings.mark, args=("early",))
    early.start()
    assert target.asked.wait(10)
    readings.mark("late")
    early.join(10)
    assert [(sample.step, sample.values["sequence"]) for sample in notes.samples] == [
        ("early", 1.0),
        ("late", 2.0),
    ]
