"""How much memory a server's processes hold, in the unit that the operating system is honest about.

Knows process trees, Linux PSS (shared pages divided among those who share them) and the macOS physical
footprint. Does not know what the memory is used for. Foot/1 compares such figures of one machine only.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import psutil

_KIB = 1024
_PROC = Path("/proc")


def tree(root: int) -> list[int]:
    """The process and all that descend from it; empty when it is gone."""
    try:
        process = psutil.Process(root)
        return [root, *(child.pid for child in process.children(recursive=True))]
    except psutil.Error:
        return []


def measure(pids: Iterable[int]) -> int:
    """Bytes held by the processes together; those that ended meanwhile count as 0."""
    one = _MEASURES.get(sys.platform, _resident)
    return sum(map(one, pids))


def _pss(pid: int) -> int:
    try:
        rollup = (_PROC / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return 0
    kilobytes = [int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")]
    return sum(kilobytes) * _KIB


def _resident(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


class _Usage(ctypes.Structure):
    """`struct rusage_info_v0` of <sys/resource.h>."""

    _fields_ = (
        ("uuid", ctypes.c_uint8 * 16),
        *((name, ctypes.c_uint64) for name in ("user", "system", "idle_wakeups", "wakeups", "pageins")),
        *((name, ctypes.c_uint64) for name in ("wired", "resident", "footprint", "start", "exit")),
    )


@cache
def _libproc() -> ctypes.CDLL:
    return ctypes.CDLL("/usr/lib/libproc.dylib")


def _physical_footprint(pid: int) -> int:
    usage = _Usage()
    failed = _libproc().proc_pid_rusage(pid, 0, ctypes.byref(usage))
    return 0 if failed else int(usage.footprint)


_MEASURES = {"linux": _pss, "darwin": _physical_footprint}
