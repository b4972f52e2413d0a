"""Optimizers: their state moved to their parameters, and stale parameters exchanged for the live ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from deviceguard.backends.devices import same


@dataclasses.dataclass(slots=True, eq=False)
class Mended:
    """What was done to an optimizer.

    Attributes:
        what: in words.
        old: what was there before.
        new: what is there now.
        nbytes: bytes copied.
        undo: takes it back.
    """

    what: str
    old: str
    new: str
    nbytes: int
    undo: Callable[[], None]


def is_stock(optimizer: Optimizer) -> bool:
    """True for an optimizer that steps as PyTorch's own do."""
    owner = next((cls for cls in type(optimizer).__mro__ if "step" in vars(cls)), Optimizer)
    return owner.__module__.startswith("torch.optim") and owner is not Optimizer


def move_state(optimizer: Optimizer) -> Mended | None:
    """Move each state tensor to the device of its parameter; step counters stay where the optimizer wants them."""
    if not is_stock(optimizer):
        return None
    back: list[tuple[Any, Any, torch.device]] = []
    nbytes, old, new = 0, "", ""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            for holder, key in _misplaced(state, parameter, group):
                tensor = holder[key]
                old, new = old or str(tensor.device), new or str(parameter.device)
                back.append((holder, key, tensor.device))
                holder[key] = tensor.to(parameter.device)
                nbytes += tensor.nbytes
    if not back:
        return None

    def undo() -> None:
        for holder, key, device in back:
            holder[key] = holder[key].to(device)

    return Mended("its state was moved to its parameters", old, new, nbytes, undo)


def _misplaced(state: Any, parameter: torch.Tensor, group: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    if not isinstance(state, dict) or (parameter.grad is None and not state):
        return found
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            if not same(value.device, parameter.device) and not _may_stay(key, value, group):
                found.append((state, key))
        elif isinstance(value, list):
            found += [
                (value, index)
                for index, item in enumerate(value)
                if isinstance(item, torch.Tensor) and item.dim() and not same(item.device, parameter.device)
            ]
    return found


def _may_stay(key: Any, tensor: torch.Tensor, group: Mapping[str, Any]) -> bool:
    return tensor.dim() == 0 and not (key == "step" and (group.get("capturable") or group.get("fused")))


def rebind(optimizer: Optimizer, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Mended | None:
    """Put live parameters in the place of those the optimizer holds; groups, order and settings stay.

    State is kept where the shapes agree, on the device of the live parameter. Schedulers go on, since the groups are
    the same objects.

    Raises:
        Exception: what the user's object raises where it forbids the change.
    """
    if not is_stock(optimizer) or not pairs or not _is_unambiguous(optimizer, pairs):
        return None
    new = {id(held): live for held, live in pairs}
    for group in optimizer.param_groups:
        group["params"][:] = [new.get(id(parameter), parameter) for parameter in group["params"]]
    states = [(held, live, optimizer.state.pop(held, None)) for held, live in pairs]
    for held, live, state in states:
        if state and held.shape == live.shape:
            optimizer.state[live] = _on(state, live)

    def undo() -> None:
        old = {id(live): held for held, live in pairs}
        for group in optimizer.param_groups:
            group["params"][:] = [old.get(id(parameter), parameter) for parameter in group["params"]]
        for held, live in pairs:
            state = optimizer.state.pop(live, None)
            if state and held.shape == live.shape:
                optimizer.state[held] = _on(state, held)

    count = f"{len(pairs)} parameter{'s' if len(pairs) > 1 else ''}"
    return Mended(
        f"its groups now hold the {count} of the model that is run", "the former ones", "the live ones", 0, undo
    )


def take_over(optimizer: Optimizer, live: Sequence[torch.Tensor]) -> Mended | None:
    """Put in the parameters a wrapper has made of all those the optimizer holds.

    Only for an optimizer with one group and no state, and where not an element more or less is there.
    """
    groups = optimizer.param_groups
    if not is_stock(optimizer) or len(groups) != 1 or optimizer.state or not live:
        return None
    held = list(groups[0]["params"])
    if sum(p.numel() for p in held) != sum(p.numel() for p in live):
        return None
    groups[0]["params"][:] = live

    def undo() -> None:
        for parameter in live:
            optimizer.state.pop(parameter, None)
        groups[0]["params"][:] = held

    return Mended(
        "its group now holds the parameters of the model that is run", "the former ones", "live ones", 0, undo
    )


def _is_unambiguous(optimizer: Optimizer, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    ours = {id(old) for old, _ in pairs}
    lives = {id(live) for _, live in pairs}
    return len(ours) == len(lives) == len(pairs) and ours <= set(held) and not lives & set(held)


def _on(state: Any, parameter: torch.Tensor) -> Any:
    """A state with its tensors on the device of a parameter; step counters where they are."""
    if not isinstance(state, dict):
        return state
    return {
        key: value.to(parameter.device) if isinstance(value, torch.Tensor) and value.dim() else value
        for key, value in state.items()
    }
