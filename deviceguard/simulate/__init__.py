"""A simulated accelerator: CPU tensors that carry the label of a device.

Training code written for ``cuda`` runs unmodified on a machine that has none, computes what a CPU run computes, and
fails where a real device would, in PyTorch's own words. Nothing here knows of the rest of deviceguard.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any, TypeVar

from deviceguard.simulate.errors import NotSimulatedError as NotSimulatedError
from deviceguard.simulate.spec import parse_spec
from deviceguard.simulate.state import ENVIRONMENT_VARIABLE
from deviceguard.simulate.state import active as active
from deviceguard.simulate.state import device_count as device_count
from deviceguard.simulate.state import device_types as device_types

__all__ = ["NotSimulatedError", "active", "device_count", "device_types", "enter_from_environment", "simulate"]

_F = TypeVar("_F", bound=Callable[..., Any])


class simulate:  # noqa: N801
    """Simulate devices inside a ``with`` block or a decorated function.

    ``spec`` is a device type, with ``:n`` for ``n`` devices: ``"cuda"``, ``"cuda:4"``, ``"xla"``. ``memory`` is the
    size of each device in bytes; a program that allocates more gets the out-of-memory error of the real device.
    The same simulation may be entered again inside itself, and from several threads.

    Where torch_xla is installed, the real device is what a program gets by default (``PJRT_DEVICE=CPU`` gives it one on
    any machine); ``simulate("xla")`` plays one instead, and has to begin before the program imports torch_xla.
    """

    def __init__(self, spec: str = "cuda", *, memory: int | None = None) -> None:
        self.spec = parse_spec(spec)
        self.memory = memory

    def __enter__(self) -> simulate:
        from deviceguard.simulate import session

        session.enter(self.spec, self.memory)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from deviceguard.simulate import session

        session.leave()

    def __call__(self, func: _F) -> _F:
        """Decorate a function."""

        @functools.wraps(func)
        def simulated(*args: Any, **kwargs: Any) -> Any:
            with simulate(str(self.spec), memory=self.memory):
                return func(*args, **kwargs)

        return simulated  # type: ignore[return-value]


class _CallableModule(ModuleType):
    """Lets ``deviceguard.simulate("cuda")`` work whether that name is this module or the class in it."""

    def __call__(self, spec: str = "cuda", *, memory: int | None = None) -> simulate:
        return simulate(spec, memory=memory)


sys.modules[__name__].__class__ = _CallableModule


def enter_from_environment() -> bool:
    """Simulate for the life of the process when ``DEVICEGUARD_SIMULATE`` says so.

    Spawned worker processes find the variable in their environment. Returns whether a simulation is on; an unusable
    value is left alone, because this runs while torch is being imported.
    """
    text = os.environ.get(ENVIRONMENT_VARIABLE)
    if not text:
        return False
    try:
        simulate(text).__enter__()
    except Exception:
        return False
    return True
