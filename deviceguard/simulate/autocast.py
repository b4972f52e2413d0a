"""Autocast for a simulated device.

The arithmetic runs on CPU kernels, so autocast for the device has to be PyTorch's CPU autocast with the device's dtype.
The two states are exchanged: while a simulation is on, the state which the program sets for the device is kept in the
CPU's slot, and the one it sets for the CPU in the device's slot, which a CPU build never reads. Calls whose tensors are
all on the host run with the host's own state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from deviceguard.simulate.state import PROCESS

_enabled = torch._C.is_autocast_enabled
_set_enabled = torch._C.set_autocast_enabled
_dtype = torch._C.get_autocast_dtype
_set_dtype = torch._C.set_autocast_dtype


def _slot(device_type: str) -> str:
    """The real slot in which the state of a type is kept."""
    simulation = PROCESS.simulation
    if simulation is None:
        return device_type
    return {simulation.type: "cpu", "cpu": simulation.type}.get(device_type, device_type)


class _Host(threading.local):
    """Whether this thread runs something under the state of the host."""

    running = False


HOST = _Host()


def run_on_host(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a call that has nothing to do with the device under the autocast state of the host."""
    other = _slot("cpu")
    device_on, host_on = _enabled("cpu"), _enabled(other)
    if not device_on and not host_on:
        return func(*args, **kwargs)
    device_dtype = _dtype("cpu")
    _set_enabled("cpu", host_on)
    _set_dtype("cpu", _dtype(other))
    HOST.running = True
    try:
        return func(*args, **kwargs)
    finally:
        HOST.running = False
        _set_enabled("cpu", device_on)
        _set_dtype("cpu", device_dtype)


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """``torch.is_autocast_enabled``: without an argument it asks for CUDA."""
    return _enabled(_slot(device_type or "cuda"))


def set_autocast_enabled(*args: Any) -> None:
    """``torch.set_autocast_enabled(type, enabled)`` and the old form ``(enabled)``."""
    device_type, enabled = args if len(args) == 2 else ("cuda", args[0])
    _set_enabled(_slot(device_type), enabled)


def get_autocast_dtype(device_type: str) -> torch.dtype:
    """``torch.get_autocast_dtype``."""
    return _dtype(_slot(device_type))


def set_autocast_dtype(device_type: str, dtype: torch.dtype) -> None:
    """``torch.set_autocast_dtype``."""
    _set_dtype(_slot(device_type), dtype)


def replacements() -> dict[str, Callable[..., Any]]:
    """The functions of ``torch`` that are exchanged, the old spellings included."""
    return {
        "is_autocast_enabled": is_autocast_enabled,
        "set_autocast_enabled": set_autocast_enabled,
        "get_autocast_dtype": get_autocast_dtype,
        "set_autocast_dtype": set_autocast_dtype,
        "is_autocast_cpu_enabled": lambda: is_autocast_enabled("cpu"),
        "set_autocast_cpu_enabled": lambda enabled: set_autocast_enabled("cpu", enabled),
        "get_autocast_cpu_dtype": lambda: get_autocast_dtype("cpu"),
        "set_autocast_cpu_dtype": lambda dtype: set_autocast_dtype("cpu", dtype),
        "get_autocast_gpu_dtype": lambda: get_autocast_dtype("cuda"),
        "set_autocast_gpu_dtype": lambda dtype: set_autocast_dtype("cuda", dtype),
    }


class SwappedState:
    """Exchanges the two states for the life of a simulation in one thread."""

    def __init__(self, device_type: str) -> None:
        self._type = device_type

    def exchange(self) -> None:
        """Exchange; called again, exchange back."""
        host, device = (_enabled("cpu"), _dtype("cpu")), (_enabled(self._type), _dtype(self._type))
        _set_enabled("cpu", device[0])
        _set_dtype("cpu", device[1])
        _set_enabled(self._type, host[0])
        _set_dtype(self._type, host[1])
