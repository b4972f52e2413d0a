"""The function mode: sees every PyTorch call of a thread and keeps the labels right.

Most calls have all their tensors on one device. For these the work is one table look-up, one look at each argument's
storage and one label for the result. The rest goes to ``special`` (functions that are about devices) and ``mixed``
(operands on several devices). PyTorch runs a mode's handler with the mode itself off.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from deviceguard.simulate import autocast, bodies, generators, placement
from deviceguard.simulate.devices import HOST, simulated
from deviceguard.simulate.labels import device_of, label_tree, mark_pinned, tensors_in
from deviceguard.simulate.memory import DeviceMemory
from deviceguard.simulate.mixed import Check, run_mixed

Call = Callable[..., Any]
#: What a special handler gets: the mode, the function and its arguments.
Special = Callable[["SimulationMode", Call, tuple[Any, ...], dict[str, Any]], Any]

#: Constructors that take values: a tensor among these is read, and does not say where the result is.
_VALUE_FACTORIES = frozenset({torch.full, torch.arange, torch.linspace, torch.logspace, torch.range})


class SimulationMode(TorchFunctionMode):
    """One per simulation, shared by all its threads; ``check`` is the placement table of its device."""

    def __init__(self, memory: DeviceMemory, special: dict[Any, Special], check: Check = placement.check) -> None:
        super().__init__()
        self.memory = memory
        self.special = special
        self.check = check
        self.constructors = frozenset(_device_constructors())

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        handler = self.special.get(func)
        if handler is not None:
            return handler(self, func, args, kwargs or {})
        return self.call(func, args, kwargs or {})

    def call(self, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an ordinary function."""
        if kwargs:
            if kwargs.get("device") is not None:
                return self.with_device(func, args, kwargs, kwargs["device"])
            if kwargs.get("generator") is not None:
                kwargs = generators.translated(kwargs, self.home(func, args, kwargs))
            if kwargs.get("pin_memory"):
                return self.with_device(func, args, kwargs, None)
        if func in _VALUE_FACTORIES:
            return self.with_device(func, args, kwargs, default_device() or HOST)
        device: torch.device | None = None
        on_host = mixed = False
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, Tensor):
                found = device_of(value)
                if found is None:
                    on_host = True
                elif device is None:
                    device = found
                elif device is not found:
                    mixed = True
            elif isinstance(value, (list, tuple, dict)):
                for item in tensors_in((value,)):
                    found = device_of(item)
                    if found is None:
                        on_host = True
                    elif device is None:
                        device = found
                    elif device is not found:
                        mixed = True
        if device is None:
            if func in self.constructors and (default := default_device()) is not None:
                return self.with_device(func, args, kwargs, default)
            return autocast.run_on_host(func, args, kwargs)
        if mixed or on_host:
            return self.mixed(func, args, kwargs)
        result = func(*args, **kwargs)
        label_tree(result, device, self.memory)
        return result

    def mixed(self, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function whose operands are on several devices, or refuse it."""
        if isinstance(func, FunctionType):
            with self:
                return bodies.body(func)(*args, **kwargs)
        return run_mixed(func, args, kwargs, self.memory, self.check)

    def with_device(self, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any], named: Any) -> Any:
        """Run a function that says where its result shall be."""
        target = simulated(named)
        if target is not None:
            named = HOST
        changed = dict(kwargs, device=named)
        if changed.get("generator") is not None:
            changed = generators.translated(changed, target)
        pinned = changed.pop("pin_memory", False)
        if pinned and target is not None:
            raise RuntimeError("Only dense CPU tensors can be pinned")
        return self.placed(func(*args, **changed), args, target, pinned=bool(pinned))

    def placed(self, result: Any, args: tuple[Any, ...], target: torch.device | None, *, pinned: bool = False) -> Any:
        """Put a new result on its device."""
        if target is not None:
            label_tree(result, target, self.memory)
        elif pinned:
            mark_pinned(result)
        return result

    def default_device(self) -> torch.device | None:
        """Where tensors are made that name no device; None for the host."""
        return default_device()

    def home(self, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
        """Where an ordinary function would put its result: with its first tensor."""
        for tensor in tensors_in((args, kwargs)):
            return device_of(tensor)
        return default_device() if func in self.constructors else None


def default_device() -> torch.device | None:
    """The simulated device that ``torch.set_default_device`` named, if it named one."""
    current = torch.utils._device.CURRENT_DEVICE
    return None if current is None else simulated(current)
