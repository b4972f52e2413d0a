"""Host tensors that a backend takes without a word where others refuse the call.

Such a backend uploads them at each step. What is refused elsewhere is described here as a refusal would be, so that the
same rules speak of it. Looked for in steps that are examined in full only.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode

from deviceguard.backends.devices import backend_of, is_host, tracings
from deviceguard.events import CallFailed, Event, HostOperandTaken
from deviceguard.naming.frames import origin
from deviceguard.sources.modes import put_below, take_out, take_out_of
from deviceguard.sources.post_mortem import examine_running
from deviceguard.sources.source import Emit, Source

_MOST = 3
"""So often the same line is described; after that it is known."""

_SAME_DEVICE: frozenset[str] = frozenset(
    name + suffix
    for suffix in ("", "_")
    for name in (
        *("add", "sub", "mul", "div", "true_divide", "floor_divide", "remainder", "pow", "rsub", "atan2", "hypot"),
        *("lerp", "addcmul", "addcdiv", "maximum", "minimum", "fmax", "fmin", "eq", "ne", "gt", "ge", "lt", "le"),
        *("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "masked_fill"),
        *("index_add", "index_copy", "scatter", "scatter_add", "addmm", "addmv", "addbmm", "baddbmm", "addr"),
        *("__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "__mul__", "__rmul__", "__imul__"),
        *("__truediv__", "__rtruediv__", "__itruediv__", "__pow__", "__rpow__", "__and__", "__or__", "__xor__"),
        *("__eq__", "__ne__", "__gt__", "__ge__", "__lt__", "__le__", "__matmul__", "__rmatmul__", "__rdiv__"),
        *("matmul", "mm", "bmm", "mv", "dot", "inner", "outer", "einsum", "linear", "bilinear", "embedding", "where"),
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "cat", "concat", "stack", "gather"),
        *("index_select", "take_along_dim", "batch_norm", "layer_norm", "group_norm", "rms_norm", "cdist"),
    )
)
"""Names of functions that refuse host tensors beside device tensors on any backend but those that upload them."""


class AcceptedMixes(Source):
    """Emits for the first calls of a line that mixes host and device tensors and is not refused."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset({HostOperandTaken, CallFailed})
    per_thread: ClassVar[bool] = True

    def __init__(self, emit: Emit) -> None:
        self._mode: _MixMode | None = None
        self._detailed = True
        self._thread = 0
        super().__init__(emit)

    @property
    def detailed(self) -> bool:
        """Whether the running step is examined in full; the mode comes and goes with it."""
        return self._detailed

    @detailed.setter
    def detailed(self, detailed: bool) -> None:
        self._detailed = detailed
        self._adjust()

    def install(self) -> None:  # noqa: D102
        self._thread = threading.get_ident()
        self._adjust()

    def uninstall(self) -> None:  # noqa: D102
        if self._mode is not None:
            self._mode.silent = True
            take_out_of(self._thread, self._mode)
        self._mode = None
        self._thread = 0

    def _adjust(self) -> None:
        if threading.get_ident() != self._thread:
            return
        if self._mode is None and self._detailed and any(tracing.is_loaded() for tracing in tracings()):
            self._mode = _MixMode(self)
            put_below(self._mode)
        elif self._mode is not None and not self._detailed:
            take_out(self._mode)
            self._mode = None

    def mixed(self) -> None:
        """A call that is about to run mixes devices."""
        event = self.attempt(_described, default=None)
        if event is not None:
            self.emit(event)


class _MixMode(TorchFunctionMode):
    def __init__(self, source: AcceptedMixes) -> None:
        super().__init__()
        self.silent = False
        self._source = source
        self._seen: collections.Counter[tuple[Any, int]] = collections.Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        if not self.silent and getattr(func, "__name__", "") in _SAME_DEVICE and _is_mixed(args, kwargs):
            place = _place()
            self._seen[place] += 1
            if self._seen[place] <= _MOST:
                self._source.mixed()
        return func(*args, **(kwargs or {}))


def _is_mixed(args: Any, kwargs: Any) -> bool:
    """True for host and device tensors together; single numbers on the host are welcome everywhere."""
    host = device = False
    for tensor in _tensors(args, kwargs):
        where = tensor.device
        if is_host(where):
            host = host or (tensor.dim() > 0 and tensor.numel() > 0)
        else:
            backend = backend_of(where)
            device = device or (backend is not None and not backend.refuses_host_operands)
    return host and device


def _tensors(args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    for value in (*args, *(kwargs or {}).values()):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (item for item in value if isinstance(item, torch.Tensor))


def _place() -> tuple[Any, int]:
    frame: Any = sys._getframe(2)
    while frame is not None and origin(frame.f_code.co_filename) != "user":
        frame = frame.f_back
    return (frame.f_code, frame.f_lineno) if frame is not None else (None, 0)


def _described() -> HostOperandTaken | None:
    event = examine_running(sys._getframe(1), "device")
    if event is None or event.kind in ("optimizer", "backward"):
        return None
    return HostOperandTaken(*(getattr(event, field.name) for field in dataclasses.fields(event)))
