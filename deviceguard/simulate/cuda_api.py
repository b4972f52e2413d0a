"""``torch.cuda`` without a GPU: what training code asks of it, answered by the simulation.

Every public callable of ``torch.cuda`` is replaced: by an answer where there is an honest one, else by a refusal that
says it is not simulated. The properties are those of an A100 with 80 GB, the most common training GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from deviceguard.simulate import cuda_memory, random_state, streams
from deviceguard.simulate.devices import index_of
from deviceguard.simulate.errors import not_simulated
from deviceguard.simulate.memory import DeviceMemory
from deviceguard.simulate.patching import Patches
from deviceguard.simulate.state import running

DEVICE_NAME = "NVIDIA A100-SXM4-80GB (simulated)"
CAPABILITY = (8, 0)


@dataclass(frozen=True)
class DeviceProperties:
    """``torch.cuda.get_device_properties``."""

    name: str = DEVICE_NAME
    major: int = CAPABILITY[0]
    minor: int = CAPABILITY[1]
    total_memory: int = 80 << 30
    multi_processor_count: int = 108
    max_threads_per_multi_processor: int = 2048
    warp_size: int = 32
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int = 166912
    shared_memory_per_multiprocessor: int = 167936
    L2_cache_size: int = 40 << 20
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    clock_rate: int = 1410000
    gcnArchName: str = DEVICE_NAME  # noqa: N815
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0
    uuid: str = "00000000-0000-0000-0000-000000000000"


class DeviceContext:
    """``with torch.cuda.device(i)``."""

    def __init__(self, device: Any) -> None:
        self.idx = index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        current = running().current
        self.prev_idx = current.index
        if self.idx >= 0:
            _check_index(self.idx)
            current.index = self.idx

    def __exit__(self, *_: object) -> None:
        running().current.index = self.prev_idx


class DeviceOf(DeviceContext):
    """``with torch.cuda.device_of(tensor)``: the device of the tensor; nothing for a host tensor."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if obj.is_cuda else -1)


def _check_index(index: int) -> None:
    if not 0 <= index < running().count():
        raise torch.AcceleratorError(
            "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?"
        )


def set_device(device: Any) -> None:
    """``torch.cuda.set_device``."""
    index = index_of(device)
    if index >= 0:
        _check_index(index)
        running().initialize()
        running().current.index = index


def current_device() -> int:
    """``torch.cuda.current_device``."""
    running().initialize()
    return running().current.index


def synchronize(device: Any = None) -> None:
    """``torch.cuda.synchronize``: everything is done already."""
    index_of(device)
    running().initialize()


def _valid(device: Any) -> int:
    index = index_of(device)
    if not 0 <= index < running().count():
        raise AssertionError("Invalid device id")
    return index


def get_device_name(device: Any = None) -> str:
    """``torch.cuda.get_device_name``."""
    _valid(device)
    return DEVICE_NAME


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """``torch.cuda.get_device_capability``."""
    _valid(device)
    return CAPABILITY


@contextlib.contextmanager
def _null(*_: Any, **__: Any) -> Iterator[None]:
    yield


def _lazy_call(action: Callable[[], Any], **_: Any) -> None:
    action()


def _nothing(*_: Any, **__: Any) -> None:
    """Calls that only concern the hardware."""


def _answers(memory: DeviceMemory) -> dict[str, Any]:
    def get_device_properties(device: Any = None) -> DeviceProperties:
        _valid(device)
        return DeviceProperties(total_memory=memory.total)

    return {
        "is_available": lambda: running().count() > 0,
        "device_count": lambda: running().count(),
        "is_initialized": lambda: running().initialized and not running().forked(),
        "_is_in_bad_fork": lambda: running().forked(),
        "init": lambda: running().initialize(),
        "_lazy_init": lambda: running().initialize(),
        "_lazy_call": _lazy_call,
        "_exchange_device": _exchange_device,
        "_maybe_exchange_device": _exchange_device,
        "current_device": current_device,
        "set_device": set_device,
        "device": DeviceContext,
        "device_of": DeviceOf,
        "_DeviceGuard": DeviceContext,
        "synchronize": synchronize,
        "ipc_collect": _nothing,
        "get_device_name": get_device_name,
        "get_device_capability": get_device_capability,
        "get_device_properties": get_device_properties,
        "can_device_access_peer": lambda device, peer: _valid(device) != _valid(peer),
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_tf32_supported": lambda: True,
        "_check_bf16_tensor_supported": lambda device: True,
        "get_arch_list": lambda: ["sm_80"],
        "get_gencode_flags": lambda: "-gencode compute=compute_80,code=sm_80",
        "is_current_stream_capturing": lambda: False,
        "set_sync_debug_mode": _set_sync_debug_mode,
        "get_sync_debug_mode": lambda: _SYNC_DEBUG[0],
        "Stream": streams.Stream,
        "Event": streams.Event,
        "StreamContext": streams.StreamContext,
        "stream": streams.stream_context,
        "set_stream": streams.set_stream,
        "current_stream": streams.current_stream,
        "default_stream": streams.default_stream,
        "_sleep": _nothing,
    }


