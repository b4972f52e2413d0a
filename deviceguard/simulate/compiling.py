"""``torch.compile`` under a simulation: the program runs eagerly, and one line says so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from deviceguard.simulate.patching import Patches


def install(patches: Patches) -> None:
    """Make ``torch.compile`` return what it was given."""
    said: list[bool] = []

    def say() -> None:
        if not said:
            said.append(True)
            print("deviceguard: torch.compile runs eagerly under a simulated device", file=sys.stderr)

    def compile_eagerly(model: Callable[..., Any] | None = None, **_: Any) -> Any:
        say()
        if model is None:
            return lambda function: function
        return model

    def compile_module(self: Any, *_: Any, **__: Any) -> None:
        say()

    patches.set(torch, "compile", compile_eagerly)
    patches.set(torch.nn.Module, "compile", compile_module)
