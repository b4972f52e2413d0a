"""How busy the device is, read through NVML where ``nvidia-ml-py`` is installed. Every answer may be None."""

from __future__ import annotations

import dataclasses
import importlib
import os
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """One look at a device.

    Attributes:
        name: its model.
        utilisation: share of the last second in which it ran anything, 0 to 1.
        memory: share of its memory that is in use, by anybody.
        others: number of other processes on it.
        clock: its clock as a share of the fastest.
    """

    name: str
    utilisation: float
    memory: float
    others: int
    clock: float


def look(index: int = 0, uuid: str | None = None) -> Load | None:
    """The load of a device now; None without the library, the driver or the device.

    Args:
        index: its number for NVML, which counts all devices of the machine.
        uuid: its identity, which holds too where the program sees only some of them (``CUDA_VISIBLE_DEVICES``).
    """
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:
        return None
    try:
        by_uuid = uuid is not None and hasattr(nvml, "nvmlDeviceGetHandleByUUID")
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid) if by_uuid else nvml.nvmlDeviceGetHandleByIndex(index)
        return _look(nvml, handle)
    except Exception:
        return None
    finally:
        _shut_down(nvml)


def _look(nvml: Any, handle: Any) -> Load:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    processes = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    name = nvml.nvmlDeviceGetName(handle)
    fastest = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
    return Load(
        name=name.decode() if isinstance(name, bytes) else str(name),
        utilisation=nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        memory=memory.used / memory.total,
        others=len(processes - {os.getpid()}),
        clock=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) / max(1, fastest),
    )


def _shut_down(nvml: Any) -> None:
    try:
        nvml.nvmlShutdown()
    except Exception:
        pass
