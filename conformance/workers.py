"""Workers that run specs beside each other: which items belong on one of them, and which cores each has.

Knows node ids, workers by number, and the operating system's affinity masks. Does not know what items do.

MLX hands every operation to a thread of its own. Where that thread sleeps on another core, to wake it costs
more than most operations of a small model do, and engines that share cores wake each other's: two workers
that keep to a core each take three quarters of the time (docs/decisions/0011).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


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

    `worker`: as xdist names them, `gw0` and so on; one that replaces a crashed one has a higher number.
    """
    _keep_to(share(_cores(), int(worker.removeprefix("gw")), workers))


@contextmanager
def one_core() -> Iterator[None]:
    """Keeps this thread, and those that it starts meanwhile, to one core: for an engine that is turned by
    hand, which never has two things to do."""
    before = _cores()
    _keep_to(before[os.getpid() % len(before) :][:1] if before else [])
    try:
        yield
    finally:
        _keep_to(before)


def share(cores: Sequence[int], worker: int, workers: int) -> Sequence[int]:
    """The cores of one worker: as many for each; where there are more workers than cores, one for several."""
    each, place = max(1, len(cores) // workers), worker % workers
    first = place * each % len(cores) if cores else 0
    return cores[first : first + each]


def _cores() -> list[int]:
    """Those that this process may use; none where a system has no such masks (macOS)."""
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []


def _keep_to(cores: Sequence[int]) -> None:
    if sys.platform == "linux":
        os.sched_setaffinity(0, cores)
