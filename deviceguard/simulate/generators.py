"""Random number generators of a simulated device: host generators with a label.

A simulated device draws from the host's default generator, so that a run draws the numbers which a CPU run draws. A
generator that the program makes itself (``torch.Generator(device="cuda")``) is a stream of its own, as it is there.
"""

from __future__ import annotations

from typing import Any

import torch

from deviceguard.simulate.devices import HOST, simulated
from deviceguard.simulate.state import PROCESS

RealGenerator = torch._C.Generator


class _AnyGenerator(type(RealGenerator)):  # type: ignore[misc]
    """Makes every generator an instance, as ``isinstance(x, torch.Generator)`` expects."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, RealGenerator)


class Generator(RealGenerator, metaclass=_AnyGenerator):
    """Stands in for ``torch.Generator`` while a simulation is on."""

    label: torch.device | None
    asked: torch.device | None

    def __new__(cls, device: Any = None) -> Generator:
        """Make a host generator; remember the device that was asked for."""
        label = simulated(device) if PROCESS.simulation is not None else None
        if label is not None and label.type == "xla":
            raise RuntimeError("XLA device type not an accelerator.")
        new: Any = RealGenerator.__new__
        made: Generator = new(cls, HOST if label is not None or device is None else device)
        made.label = label
        made.asked = None if label is None else label if isinstance(device, int) else torch.device(device)
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that was asked for."""
        return HOST if self.asked is None else self.asked


def label_of(generator: Any) -> torch.device | None:
    """The simulated device of a generator."""
    return getattr(generator, "label", None)


def translated(kwargs: dict[str, Any], target: torch.device | None) -> dict[str, Any]:
    """Refuse a generator of another device type, in PyTorch's words."""
    label = label_of(kwargs["generator"])
    if target is not None and target.type == "xla":
        return kwargs  # host generators are all there are, and are taken
    wanted, found = ("cpu" if place is None else place.type for place in (target, label))
    if wanted != found:
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{found}'")
    return kwargs
