"""``.to`` and its relatives: the calls that take a tensor from one device to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from deviceguard.simulate.devices import HOST, simulated
from deviceguard.simulate.labels import device_of, label_tree, mark_pinned
from deviceguard.simulate.placement_words import type_name
from deviceguard.simulate.state import running

if TYPE_CHECKING:
    from deviceguard.simulate.mode import Call, SimulationMode, Special

_to = torch.Tensor.to
_POSITIONS = ("device", "dtype", "non_blocking", "copy")


def move(mode: SimulationMode, tensor: Tensor, named: Any, options: dict[str, Any]) -> Tensor:
    """Take a tensor to the device that ``named`` means; the same tensor when nothing changes."""
    here, target = device_of(tensor), simulated(named)
    if target is None and torch.device(named).type != "cpu":
        return _to(tensor, torch.device(named), **options)
    if here is target:
        result = _to(tensor, HOST, **options)
        if target is not None:
            label_tree(result, target, mode.memory)
        return result
    options["copy"] = True
    result = _to(tensor, HOST, **options)
    if target is not None:
        label_tree(result, target, mode.memory)
    elif options.get("non_blocking") and running().type == "cuda":
        mark_pinned(result)
    return result


def to(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``Tensor.to`` in its three forms."""
    tensor, given = args[0], dict(kwargs)
    rest = list(args[1:])
    if rest and isinstance(rest[0], Tensor):
        given["other"] = rest.pop(0)
    if "other" in given:
        other = given.pop("other")
        given["dtype"] = other.dtype
        named: Any = device_of(other)
        given.update(zip(_POSITIONS[2:], rest, strict=False))
        return move(mode, tensor, torch.Tensor.device.__get__(other) if named is None else named, given)
    if rest and isinstance(rest[0], torch.dtype):
        given.update(zip(_POSITIONS[1:], rest, strict=False))
    else:
        given.update(zip(_POSITIONS, rest, strict=False))
    named = given.pop("device", None)
    if named is None:
        return mode.call(func, args, kwargs)
    return move(mode, tensor, named, given)


def cuda(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``Tensor.cuda``."""
    if running().type != "cuda":
        return func(*args, **kwargs)  # refused by PyTorch itself
    given = {**dict(zip(("device", "non_blocking"), args[1:], strict=False)), **kwargs}
    named = given.pop("device", None)
    if named is None:
        named = "cuda"
    if simulated(named) is None:
        raise RuntimeError(f"Invalid device, must be cuda device but got {torch.device(named).type}")
    return move(mode, args[0], named, given)


def cpu(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``Tensor.cpu``."""
    return move(mode, args[0], HOST, dict(kwargs))


def type_(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``Tensor.type``: without an argument a question, with one a conversion that names a device."""
    named = kwargs.get("dtype", args[1] if len(args) > 1 else None)
    here = device_of(args[0])
    if named is None:
        return func(*args) if here is None else type_name(args[0].dtype, here)
    if isinstance(named, torch.dtype):
        return mode.call(func, args, kwargs)
    name = named if isinstance(named, str) else f"{named.__module__}.{named.__name__}"
    prefix, _, short = name.rpartition(".")
    dtype = legacy_dtype(short)
    if dtype is None:
        return mode.call(func, args, kwargs)
    target = running().type if prefix == f"torch.{running().type}" else HOST
    return move(mode, args[0], target, {"dtype": dtype})


def type_as(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``Tensor.type_as``: to the dtype and the device of another tensor."""
    other = args[1] if len(args) > 1 else kwargs["other"]
    found = device_of(other)
    return move(mode, args[0], torch.Tensor.device.__get__(other) if found is None else found, {"dtype": other.dtype})


def legacy_dtype(short: str) -> torch.dtype | None:
    """The dtype of a legacy tensor type name such as ``HalfTensor``."""
    if short == "Tensor":
        return torch.get_default_dtype()
    names: dict[str, torch.dtype] = {
        "FloatTensor": torch.float32,
        "DoubleTensor": torch.float64,
        "HalfTensor": torch.float16,
        "BFloat16Tensor": torch.bfloat16,
        "LongTensor": torch.int64,
        "IntTensor": torch.int32,
        "ShortTensor": torch.int16,
        "CharTensor": torch.int8,
        "ByteTensor": torch.uint8,
        "BoolTensor": torch.bool,
    }
    return names.get(short)


def as_tensor(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.as_tensor`` and ``torch.asarray``: the same tensor where nothing changes."""
    given = dict(kwargs)
    data = args[0] if args else given.pop("data", given.pop("obj", None))
    named = given.pop("device", None)
    rest = args[1:]
    if len(rest) > 1:
        named, rest = rest[1], (rest[0], *rest[2:])
    if named is None and not isinstance(data, Tensor):
        named = mode.default_device()
    if isinstance(data, Tensor):
        result = mode.call(func, (data, *rest), given)
        return result if named is None else move(mode, result, named, {})
    target = simulated(named)
    if target is None:
        return func(data, *rest, **given, **({} if named is None else {"device": named}))
    result = func(data, *rest, **given, device=HOST).clone()
    label_tree(result, target, mode.memory)
    return result


def tensor(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.tensor``: a copy with the data's device for a tensor, on the host for a list, unless told otherwise."""
    named = kwargs.get("device")
    data = args[0] if args else kwargs.get("data")
    if named is None:
        named = device_of(data) if isinstance(data, Tensor) else mode.default_device()
    if named is not None:
        return mode.with_device(func, args, kwargs, named)
    if kwargs.get("pin_memory"):
        return mode.with_device(func, args, kwargs, HOST)
    return func(*args, **kwargs)


def copy_(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``Tensor.copy_`` crosses; the target stays where it is."""
    return func(*args, **kwargs)


def new_tensor(mode: SimulationMode, func: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``Tensor.new_tensor``: with the tensor it is called on, wherever the data is."""
    named = kwargs.get("device")
    if named is None:
        named = device_of(args[0])
    return func(*args, **kwargs) if named is None else mode.with_device(func, args, kwargs, named)


def handlers() -> dict[Any, Special]:
    """The table of this module."""
    return {
        torch.Tensor.to: to,
        torch.Tensor.cuda: cuda,
        torch.Tensor.cpu: cpu,
        torch.Tensor.type: type_,
        torch.Tensor.type_as: type_as,
        torch.Tensor.copy_: copy_,
        torch.Tensor.new_tensor: new_tensor,
        torch.as_tensor: as_tensor,
        torch.asarray: as_tensor,
        torch.tensor: tensor,
    }
