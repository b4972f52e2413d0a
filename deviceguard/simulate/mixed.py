"""Run one call whose operands are on several devices, checking each ATen operation it consists of.

PyTorch checks placement below its composite functions, so the check has to look there too. A dispatch mode does, and is
affordable because calls with operands on several devices are rare: nearly all of them are about to be refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from deviceguard.simulate.labels import device_of, label_tree, tensors_in
from deviceguard.simulate.memory import DeviceMemory

#: A placement table: given an operation and its arguments it refuses, or says on which device new results are.
Check = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class PlacementMode(TorchDispatchMode):
    """Asks the placement table about every operation and labels what comes out."""

    def __init__(self, memory: DeviceMemory, check: Check) -> None:
        super().__init__()
        self.memory = memory
        self.check = check

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        device = self.check(func, args, named)
        result = func(*args, **named)
        if device is not None:
            label_fresh(result, args, named, device, self.memory)
        return result


def label_fresh(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: Any, memory: DeviceMemory) -> None:
    """Label the tensors of a result that are new: what shares memory with an argument stays where it is."""
    host = {id(tensor) for tensor in tensors_in((args, kwargs)) if device_of(tensor) is None}
    storages = {storage_key(tensor) for tensor in tensors_in((args, kwargs)) if device_of(tensor) is None}
    for tensor in tensors_in((result,)):
        if id(tensor) not in host and storage_key(tensor) not in storages:
            label_tree(tensor, device, memory)


def storage_key(tensor: Any) -> int:
    """The identity of the memory of a tensor."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return id(tensor)


def run_mixed(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], memory: DeviceMemory, check: Check
) -> Any:
    """Run the call under the table."""
    with PlacementMode(memory, check):
        return func(*args, **kwargs)
