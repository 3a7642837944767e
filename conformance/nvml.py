"""Device memory of processes on NVIDIA GPUs, by the driver's own library where it is installed.

Knows the few calls of NVML that say which process holds how many bytes. Does not know process trees, nor what
the memory is used for. It is a reading of its own: device memory is never added to process memory.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Collection
from functools import cache
from typing import Any

_LIBRARY = {"linux": "libnvidia-ml.so.1", "win32": "nvml.dll"}
_UNKNOWN = 2**64 - 1
"""What NVML says for a process whose memory it must not tell."""
_TOO_SMALL = 7
"""NVML_ERROR_INSUFFICIENT_SIZE: more processes than there was room for."""
_ROOM = 64


class _Process(ctypes.Structure):
    """`nvmlProcessInfo_t` of nvml.h, version 2 and later."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def device_memory(pids: Collection[int]) -> int | None:
    """Bytes that the processes hold on all devices together.

    None where there is no NVIDIA driver, or where it does not tell of any of them: in a container it may
    know processes by other numbers.
    """
    library = _library()
    if library is None:
        return None
    used = [
        found.used
        for device in _devices(library)
        for found in _processes(library, device)
        if found.pid in pids and found.used != _UNKNOWN
    ]
    return sum(used) if used else None


@cache
def _library() -> Any:
    """The library, initialised once; None where there is none."""
    name = _LIBRARY.get(sys.platform)
    try:
        library = ctypes.CDLL(name) if name else None
    except OSError:
        return None
    return library if library is not None and library.nvmlInit_v2() == 0 else None


def _devices(library: Any) -> list[ctypes.c_void_p]:
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    handles = [ctypes.c_void_p() for _ in range(count.value)]
    return [h for i, h in enumerate(handles) if not library.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(h))]


def _processes(library: Any, device: ctypes.c_void_p) -> list[_Process]:
    """Computing processes; none where the device does not say."""
    room = _ROOM
    for _ in range(2):
        count, found = ctypes.c_uint(room), (_Process * room)()
        code = library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), found)
        if code != _TOO_SMALL:
            return list(found[: count.value]) if code == 0 else []
        room = count.value + _ROOM
    return []
