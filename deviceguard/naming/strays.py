"""What hangs on a module without being registered: modules and tensors in plain attributes, containers, closures.

Looks at ``__dict__`` and at the contents of plain containers only; no property, no ``__getattr__`` and no iterator of
the user's own is ever run.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

_REGISTRIES = frozenset({"_parameters", "_buffers", "_modules"})
_OWN = frozenset(vars(nn.Module())) | _REGISTRIES
_DEPTH = 4
_MOST = 2000
CLOSED_OVER = re.compile(r" \(closure over (\w+)\)$")
"""The end of the path of a tensor that a function has closed over."""
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)


@dataclasses.dataclass(frozen=True, slots=True)
class Stray:
    """One unregistered thing.

    Attributes:
        path: where it hangs, as the user writes it behind the module's name: ``layers[0]``, ``cache['mask']``.
        value: the tensor or module.
    """

    path: str
    value: Any

    @property
    def attribute(self) -> str:
        """The attribute of the module under which it is found: ``layers``."""
        return self.path.split("[", 1)[0].split(".", 1)[0]


def strays_of(module: nn.Module) -> Iterator[Stray]:
    """The tensors and modules in the plain attributes of one module, not of its children, nearest first."""
    attributes = vars(module)
    budget = [_MOST]
    for name, value in list(attributes.items()):
        if name not in _OWN:
            yield from _walk(name, value, _DEPTH, budget)


def shared_strays_of(module: nn.Module) -> Iterator[Stray]:
    """The tensors and modules in the class attributes of a module of the user's, which all its instances share."""
    budget = [_MOST]
    hidden = {*vars(module), *module._parameters, *module._buffers, *module._modules}
    for cls in type(module).__mro__:
        if cls.__module__.partition(".")[0] in ("builtins", "torch"):
            continue
        for name, value in list(vars(cls).items()):
            if name not in hidden and issubclass(type(value), torch.Tensor | nn.Module | list | tuple | dict):
                hidden.add(name)
                yield from _walk(name, value, _DEPTH, budget)


def _walk(path: str, value: Any, depth: int, budget: list[int]) -> Iterator[Stray]:
    budget[0] -= 1
    if budget[0] < 0:
        return
    if issubclass(type(value), torch.Tensor | nn.Module):
        yield Stray(path, value)
    elif depth:
        for step, item in _contents(value):
            yield from _walk(path + step, item, depth - 1, budget)


def _contents(value: Any) -> Iterable[tuple[str, Any]]:
    kind = type(value)
    if issubclass(kind, dict) and kind.items in (dict.items, collections.OrderedDict.items):
        return [(f"[{key!r}]", item) for key, item in list(value.items())[:_MOST]]
    if issubclass(kind, _SEQUENCES) and kind.__iter__ in [base.__iter__ for base in _SEQUENCES]:
        return [(f"[{index}]", item) for index, item in enumerate(list(value)[:_MOST])]
    if kind is types.FunctionType:
        return _closure(value)
    if kind is functools.partial:
        return [(f".args[{index}]", item) for index, item in enumerate(value.args)]
    if kind is types.MethodType or issubclass(kind, type | types.ModuleType):
        return ()
    return _attributes(value)


def _closure(function: types.FunctionType) -> list[tuple[str, Any]]:
    found = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found.append((f" (closure over {name})", cell.cell_contents))
        except ValueError:  # the cell is still empty
            continue
    return found


def _attributes(value: Any) -> list[tuple[str, Any]]:
    kind = type(value)
    if kind.__module__.partition(".")[0] in ("builtins", "torch", "numpy", "threading", "logging"):
        return []
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return _slots(value)
    return [(f".{name}", item) for name, item in list(attributes.items())[:64] if isinstance(name, str)]


def _slots(value: Any) -> list[tuple[str, Any]]:
    if not dataclasses.is_dataclass(value):
        return []
    found = []
    for field in dataclasses.fields(value):
        descriptor = getattr(type(value), field.name, None)
        if isinstance(descriptor, types.MemberDescriptorType):
            try:
                found.append((f".{field.name}", descriptor.__get__(value)))
            except AttributeError:
                continue
    return found


def registered_in(modules: Iterable[nn.Module]) -> set[int]:
    """Identities of all modules, parameters and buffers that are registered on any of the given modules."""
    known: set[int] = set()
    for module in modules:
        for registry in (module._modules, module._parameters, module._buffers):
            known.update(id(item) for item in registry.values() if item is not None)
    return known


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """Where a stray hangs.

    Attributes:
        module: the module whose attribute leads to it.
        path: the way from there.
        stray: the unregistered tensor or module.
        inner: for a tensor registered on a stray module, its path there (``hits``); else empty.
        shared: True when it hangs on the class.
    """

    module: nn.Module
    path: str
    stray: Any
    inner: str = ""
    shared: bool = False

    @property
    def attribute(self) -> str:
        """The attribute of ``module`` that is to be changed."""
        return Stray(self.path, None).attribute


def holder_of(target: Any, modules: Iterable[nn.Module]) -> Holder | None:
    """The module that holds a tensor or module without having registered it; None when nobody does so.

    A tensor that is a parameter or buffer of an unregistered module (or of a part of one) counts too.

    Args:
        target: the tensor or module asked about.
        modules: the modules to search.
    """
    known = [module for module in modules if isinstance(module, nn.Module)]
    registered = registered_in(known)
    for shared, strays in ((False, strays_of), (True, shared_strays_of)):
        for module in known:
            for stray in strays(module):
                if id(stray.value) not in registered and stray.value is not module:
                    inner = _way_to(target, stray.value, module)
                    if inner is not None:
                        return Holder(module, stray.path, stray.value, inner, shared)
    return None


def _way_to(target: Any, stray: Any, holder: nn.Module) -> str | None:
    """The path from a stray to what is looked for, empty where they are the same; None where it does not lead there."""
    if stray is target or _same_storage_view(stray, target):
        return ""
    if not issubclass(type(stray), nn.Module) or _path_inside(holder, stray) is not None:  # a way back to the holder
        return None
    return _path_inside(target, stray)


def _same_storage_view(stray: Any, target: Any) -> bool:
    return isinstance(stray, torch.Tensor) and isinstance(target, torch.Tensor) and target._base is stray


def _path_inside(target: Any, root: nn.Module) -> str | None:
    for path, part in root.named_modules():
        if part is target:
            return path
        for registry in (part._parameters, part._buffers):
            for name, tensor in registry.items():
                if tensor is target:
                    return f"{path}.{name}" if path else name
    return None
