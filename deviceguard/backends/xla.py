"""XLA devices (TPU, and the CPU device of torch_xla)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from deviceguard.backends.backend import Backend
from deviceguard.backends.tracing import GraphCounts, Tracing

_FALLBACK = "aten::"
_NANOSECONDS = 1e9


class XlaTracing(Tracing):
    """Counters and entry points of torch_xla, through its extension module.

    All step markers (``torch_xla.sync``, ``torch_xla.step``, ``torch_xla.compile``, ``xm.mark_step``,
    ``xm.optimizer_step(barrier=True)``, ``MpDeviceLoader``) come down to one function of that module, whatever name the
    program has bound them to.
    """

    package: ClassVar[str] = "torch_xla"
    sync_call: ClassVar[str] = "torch_xla.sync()"
    loader: ClassVar[str] = "torch_xla.distributed.parallel_loader.MpDeviceLoader"
    loader_module: ClassVar[str] = "torch_xla.distributed.parallel_loader"
    dynamic_ops: ClassVar[frozenset[str]] = frozenset(
        {
            *("nonzero", "nonzero_static", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive"),
            *("unique_dim_consecutive", "repeat_interleave", "bincount", "argwhere", "combinations"),
        }
    )
    reads: ClassVar[frozenset[str]] = frozenset({"_local_scalar_dense", "equal", "item", "is_nonzero", "allclose"})
    data_numbers: ClassVar[frozenset[str]] = frozenset(
        {
            *("mul", "multiply", "add", "sub", "subtract", "rsub", "div", "divide", "true_divide", "clamp", "clip"),
            *("clamp_", "mul_", "add_", "sub_", "div_", "gt", "ge", "lt", "le", "eq", "ne", "greater", "less"),
            *("__mul__", "__rmul__", "__imul__", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__"),
            *("__truediv__", "__rtruediv__", "__div__", "__rdiv__", "__idiv__", "__eq__", "__ne__", "__gt__"),
            *("__ge__", "__lt__", "__le__", "fill_", "masked_fill", "masked_fill_", "where", "lerp", "lerp_"),
            *("addcmul", "addcmul_", "addcdiv", "addcdiv_", "leaky_relu", "dropout", "tensor", "as_tensor"),
            *("scalar_tensor", "uniform_", "normal_", "bernoulli", "bernoulli_", "softplus", "huber_loss"),
            *("cross_entropy", "linspace", "_set_grad_enabled", "__setitem__", "clip_grad_norm_", "item"),
        }
    )

    def is_loaded(self) -> bool:  # noqa: D102
        return self._extension() is not None

    def markers(self) -> Sequence[tuple[Any, str]]:  # noqa: D102
        extension = self._extension()
        return () if extension is None else ((extension, "_xla_step_marker"),)

    def flushes(self) -> Sequence[tuple[Any, str]]:  # noqa: D102
        extension = self._extension()
        return () if extension is None else ((extension, "_xla_sync_multi"), (extension, "_run_cached_graph"))

    def counts(self) -> GraphCounts:  # noqa: D102
        value = self._counter
        new = value("UncachedCompile")
        return GraphCounts(value("MarkStep"), new + value("CachedCompile"), new)

    def compile_seconds(self) -> float:  # noqa: D102
        extension = self._extension()
        data = extension._xla_metric_data("CompileTime") if extension is not None else None
        return float(data[1]) / _NANOSECONDS if data else 0.0

    def fallbacks(self) -> dict[str, int]:  # noqa: D102
        extension = self._extension()
        names = extension._xla_counter_names() if extension is not None else ()
        return {
            name[len(_FALLBACK) :]: self._counter(name)
            for name in names
            if name.startswith(_FALLBACK) and "." not in name
        }

    def fallback_count(self, names: Sequence[str]) -> Mapping[str, int]:  # noqa: D102
        return {name: self._counter(_FALLBACK + name) for name in names}

    def runs_at_once(self) -> bool:  # noqa: D102
        extension = self._extension()
        ask = getattr(extension, "_get_use_eager_mode", None)
        return bool(ask()) if ask is not None else False

    def form_of(self, function: str, file: str) -> str | None:  # noqa: D102
        if "parallel_loader" in file:
            return "MpDeviceLoader"
        return _FORMS.get(function)

    def _counter(self, name: str) -> int:
        extension = self._extension()
        value = extension._xla_counter_value(name) if extension is not None else None
        return int(value or 0)

    def _extension(self) -> Any:
        return getattr(sys.modules.get(self.package), "_XLAC", None)  # a simulation brings its own, and takes it away


_FORMS = {
    "sync": "torch_xla.sync()",
    "mark_step": "xm.mark_step()",
    "_compile": "torch_xla.step()",
    "optimizer_step": "xm.optimizer_step(barrier=True)",
}


class XlaBackend(Backend):
    """torch_xla is never imported by the guard: it is here when the program imported it."""

    name = "xla"
    replaces_parameters = True
    refuses_host_operands = False
    traced = True
    tracing: ClassVar[Tracing | None] = XlaTracing()

    def owns(self, device_type: str) -> bool:  # noqa: D102
        return device_type == "xla"

    def is_present(self) -> bool:  # noqa: D102
        return "torch_xla" in sys.modules

    def was_asked_for(self) -> bool:  # noqa: D102
        return self.is_present()
