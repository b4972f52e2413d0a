"""Which models are kin: copies of one another, wrappers of one another, objects of one class with equal parameters."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from deviceguard.ledger.records import WRAPPED_AS

if TYPE_CHECKING:
    from torch import nn

    from deviceguard.ledger.ledger import Ledger

Structure = tuple[tuple[str, tuple[int, ...]], ...]


def unwrapped(module: nn.Module) -> nn.Module:
    """The model inside DDP, DataParallel or a compiled module; the module itself where there is no wrapper."""
    for _ in range(4):
        if len(module._modules) != 1 or module._parameters:
            break
        inner = next((module._modules[key] for key in WRAPPED_AS if key in module._modules), None)
        if inner is None:
            break
        module = inner
    return module


def structure_of(module: nn.Module) -> Structure:
    """Names and shapes of all parameters, in order."""
    return tuple((name, tuple(parameter.shape)) for name, parameter in module.named_parameters())


def sources_of(ledger: Ledger, module: nn.Module) -> Iterator[nn.Module]:
    """The modules a module was deep-copied from, nearest first, as far as they are alive."""
    seen = {id(module)}
    while True:
        reference: weakref.ref[nn.Module] | None = ledger.module(module).source
        source = reference() if reference is not None else None
        if source is None or id(source) in seen:
            return
        seen.add(id(source))
        yield source
        module = source


def are_copies(ledger: Ledger, one: nn.Module, other: nn.Module) -> bool:
    """True when one was deep-copied from the other, or both from a third."""
    line = {id(one), *(id(source) for source in sources_of(ledger, one))}
    return id(other) in line or any(id(source) in line for source in sources_of(ledger, other))


def is_users_class(module: nn.Module) -> bool:
    """True for a class that is not PyTorch's own."""
    return not type(module).__module__.startswith("torch.")


def share_parameters(one: nn.Module, other: nn.Module) -> bool:
    """True when a parameter is part of both."""
    mine = {id(parameter) for parameter in one.parameters()}
    return any(id(parameter) in mine for parameter in other.parameters())
