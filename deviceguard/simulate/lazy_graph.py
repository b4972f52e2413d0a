"""What an XLA device would collect, compile and run: operations up to a step marker, and values read before it.

Arithmetic is done at once, on the host. This only keeps the counters which the real runtime keeps: step markers, graphs
compiled or taken from the cache, and operations that ran on the host. A graph is known by what it was built from: the
functions, the shapes and dtypes of their tensors, and the whole numbers that are part of it. What the engine runs in
the backward pass follows from the forward pass and is not looked at.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from deviceguard.simulate.labels import device_of, tensors_in

#: On a storage: the step in which it was last computed; it has no value before that step's graph has run.
_STEP = "_deviceguard_step"

_ARITHMETIC = (
    "add sub mul div true_divide floor_divide remainder pow rsub eq ne gt ge lt le clamp clip fill_ masked_fill where "
    "lerp addcmul addcdiv full full_like tensor"
)
#: Functions whose whole numbers are data of the graph, as Python numbers in arithmetic are.
_DATA_NUMBERS = frozenset(
    form for name in _ARITHMETIC.split() for form in (name, f"{name}_", f"__{name}__", f"__r{name}__", f"__i{name}__")
) | {"__truediv__", "__rtruediv__", "__itruediv__", "__floordiv__", "__mod__"}


class LazyGraph:
    """The graph that one simulation collects, and its counters."""

    def __init__(self) -> None:
        self.counters: collections.Counter[str] = collections.Counter()
        self.closures: list[Callable[[], Any]] = []
        self.eager = False
        self._lock = threading.Lock()
        self._known: set[int] = set()
        self._step = 1
        self._backward_step = 0
        self._hash = 0
        self._collected = 0

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """An operation joins the graph; its results have no value until the graph runs."""
        name = getattr(func, "__name__", "")
        numbers = () if name in _DATA_NUMBERS else tuple(_numbers((*args, *kwargs.values())))
        shapes = tuple((tuple(t.shape), t.dtype) for t in tensors_in((args, kwargs)))
        with self._lock:
            self._hash = hash((self._hash, name, shapes, numbers))
            self._collected += 1
        for tensor in tensors_in((result,)):
            self._date(tensor, self._step)

    def backward(self) -> None:
        """The backward pass joins the graph."""
        with self._lock:
            self._hash = hash((self._hash, "backward"))
            self._collected += 1
            self._backward_step = self._step

    def gradient(self, tensor: Tensor) -> None:
        """A gradient is seen for the first time since the backward pass made it."""
        storage = _storage(tensor)
        if storage is not None and getattr(storage, _STEP, None) is None:
            setattr(storage, _STEP, self._backward_step)

    def read(self, tensors: Iterable[Tensor]) -> None:
        """The host reads values: where they are not there yet, the graph so far has to run."""
        pending = [tensor for tensor in tensors if device_of(tensor) is not None and self._is_pending(tensor)]
        if not pending:
            return
        self._run()
        for tensor in pending:
            self._date(tensor, 0)

    def on_host(self, operation: str, tensors: Iterable[Tensor], result: Any) -> None:
        """An operation that the device lacks runs on the host: it reads its operands and uploads its result."""
        self.read(tensors)
        self.counters[f"aten::{operation}"] += 1
        for tensor in tensors_in((result,)):
            self._date(tensor, 0)

    def mark(self) -> None:
        """A step marker: everything collected runs, and the next step begins."""
        self.counters["MarkStep"] += 1
        if self._collected:
            self._run()
        with self._lock:
            self._step += 1
            self._hash = self._collected = 0

    def clear(self) -> None:
        """Set all counters to zero."""
        self.counters.clear()

    def _run(self) -> None:
        with self._lock:
            if self._hash in self._known:
                self.counters["CachedCompile"] += 1
            else:
                self._known.add(self._hash)
                self.counters["UncachedCompile"] += 1

    def _is_pending(self, tensor: Tensor) -> bool:
        return getattr(_storage(tensor), _STEP, 0) == self._step

    def _date(self, tensor: Tensor, step: int) -> None:
        storage = _storage(tensor)
        if storage is not None:
            setattr(storage, _STEP, step)


def _storage(tensor: Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def _numbers(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, (int, slice)):
            yield repr(value)
        elif isinstance(value, (list, tuple)):
            yield from _numbers(value)
        elif isinstance(value, dict):
            yield from _numbers(value.values())
