"""Composite functions that compare the devices of their operands themselves, each in its own words.

The placement table looks below them, where PyTorch's dispatcher has taken them apart, and would refuse the same calls
with the words of the first kernel inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deviceguard.simulate import refusals
from deviceguard.simulate.labels import device_of, label_tree, tensors_in
from deviceguard.simulate.placement_words import refuse_argument, text_of
from deviceguard.simulate.state import running

if TYPE_CHECKING:
    from deviceguard.simulate.mode import Call, SimulationMode, Special

_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]


def _places(args: _Args, kwargs: _Kwargs, *names: str) -> Iterator[tuple[str, torch.device | None]]:
    """The names and devices of the tensors among the named arguments."""
    bound = {**dict(zip(names, args, strict=False)), **kwargs}
    return ((name, device_of(bound[name])) for name in names if isinstance(bound.get(name), Tensor))


def inner(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``inner``: compares the types of the devices, not their indices."""
    (_, here), *others = _places(args, kwargs, "input", "other", "out")
    for _, there in others:
        if (home := _type_of(here)) != (found := _type_of(there)):
            raise RuntimeError(
                f"Expected tensor to have {home} DeviceType, but got tensor with {found} DeviceType (while checking "
                "arguments for inner())"
            )
    return refusals.product(mode, func, args, kwargs)


