"""Memory of process trees: it sees what a process holds, and 0 for what is gone."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from conformance import footprint
from conformance.footprint import Meter, measure, tree, unreadable

MIB = 2**20
HOLD = "import sys; held = bytearray({mib} * 2**20); print('up', flush=True); sys.stdin.read()"
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"


@contextmanager
def running(script: str) -> Iterator[int]:
    """A process that has said `up`."""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process.pid
        assert process.stdin is not None
        process.stdin.close()


def test_what_a_process_holds_is_seen() -> None:
    with running(HOLD.format(mib=0)) as small, running(HOLD.format(mib=64)) as large:
        apart = measure([large]) - measure([small])
    assert 56 * MIB < apart < 72 * MIB


def test_a_tree_counts_its_children() -> None:
    with running(PARENT.format(child=HOLD.format(mib=64))) as parent:
        pids = tree(parent)
        assert pids[0] == parent
        assert len(pids) == 2
        assert measure(pids) > 60 * MIB
        assert measure([parent]) < 60 * MIB


def _gone() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_is_gone_holds_nothing() -> None:
    pid = _gone()
    assert tree(pid) == []
    assert measure([pid]) == 0
    assert measure([]) == 0


def test_elsewhere_the_resident_size_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "plan9")
    with running(HOLD.format(mib=64)) as pid:
        assert abs(measure([pid]) - psutil.Process(pid).memory_info().rss) < MIB
    assert measure([_gone()]) == 0


class _Library:
    """Stands in for libproc: writes the footprint where the real call would."""

    def __init__(self, code: int) -> None:
        self.code = code

    def proc_pid_rusage(self, pid: int, flavor: int, usage: object) -> int:
        target = ctypes.cast(usage, ctypes.POINTER(ctypes.c_uint64))  # type: ignore[arg-type]
        # ri_phys_footprint: 16 bytes of uuid, then seven numbers stand before it.
        target[2 + 7] = 123 * MIB
        return self.code


@pytest.mark.parametrize(("code", "expected"), [(0, 123 * MIB), (-1, 0)])
def test_macos_tells_the_physical_footprint(
    monkeypatch: pytest.MonkeyPatch, code: int, expected: int
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda path: _Library(code))
    footprint._libproc.cache_clear()
    assert measure([os.getpid()]) == expected


def test_the_structure_is_as_large_as_apple_s() -> None:
    assert ctypes.sizeof(footprint._Usage) == 16 + 10 * 8


def test_a_meter_finds_processes_that_begin_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "_TREE_AGE", 0.0)
    with running(PARENT.format(child=HOLD.format(mib=64))) as parent:
        monkeypatch.setattr(footprint, "tree", lambda root: [root])
        meter = Meter(parent)
        alone = meter.read()
        monkeypatch.undo()
        monkeypatch.setattr(footprint, "_TREE_AGE", 0.0)
        both = meter.read()
    assert alone is not None
    assert both is not None
    assert both.bytes - alone.bytes > 56 * MIB


def test_a_meter_keeps_memory_on_a_gpu_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "device_memory", lambda pids: 900 * MIB)
    with running(HOLD.format(mib=0)) as pid:
        reading = Meter(pid).read()
    assert reading is not None
    assert reading.device == 900 * MIB
    assert reading.bytes < 100 * MIB


def test_a_meter_of_what_is_gone_reads_nothing() -> None:
    assert Meter(_gone()).read() is None


def test_why_a_process_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unreadable(os.getpid()) is None
    gone = _gone()
    assert unreadable(gone) == f"there is no process {gone} on this machine"
    monkeypatch.setattr(footprint, "measure", lambda pids: 0)
    assert unreadable(1) == "the memory of process 1 cannot be read: it belongs to another user"
