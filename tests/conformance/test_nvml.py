"""Device memory: what a made-up driver's library tells, and silence where there is none."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator

import pytest

from conformance import nvml
from conformance.nvml import device_memory

MIB = 2**20


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    nvml._library.cache_clear()
    yield
    nvml._library.cache_clear()


class Library:
    """Stands in for libnvidia-ml: `devices` holds pid and bytes of each computing process."""

    def __init__(self, *devices: dict[int, int]) -> None:
        self.devices = devices
        self.codes = {"init": 0, "count": 0, "handle": 0, "processes": 0}

    def nvmlInit_v2(self) -> int:
        return self.codes["init"]

    def nvmlDeviceGetCount_v2(self, count: object) -> int:
        ctypes.cast(count, ctypes.POINTER(ctypes.c_uint))[0] = len(self.devices)  # type: ignore[arg-type]
        return self.codes["count"]

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: object) -> int:
        # A handle is never null.
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_uint64))[0] = index + 1  # type: ignore[arg-type]
        return self.codes["handle"]

    def nvmlDeviceGetComputeRunningProcesses_v3(
        self, device: ctypes.c_void_p, count: object, found: ctypes.Array[nvml._Process]
    ) -> int:
        room = ctypes.cast(count, ctypes.POINTER(ctypes.c_uint))  # type: ignore[arg-type]
        told = self.devices[(device.value or 0) - 1]
        space, room[0] = room[0], len(told)
        if len(told) > space:
            return 7
        for place, (pid, used) in enumerate(told.items()):
            found[place].pid, found[place].used = pid, used
        return self.codes["processes"]


def installed(monkeypatch: pytest.MonkeyPatch, library: Library) -> Library:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    return library


def test_the_memory_of_a_tree_on_all_devices_is_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, Library({10: 100 * MIB, 99: 7 * MIB}, {11: 50 * MIB, 10: 1 * MIB}))
    assert device_memory([10, 11]) == 151 * MIB


def test_processes_that_the_driver_does_not_know_have_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, Library({99: 7 * MIB}))
    assert device_memory([10]) is None


def test_memory_that_must_not_be_told_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, Library({10: 2**64 - 1}))
    assert device_memory([10]) is None


def test_more_processes_than_expected_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, Library(dict.fromkeys(range(1, 101), MIB)))
    assert device_memory([100]) == MIB


@pytest.mark.parametrize("call", ["init", "count", "handle", "processes"])
def test_a_call_that_fails_gives_no_figure(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    library = installed(monkeypatch, Library({10: MIB}))
    library.codes[call] = 3
    assert device_memory([10]) is None


def test_processes_that_never_stop_coming_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    library = installed(monkeypatch, Library({10: MIB}))
    library.codes["processes"] = 7
    assert device_memory([10]) is None


def test_without_the_library_there_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Library:
        raise OSError(name)

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert device_memory([10]) is None


def test_systems_without_such_a_driver_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, Library({10: MIB}))
    monkeypatch.setattr(sys, "platform", "darwin")
    assert device_memory([10]) is None


def test_the_structure_is_as_large_as_nvidia_s() -> None:
    assert ctypes.sizeof(nvml._Process) == 24
