"""The simulated accelerator of ``deviceguard.simulate``."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from deviceguard.backends.backend import Backend
from deviceguard.backends.tracing import Tracing
from deviceguard.backends.xla import XlaBackend


class SimulatedBackend(Backend):
    """Labels on host tensors; speaks for the device types under simulation while one is active."""

    name = "simulated"
    has_figures = False

    def owns(self, device_type: str) -> bool:  # noqa: D102
        return device_type in self._types()

    def is_present(self) -> bool:  # noqa: D102
        return bool(self._types())

    def device_name(self) -> str:  # noqa: D102
        return next(iter(sorted(self._types())), self.name)

    def _types(self) -> frozenset[str]:
        state: Any = sys.modules.get("deviceguard.simulate.state")
        return state.device_types() if state is not None and state.active() else frozenset()


class SimulatedXlaBackend(SimulatedBackend):
    """A simulated device that collects a graph: answers as the real one."""

    replaces_parameters = XlaBackend.replaces_parameters
    refuses_host_operands = XlaBackend.refuses_host_operands
    traced = XlaBackend.traced
    tracing: ClassVar[Tracing | None] = XlaBackend.tracing

    def was_asked_for(self) -> bool:  # noqa: D102
        return self.is_present()  # as with the real one, whose program has imported it

    def _types(self) -> frozenset[str]:
        return super()._types() & {XlaBackend.name}


def running_simulation() -> object | None:
    """The simulation that is on now, as an object to compare with; None without one. Cheap enough for every event."""
    state: Any = sys.modules.get("deviceguard.simulate.state")
    return state.PROCESS.simulation if state is not None else None


def plays_device(mode: object) -> bool:
    """True for the function mode of a simulation, which stands for the device: nothing may come between the two."""
    return type(mode).__module__.startswith("deviceguard.simulate.")
