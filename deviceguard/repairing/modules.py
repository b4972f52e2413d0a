"""Moves modules, and what hangs unregistered on them, to where the rest is."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from deviceguard.backends.devices import is_host, same
from deviceguard.naming.strays import strays_of
from deviceguard.repairing.placement import is_placed


@dataclasses.dataclass(slots=True, eq=False)
class Moved:
    """What was moved.

    Attributes:
        new: the tensors that took the place of others, by the identity of those.
        olds: the others, so that their identities stay theirs.
        nbytes: bytes copied.
        old: the device they were on, as text.
        undo: moves them back.
    """

    old: str
    new: dict[int, torch.Tensor] = dataclasses.field(default_factory=dict)
    olds: list[torch.Tensor] = dataclasses.field(default_factory=list)
    nbytes: int = 0
    undo: Callable[[], None] = lambda: None


def move_module(module: nn.Module, home: torch.device) -> Moved | None:
    """Move a module that is on the host as a whole; None where its placement is mixed or somebody's decision."""
    tensors = list(_tensors_of(module))
    if not tensors or is_placed(module) or not all(is_host(tensor.device) for _, _, tensor in tensors):
        return None
    if any(tensor.is_quantized or tensor.is_meta for _, _, tensor in tensors):
        return None
    moved = Moved(str(tensors[0][2].device), nbytes=sum(tensor.nbytes for _, _, tensor in tensors))
    module.to(home)
    for registry, name, old in tensors:
        moved.olds.append(old)
        moved.new[id(old)] = registry[name]
    former, reference = moved.old, weakref.ref(module)
    moved.undo = lambda: _back(reference(), former)
    return moved


def move_strays(module: nn.Module, attribute: str, home: torch.device) -> Moved | None:
    """Move the modules and tensors under a plain attribute that are on the host; None where there is none to move.

    Raises:
        Exception: what the user's object raises where it forbids the change.
    """
    if is_placed(module):
        return None
    found = [stray for stray in strays_of(module) if stray.attribute == attribute]
    modules = [stray.value for stray in found if isinstance(stray.value, nn.Module)]
    tensors = [stray.value for stray in found if _may_move(stray.value)]
    done = [part for part in (move_module(inner, home) for inner in modules) if part is not None]
    done += [part for part in (_move_held(module, attribute, tensor, home) for tensor in tensors) if part is not None]
    if not done:
        return None
    whole = Moved(done[0].old, nbytes=sum(part.nbytes for part in done))
    for part in done:
        whole.new.update(part.new)
        whole.olds += part.olds
    undos = [part.undo for part in done]

    def undo_all() -> None:
        for undo in undos:
            undo()

    whole.undo = undo_all
    return whole


def _move_held(module: nn.Module, attribute: str, tensor: torch.Tensor, home: torch.device) -> Moved | None:
    new = tensor.to(home)
    if not _replace(module, attribute, tensor, new):
        return None
    former = tensor.device
    reference, held = weakref.ref(module), weakref.ref(new)

    def undo() -> None:
        owner, present = reference(), held()
        if owner is not None and present is not None:
            _replace(owner, attribute, present, present.to(former))

    return Moved(str(former), {id(tensor): new}, [tensor], tensor.nbytes, undo)


def _replace(module: nn.Module, attribute: str, old: torch.Tensor, new: torch.Tensor) -> bool:
    """Put a tensor in the place of another, in an attribute or the plain containers in it."""
    value = vars(module).get(attribute)
    present = _with(value, old, new, 4)
    if present is None:
        return False
    if present is not value:
        setattr(module, attribute, present)
    return True


def _with(value: Any, old: torch.Tensor, new: torch.Tensor, depth: int) -> Any:
    """What is to stand in the place of a value so that it holds the new tensor; None where it does not hold the old.

    Lists, dictionaries and dataclasses are changed and stay what they are; a tuple is made again. A frozen dataclass
    raises, as it does for its user.
    """
    if value is old:
        return new
    if depth:
        for key, item in _items_of(value):
            present = _with(item, old, new, depth - 1)
            if present is not None:
                return value if present is item else _put(value, key, present)
    return None


def _items_of(value: Any) -> list[tuple[Any, Any]]:
    if type(value) is list or _is_plain_tuple(value):
        return list(enumerate(value))
    if isinstance(value, dict):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type | nn.Module):
        # not getattr: a field may be a descriptor of the user's, whose code is not run
        return [(field.name, vars(value).get(field.name)) for field in _fields_of(value)]
    return []


def _fields_of(value: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(value) if hasattr(value, "__dict__") else ()


def _is_plain_tuple(value: Any) -> bool:
    return type(value) is tuple or (isinstance(value, tuple) and hasattr(type(value), "_make"))


def _put(value: Any, key: Any, item: Any) -> Any:
    if isinstance(value, tuple):
        items = [item if index == key else other for index, other in enumerate(value)]
        return tuple(items) if type(value) is tuple else type(value)._make(items)  # type: ignore[attr-defined]
    if isinstance(value, list | dict):
        value[key] = item
    else:
        setattr(value, key, item)
    return value


def _may_move(value: Any) -> bool:
    return type(value) is torch.Tensor and is_host(value.device) and not value.is_quantized and not value.requires_grad


def _tensors_of(module: nn.Module) -> Iterator[tuple[Any, str, torch.Tensor]]:
    for part in module.modules():
        for registry in (part._parameters, part._buffers):
            yield from ((registry, name, tensor) for name, tensor in registry.items() if tensor is not None)


def _back(module: nn.Module | None, former: str) -> None:
    if module is not None:
        module.to(former)


def is_all_on_host(module: nn.Module) -> bool:
    """True where every parameter and buffer is on the host."""
    return all(is_host(tensor.device) for _, _, tensor in _tensors_of(module))


def is_at(module: nn.Module, home: torch.device) -> bool:
    """True where every parameter and buffer is on a device."""
    return all(same(tensor.device, home) for _, _, tensor in _tensors_of(module))
