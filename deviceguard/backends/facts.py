"""Facts about a device that are the same for all backends to ask: how large, how fast with short numbers."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

UNKNOWN_MEMORY = 8 << 30
"""Bytes assumed where a device does not say."""

_FIRST_WITH_TENSOR_CORES = 7
"""The first major capability with matrix units at all (Volta)."""
_FIRST_WITH_TENSOR_CORES_FOR_TF32 = (8, 0)


def total_memory(device: torch.device) -> int:
    """The memory of a device in bytes; a careful guess where it does not say."""
    properties = _properties(device)
    return int(getattr(properties, "total_memory", 0) or UNKNOWN_MEMORY)


def is_faster_with_short_numbers(device: torch.device) -> bool:
    """True for a device whose matrix units take TF32 and bfloat16; False where that is not known."""
    properties = _properties(device)
    capability = (getattr(properties, "major", 0), getattr(properties, "minor", 0))
    return capability >= _FIRST_WITH_TENSOR_CORES_FOR_TF32


def has_matrix_units(device: torch.device) -> bool:
    """False for a device known to be of a generation without matrix units; True where that is not known."""
    properties = _properties(device)
    major = getattr(properties, "major", 0)
    return not 0 < major < _FIRST_WITH_TENSOR_CORES


def uuid_of(device: torch.device) -> str | None:
    """The identity of a device as its driver writes it (``GPU-...``); None where it does not say."""
    found = getattr(_properties(device), "uuid", None)
    return f"GPU-{found}" if found else None


def may_shorten_matrix_work() -> bool:
    """True where the program allows TF32 or less in float32 matrix work.

    Asking makes PyTorch warn about its older settings, which is nothing the program did.
    """
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.get_float32_matmul_precision() != "highest"


def _properties(device: torch.device) -> Any:
    import torch

    module = getattr(torch, device.type, None)
    ask = getattr(module, "get_device_properties", None)
    if ask is None:
        return None
    try:
        return ask(device)
    except Exception:
        return None


def peak_memory(device: torch.device) -> int | None:
    """The most memory this process had allocated on a device, in bytes; None where it does not say."""
    import torch

    ask = getattr(getattr(torch, device.type, None), "max_memory_allocated", None)
    if ask is None:
        return None
    try:
        return int(ask(device))
    except Exception:
        return None
