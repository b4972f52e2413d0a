"""Stands in for ``torch_xla.distributed.xla_multiprocessing``: one replica, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from deviceguard.simulate.errors import not_simulated
from deviceguard.simulate.state import running

_T = TypeVar("_T")


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """Call the function for the only device."""
    if nprocs not in (None, 1):
        raise ValueError(f"Unsupported nprocs ({nprocs}). Please use nprocs=1 or None (default).")
    if nprocs is None and running().count() > 1:
        not_simulated("torch_xla.launch over several devices")
    fn(0, *args)


class MpModelWrapper:
    """Holds a model until it is moved."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def to(self, device: torch.device) -> nn.Module:
        """The model on a device."""
        self._model.to(device)
        return self._model


class MpSerialExecutor:
    """Runs one function at a time."""

    def run(self, fn: Callable[[], _T]) -> _T:
        """Call it."""
        return fn()
