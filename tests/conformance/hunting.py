"""A hunt on one core, round after round, for tests of what is judged and what is made up."""

from __future__ import annotations

import time
from collections.abc import Callable

from hypothesis.strategies import SearchStrategy

from conformance.explore.hunt import Chase, Hunt, Judge, gathered, in_turn, rounds
from conformance.explore.script import Json


def hunt(
    workloads: SearchStrategy[Json],
    judge: Judge,
    examples: int,
    number: int = 0,
    seconds: float | None = None,
    healthy: Judge | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Hunt:
    """See `Chase`; `number` is the seed."""
    return gathered(in_turn(Chase(workloads, judge, healthy, seconds, clock), rounds(examples, number)))
