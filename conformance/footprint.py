"""How much memory a server's processes hold, in the unit that the operating system is honest about.

Knows process trees, Linux PSS (shared pages divided among those who share them), the macOS physical
footprint, and that memory on a GPU is another reading. Does not know what the memory is used for. Foot/1
compares such figures of one machine only.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from conformance.nvml import device_memory

_TREE_AGE = 1.0
"""Seconds for which a process tree is taken to be as it was: to walk it costs more than to measure it."""
_KIB = 1024
_PROC = Path("/proc")


def tree(root: int) -> list[int]:
    """The process and all that descend from it; empty when it is gone."""
    try:
        process = psutil.Process(root)
        return [root, *(child.pid for child in process.children(recursive=True))]
    except psutil.Error:
        return []


@dataclass(frozen=True)
class Reading:
    """Bytes held in process memory; those on a GPU apart, None where nothing tells of them."""

    bytes: int
    device: int | None = None


class Meter:
    """Reads the footprint of a process and its descendants, those that begin later included."""

    def __init__(self, root: int) -> None:
        self._root, self._pids, self._found = root, tree(root), time.monotonic()

    def read(self) -> Reading | None:
        """Now; None when all processes are gone."""
        if time.monotonic() - self._found > _TREE_AGE:
            self._pids, self._found = tree(self._root), time.monotonic()
        total = measure(self._pids)
        return Reading(total, device_memory(self._pids)) if total else None


def unreadable(root: int) -> str | None:
    """Why the footprint of a process cannot be read; None when it can."""
    if not tree(root):
        return f"there is no process {root} on this machine"
    if not measure([root]):
        return f"the memory of process {root} cannot be read: it belongs to another user"
    return None


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
