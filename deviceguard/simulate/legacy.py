"""The old spellings of a device: ``torch.cuda.FloatTensor``, ``torch.set_default_tensor_type``, ``torch.device(0)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deviceguard.simulate.devices import device, simulated
from deviceguard.simulate.labels import device_of, label_tensor, quiet
from deviceguard.simulate.patching import Patches
from deviceguard.simulate.placement_words import TYPE_NAMES
from deviceguard.simulate.state import running

if TYPE_CHECKING:
    from deviceguard.simulate.mode import Call, SimulationMode, Special


class _TensorType(type):
    """A class whose instances are tensors of one dtype on the device."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        with quiet():
            return isinstance(instance, Tensor) and instance.dtype is cls.dtype and device_of(instance) is not None


def _tensor_types(mode: SimulationMode) -> dict[str, Any]:
    """Stand-ins for ``torch.cuda.FloatTensor`` and its like."""

    def made_by(dtype: torch.dtype) -> Any:
        def new(cls: Any, *args: Any, **kwargs: Any) -> Tensor:
            with quiet():
                made = torch.Tensor(*args, **kwargs).to(dtype, copy=True)
                target = simulated(running().type)
                if target is not None:
                    label_tensor(made, target, mode.memory)
            return made

        return new

    return {
        name: _TensorType(name, (), {"__new__": made_by(dtype), "__module__": "torch.cuda", "dtype": dtype})
        for dtype, name in TYPE_NAMES.items()
        if not name.startswith("Complex")
    }


def numbered(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """``torch.device(1)``: a number means the accelerator."""
    number = args[0] if args else kwargs.get("index")
    if type(number) is int and "type" not in kwargs:
        return device(running().type, number)
    made: torch.device = func(*args, **kwargs)
    return made


def handlers() -> dict[Any, Special]:
    """The table of this module."""
    return {torch.device: numbered}


def install(patches: Patches, mode: SimulationMode) -> None:
    """Replace the types of ``torch.cuda`` and the setter of the default type."""
    if running().type != "cuda":
        return
    for name, made in _tensor_types(mode).items():
        patches.set_existing(torch.cuda, name, made)
    set_type = torch.set_default_tensor_type
    on_device: list[bool] = []

    def set_default_tensor_type(named: Any) -> None:
        name = named if isinstance(named, str) else f"{named.__module__}.{named.__name__}"
        if not name.startswith("torch.cuda."):
            set_type(named)
            if on_device:
                on_device.clear()
                torch.set_default_device(None)
            return
        set_type(name.replace("torch.cuda.", "torch."))
        on_device.append(True)
        torch.set_default_device("cuda")

    patches.set(torch, "set_default_tensor_type", set_default_tensor_type)
