"""Tensors made by C++ that no function mode sees: DLPack, nested tensors."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deviceguard.simulate.devices import simulated
from deviceguard.simulate.labels import device_of, label_tensor, quiet, share_label, tensors_in
from deviceguard.simulate.patching import Patches

if TYPE_CHECKING:
    from deviceguard.simulate.mode import Call, SimulationMode, Special


def to_capsule(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``Tensor.__dlpack__``: who asks for it directly wants the memory, and knows host memory only."""
    if device_of(args[0]) is not None:
        raise RuntimeError("Unsupported device in DLTensor.")
    return func(*args, **kwargs)


def handlers() -> dict[Any, Special]:
    """The table of this module."""
    return {Tensor.__dlpack__: to_capsule}


def install(patches: Patches, mode: SimulationMode) -> None:
    """Replace the functions that make tensors past the mode."""
    dlpack, nested = importlib.import_module("torch.utils.dlpack"), importlib.import_module("torch.nested")
    take, make = dlpack.from_dlpack, nested.nested_tensor

    def from_dlpack(ext_tensor: Any, **kwargs: Any) -> Tensor:
        if not isinstance(ext_tensor, Tensor):
            return take(ext_tensor, **kwargs)
        named = kwargs.pop("device", None)
        with quiet():
            home = device_of(ext_tensor)
            taken: Tensor = take(ext_tensor.detach(), **kwargs)
            share_label(ext_tensor, taken)
        return taken if named is None or simulated(named) is home else taken.to(named)

    def nested_tensor(tensor_list: Any, *, device: Any = None, layout: Any = None, **kwargs: Any) -> Tensor:
        if layout not in (None, torch.strided):
            return make(tensor_list, device=device, layout=layout, **kwargs)
        with quiet():
            first = next(tensors_in((tensor_list,)), None)
            target = simulated(device)
            if device is None:
                target = mode.default_device() if first is None else device_of(first)
            made: Tensor = make(tensor_list, device=device if target is None else "cpu", layout=layout, **kwargs)
            if target is not None:
                label_tensor(made, target, mode.memory)
        return made

    for module in (torch, dlpack):
        patches.set(module, "from_dlpack", from_dlpack)
    patches.set(nested, "nested_tensor", nested_tensor)
    _install_jagged(patches)


def _install_jagged(patches: Patches) -> None:
    """The inside of a jagged tensor compares the devices of its parts and tells C++: there they are host tensors."""
    jagged: Any = importlib.import_module("torch.nested._internal.nested_tensor").NestedTensor
    new, dispatch = jagged.__new__, vars(jagged)["__torch_dispatch__"]

    def made(cls: Any, *args: Any, **kwargs: Any) -> Any:
        with quiet():
            return new(cls, *args, **kwargs)

    def dispatched(cls: Any, *args: Any, **kwargs: Any) -> Any:
        with quiet():
            return dispatch.__get__(None, cls)(*args, **kwargs)

    patches.set(jagged, "__new__", staticmethod(made))
    patches.set(jagged, "__torch_dispatch__", classmethod(dispatched))
