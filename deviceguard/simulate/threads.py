"""The mode in every thread: PyTorch's mode stack belongs to a thread, the simulation to the process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)

from deviceguard.simulate.patching import Patches


def is_entered(mode: TorchFunctionMode) -> bool:
    """Whether the mode is on this thread's stack."""
    return any(found is mode for found in _get_current_function_mode_stack())


def push_below(mode: TorchFunctionMode) -> None:
    """Put the mode at the bottom of this thread's stack, so that all other modes see simulated devices."""
    above = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
    _push_mode(mode)
    for other in reversed(above):
        _push_mode(other)


def remove(mode: TorchFunctionMode) -> None:
    """Take the mode off this thread's stack, wherever it is."""
    above = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
    for other in reversed(above):
        if other is not mode:
            _push_mode(other)


@contextlib.contextmanager
def entered(mode: TorchFunctionMode) -> Iterator[None]:
    """Have the mode on this thread's stack for a while; nothing to do when it already is."""
    if is_entered(mode):
        yield
        return
    push_below(mode)
    try:
        yield
    finally:
        remove(mode)


def install(patches: Patches, mode: TorchFunctionMode) -> None:
    """Threads that start while the simulation is on get the mode."""
    bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def bootstrap_with_mode(self: Any) -> Any:
        with entered(mode):
            return bootstrap(self)

    patches.set(threading.Thread, "_bootstrap_inner", bootstrap_with_mode)
