"""Stands in for ``torch_xla.core.xla_model``, which scripts import as ``xm``.

One replica: a reduction over all replicas is the value itself.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn, optim

from deviceguard.simulate import xla_api

from .. import _XLAC, runtime
from ..debug import metrics as ms

__getattr__ = xla_api.absent(
    "torch_xla.core.xla_model",
    "all_to_all collective_permute send recv get_stablehlo get_stablehlo_bytecode ToXlaTensorArena check_view_sharing "
    "xla_replication_devices set_replication CoalescingBuckets all_gather_bucketized reduce_scatter_bucketized",
)

REDUCE_SUM, REDUCE_MUL, REDUCE_AND, REDUCE_OR = "sum", "mul", "and", "or"
REDUCE_MIN, REDUCE_MAX = "min", "max"

_T = TypeVar("_T")


def _sync(wait: bool = False, reset_scope: bool = True) -> None:
    from .. import sync

    sync(wait, reset_scope)


def _deprecated(name: str, instead: str) -> None:
    warnings.warn(
        f"{name} is deprecated and will be removed in the next release, use {instead} instead.",
        DeprecationWarning,
        stacklevel=3,
    )


def is_xla_tensor(tensor: Tensor) -> bool:
    """Whether a tensor is on an XLA device."""
    return tensor.device.type == "xla"


def get_xla_supported_devices(max_devices: int | None = None) -> list[str]:
    """``xla:0`` and its like."""
    count = len(_XLAC._xla_get_devices())
    return [f"xla:{number}" for number in range(min(count, max_devices) if max_devices else count)]


def get_local_ordinal() -> int:
    """The only replica."""
    return runtime.local_ordinal()


def is_master_ordinal(local: bool = True) -> bool:
    """The only replica is the first."""
    return True


def master_print(*args: Any, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    """Print."""
    print(*args, file=sys.stdout if fd is None else fd, flush=flush)


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """The old form of ``torch_xla.device``."""
    from .. import device

    _deprecated("torch_xla.core.xla_model.xla_device", "torch_xla.device")
    return device(n)


def xla_real_devices(devices: Sequence[Any] | None = None) -> list[str]:
    """The hardware names of devices."""
    return _XLAC._xla_real_devices(devices)


def xla_device_hw(device: str | torch.device) -> str:
    """The kind of hardware behind a device."""
    return "CPU" if str(device) == "cpu" else runtime.device_type()


def xla_device_kind(device: str | torch.device | None = None) -> str:
    """The name of the hardware behind a device."""
    return f"{runtime.device_type()} (simulated)"


def unlazy(tensors: Sequence[Tensor]) -> None:
    """Run the graph behind some tensors."""
    _XLAC._xla_sync_multi(tensors, devices=[], wait=True, sync_xla_data=False)


def all_reduce(
    reduce_type: str,
    inputs: Any,
    scale: float = 1.0,
    groups: Any = None,
    pin_layout: bool = True,
) -> Any:
    """The value itself, scaled; a list of tensors is changed in place."""
    if isinstance(inputs, Tensor):
        return inputs.clone() if scale == 1.0 else inputs * scale
    if scale != 1.0:
        for tensor in inputs:
            tensor.mul_(scale)
    return None


def all_gather(
    value: Tensor, dim: int = 0, groups: Any = None, output: Tensor | None = None, pin_layout: bool = True
) -> Tensor:
    """The value itself."""
    return value.clone() if output is None else output.copy_(value)


def reduce_scatter(
    reduce_type: str,
    input: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Any = None,
    output: Any = None,
    pin_layout: bool = True,
) -> Any:
    """The value itself, scaled."""
    result = input * scale
    return result if output is None else output.copy_(result)


def collective_broadcast(
    tensors: Sequence[Tensor], root_ordinal: int = 0, groups: Any = None, pin_layout: bool = True
) -> None:
    """One replica has what the first has."""


def broadcast_master_param(model: nn.Module) -> None:
    """One replica has what the first has."""
    _sync()


def reduce_gradients(optimizer: optim.Optimizer, groups: Any = None, cctx: Any = None, pin_layout: bool = True) -> None:
    """One replica has the mean of its gradients."""


def optimizer_step(
    optimizer: optim.Optimizer,
    barrier: bool = False,
    optimizer_args: Mapping[str, Any] | None = None,
    groups: Any = None,
    pin_layout: bool = True,
) -> Any:
    """Reduce the gradients and step; a marker only with ``barrier=True``."""
    reduce_gradients(optimizer, groups=groups, pin_layout=pin_layout)
    loss = optimizer.step(**(optimizer_args or {}))
    if barrier:
        _sync()
    return loss


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """The old form of ``torch_xla.sync``."""
    _deprecated("torch_xla.core.xla_model.mark_step", "torch_xla.sync")
    _sync(wait, reset_scope)


def wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Wait for the device: everything is done already."""


