"""On one core the engine's threads take turns as they wait; elsewhere nothing changes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from engine import cores

_TOLD = """
import os, sys, threading
if sys.argv[1] == "one":
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
from engine import cores
policies = []
def run():
    cores.take_turns()
    other = threading.Thread(target=lambda: policies.append(os.sched_getscheduler(0)))
    other.start()
    other.join()
thread = threading.Thread(target=run)
thread.start()
thread.join()
print([policy == os.SCHED_BATCH for policy in (*policies, os.sched_getscheduler(0))])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these policies")
@pytest.mark.parametrize(("how", "told"), [("one", "[True, False]"), ("all", "[False, False]")])
def test_a_thread_with_one_core_takes_turns_with_those_it_starts(how: str, told: str) -> None:
    """And with no other: the one that answers clients is not among them."""
    if how == "all" and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("has one core alone")
    done = subprocess.run(
        [sys.executable, "-c", _TOLD, how], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == told


def test_where_it_is_refused_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse(pid: int, policy: int, param: object) -> None:
        asked.append(policy)
        raise PermissionError

    monkeypatch.setattr(sys, "platform", "linux")
    for name, value in {
        "sched_getaffinity": lambda pid: {4},
        "sched_setscheduler": refuse,
        "sched_param": lambda priority: priority,
        "SCHED_BATCH": 3,
    }.items():
        monkeypatch.setattr(os, name, value, raising=False)
    cores.take_turns()
    monkeypatch.setattr(sys, "platform", "darwin")
    cores.take_turns()
    assert asked == [3]
