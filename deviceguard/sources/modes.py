"""Puts function modes where the program's own do not notice them, and takes them out again."""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode


def put_below(mode: TorchFunctionMode) -> None:
    """Put a mode under all others of this thread, so that the program's own enter and leave in their order.

    Only the mode of ``torch.set_default_device`` stays below it: PyTorch insists on finding that at the very bottom.
    """
    above = [_pop_mode() for _ in _get_current_function_mode_stack()]
    default_device = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    if above and above[-1] is default_device:
        _push_mode(above.pop())
    _push_mode(mode)
    for other in reversed(above):
        _push_mode(other)


def take_out(mode: TorchFunctionMode) -> list[TorchFunctionMode]:
    """Remove a mode from this thread's stack, wherever it stands; nothing where it does not.

    Returns:
        The modes that were above it, topmost first.
    """
    if mode not in _get_current_function_mode_stack():
        return []
    above = []
    while (top := _pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        _push_mode(other)
    return above


def take_out_of(thread: int, mode: TorchFunctionMode) -> None:
    """Remove a mode from the stack of the thread it was pushed in.

    No thread can reach into the stack of another. There the mode is gone from the next module that the thread calls;
    until then it must do nothing by itself.

    Args:
        thread: the identity of that thread.
        mode: the mode.
    """
    if threading.get_ident() == thread:
        take_out(mode)
        return

    def sweep(module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if threading.get_ident() == thread:
            take_out(mode)
            handle.remove()
        elif thread not in sys._current_frames():
            handle.remove()

    if thread in sys._current_frames():
        handle = hooks.register_module_forward_pre_hook(sweep)
