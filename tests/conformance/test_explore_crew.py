"""Rounds on several cores come to the end that one core comes to, whatever becomes of a helper."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from conformance.explore import crew
from conformance.explore.crew import Helper, Target, _in_order, told
from conformance.explore.drawn import place
from conformance.explore.ground import INSIDE
from conformance.explore.hunt import Failure, Hunt, Judged, Round, gathered, rounds
from conformance.explore.inprocess import configured
from conformance.explore.judging import Inside
from conformance.explore.script import Json
from conformance.explore.strategies import workloads
from conformance.permission import PERMISSIONS
from engine.faults import parts_for
from tests.conformance.hunting import hunt

FAILED = Failure({"steps": []}, [])
HERE = Target("", None, None)


def told_in(count: int) -> list[Round]:
    return rounds(10 * count, 0)


def part(round: Round) -> Hunt:
    return Hunt(examples=round.examples, by=[str(round.seed)], statuses=Counter({"pass": 1}))


class Fake(Helper):
    """A helper without a process: it answers what it is given with `answers`, and then dies."""

    def __init__(self, answers: Callable[[int], Hunt] | None, lives: int = 1000) -> None:
        self.pipe, self._theirs = multiprocessing.Pipe()
        self.owes = []
        self._answers, self._lives = answers, lives

    def give(self, number: int, round: Round) -> None:
        if not self._lives:
            self.owes.append(number)
            raise BrokenPipeError
        super().give(number, round)
        self._lives -= 1
        if self._answers is not None:
            self._theirs.send((number, self._answers(number)))
        if not self._lives:
            self._theirs.close()


def seeds(found: list[Hunt]) -> list[str]:
    return [by for hunt in found for by in hunt.by]


def test_rounds_are_done_in_order_where_nobody_helps() -> None:
    todo = told_in(4)
    assert seeds(list(_in_order(part, todo, []))) == [str(round.seed) for round in todo]


def test_what_a_helper_did_is_told_in_its_place() -> None:
    helper = Fake(lambda number: Hunt(examples=number, by=["helped"]))
    found = list(_in_order(part, told_in(6), [helper]))
    assert [hunt.examples for hunt in found if hunt.by == ["helped"]] == [
        number for number, hunt in enumerate(found) if hunt.by == ["helped"]
    ]
    assert found[0].by == found[1].by == ["helped"]
    assert found[2].by == ["20"], "this process does what was not given to the helper"


@pytest.mark.parametrize("lives", [0, 1, 2])
def test_rounds_of_a_helper_that_died_are_done_again(lives: int) -> None:
    """It dies while it has rounds to do, or before it is given the next one."""
    todo = told_in(7)
    assert seeds(list(_in_order(part, todo, [Fake(None, lives)]))) == [str(round.seed) for round in todo]


def test_a_helper_that_dies_in_the_middle_of_a_word_has_died() -> None:
    class Broken(Fake):
        def hear(self) -> tuple[int, Hunt]:
            raise OSError("got end of file during message")

    todo = told_in(3)
    assert seeds(list(_in_order(part, todo, [Broken(part_of(todo))]))) == ["0", "10", "20"]


def part_of(todo: list[Round]) -> Callable[[int], Hunt]:
    return lambda number: part(todo[number])


def test_a_later_round_that_failed_waits_for_those_before_it_and_ends_the_hunt() -> None:
    """The third fails here, and the first, which a helper has, fails as well: that one is what counts."""
    done: list[Round] = []
    todo, helper = told_in(9), Fake(lambda number: Hunt(examples=3, failure=FAILED))

    def chase(round: Round) -> Hunt:
        done.append(round)
        return Hunt(examples=5, failure=FAILED)

    assert gathered(_in_order(chase, todo, [helper])).examples == 3
    assert done == [todo[2]], "nobody begins another round"


def test_a_failure_counts_that_was_found_while_the_time_ran_out_in_an_earlier_round() -> None:
    helper = Fake(lambda number: Hunt(is_late=True) if number == 0 else Hunt(failure=FAILED))
    whole = gathered(_in_order(part, told_in(9), [helper]))
    assert whole.failure == FAILED
    assert whole.is_late


def test_when_the_time_is_up_nothing_new_is_begun() -> None:
    done: list[Round] = []

    def chase(round: Round) -> Hunt:
        done.append(round)
        return Hunt(examples=1, is_late=True)

    assert gathered(_in_order(chase, told_in(9), [])).examples == 1
    assert len(done) == 1


class Local:
    """A chase that needs no engine."""

    def __init__(self) -> None:
        self.start = 0.0

    def __call__(self, round: Round) -> Hunt:
        return part(round)


def test_few_rounds_call_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "Helper", None)
    assert len(list(told(Local(), told_in(crew.ALONE + 4), [1, 2], HERE))) == crew.ALONE + 4
    assert len(list(told(Local(), told_in(100), [], HERE))) == 100


def test_there_is_a_most_of_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Noted(Fake):
        def __init__(self, core: int, target: Target, start: float) -> None:
            asked.append(core)
            super().__init__(None, 0)

        def end(self) -> None:
            """It never began."""

    monkeypatch.setattr(crew, "Helper", Noted)
    assert len(list(told(Local(), told_in(500), range(64), HERE))) == 500
    assert asked == [0, 1, 2, 3, 4, 5, 6]


def test_a_helper_that_cannot_start_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> Helper:
        raise OSError("no more processes")

    monkeypatch.setattr(crew, "Helper", start)
    assert len(list(told(Local(), told_in(20), [1], HERE))) == 20


@pytest.mark.skipif(sys.platform != "linux", reason="cores are told apart on Linux alone")
def test_a_helper_has_engines_of_its_own() -> None:
    core, own = max(os.sched_getaffinity(0)), os.sched_getaffinity(0)
    with crew._helpers([core], HERE, 0.0) as (helper,):
        assert psutil.Process(helper._process.pid).cpu_affinity() == [core]
        assert os.sched_getaffinity(0) == own
        helper.give(3, rounds(10, 0)[0])
        number, found = helper.hear()
    assert (number, found.examples, helper.owes) == (3, 10, [])
    assert found.statuses["pass"] > 1
    assert multiprocessing.active_children() == []


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux'")
def test_a_helper_ends_with_whoever_started_it() -> None:
    code = (
        "import time; from conformance.explore import crew, hunt\n"
        "if __name__ == '__main__':\n"
        "    helper = crew.Helper(0, crew.Target('', None, None), 0.0)\n"
        "    helper.give(0, hunt.Round(0, 1)), helper.hear()\n"
        "    helper.give(1, hunt.Round(1, 10**6))\n"
        "    print(helper._process.pid, flush=True)\n"
        "    time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        helper = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    helper.wait(30)


# ---- the same everywhere


@st.composite
def _placed(draw: Any) -> Json:
    return {"steps": [place(draw, count) for count in (1, 50, 100, 112, 400)]}


@st.composite
def _unbounded(draw: Any) -> Json:
    return {"steps": [draw(st.integers(0, 400))]}


def drawn(made: st.SearchStrategy[Json], examples: int = 500) -> list[Json]:
    seen: list[Json] = []

    def judge(data: Json) -> Judged:
        seen.append(data)
        return []

    hunt(made, judge, examples)
    return seen


def drawn_beside(
    monkeypatch: pytest.MonkeyPatch, numbers: range, made: st.SearchStrategy[Json]
) -> list[Json]:
    """What is drawn where these numbers stand in the source of some module that is loaded."""
    local = Constants(integers=set(numbers))
    monkeypatch.setattr(providers, "_get_local_constants", lambda: local)
    monkeypatch.setattr(providers, "CONSTANTS_CACHE", {})
    return drawn(made)


def test_what_is_made_up_does_not_depend_on_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis takes some numbers from the constants in the source of what a process has loaded."""
    none, some = range(0), range(100, 5000)
    facts = Inside(configured(["--grid", "64"]), parts_for(None)).facts  # texts of some hundred tokens
    made = workloads(facts, INSIDE, tuple(PERMISSIONS))
    assert drawn_beside(monkeypatch, none, made) == drawn_beside(monkeypatch, some, made)
    assert drawn_beside(monkeypatch, none, _unbounded()) != drawn_beside(monkeypatch, some, _unbounded())


