"""Workers that run specs beside each other: which items belong on one of them, and which cores each has.

Knows node ids, workers by number, and the operating system's affinity masks. Does not know what items do.

MLX hands every operation to a thread of its own. Where that thread sleeps on another core, to wake it costs
more than most operations of a small model do, and engines that share cores wake each other's: two workers
that keep to a core each take three quarters of the time (docs/decisions/0011).
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress


def workload_of(nodeid: str, is_shared: bool) -> str:
    """What must not run on two workers: file and rung, or everything on one shared server; else nothing."""
    path, _, name = nodeid.partition("::")
    if not path.endswith((".yaml", ".yml")):
        return ""
    rung = "".join(name.partition("@")[0].partition("[")[1:])
    return "endpoint" if is_shared else path + rung


def fault_of(nodeid: str) -> str:
    """`fault[name]` where an item is a fault's: those of one share an engine; else nothing."""
    name = nodeid.rpartition("::")[2].partition("@")[0]
    return name if name.startswith("fault[") else ""


def keep_to_share(worker: str, workers: int) -> None:
    """Keeps this process, and the engines that it will start, to a worker's share of the cores it may use.

    `worker`: as xdist names them, `gw0` and so on. One that replaces a crashed one has a higher number, and
    may have its core in common with another. Does nothing for names that a user gave.
    """
    number = worker.removeprefix("gw")
    if number.isdecimal():
        _keep_to(share(_cores(), int(number), workers))


@contextmanager
def one_core() -> Iterator[list[int]]:
    """Keeps this thread, and those that it starts meanwhile, to one core, and gives the others that it might
    have used: for an engine that is turned by hand, which never has two things to do. Those threads stay
    there afterwards."""
    before = _cores()
    own = random.sample(before, min(1, len(before)))
    with kept_to(own):
        yield [core for core in before if core not in own]


@contextmanager
def kept_to(cores: Sequence[int]) -> Iterator[None]:
    """Keeps this thread to these cores for a while, and for good the threads and processes that it starts
    meanwhile."""
    before = _cores()
    _keep_to(cores)
    try:
        yield
    finally:
        _keep_to(before)


def share(cores: Sequence[int], worker: int, workers: int) -> Sequence[int]:
    """The cores of one worker: as many for each as can be; one for several where there are too few."""
    place, count = worker % workers, len(cores)
    if count < workers:
        return cores[place % count :][:1] if count else []
    return cores[place * count // workers : (place + 1) * count // workers]


def _cores() -> list[int]:
    """Those that this process may use; none where a system has no such masks (macOS)."""
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []


def _keep_to(cores: Sequence[int]) -> None:
    """As far as it is allowed: it saves time, and nothing depends on it."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setaffinity(0, cores)
