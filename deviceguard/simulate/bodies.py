"""The inside of PyTorch's own Python functions, run with the mode on.

``F.cross_entropy`` and its like begin by asking whether a mode wants to handle them. Called again with the mode on they
would ask for ever; called with the mode off their inside is not seen. So their code is run with globals in which that
question is always answered with no.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any


def _no(*_: Any) -> bool:
    return False


_QUESTIONS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


class _BodyGlobals(dict[str, Any]):
    """The globals of a module, read live, with the questions answered."""

    def __init__(self, module_globals: dict[str, Any]) -> None:
        super().__init__(dict.fromkeys(_QUESTIONS, _no))
        self["__builtins__"] = module_globals["__builtins__"]
        self._module_globals = module_globals

    def __missing__(self, name: str) -> Any:
        found = self._module_globals[name]
        if name.startswith("_") and isinstance(found, FunctionType) and found.__globals__ is self._module_globals:
            return body(found)  # a private helper asks the same question on behalf of its public caller
        return found


@functools.lru_cache(maxsize=1024)
def body(func: FunctionType) -> Callable[..., Any]:
    """The function without its question."""
    clone = FunctionType(
        func.__code__, _BodyGlobals(func.__globals__), func.__name__, func.__defaults__, func.__closure__
    )
    clone.__kwdefaults__ = func.__kwdefaults__
    return clone
