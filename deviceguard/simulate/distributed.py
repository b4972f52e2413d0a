"""``torch.distributed``: the backend of the device is played by gloo, which moves host memory."""

from __future__ import annotations

from typing import Any

import torch

from deviceguard.simulate.patching import Patches


def _played(backend: Any) -> Any:
    """``nccl`` and ``cpu:gloo,cuda:nccl`` become ``gloo``."""
    if isinstance(backend, str) and "nccl" in backend.lower():
        return "gloo"
    return backend


def install(patches: Patches) -> None:
    """Let ``nccl`` be asked for."""
    if not torch.distributed.is_available():
        return
    dist, c10d = torch.distributed, torch.distributed.distributed_c10d
    initialise, new_group, get_backend = c10d.init_process_group, c10d.new_group, c10d.get_backend
    asked: dict[str, str] = {}

    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        if backend is None:
            backend = "gloo"
        asked["default"] = backend if isinstance(backend, str) else str(backend)
        return initialise(_played(backend), *args, **kwargs)

    def make_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        return new_group(ranks, timeout, _played(backend), *args, **kwargs)

    def backend_of(group: Any = None) -> str:
        found = get_backend(group)
        return "nccl" if group is None and found == "gloo" and "nccl" in asked.get("default", "") else found

    for module in (dist, c10d):
        patches.set(module, "init_process_group", init_process_group)
        patches.set(module, "new_group", make_group)
        patches.set(module, "get_backend", backend_of)
        patches.set(module, "is_nccl_available", lambda: True)
