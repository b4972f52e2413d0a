"""The function mode of a simulated XLA device: the labels of any simulated device, and the graph beside them."""

from __future__ import annotations

import functools
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from deviceguard.simulate import xla_placement
from deviceguard.simulate.labels import device_of, tensors_in
from deviceguard.simulate.lazy_graph import LazyGraph
from deviceguard.simulate.memory import DeviceMemory
from deviceguard.simulate.mode import Call, SimulationMode, Special
from deviceguard.simulate.xla_fallbacks import FALLBACKS

_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]

_UPLOADS = frozenset({"tensor", "as_tensor", "asarray", "from_numpy", "new_tensor"})


class LazyMode(SimulationMode):
    """Keeps the graph of one simulated XLA device."""

    def __init__(self, memory: DeviceMemory, graph: LazyGraph) -> None:
        super().__init__(memory, {}, xla_placement.check)
        self.graph = graph

    def call(self, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
        """Run an ordinary function; what it does on the device joins the graph."""
        result = super().call(func, args, kwargs)
        self.collect(func, args, kwargs, result)
        return result

    def collect(self, func: Call, args: _Args, kwargs: _Kwargs, result: Any) -> None:
        """Note a call that is done."""
        here = [tensor for tensor in tensors_in((args, kwargs)) if device_of(tensor) is not None]
        if not here and not any(device_of(tensor) is not None for tensor in tensors_in((result,))):
            return
        name = getattr(func, "__name__", "")
        operation = _host_operation(name, args)
        if operation is not None:
            self.graph.on_host(operation, here, result)
        elif name not in _UPLOADS:
            self.graph.record(func, args, kwargs, result)


def _host_operation(name: str, args: _Args) -> str | None:
    """The operation that runs on the host, for functions that the device lacks."""
    if name in ("__getitem__", "__setitem__"):
        indices = args[1] if isinstance(args[1], tuple) else (args[1],)
        masks = any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)
        return "nonzero" if masks else None
    if name == "where":
        return "nonzero" if len(args) == 1 else None
    if name == "repeat_interleave":
        return "repeat_interleave.Tensor" if len(args) > 1 and isinstance(args[1], Tensor) else None
    return FALLBACKS.get(name)


def _reading(operation: str | None, handler: Special, mode: LazyMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    if device_of(args[0]) is not None:
        mode.graph.read((args[0],))
        if operation is not None:
            mode.graph.counters[f"aten::{operation}"] += 1
    return handler(mode, func, args, kwargs)


def _moving(handler: Special, mode: LazyMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    result = handler(mode, func, args, kwargs)
    source = args[0]
    if isinstance(result, Tensor) and result.layout is not torch.strided and device_of(result) is not None:
        _refuse_layout()
    if device_of(source) is None or result is source or not isinstance(result, Tensor):
        return result
    if device_of(result) is None:
        mode.graph.read((source,))
    else:
        mode.graph.record(func, args, kwargs, result)
    return result


def _sparse(mode: LazyMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    if device_of(args[0]) is not None:
        _refuse_layout()
    return mode.call(func, args, kwargs)


def _refuse_layout() -> NoReturn:
    raise NotImplementedError(
        "Could not run 'aten::_sparse_coo_tensor_with_dims_and_tensors' with arguments from the 'SparseXLA' backend. "
        "This could be because the operator doesn't exist for this backend, or was omitted during the "
        "selective/custom build process (if using custom build)."
    )


def _copy(handler: Special, mode: LazyMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    source = args[1] if len(args) > 1 else next(iter(kwargs.values()), None)
    if isinstance(source, Tensor) and device_of(source) is not None and device_of(args[0]) is None:
        mode.graph.read((source,))
    result = handler(mode, func, args, kwargs)
    if device_of(args[0]) is not None:
        mode.graph.record(func, args, kwargs, result)
    return result


def _collected(handler: Special, mode: LazyMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    result = handler(mode, func, args, kwargs)
    mode.collect(func, args, kwargs, result)
    return result


def _gradient(handler: Special, mode: LazyMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    result = handler(mode, func, args, kwargs)
    if result is not None and device_of(args[0]) is not None:
        mode.graph.gradient(result)
    return result


def _backward(handler: Special, mode: LazyMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    mode.graph.backward()
    result = handler(mode, func, args, kwargs)
    for gradient in tensors_in((result,)):
        mode.graph.gradient(gradient)
    return result


def compatible(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> bool:
    """What ``Module.to`` asks before it keeps a parameter: XLA tensors and host tensors are never compatible."""
    return (device_of(args[0]) is None) == (device_of(args[1]) is None) and bool(func(*args, **kwargs))


def set_data(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``Tensor.data = ...``: refused between the device and the host."""
    if (device_of(args[0]) is None) != (device_of(args[1]) is None):
        raise RuntimeError(
            "Attempted to call `variable.set_data(tensor)`, but `variable` and `tensor` have incompatible tensor type."
        )
    return func(*args, **kwargs)


def with_graph(table: dict[Any, Special]) -> dict[Any, Special]:
    """The handlers of any device, with what they mean for the graph added."""
    lazy: dict[Any, Special] = dict(table)

    def wrap(function: Any, wrapper: Any, *first: Any) -> None:
        lazy[function] = functools.partial(wrapper, *first, table[function])

    for name in ("item", "__bool__", "__float__", "__int__", "__index__"):
        wrap(getattr(Tensor, name), _reading, "_local_scalar_dense")
    wrap(Tensor.tolist, _reading, None)
    wrap(Tensor.__repr__, _reading, None)
    for name in ("to", "cpu", "type", "type_as"):
        wrap(getattr(Tensor, name), _moving)
    wrap(Tensor.copy_, _copy)
    gradient: Any = Tensor.grad
    data: Any = Tensor.data
    wrap(gradient.__get__, _gradient)
    wrap(Tensor.backward, _backward)
    wrap(torch.autograd.grad, _backward)
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        wrap(getattr(torch, name), _collected)
    lazy[Tensor.to_sparse] = cast("Special", _sparse)
    lazy[Tensor.to_sparse_csr] = cast("Special", _sparse)
    lazy[data.__set__] = set_data
    lazy[torch._has_compatible_shallow_copy_type] = compatible
    return lazy
