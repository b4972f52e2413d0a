"""The choices that PyTorch makes by device and that would change the arithmetic.

On a GPU the optimizers default to their ``foreach`` implementation, whose last bit may differ. A simulated run computes
what a CPU run computes, so the default stays the CPU's; a program that asks for ``foreach`` or ``fused`` gets it.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from deviceguard.simulate.labels import device_of, quiet
from deviceguard.simulate.patching import Patches


def _grouped(tensorlistlist: Any, with_indices: bool = False) -> Any:
    """Tensors by simulated device and dtype, which PyTorch's own grouping cannot tell apart."""
    with quiet():
        groups: dict[Any, tuple[list[list[Any]], list[int]]] = {}
        for position, first in enumerate(tensorlistlist[0]):
            label = device_of(first) if first is not None else None
            key = (first.device if label is None else label, first.dtype)
            lists, indices = groups.setdefault(key, ([[] for _ in tensorlistlist], []))
            for column, values in zip(lists, tensorlistlist, strict=True):
                if values:
                    column.append(values[position])
            indices.append(position)
    return groups


def install(patches: Patches) -> None:
    """Keep the CPU's defaults; group by simulated device."""
    optimizer = importlib.import_module("torch.optim.optimizer")
    patches.set_existing(optimizer, "_get_foreach_kernels_supported_devices", lambda: [])
    patches.set_existing(torch._C, "_group_tensors_by_device_and_dtype", _grouped)
