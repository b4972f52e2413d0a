"""What the DTY rules have in common: names of dtypes, and what autocast does at this moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn


def short(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """The dtype autocast uses for a device type in this thread; None where autocast is off."""
    import torch

    try:
        return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None
    except RuntimeError:  # a device type that knows no autocast
        return None


def floating_dtype_of(module: nn.Module) -> torch.dtype | None:
    """The floating dtype of a module's own parameters, else that of its tree; None where there is none or several."""
    for parameters in (module._parameters.values(), module.parameters()):
        found = {p.dtype for p in parameters if p is not None and p.is_floating_point()}
        if found:
            return found.pop() if len(found) == 1 else None
    return None
