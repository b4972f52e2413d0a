"""Models whose placement is somebody's decision, and is left alone."""

from __future__ import annotations

from types import TracebackType

from torch import nn

from deviceguard.naming.frames import locals_of

_DECIDED = ("hf_device_map", "_hf_hook", "_is_hf_initialized_on_devices", "device_map")


def is_placed(module: nn.Module) -> bool:
    """True for a model with a device map, or with hooks that place it or its inputs."""
    return any(name in vars(part) for part in module.modules() for name in _DECIDED)


def is_in_placed_model(traceback: TracebackType | None) -> bool:
    """True where a call is made from inside such a model."""
    while traceback is not None:
        owner = locals_of(traceback.tb_frame).get("self") if traceback.tb_frame.f_code.co_name == "forward" else None
        if isinstance(owner, nn.Module) and any(name in vars(owner) for name in _DECIDED):
            return True
        traceback = traceback.tb_next
    return False
