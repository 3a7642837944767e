"""The hunt: workloads one after another until one fails, and that one made as small as it gets.

Knows Hypothesis and when an example failed. Does not know how workloads are made up, performed or written. A
vacuous, inconclusive or unobservable verdict is no failure: nobody promised that a random workload shows
anything.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from conformance.explore.script import Json
from conformance.spec import Expect
from conformance.verdict import Status, Verdict

Judged = list[tuple[Expect, Verdict]]
Judge = Callable[[Json], Judged]
"""Performs the workload of a spec's content and judges every expectation of it."""

ACCUSES = (Status.FAIL, Status.TIMEOUT)
"""A request that never ends is a failure too: no healthy server leaves one."""
_SHRINK = 60.0
"""Seconds that are spent on making a failure smaller."""
_ROUND = 10
"""Examples that Hypothesis draws afresh; of those after them it makes five in six from parts of another."""
_SEEDS = 1_000_000
"""Apart from each other by more than anybody makes up, so that no two seeds share a round."""


@dataclass
class Failure:
    """The smallest workload that failed, and what the judges said of it."""

    data: Json
    accusers: Judged
    """Those that failed."""


def accusers(verdicts: Judged) -> Judged:
    return [(expect, verdict) for expect, verdict in verdicts if verdict.status in ACCUSES]


@dataclass
class Hunt:
    """What came of it. `examples`: performed until the first failure, or all; `seconds` as long."""

    examples: int = 0
    seconds: float = 0.0
    shrinking: int = 0
    """Examples performed to make the failure smaller."""
    failure: Failure | None = None
    by: list[str] = field(default_factory=list)
    """Requirements that the first failure broke, before it was made smaller."""
    statuses: Counter[str] = field(default_factory=Counter)
    """Verdicts by status, of all examples until the first failure."""
    errors: list[str] = field(default_factory=list)
    """Reasons of verdicts that were errors; a few."""
    alarms: list[str] = field(default_factory=list)
    """What failed on the healthy engine as well, where there is one to compare with; a few."""
    is_flaky: bool = False
    """Whether the failure did not come back when the same workload ran again."""
    is_late: bool = False
    """Whether the time was up before anything failed."""

    @property
    def has_failed(self) -> bool:
        return self.failure is not None or self.is_flaky

    def add(self, later: Hunt) -> None:
        """What came of the next round, after all before it had ended without a failure."""
        self.examples += later.examples
        self.seconds = max(self.seconds, later.seconds)
        self.statuses.update(later.statuses)
        self.errors = _few([*self.errors, *later.errors])
        self.alarms = _few([*self.alarms, *later.alarms])
        self.shrinking, self.failure, self.by = later.shrinking, later.failure, later.by
        self.is_flaky, self.is_late = later.is_flaky, self.is_late or later.is_late


def _few(told: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(told))[:5]


class _Found(Exception):
    """A workload failed; one type for each judge, so that Hypothesis does not take one for another."""


class _TimeUp(BaseException):
    """No more examples; not an Exception, which Hypothesis would take for a failure."""


@dataclass(frozen=True)
class Round:
    """Examples that are drawn afresh, apart from all others: any process may do it, with the same result."""

    seed: int
    examples: int


def rounds(examples: int, number: int) -> list[Round]:
    """The rounds of a hunt, in their order; `number` is the seed of all random choice."""
    starts = range(0, examples, _ROUND)
    return [Round(number * _SEEDS + start, min(_ROUND, examples - start)) for start in starts]


def in_turn(chase: Callable[[Round], Hunt], todo: Iterable[Round]) -> Iterator[Hunt]:
    """What came of each round until the time is up."""
    for round in todo:
        yield (part := chase(round))
        if part.is_late:
            return


def gathered(parts: Iterable[Hunt]) -> Hunt:
    """What came of rounds, one after another up to the first that failed."""
    whole = Hunt()
    for part in parts:
        whole.add(part)
        if part.has_failed:
            break
    return whole