def test_places_are_drawn_from_all_that_there_are() -> None:
    found = [data["steps"] for data in drawn(_placed())]
    assert {steps[0] for steps in found} == {0}
    assert {steps[1] for steps in found} == set(range(50))
    assert {steps[3] for steps in found} <= set(range(112))
    assert max(steps[3] for steps in found) == 110
    assert max(steps[4] for steps in found) == 396


def explored(cores: set[int], out: Path, *arguments: str) -> dict[str, Any]:
    """What the explorer says, kept to some cores."""
    command = [sys.executable, "-m", "conformance.explore", "--json", "--out", str(out), *arguments]
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    finally:
        os.sched_setaffinity(0, before)
    assert done.stderr == ""
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.skipif(sys.platform != "linux", reason="cores are told apart on Linux alone")
def test_a_hunt_with_helpers_ends_as_one_without(tmp_path: Path) -> None:
    """The fault shows after sixty workloads, when there is help."""
    arguments = "120", "--fault", "evict_head_first"
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("there is one core")
    alone = explored({min(cores)}, tmp_path, *arguments)
    assert alone["examples"] > 10 * crew.ALONE
    assert alone["failed"]
    helped = explored(cores, tmp_path, *arguments)
    timed = {"seconds", "shrinking"}
    assert {k: v for k, v in helped.items() if k not in timed} == {
        k: v for k, v in alone.items() if k not in timed
    }
