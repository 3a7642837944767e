"""What belongs on one worker, and which cores it keeps to."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from conformance import workers
from conformance.workers import fault_of, keep_to_share, one_core, share, workload_of
from tests.conformance.fakeback import CASE


@pytest.mark.parametrize(
    ("nodeid", "is_shared", "group"),
    [
        ("specs/a.yaml::counted", False, "specs/a.yaml"),
        ("specs/a.yaml::counted@area/a", False, "specs/a.yaml"),
        ("specs/a.yaml::counted[n=1G]", False, "specs/a.yaml[n=1G]"),
        ("specs/a.yaml::counted[n=1G]@area/a[n=1G]", False, "specs/a.yaml[n=1G]"),
        ("specs/a.yaml::counted[n=1G]", True, "endpoint"),
        ("tests/test_a.py::test_it", True, ""),
    ],
)
def test_what_stays_on_one_worker(nodeid: str, is_shared: bool, group: str) -> None:
    assert workload_of(nodeid, is_shared) == group


@pytest.mark.parametrize(
    ("nodeid", "own"),
    [
        ("specs/a.yaml::fault[lies]", "fault[lies]"),
        ("specs/a.yaml::fault[lies]@fault[lies]", "fault[lies]"),
        ("specs/a.yaml::counted", ""),
    ],
)
def test_what_belongs_to_a_fault(nodeid: str, own: str) -> None:
    assert fault_of(nodeid) == own


@pytest.mark.parametrize(
    ("cores", "workers", "shares"),
    [
        ([0, 1], 2, [[0], [1]]),
        ([0, 1], 1, [[0, 1]]),
        ([2, 3, 6, 7], 2, [[2, 3], [6, 7]]),
        ([0, 1, 2, 3, 4], 2, [[0, 1], [2, 3, 4]]),
        (list(range(5)), 4, [[0], [1], [2], [3, 4]]),
        ([0, 1], 4, [[0], [1], [0], [1]]),
        ([5], 3, [[5], [5], [5]]),
    ],
)
def test_each_worker_has_its_share(cores: list[int], workers: int, shares: list[list[int]]) -> None:
    assert [share(cores, worker, workers) for worker in range(workers)] == shares
    assert share(cores, workers, workers) == shares[0], "one that replaces a crashed one"


def test_one_core_is_given_back() -> None:
    before = workers._cores()
    with one_core():
        assert len(workers._cores()) == min(1, len(before))
    assert workers._cores() == before


def test_without_masks_nothing_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[object] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: kept.append(cores), raising=False)
    monkeypatch.setattr(sys, "platform", "darwin")
    with one_core():
        keep_to_share("gw0", 2)
    assert (workers._cores(), share([], 0, 2), kept) == ([], [], [])


def test_where_masks_are_refused_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def refuse(pid: int, cores: object) -> None:
        asked.append(cores)
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refuse, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    keep_to_share("gw1", 2)
    keep_to_share("a-name-of-mine", 2)
    assert asked == [[5]]


_TOLD = """
import os
def pytest_runtest_call(item):
    with open("cores", "a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], sorted(os.sched_getaffinity(0)), file=file)
"""


@pytest.mark.skipif(len(workers._cores()) < 2, reason="has one core alone")
@pytest.mark.parametrize(("args", "is_kept"), [((), True), (("--endpoint", "http://127.0.0.1:1"), False)])
def test_workers_with_engines_of_their_own_keep_to_their_cores(
    pytester: pytest.Pytester, args: tuple[str, ...], is_kept: bool
) -> None:
    """A run on one server has no engines to keep apart."""
    for name in ("one", "two"):
        path = pytester.path / "specs" / "area" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CASE.replace("area/case", f"area/{name}"))
    pytester.makeconftest(_TOLD)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "specs/area/one.yaml",
        "specs/area/two.yaml",
        "-n",
        "2",
        "--request-timeout",
        "1",
        *args,
    ]
    subprocess.run(command, cwd=pytester.path, capture_output=True, timeout=120, check=False)
    told = dict(line.split(maxsplit=1) for line in (pytester.path / "cores").read_text().splitlines())
    everything = workers._cores()
    if is_kept:
        expected = {f"gw{n}": str(list(share(everything, n, 2))) for n in range(2)}
    else:
        expected = {"gw0": str(everything), "gw1": str(everything)}
    assert told.items() <= expected.items()
    assert told