class Chase:
    """One round after another on one target."""

    def __init__(
        self,
        workloads: SearchStrategy[Json],
        judge: Judge,
        healthy: Judge | None = None,
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        start: float | None = None,
    ) -> None:
        """At most so many `seconds` from `start`, which is now if it is not said; `time.monotonic` is
        one for all processes. With `healthy`, what fails counts where it passes there: neither a false alarm
        nor a spec that shows nothing on a server without the fault.
        """
        self._workloads, self._judge, self._healthy, self._clock = workloads, judge, healthy, clock
        self.start = clock() if start is None else start
        self._end = None if seconds is None else self.start + seconds

    def __call__(self, round: Round) -> Hunt:
        """What came of one round; its `seconds` count from the start of the hunt."""
        found = Hunt()
        example = _Example(found, self._judge, self._healthy, self._clock, self.start, self._end)
        run = settings(
            max_examples=round.examples, database=None, deadline=None, print_blob=False,
            report_multiple_bugs=False, phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )(seed(round.seed)(given(self._workloads)(example.one)))  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Hypothesis thinks of a strategy is no finding
            _run(found, run)
        return found


def _run(found: Hunt, run: Callable[[], None]) -> None:
    """Runs a round, and notes how it ended where the examples themselves did not."""
    try:
        run()
    except _Found:
        pass  # it stands in what was found
    except _TimeUp:
        found.is_late = found.failure is None  # else it ended what made the failure smaller
    except Flaky:
        found.is_flaky = True
    except BaseExceptionGroup as group:
        if not all(isinstance(error, _Found | Flaky) for error in group.exceptions):
            raise


class _Example:
    """One example after another, of one round."""

    def __init__(
        self,
        found: Hunt,
        judge: Judge,
        healthy: Judge | None,
        clock: Callable[[], float],
        start: float,
        end: float | None,
    ) -> None:
        self._found, self._judge, self._healthy, self._clock = found, judge, healthy, clock
        self._start, self._end = start, end

    def one(self, data: Json) -> None:
        if self._end is not None and self._clock() > self._end:
            raise _TimeUp
        verdicts = self._judge(data)
        self._count(verdicts)
        failure = Failure(data, self._confirmed(data, accusers(verdicts)))
        if not failure.accusers:
            return
        if self._found.failure is None:
            self._end = self._clock() + _SHRINK
            self._found.by = list(dict.fromkeys(verdict.requirement for _, verdict in failure.accusers))
        if self._found.failure is None or _size(data) <= _size(self._found.failure.data):
            self._found.failure = failure
        raise _type_of(failure.accusers[0][0].judge)(failure.accusers[0][1].witness)

    def _confirmed(self, data: Json, found: Judged) -> Judged:
        if self._healthy is None or not found:
            return found
        sound = {(e.judge, e.id): verdict for e, verdict in self._healthy(data)}
        alarms = [f"{e.judge}: {v.witness}" for e, v in found if sound[e.judge, e.id].status in ACCUSES]
        self._found.alarms = _few([*self._found.alarms, *alarms])
        return [(e, v) for e, v in found if sound[e.judge, e.id].status is Status.PASS]

    def _count(self, verdicts: Judged) -> None:
        if self._found.failure is not None:
            self._found.shrinking += 1
            return
        self._found.examples += 1
        self._found.seconds = self._clock() - self._start
        self._found.statuses.update(str(verdict.status) for _, verdict in verdicts)
        reasons = [verdict.reason for _, verdict in verdicts if verdict.status is Status.ERROR]
        self._found.errors = _few([*self._found.errors, *reasons])


_TYPES: dict[str, type[_Found]] = {}


def _type_of(judge: str) -> type[_Found]:
    return _TYPES.setdefault(judge, type(f"Found_{judge}", (_Found,), {}))


def _size(data: Json) -> tuple[int, int]:
    return len(data["steps"]), len(str(data))