_SYNC_DEBUG = [0]


def _set_sync_debug_mode(debug_mode: int | str) -> None:
    """``torch.cuda.set_sync_debug_mode``: kept; a simulated device itself never waits."""
    names = {"default": 0, "warn": 1, "error": 2}
    if isinstance(debug_mode, str) and debug_mode not in names:
        raise RuntimeError("invalid value of debug_mode, expected one of `default`, `warn`, `error`")
    _SYNC_DEBUG[0] = names[debug_mode] if isinstance(debug_mode, str) else debug_mode


def _exchange_device(index: int) -> int:
    before = running().current.index
    if index >= 0:
        running().current.index = index
    return before


_KEPT_TEXT = """
CudaError DeferredCudaCallError cudaStatus check_error amp memory random sparse streams profiler nvtx nccl tunable
graphs jiterator has_half has_magma gds green_contexts
"""
_KEPT = frozenset(_KEPT_TEXT.split())


def _refusal(name: str) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> Any:
        not_simulated(name)

    refused.__name__ = refused.__qualname__ = name.rpartition(".")[2]
    return refused


def _refused_class(name: str) -> type:
    """A class that cannot be made an object of, but stands in annotations and ``isinstance``."""
    return type(name.rpartition(".")[2], (), {"__init__": _refusal(name), "__module__": "torch.cuda"})


def install(patches: Patches, memory: DeviceMemory) -> None:
    """Replace what is public in ``torch.cuda``."""
    answers = _answers(memory) | cuda_memory.answers(memory) | random_state.answers()
    for name, value in answers.items():
        patches.set_existing(torch.cuda, name, value)
        for module in (torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
            if name in vars(module):
                patches.set(module, name, value)
    for name in torch.cuda.__all__:
        found = getattr(torch.cuda, name, None)
        if name in answers or name in _KEPT or not callable(found) or isinstance(found, type):
            continue
        patches.set(torch.cuda, name, _refusal(f"torch.cuda.{name}"))
    for name in ("_snapshot", "_dump_snapshot"):
        patches.set_existing(torch.cuda.memory, name, _refusal(f"torch.cuda.memory.{name}"))
    patches.set(torch.cuda, "_initialized", True)
    for name in ("CUDAGraph", "graph"):
        patches.set(torch.cuda, name, _refused_class(f"torch.cuda.{name}"))
    patches.set(torch.cuda.jiterator._JittedFunction, "__call__", _refusal("torch.cuda.jiterator"))
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        patches.set_existing(torch.cuda.nvtx, name, _nothing)
    patches.set_existing(torch.cuda.nvtx, "range", _null)
    patches.set_existing(torch.backends.cuda, "is_built", lambda: True)
    _install_names_of_a_cuda_build(patches)
    patches.set_existing(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    patches.set_existing(torch.backends.cudnn, "is_available", lambda: True)
    patches.set_existing(torch.backends.cudnn, "is_acceptable", lambda tensor: bool(tensor.is_cuda))
    patches.set_existing(torch.backends.cudnn, "version", lambda: 91002)
    patches.set(torch.version, "cuda", "12.8")


class _AllocatorState:
    """Stands in for the C++ type of the same name; nothing makes one, because graphs are not simulated."""


def _install_names_of_a_cuda_build(patches: Patches) -> None:
    """Give ``torch._C`` the names that PyTorch's own modules import where ``torch.backends.cuda.is_built()``."""
    names = {"_cuda_CUDAAllocator_AllocatorState": _AllocatorState, "_set_cached_tensors_enabled": _nothing}
    for name, value in names.items():
        if not hasattr(torch._C, name):
            patches.set(torch._C, name, value)
