"""Where the label of a tensor lives: on its storage.

On a real device the device is a property of the memory. A label on the storage is therefore right for everything that
shares the memory (views, ``detach``, ``.data``, parameters, saved tensors, what C++ makes out of them) with no work,
and is lost exactly when the memory is freed. PyTorch keeps one Python object per storage alive as long as the storage,
so an attribute on it is enough.

The functions of this module call PyTorch's C methods directly and must run where no function mode is on (a mode's
handler, or ``quiet()``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from deviceguard.simulate.memory import DeviceMemory

#: A context in which no function mode sees what is called.
quiet = torch._C.DisableTorchFunction

ATTRIBUTE = "_deviceguard_allocation"

_untyped_storage: Callable[[Tensor], Any] = torch._C.TensorBase.untyped_storage
_ORDINARY = frozenset({Tensor, torch.nn.Parameter})
#: PyTorch's own tensors that hold another one, and the attribute with it.
_WRAPPERS = {"NestedTensor": "_values", "DTensor": "_local_tensor"}
_NO_STORAGE = (NotImplementedError, RuntimeError)


def _storage_of(tensor: Tensor) -> Any:
    """The storage of a tensor, past the ``__torch_function__`` of its class: asking must not be seen by it."""
    if type(tensor) in _ORDINARY:
        return _untyped_storage(tensor)
    inner = _WRAPPERS.get(type(tensor).__name__)
    if inner is not None:
        return _storage_of(getattr(tensor, inner))
    with torch._C.DisableTorchFunctionSubclass():
        return _untyped_storage(tensor)


class Allocation:
    """What one storage is on: a simulated device, or pinned host memory (``device`` is None)."""

    __slots__ = ("device", "memory", "size")

    def __init__(self, device: torch.device | None, memory: DeviceMemory | None = None, size: int = 0) -> None:
        self.device = device
        self.memory = memory
        self.size = size

    def __del__(self) -> None:
        if self.memory is not None and self.device is not None:
            self.memory.give_back(self.device.index, self.size)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copied storage is labelled by whoever copies it, never by copying the books."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_nothing, ())


def _nothing() -> None:
    """What an allocation becomes in another process."""


def device_of(tensor: Tensor) -> torch.device | None:
    """The simulated device of a tensor; None for a tensor on the host or on a real device."""
    try:
        found = getattr(_storage_of(tensor), ATTRIBUTE, None)
    except _NO_STORAGE:
        found = _without_storage(tensor)
    return None if found is None else found.device


def is_pinned(tensor: Tensor) -> bool:
    """Whether the tensor is in host memory that the program asked to be pinned."""
    found = getattr(_storage_of(tensor), ATTRIBUTE, None)
    return found is not None and found.device is None


def mark_pinned(tensor: Tensor) -> None:
    """Make a host tensor's memory count as pinned."""
    setattr(_storage_of(tensor), ATTRIBUTE, Allocation(None))


def carrier(tensor: Tensor) -> list[Tensor]:
    """The tensors that hold the memory of one that has no storage of its own; empty when there are none."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return [torch._C._functorch.get_unwrapped(tensor)]
    layout = tensor.layout
    if layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


def _without_storage(tensor: Tensor) -> Any:
    parts = carrier(tensor)
    if not parts:
        return getattr(tensor, ATTRIBUTE, None)
    try:
        return getattr(_storage_of(parts[-1]), ATTRIBUTE, None)
    except _NO_STORAGE:
        return _without_storage(parts[-1])


def label_storage(storage: Any, device: torch.device, memory: DeviceMemory) -> None:
    """Put a storage on a device, unless it already is on one."""
    found = getattr(storage, ATTRIBUTE, None)
    if found is None or found.device is None:
        setattr(storage, ATTRIBUTE, Allocation(device, memory, memory.take(device, storage.nbytes())))


def label_tensor(tensor: Tensor, device: torch.device, memory: DeviceMemory) -> None:
    """Put the memory of a tensor on a device, unless it already is on one."""
    try:
        storage = _storage_of(tensor)
    except _NO_STORAGE:
        parts = carrier(tensor)
        for part in parts:
            label_tensor(part, device, memory)
        if not parts:
            setattr(tensor, ATTRIBUTE, Allocation(device))
        return
    if getattr(storage, ATTRIBUTE, None) is None and not tensor.is_meta:
        setattr(storage, ATTRIBUTE, Allocation(device, memory, memory.take(device, storage.nbytes())))


def share_label(source: Tensor, target: Tensor) -> None:
    """Give a second storage object over the same memory the label of the first; the memory is counted once."""
    device = device_of(source)
    if device is not None:
        setattr(_storage_of(target), ATTRIBUTE, Allocation(device))


def label_tree(result: Any, device: torch.device, memory: DeviceMemory) -> None:
    """Put every tensor of a result on a device."""
    if isinstance(result, Tensor):
        label_tensor(result, device, memory)
    elif isinstance(result, (tuple, list)):
        for item in result:
            label_tree(item, device, memory)
    elif isinstance(result, dict):
        for item in result.values():
            label_tree(item, device, memory)


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among arguments, inside lists, tuples and dictionaries too."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())
