"""Calls which a host accepts and a CUDA device refuses, and composite functions that check placement themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional
from torch import Tensor

from deviceguard.simulate.labels import device_of, label_tree, tensors_in
from deviceguard.simulate.placement_words import TYPE_NAMES, refuse_argument, text_of

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
    first = args[0] if args and isinstance(args[0], Tensor) else None
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


def attention(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``scaled_dot_product_attention``: compares its three inputs, then its kernel the mask."""
    named = {**dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)), **kwargs}
    query, key, value = (device_of(named[name]) for name in ("query", "key", "value"))
    if not query == key == value:
        raise RuntimeError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{text_of(query)} key.device: {text_of(key)} and value.device: {text_of(value)} instead."
        )
    mask = named.get("attn_mask")
    if isinstance(mask, Tensor) and (found := device_of(mask)) != query:
        refuse_argument("attn_bias", found, query, "__scaled_dot_product_efficient_attention")
    return mode.call(func, args, kwargs)


def ctc_loss(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``ctc_loss``: targets and lengths may be on the host, the result is with the probabilities."""
    device = device_of(args[0])
    result = func(*args, **kwargs)
    if device is not None:
        label_tree(result, device, mode.memory)
    return result


def meshgrid(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``meshgrid`` and ``cartesian_prod``."""
    if len({device_of(tensor) for tensor in tensors_in(args)}) > 1:
        raise RuntimeError("meshgrid expects all tensors to have the same device")
    return mode.call(func, args, kwargs)


def block_diag(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``block_diag``."""
    places = [device_of(tensor) for tensor in tensors_in(args)]
    for position, place in enumerate(places):
        if place != places[0]:
            raise RuntimeError(
                "torch.block_diag: input tensors must all be on the same device. Input 0 is on device "
                f"{text_of(places[0])} and input {position} is on device {text_of(place)}"
            )
    return mode.call(func, args, kwargs)


def quantile(mode: SimulationMode, func: Any, args: _Args, kwargs: _Kwargs) -> Any:
    """``quantile`` and ``nanquantile``."""
    q = args[1] if len(args) > 1 else kwargs.get("q")
    if isinstance(q, Tensor) and device_of(q) != device_of(args[0]):
        raise RuntimeError("quantile() q tensor must be on the same device as the input tensor")
    return mode.call(func, args, kwargs)


def tensor_split(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``tensor_split``: reads its indices on the host."""
    indices = args[1] if len(args) > 1 else kwargs.get("tensor_indices_or_sections")
    if isinstance(indices, Tensor):
        if (found := device_of(indices)) is not None:
            raise RuntimeError(
                f"tensor_split expected tensor_indices_or_sections to be on cpu, but it's on {text_of(found)}"
            )
        result = func(*args, **kwargs)
        if (home := device_of(args[0])) is not None:
            label_tree(result, home, mode.memory)
        return result
    return mode.call(func, args, kwargs)


def handlers() -> dict[Any, Special]:
    """The table of this module."""
    table: dict[Any, Special] = {
        torch.nn.functional.scaled_dot_product_attention: attention,
        torch.ctc_loss: ctc_loss,
        torch.functional.meshgrid: meshgrid,
        torch.functional.cartesian_prod: meshgrid,
        torch.functional.block_diag: block_diag,
        torch._C._nn.linear: product,
        torch.nn.functional.linear: product,
    }
    functions: dict[Special, str] = {
        product: "mm addmm bmm baddbmm mv addmv dot vdot inner matmul __matmul__ addmm_ baddbmm_",
        absent: "histogram histogramdd to_mkldnn",
        quantile: "quantile nanquantile",
        tensor_split: "tensor_split",
    }
    for handler, names in functions.items():
        for name in names.split():
            for owner in (torch, Tensor):
                if (found := getattr(owner, name, None)) is not None:
                    table[found] = handler
    return table
