"""The simulated accelerator of ``deviceguard.simulate``."""

from __future__ import annotations

import sys
from typing import Any

from deviceguard.backends.backend import Backend


class SimulatedBackend(Backend):
    """Labels on host tensors; speaks for the device types under simulation while one is active."""

    name = "simulated"
    has_figures = False

    def owns(self, device_type: str) -> bool:  # noqa: D102
        return device_type in self._types()

    def is_present(self) -> bool:  # noqa: D102
        return bool(self._types())

    def was_asked_for(self) -> bool:  # noqa: D102
        return "xla" in self._types()  # as with the real one, whose program has imported it

    def device_name(self) -> str:  # noqa: D102
        return next(iter(sorted(self._types())), self.name)

    def _types(self) -> frozenset[str]:
        state: Any = sys.modules.get("deviceguard.simulate.state")
        return state.device_types() if state is not None and state.active() else frozenset()


def running_simulation() -> object | None:
    """The simulation that is on now, as an object to compare with; None without one. Cheap enough for every event."""
    state: Any = sys.modules.get("deviceguard.simulate.state")
    return state.PROCESS.simulation if state is not None else None
