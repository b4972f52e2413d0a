"""Puts function modes where the program's own do not notice them, and takes them out again."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from deviceguard.backends.simulated import plays_device


def put_below(mode: TorchFunctionMode) -> None:
    """Put a mode under all others of this thread, so that the program's own enter and leave in their order.

    Only the mode of ``torch.set_default_device``, which PyTorch insists on finding at the very bottom, and that of a
    simulation, which plays the device, stay below it.
    """
    above = [_pop_mode() for _ in _get_current_function_mode_stack()]
    default_device = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    while above and (above[-1] is default_device or plays_device(above[-1])):
        _push_mode(above.pop())
    _push_mode(mode)
    for other in reversed(above):
        _push_mode(other)


def put_above(mode: TorchFunctionMode, below: Sequence[TorchFunctionMode]) -> None:
    """Put a mode above the topmost of some others that are still there, under everything else.

    Args:
        mode: the mode.
        below: what was under it when it was last on the stack.
    """
    above = []
    while (stack := _get_current_function_mode_stack()) and not any(stack[-1] is other for other in below):
        above.append(_pop_mode())
    _push_mode(mode)
    for other in reversed(above):
        _push_mode(other)


def take_out(mode: TorchFunctionMode) -> None:
    """Remove a mode from this thread's stack, wherever it stands; nothing where it does not."""
    if mode not in _get_current_function_mode_stack():
        return
    above = []
    while (top := _pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        _push_mode(other)


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


def frames_compiled() -> int:
    """How many frames ``torch.compile`` has compiled for the modes that were on at the time; 0 after a reset."""
    return getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COUNTER", 0)