def windowed(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``stft`` and ``istft``: the window must be with the signal."""
    found = dict(_places(args, kwargs, "input", "n_fft", "hop_length", "win_length", "window"))
    if "window" in found and found["input"] != found["window"]:
        raise RuntimeError(
            f"{func.__name__} input and window must be on the same device but got self on {text_of(found['input'])} "
            f"and window on {text_of(found['window'])}"
        )
    return mode.call(func, args, kwargs)


def gradient(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``gradient``: the spacing must be with the values."""
    home, *others = [device_of(tensor) for tensor in tensors_in((args, kwargs))]
    for found in others:
        if found != home:
            raise RuntimeError(
                "torch.gradient expected each tensor to be on the same device, but got devices "
                f"{text_of(home)} and {text_of(found)}!"
            )
    return mode.call(func, args, kwargs)


def multi_dot(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``linalg.multi_dot``."""
    places = [device_of(tensor) for tensor in tensors_in((args, kwargs))]
    for position, found in enumerate(places):
        if found != places[0]:
            raise RuntimeError(
                "multi_dot(): all tensors must be on the same device but tensor 0 is on "
                f"{text_of(places[0])} and tensor {position} on {text_of(found)}"
            )
    return mode.call(func, args, kwargs)


def take_along_dim(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``take_along_dim``: the indices must be with the values."""
    (_, home), *others = _places(args, kwargs, "input", "indices")
    for _, found in others:
        if found != home:
            raise RuntimeError(
                f"Expected tensor to have {text_of(home)} Device, but got tensor with {text_of(found)} Device (while "
                "checking arguments for torch.take_along_dim():)"
            )
    return mode.call(func, args, kwargs)


def cholesky_solve(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``cholesky_solve``."""
    (_, right), *others = _places(args, kwargs, "input", "input2")
    for _, left in others:
        if left != right:
            raise RuntimeError(
                f"Expected b and A to be on the same device, but found b on {text_of(right)} and A on {text_of(left)} "
                "instead."
            )
    return mode.call(func, args, kwargs)


def matrix_rank(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
    """``linalg.matrix_rank``: tolerances given as tensors must be with the matrix."""
    (_, home), *others = _places(args, kwargs, "A" if "A" in kwargs else "input", "tol", "atol", "rtol")
    for name, found in others:
        if found != home:
            raise RuntimeError(
                f"torch.linalg.matrix_rank: Expected {name} and input tensors to be on the same device, but got {name} "
                f"on {text_of(found)} and input on {text_of(home)}"
            )
    return mode.call(func, args, kwargs)


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
    if running().type == "cuda" and isinstance(mask, Tensor) and (found := device_of(mask)) != query:
        refuse_argument("attn_bias", found, query, "__scaled_dot_product_efficient_attention")
    return mode.call(func, args, kwargs)


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


_RESULT = ": Expected result and input tensors to be on the same device, but got result on {out} and input on {home}"
_OUTPUT = ": Expected the output and input tensors to be on the same device, but got the output tensor on {out}, "
#: How a function refuses an ``out`` that is not with its first operand.
_OUT_WORDS = {
    "cholesky_solve": f"cholesky_solve{_RESULT}",
    "dot": f"dot{_OUTPUT}the 'input' tensor on {{home}}, and the 'other' tensor on {{home}}",
    "vdot": f"vdot{_OUTPUT}the 'input' tensor on {{home}}, and the 'other' tensor on {{home}}",
    "multi_dot": "multi_dot(): expected out tensor to be on device {home} but got {out}",
    "pinv": f"linalg.pinv{_RESULT}",
    "matrix_rank": f"torch.linalg.matrix_rank{_RESULT}",
    "quantile": "quantile() out tensor must be on the same device as the input tensor",
    "slice_scatter": "Expected out tensor to have device {home}, but got {out} instead",
    "tensordot": f"tensordot{_OUTPUT}input tensor a on {{home}}, and input tensor b on {{home}}",
    "tensorsolve": f"tensorsolve{_RESULT}",
}


def _with_out(words: str, otherwise: Special | None = None) -> Special:
    """A handler that compares ``out`` before anything else."""

    def checked(mode: SimulationMode, func: Call, args: _Args, kwargs: _Kwargs) -> Any:
        out = kwargs.get("out")
        if isinstance(out, Tensor):
            home, found = device_of(next(tensors_in((args, kwargs)))), device_of(out)
            if home != found:
                raise RuntimeError(words.format(home=text_of(home), out=text_of(found)))
        return mode.call(func, args, kwargs) if otherwise is None else otherwise(mode, func, args, kwargs)

    return checked


def _type_of(label: torch.device | None) -> str:
    return "cpu" if label is None else label.type


def handlers() -> dict[Any, Special]:
    """The table of this module."""
    functions: Any = torch._VF
    return {
        torch.inner: inner,
        torch.Tensor.inner: inner,
        functions.stft: windowed,
        functions.istft: windowed,
        torch.gradient: gradient,
        torch.nn.functional.scaled_dot_product_attention: attention,
        torch.functional.meshgrid: meshgrid,
        torch.functional.cartesian_prod: meshgrid,
        torch.functional.block_diag: block_diag,
        torch.tensor_split: tensor_split,
        torch.Tensor.tensor_split: tensor_split,
        torch.Tensor.quantile: quantile,
        torch.Tensor.nanquantile: quantile,
        torch.linalg.multi_dot: _with_out(_OUT_WORDS["multi_dot"], multi_dot),
        torch.take_along_dim: take_along_dim,
        torch.Tensor.take_along_dim: take_along_dim,
        torch.cholesky_solve: _with_out(_OUT_WORDS["cholesky_solve"], cholesky_solve),
        torch.Tensor.cholesky_solve: cholesky_solve,
        torch.linalg.matrix_rank: _with_out(_OUT_WORDS["matrix_rank"], matrix_rank),
        torch.linalg.pinv: _with_out(_OUT_WORDS["pinv"]),
        torch.linalg.tensorsolve: _with_out(_OUT_WORDS["tensorsolve"]),
        torch.diff: _with_out("expected device {home} but found {out}"),
        torch.dot: _with_out(_OUT_WORDS["dot"], refusals.product),
        torch.vdot: _with_out(_OUT_WORDS["vdot"], refusals.product),
        torch.quantile: _with_out(_OUT_WORDS["quantile"], quantile),
        torch.nanquantile: _with_out(_OUT_WORDS["quantile"], quantile),
        torch.slice_scatter: _with_out(_OUT_WORDS["slice_scatter"]),
        torch.functional.tensordot: _with_out(_OUT_WORDS["tensordot"]),
    }
