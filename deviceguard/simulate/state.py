"""The one state of the simulation in this process, and the questions others may ask about it.

This module imports no torch, so that asking ``active()`` is free for a process that never simulates.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

from deviceguard.simulate.spec import Spec

#: Spawned processes read the specification from here.
ENVIRONMENT_VARIABLE = "DEVICEGUARD_SIMULATE"


class _CurrentDevice(threading.local):
    """The current device is a property of the thread, as on the real runtime."""

    index: int = 0


@dataclass(slots=True)
class Simulation:
    """One running simulation."""

    spec: Spec
    memory: int | None = None
    owner: int = field(default_factory=os.getpid)
    initialized: bool = False
    current: _CurrentDevice = field(default_factory=_CurrentDevice)
    frozen_count: int | None = None

    @property
    def type(self) -> str:
        """The simulated device type."""
        return self.spec.type

    def count(self) -> int:
        """How many devices the program may see; settled when the device is first used, as on the real runtime."""
        if self.frozen_count is not None:
            return self.frozen_count
        return min(self.spec.count, _visible_devices()) if self.type == "cuda" else self.spec.count

    def initialize(self) -> None:
        """Note the first use of the device."""
        if not self.initialized:
            self.frozen_count = self.count()
            self.initialized = True

    def forked(self) -> bool:
        """Whether this process is a fork of one which had already used the device."""
        return self.initialized and os.getpid() != self.owner


@dataclass(slots=True)
class _Process:
    """The slot that holds the running simulation."""

    simulation: Simulation | None = None


PROCESS = _Process()


def active() -> bool:
    """Whether a simulation is on in this process."""
    return PROCESS.simulation is not None


def device_types() -> frozenset[str]:
    """The device types that are simulated now."""
    return frozenset() if PROCESS.simulation is None else frozenset({PROCESS.simulation.type})


def device_count(device_type: str) -> int:
    """How many devices of the type are simulated now; 0 for a type that is not."""
    simulation = PROCESS.simulation
    return simulation.count() if simulation is not None and simulation.type == device_type else 0


def running() -> Simulation:
    """The running simulation, for the parts that exist only while there is one."""
    if PROCESS.simulation is None:
        raise RuntimeError("no simulated device: this object was made inside deviceguard.simulate(...) and outlived it")
    return PROCESS.simulation


def _visible_devices() -> int:
    """How many entries ``CUDA_VISIBLE_DEVICES`` lets through: it ends at the first entry that names no device."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return 1 << 30
    visible = 0
    for entry in text.split(","):
        name = entry.strip()
        if not name or name.startswith("-"):
            break
        visible += 1
    return visible