def add_step_closure(closure: Callable[..., Any], args: tuple[Any, ...] = (), run_async: bool = False) -> None:
    """Call something behind the next step marker."""
    xla_api.graph().closures.append(lambda: closure(*args))


def _run_step_closures() -> None:
    collected = xla_api.graph()
    closures, collected.closures = collected.closures, []
    for closure in closures:
        closure()


def save(data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False) -> None:
    """Bring all tensors to the host and save them."""
    torch.save(_converted(data, Tensor.cpu, is_xla_tensor), file_or_path)


def send_cpu_data_to_device(datas: Any, device: str | torch.device, input_sharding: Any = None) -> Any:
    """Bring all host tensors to a device; a single tensor comes back in a list."""
    if isinstance(datas, Tensor):
        datas = [datas]
    return _converted(datas, lambda tensor: tensor.to(device), lambda tensor: tensor.device.type == "cpu")


def _converted(data: Any, convert: Callable[[Tensor], Any], wanted: Callable[[Tensor], bool]) -> Any:
    """A copy of nested lists, tuples and dictionaries with tensors converted."""
    if isinstance(data, Tensor):
        return convert(data) if wanted(data) else data
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_converted(item, convert, wanted) for item in data))
    if isinstance(data, (list, tuple, set)):
        return type(data)(_converted(item, convert, wanted) for item in data)
    if isinstance(data, Mapping):
        made = [(key, _converted(item, convert, wanted)) for key, item in data.items()]
        return type(data)(made)  # type: ignore[call-arg]
    return data


def rendezvous(tag: str, payload: bytes = b"", replicas: Any = ()) -> list[bytes]:
    """Meet nobody."""
    return [payload]


def xla_rendezvous(payload: bytes = b"", ordinals: Any = None, tag: str | None = None) -> list[bytes]:
    """Meet nobody."""
    return [payload]


def do_on_ordinals(target: Callable[..., Any], data: Any = (), ordinals: Any = (0,)) -> Any:
    """Call on the only replica."""
    return target(*data)


def mesh_reduce(tag: str, data: _T, reduce_fn: Callable[[list[_T]], Any]) -> Any:
    """Reduce one value."""
    return reduce_fn([_converted(data, Tensor.cpu, is_xla_tensor)])


_SEED = threading.local()


def set_rng_state(seed: int, device: Any = None) -> None:
    """The device draws from the host's stream, so that a run draws the numbers of a CPU run: nothing to seed."""
    _SEED.value = seed


def get_rng_state(device: Any = None) -> int:
    """The last seed."""
    return int(getattr(_SEED, "value", 0))


@contextmanager
def fork_rng(device: Any = None, enabled: bool = True) -> Iterator[None]:
    """Put the state back at the end."""
    before = torch.get_rng_state() if enabled else None
    try:
        yield
    finally:
        if before is not None:
            torch.set_rng_state(before)


def get_memory_info(device: Any = None) -> dict[str, int]:
    """What is allocated on a device."""
    return _XLAC._xla_memory_info(_XLAC._xla_get_default_device() if device is None else str(device))


def optimization_barrier_(tensors: Sequence[Tensor]) -> None:
    """Nothing is optimised."""


class RateTracker:
    """Counts samples in a second, smoothed."""

    def __init__(self, smooth_factor: float | None = None) -> None:
        given = os.environ.get("RATE_TRACKER_SMOOTHING", "0.4")
        self._smooth_factor = float(given) if smooth_factor is None else smooth_factor
        self._start = self._partial = time.time()
        self._partial_count = 0.0
        self._partial_rate: float | None = None
        self._count = 0.0

    def add(self, count: float) -> None:
        """Count some more."""
        self._count += count

    def rate(self) -> float:
        """Samples in a second, lately."""
        now = time.time()
        new = self._count - self._partial_count
        current = new / max(now - self._partial, 1e-9)
        if self._partial_rate is not None:
            current = (1 - self._smooth_factor) * current + self._smooth_factor * self._partial_rate
        self._partial, self._partial_count, self._partial_rate = now, self._count, current
        return current

    def global_rate(self) -> float:
        """Samples in a second since the beginning."""
        return self._count / max(time.time() - self._start, 1e-9)


__all__ = ["ms"]
