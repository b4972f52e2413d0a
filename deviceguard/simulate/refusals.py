"""Calls which a host accepts and a CUDA device refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional
from torch import Tensor

from deviceguard.simulate.labels import device_of, label_tree, tensors_in
from deviceguard.simulate.placement_words import TYPE_NAMES, refuse_argument
from deviceguard.simulate.state import running

if TYPE_CHECKING:
    from deviceguard.simulate.mode import Call, SimulationMode, Special

_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]

_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool})
#: The kernel that CUDA has for floating-point numbers only, by the name of the function.
_PRODUCTS = {
    "mm": "addmm_cuda",
    "addmm": "addmm_cuda",
    "addmm_": "addmm_cuda",
    "bmm": "baddbmm_cuda",
    "baddbmm": "baddbmm_cuda",
    "baddbmm_": "baddbmm_cuda",
    "mv": "addmv_impl_cuda",
    "addmv": "addmv_impl_cuda",
    "dot": "dot",
    "vdot": "dot",
    "inner": "dot",
}


def product(mode: SimulationMode, func: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """Products of integer matrices exist on the host only."""
    first = args[0] if args and isinstance(args[0], Tensor) and running().type == "cuda" else None
    if first is not None and first.dtype in _INTEGERS and device_of(first) is not None:
        places = {device_of(tensor) for tensor in tensors_in((args, kwargs))}
        if len(places) == 1:
            dtype = TYPE_NAMES[first.dtype].removesuffix("Tensor")
            raise NotImplementedError(f"\"{_kernel(func, args)}\" not implemented for '{dtype}'")
    return mode.call(func, args, kwargs)


def _kernel(func: Any, args: _Args) -> str:
    known = _PRODUCTS.get(func.__name__)
    if known is not None:
        return known
    if func.__name__ == "linear":
        return "addmm_cuda"
    left, right = args[0].dim(), args[1].dim()
    if left == 1 and right == 1:
        return "dot"
    if left <= 2 and right == 1:
        return "addmv_impl_cuda"
    return "addmm_cuda" if right <= 2 else "baddbmm_cuda"


def absent(mode: SimulationMode, func: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """Functions without a CUDA kernel."""
    if all(device_of(tensor) is None for tensor in tensors_in((args, kwargs))):
        return mode.call(func, args, kwargs)
    name = _ABSENT[func.__name__]
    bins = args[1] if len(args) > 1 else kwargs.get("bins")
    if next(tensors_in((bins,)), None) is not None:
        name = _WITH_TENSORS[func.__name__]
    raise NotImplementedError(
        f"Could not run 'aten::{name}' with arguments from the 'CUDA' backend. This could be because "
        "the operator doesn't exist for this backend, or was omitted during the selective/custom build process (if "
        "using custom build)."
    )


_ABSENT = {"histogram": "histogram.bin_ct", "histogramdd": "_histogramdd_bin_edges", "to_mkldnn": "to_mkldnn"}
#: The same where the bins are given as tensors.
_WITH_TENSORS = {"histogram": "histogram.bins_tensor", "histogramdd": "_histogramdd_from_bin_tensors"}


def rms_norm(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``rms_norm``: one kernel on the device, several on the host."""
    bound = {**dict(zip(("input", "normalized_shape", "weight"), args, strict=False)), **kwargs}
    home, weight = device_of(bound["input"]), bound.get("weight")
    if isinstance(weight, Tensor) and (found := device_of(weight)) != home:
        refuse_argument("weight", found, home, "__fused_rms_norm")
    return mode.call(func, args, kwargs)


def ctc_loss(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``ctc_loss``: targets and lengths may be on the host, the result is with the probabilities."""
    device = device_of(args[0])
    result = func(*args, **kwargs)
    if device is not None:
        label_tree(result, device, mode.memory)
    return result


def handlers() -> dict[Any, Special]:
    """The table of this module."""
    table: dict[Any, Special] = {
        torch.ctc_loss: ctc_loss,
        torch.rms_norm: rms_norm,
        torch._C._nn.linear: product,
        torch.nn.functional.linear: product,
    }
    functions: dict[Special, str] = {
        product: "mm addmm bmm baddbmm mv addmv dot vdot inner matmul __matmul__ addmm_ baddbmm_",
        absent: "histogram histogramdd to_mkldnn",
    }
    for handler, names in functions.items():
        for name in names.split():
            for owner in (torch, Tensor):
                if (found := getattr(owner, name, None)) is not None:
                    table[found] = handler
    return table
