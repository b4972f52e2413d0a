"""Stands in for ``torch_xla`` on a simulated XLA device.

Only what training scripts call is here, for one process that drives the device. What the real package has beyond that
is refused by name.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from deviceguard.simulate import xla_api

from . import _XLAC as _XLAC
from . import runtime as runtime
from .core import xla_model as _xm
from .distributed import xla_multiprocessing as _xmp

__version__ = "2.9.0+simulated"
__getattr__ = xla_api.absent("torch_xla", "save_as_stablehlo save_torch_model_as_stablehlo stablehlo")


def device(index: int | None = None) -> torch.device:
    """The default device, or the one with a number, which becomes the default."""
    if index is not None:
        found = _xm.get_xla_supported_devices()
        if index >= len(found):
            raise IndexError(f"Device index {index} out of range in {found}")
        _XLAC._xla_set_default_device(found[index])
    return torch.device(_XLAC._xla_get_default_device())


def devices() -> list[torch.device]:
    """All devices of this process."""
    return [torch.device(name) for name in _xm.get_xla_supported_devices()]


def real_devices() -> list[str]:
    """The hardware names of the devices."""
    return _XLAC._xla_real_devices()


def device_count() -> int:
    """How many devices this process has."""
    return len(real_devices())


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """The step marker: run what was collected, then the step's closures."""
    _XLAC._xla_step_marker(_XLAC._xla_get_default_device(), [], wait=wait, reset_scope=reset_scope)
    _xm._run_step_closures()


def step() -> contextlib.AbstractContextManager[None]:
    """A block that is one step."""
    return compile()


def compile(
    f: Callable[..., Any] | None = None,
    full_graph: bool | None = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
) -> Any:
    """A function, or a block, that is one graph: a marker before it and one behind it."""

    @contextlib.contextmanager
    def _compile() -> Iterator[None]:
        eager = _XLAC._get_use_eager_mode()
        _XLAC._set_use_eager_mode(False)
        sync()
        try:
            yield
        finally:
            sync()
            _XLAC._set_use_eager_mode(eager)

    if f is None:
        return _compile()
    function = f

    @functools.wraps(function)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        with _compile():
            return function(*args, **kwargs)

    return compiled


def manual_seed(seed: int, device: Any = None) -> None:
    """Seed the device."""
    _xm.set_rng_state(seed, device)


def launch(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> None:
    """Run a function on the device, in this process."""
    _xmp.spawn(fn, args=args, nprocs=1 if debug_single_process else None, start_method=start_method)
