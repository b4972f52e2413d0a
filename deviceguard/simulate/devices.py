"""From what a program writes for a device to the device it means."""

from __future__ import annotations

import functools
from typing import Any

import torch

from deviceguard.simulate.state import Simulation, running

#: The host, passed to PyTorch wherever the program named a simulated device.
HOST = torch.device("cpu")

_FORKED = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method"
)


@functools.lru_cache(maxsize=256)
def device(kind: str, index: int) -> torch.device:
    """One object per simulated device."""
    return torch.device(kind, index)


def simulated(named: Any) -> torch.device | None:
    """The simulated device that ``named`` means, with its index; None when it means another device or none."""
    if named is None:
        return None
    simulation = running()
    if isinstance(named, bool):
        return None
    if isinstance(named, int):
        return _checked(simulation, named)
    parsed = torch.device(named) if isinstance(named, str) else named
    if parsed.type != simulation.type:
        return None
    return _checked(simulation, simulation.current.index if parsed.index is None else parsed.index)


def index_of(named: Any, *, optional: bool = True) -> int:
    """The index in a call such as ``torch.cuda.memory_allocated(device)``."""
    simulation = running()
    if named is None:
        if not optional:
            raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{named}")
        return simulation.current.index
    if isinstance(named, int):
        return named
    parsed = torch.device(named)
    if parsed.type != simulation.type:
        raise ValueError(f"Expected a {simulation.type} device, but got: {parsed}")
    return simulation.current.index if parsed.index is None else parsed.index


def _checked(simulation: Simulation, index: int) -> torch.device:
    if not simulation.initialized:
        if simulation.type == "cuda" and simulation.count() == 0:
            raise RuntimeError("No CUDA GPUs are available")
        simulation.initialize()
    if simulation.forked() and simulation.type == "cuda":
        raise RuntimeError(_FORKED)
    count = simulation.count()
    if not 0 <= index < count:
        raise RuntimeError(f"Device index value {index} is out of index range [0, {count})")
    return device(simulation.type, index)
