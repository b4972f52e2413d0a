"""The operands of one torch call: which of them may be moved or cast, and where to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from deviceguard.backends.devices import is_accelerator, is_host, same
from deviceguard.repairing.constants import Constants

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_WRITES = frozenset({"__setitem__"})
_DEPTH = 4


@dataclasses.dataclass(slots=True, eq=False)
class Change:
    """What a call is to be made with instead.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.
        nbytes: bytes copied for it.
        replaced: (operand as given, operand as moved or cast).
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    nbytes: int = 0
    replaced: list[tuple[torch.Tensor, torch.Tensor]] = dataclasses.field(default_factory=list)


def operands_in(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    """The tensors in an argument, also those in lists, tuples, dictionaries and packed sequences."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from operands_in(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from operands_in(item, depth - 1)


def replaced_in(value: Any, replace: Callable[[torch.Tensor], torch.Tensor], depth: int = _DEPTH) -> Any:
    """An argument with its tensors replaced; the very object where none of them changes."""
    if isinstance(value, torch.Tensor):
        return replace(value)
    if depth and isinstance(value, list | tuple):
        items = [replaced_in(item, replace, depth - 1) for item in value]
        if all(one is other for one, other in zip(items, value, strict=True)):
            return value
        if isinstance(value, PackedSequence) or hasattr(value, "_fields"):
            return type(value)(*items)
        return type(value)(items)
    if depth and isinstance(value, dict):
        changed = {key: replaced_in(item, replace, depth - 1) for key, item in value.items()}
        return value if all(changed[key] is value[key] for key in value) else changed
    return value


def destination_of(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The tensor a call writes into; None for a call that makes a new one."""
    out = kwargs.get("out")
    if out is not None:
        return next(operands_in(out), None)
    name = getattr(function, "__name__", "")
    in_place = name in _WRITES or (name.endswith("_") and not name.endswith("__"))
    in_place = in_place or (name.startswith("__i") and name not in ("__invert__", "__iter__", "__index__", "__int__"))
    return args[0] if in_place and args and isinstance(args[0], torch.Tensor) else None


def moved(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], home: torch.device, constants: Constants
) -> Change | None:
    """The call with its operands on one device; None where it is not certain which, or what may be moved.

    All go to the one accelerator among them; what a call writes into stays where it is, and the others go there.

    Args:
        function: the torch function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        home: where a rule says they belong.
        constants: copies kept from earlier calls.
    """
    operands = list(operands_in((args, dict(kwargs))))
    accelerators = [operand.device for operand in operands if is_accelerator(operand.device)]
    if not accelerators or any(not same(device, accelerators[0]) for device in accelerators):
        return None
    if not same(accelerators[0], home) or any(operand.is_meta for operand in operands):
        return None
    target = destination_of(function, args, kwargs)
    where = accelerators[0] if target is None else target.device
    away = [o for o in operands if not same(o.device, where) and (o.dim() > 0 or _all_scalar(operands, where))]
    if not away or not all(_may_move(operand) for operand in away):
        return None
    return _changed(args, kwargs, away, lambda index, tensor: constants.moved(index, tensor, where))


def to_host(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Change | None:
    """The call with the operand on the host that must be there."""
    name = getattr(function, "__name__", "")
    if name in ("numpy", "__array__"):
        chosen = [operand for operand in operands_in(args[:1]) if is_accelerator(operand.device)]
    elif "pack_padded_sequence" in name:
        chosen = [o for o in operands_in((args[1:], dict(kwargs))) if is_accelerator(o.device) and o.dim() == 1]
    else:
        return None
    if len(chosen) != 1 or not _may_move(chosen[0]):
        return None
    return _changed(args, kwargs, chosen, lambda index, tensor: (tensor.detach().cpu(), tensor.nbytes))


def cast(args: tuple[Any, ...], kwargs: Mapping[str, Any], dtype: torch.dtype) -> Change | None:
    """The call with its floating operands cast; None where parameters would have to be, or under autocast."""
    operands = list(operands_in((args, dict(kwargs))))
    odd = [operand for operand in operands if operand.is_floating_point() and operand.dtype != dtype]
    if not dtype.is_floating_point or not odd or any(_is_autocast(operand) for operand in operands):
        return None
    if not all(_may_cast(operand) for operand in odd):
        return None
    return _changed(args, kwargs, odd, lambda index, tensor: (tensor.to(dtype), 0))


def _changed(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    chosen: list[torch.Tensor],
    make: Callable[[int, torch.Tensor], tuple[torch.Tensor, int]],
) -> Change:
    change = Change((), {})
    new: dict[int, torch.Tensor] = {}
    for index, tensor in enumerate(chosen):
        if id(tensor) not in new:
            new[id(tensor)], nbytes = make(index, tensor)
            change.nbytes += nbytes
            change.replaced.append((tensor, new[id(tensor)]))
    change.args = replaced_in(args, lambda tensor: new.get(id(tensor), tensor))
    change.kwargs = replaced_in(dict(kwargs), lambda tensor: new.get(id(tensor), tensor))
    return change


def _all_scalar(operands: list[torch.Tensor], where: torch.device) -> bool:
    """True where nothing but 0-dim tensors is elsewhere, so that one of them must be what was refused."""
    return all(operand.dim() == 0 for operand in operands if not same(operand.device, where))


def _may_move(operand: torch.Tensor) -> bool:
    """Not a parameter, which its module is to be moved with, and nothing quantised, sparse or of another class."""
    return type(operand) is torch.Tensor and not operand.is_quantized and operand.layout is torch.strided


def _may_cast(operand: torch.Tensor) -> bool:
    return type(operand) is torch.Tensor and not operand.is_quantized and operand.layout is torch.strided


def _is_autocast(operand: torch.Tensor) -> bool:
    try:
        return torch.is_autocast_enabled(operand.device.type) or (
            not is_host(operand.device) and torch.is_autocast_enabled("cpu")
        )
    except RuntimeError:  # a device type that knows no autocast
        return False
