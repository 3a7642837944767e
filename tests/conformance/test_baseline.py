"""Baselines: phases of a scenario, noise from repeats, files, and what a recording run says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conformance import baselining
from conformance.baseline import (
    SCENARIOS,
    Baseline,
    BaselineError,
    at_rest,
    made,
    phases,
    place,
    read,
    write,
)
from conformance.collect import SpecItem
from conformance.history import Workload
from conformance.session import BrokenWorkload
from tests.conformance.builders import MIB, burst, facts, memory, seed, span, workload

MACHINE = {"system": "Linux", "machine": "x86_64", "cores": "2", "memory_mib": "24000", "python": "3.11"}


def scenario(name: str = "scenario/x", idle: float = 100, peak: float = 300, rest: float = 120) -> Workload:
    """A warm-up, a burst, a wait, and a request that controls something else."""
    found = workload(
        seed(),
        *burst([192] * 2, step="two"),
        span("seed", 1, 2, "send"),
        span("wait[1]", 2, 3, "wait"),
        span("two", 10, 12),
        span("wait[3]", 12, 14, "wait"),
        span("repeat", 15, 16, "send"),
        facts=facts(machine=MACHINE, model="tiny"),
    )
    found.spec_id = name
    found.memory = [
        memory(0, 90, ""),
        memory(0.5, idle, ""),
        memory(1.5, 150, "seed"),
        memory(11, peak, "two"),
        memory(11.5, peak - 20, "two"),
        memory(12.5, 200, "wait[3]"),
        memory(13, rest, "wait[3]"),
        memory(13.5, rest, "wait[3]"),
        memory(15.5, 999, "repeat"),
    ]
    return found


def test_phases_end_with_the_last_wait() -> None:
    found = phases(scenario())
    assert (found.idle, found.peak, found.after, found.settled) == (
        100 * MIB,
        300 * MIB,
        200 * MIB,
        120 * MIB,
    )
    assert found.steps == {"seed": 150 * MIB, "two": 300 * MIB}
    assert (found.samples, found.device_peak) == (3, None)


def test_memory_on_gpus_is_a_figure_of_its_own() -> None:
    run = scenario()
    run.memory[3] = run.memory[3].model_copy(update={"device": 900 * MIB})
    assert (phases(run).peak, phases(run).device_peak) == (300 * MIB, 900 * MIB)


def test_at_rest_is_the_median_after_the_last_request() -> None:
    assert at_rest(scenario()) == 120 * MIB


def broken(change: Callable[[Workload], object]) -> str:
    run = scenario()
    change(run)
    with pytest.raises(BaselineError) as caught:
        phases(run)
    return str(caught.value)


def fail(run: Workload) -> None:
    run.outcomes[1] = run.outcomes[1].model_copy(update={"status": 500})


def test_what_did_not_run_well_is_no_baseline() -> None:
    assert broken(lambda run: setattr(run, "trouble", "gone")) == "scenario/x: gone"
    assert broken(lambda run: setattr(run, "unobservable", "no")) == "scenario/x: no"
    assert broken(fail) == "scenario/x: two[0] failed: HTTP status 500"
    assert "the footprint cannot be read" in broken(lambda run: run.memory.clear())
    assert "a wait after it" in broken(lambda run: run.spans.clear())


def runs() -> dict[str, list[Workload]]:
    """All six; idle processes lie 3 MiB apart, peaks of the burst 10."""
    found = {name: [scenario(name)] for name in SCENARIOS}
    found[SCENARIOS[0]] = [scenario(SCENARIOS[0], rest=rest) for rest in (120, 121, 123)]
    found[SCENARIOS[1]] = [scenario(SCENARIOS[1], peak=peak) for peak in (310, 305, 300)]
    return found


def test_noise_is_twice_what_repeats_lay_apart() -> None:
    found = made(runs(), "ci")
    assert found.noise == 20 * MIB
    assert found.repeats == {
        "idle": [120 * MIB, 121 * MIB, 123 * MIB],
        "burst": [310 * MIB, 305 * MIB, 300 * MIB],
    }
    assert found.scenarios[SCENARIOS[1]].peak == 310 * MIB
    assert (found.server, found.model, found.scale) == ("conformance-engine", "tiny", "ci")


def test_equal_repeats_leave_a_little_noise() -> None:
    found = runs()
    found[SCENARIOS[0]] = found[SCENARIOS[0]][:1]
    found[SCENARIOS[1]] = found[SCENARIOS[1]][:1]
    assert made(found, "ci").noise == 4 * MIB


def test_a_missing_scenario_is_named() -> None:
    found = runs()
    del found["scenario/churn"]
    with pytest.raises(BaselineError, match="not run: scenario/churn"):
        made(found, "ci")


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = made(runs(), "ci")
    path = write(tmp_path / "new", "mine", found)
    assert path == tmp_path / "new" / "mine.json"
    assert read(tmp_path / "new", "mine") == found


@pytest.mark.parametrize("name", ["", "../x", "Mine", ".hidden"])
def test_a_name_is_a_file_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(BaselineError, match="expected a name of a-z"):
        place(tmp_path, name)


def test_a_baseline_that_nobody_recorded_names_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="recorded: none"):
        read(tmp_path, "mine")
    write(tmp_path, "other", made(runs(), "ci"))
    with pytest.raises(BaselineError, match="recorded: other"):
        read(tmp_path, "mine")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "format 2; this version reads 1"),
        ({"noise": "much"}, "noise: Input should be a valid integer"),
        ({"more": 1}, "more: Extra inputs are not permitted"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = write(tmp_path, "mine", made(runs(), "ci"))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(BaselineError, match=f"mine.json: not a baseline: {reason}"):
        read(tmp_path, "mine")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BaselineError, match="cannot be written"):
        write(tmp_path / "file", "mine", made(runs(), "ci"))


class Run:
    """Stands in for a session: each repeat gives the next workload of a scenario."""

    def __init__(self, found: dict[str, list[Workload]]) -> None:
        self.options = SimpleNamespace(scale="ci")
        self.found = {name: list(one) for name, one in found.items()}

    def repeat(self, loaded: Any, number: int) -> Workload:
        if not self.found[loaded.spec.id]:
            raise BrokenWorkload("the server did not come up")
        return self.found[loaded.spec.id].pop(0)


def items(names: tuple[str, ...] = SCENARIOS) -> list[Any]:
    found = []
    for name in names:
        item = SpecItem.__new__(SpecItem)
        item.loaded = SimpleNamespace(spec=SimpleNamespace(id=name))  # type: ignore[assignment]
        found.append(item)
    return found


def test_a_recording_run_measures_all_six_and_repeats_two(tmp_path: Path) -> None:
    run: Any = Run(runs())
    lines = list(baselining.recorded(run, items(), "mine", tmp_path))
    assert [line.partition(":")[0] for line in lines] == [
        *["idle"] * 3,
        *["shared-prefix-burst"] * 3,
        *(name.removeprefix("scenario/") for name in SCENARIOS[2:]),
        "noise",
        "baseline",
    ]
    assert lines[3] == "shared-prefix-burst: MiB  idle 100  peak 310  after 200  settled 120  (3 samples)"
    assert lines[-2] == "noise: 20.0 MiB (repeats apart: idle 3.0, burst 10.0)"
    assert isinstance(read(tmp_path, "mine"), Baseline)


@pytest.mark.parametrize(
    ("names", "found", "reason"),
    [
        (SCENARIOS[1:], runs(), "scenario/idle not collected"),
        (SCENARIOS, {**runs(), "scenario/churn": []}, "the server did not come up"),
    ],
)
def test_a_recording_that_cannot_be_made_ends_the_run(
    tmp_path: Path, names: tuple[str, ...], found: dict[str, list[Workload]], reason: str
) -> None:
    run: Any = Run(found)
    with pytest.raises(pytest.exit.Exception, match=reason) as caught:
        list(baselining.recorded(run, items(names), "mine", tmp_path))
    assert caught.value.returncode == 1
    assert not list(tmp_path.iterdir())
