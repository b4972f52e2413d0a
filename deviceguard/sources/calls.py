"""Calls of single torch functions, through a function mode: losses, and reads that make the host wait.

The mode looks one function object up in a table made when it was installed; a function that nobody asked for costs
that look-up only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from deviceguard.events import Event, HostRead, LossComputed
from deviceguard.sources.losses import LOSSES, operands_of
from deviceguard.sources.reads import READS
from deviceguard.sources.source import Emit, Source

Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class Calls(Source):
    """Emits for the functions in its table, in the thread it is installed in."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset({LossComputed, HostRead})
    per_thread: ClassVar[bool] = True

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._mode: _TableMode | None = None
        self._handles: list[Any] = []

    def install(self) -> None:  # noqa: D102
        self._mode = _TableMode(self._table())
        _push_mode(self._mode)
        self._handles = [
            hooks.register_module_forward_pre_hook(self._hide),
            hooks.register_module_forward_hook(self._show, always_call=True),
        ]

    def uninstall(self) -> None:  # noqa: D102
        for handle in self._handles:
            handle.remove()
        if self._mode is not None:
            self._mode.table = {}
            _take_out(self._mode)
        self._mode = None

    def _table(self) -> dict[Any, Handler]:
        table: dict[Any, Handler] = {}
        if LossComputed in self.wanted:
            table.update(dict.fromkeys(LOSSES, self._loss))
        if HostRead in self.wanted:
            table.update({function: self._reader(*facts) for function, facts in READS.items()})
        return table

    def _loss(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = function(*args, **kwargs)
        self.emit(LossComputed(function.__name__, operands_of(function, args, kwargs), output))
        return output

    def _reader(self, call: str, family: str, explicit: bool) -> Handler:
        def read(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if args and isinstance(args[0], torch.Tensor):
                self.emit(HostRead(call, family, args[0], explicit))
            return function(*args, **kwargs)

        return read

    # A function mode turns off the fused inference path of PyTorch's own attention layers, whose last digits differ.
    # The mode steps aside for them, so that the guard changes no result.

    def _hide(self, module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling() and _has_fast_path(module) and self._mode is not None:
            self._mode.hide()

    def _show(self, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and _has_fast_path(module) and self._mode is not None:
            self._mode.show()


class _TableMode(TorchFunctionMode):
    def __init__(self, table: dict[Any, Handler]) -> None:
        super().__init__()
        self.table = table
        self._hidden = 0
        self._above: list[TorchFunctionMode] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        handler = self.table.get(func)
        if handler is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        return handler(func, args, kwargs or {})

    def hide(self) -> None:
        self._hidden += 1
        if self._hidden == 1:
            self._above = _take_out(self)

    def show(self) -> None:
        self._hidden = max(0, self._hidden - 1)
        if self._hidden == 0 and self.table and self not in _get_current_function_mode_stack():
            above = [_pop_mode() for _ in self._above]
            _push_mode(self)
            for mode in reversed(above):
                _push_mode(mode)


def _has_fast_path(module: nn.Module) -> bool:
    return not module.training and isinstance(
        module, nn.MultiheadAttention | nn.TransformerEncoderLayer | nn.TransformerEncoder
    )


def _take_out(mode: TorchFunctionMode) -> list[TorchFunctionMode]:
    """Remove a mode from this thread's stack wherever it stands; the modes that were above it, topmost first."""
    if mode not in _get_current_function_mode_stack():
        return []
    above = []
    while (top := _pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        _push_mode(other)
    return above
