"""Which backend speaks for a device, and what devices this process has."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from deviceguard.backends.accelerator import AcceleratorBackend
from deviceguard.backends.backend import Backend
from deviceguard.backends.cuda import CudaBackend
from deviceguard.backends.simulated import SimulatedBackend, SimulatedXlaBackend
from deviceguard.backends.tracing import Tracing
from deviceguard.backends.xla import XlaBackend

if TYPE_CHECKING:
    import torch

HOST = "cpu"
META = "meta"


@functools.cache
def backends() -> tuple[Backend, ...]:
    """All backends in the order in which they are asked; the catch-all last."""
    return (SimulatedXlaBackend(), SimulatedBackend(), XlaBackend(), CudaBackend(), AcceleratorBackend())


def backend_of(device: torch.device) -> Backend | None:
    """The backend that speaks for a device; None for the host and for ``meta``."""
    kind = device.type
    if kind in (HOST, META):
        return None
    return next((backend for backend in backends() if backend.owns(kind)), None)


def tracings() -> tuple[Tracing, ...]:
    """What the backends that collect operations into graphs tell of them, whether or not they are present."""
    return tuple(dict.fromkeys(backend.tracing for backend in backends() if backend.tracing is not None))


def is_accelerator(device: torch.device) -> bool:
    """True for a device that is neither the host nor ``meta``."""
    return device.type not in (HOST, META)


def is_host(device: torch.device) -> bool:
    """True for the CPU."""
    return device.type == HOST


def is_simulated(device: torch.device) -> bool:
    """True for a device that ``deviceguard.simulate`` pretends."""
    return isinstance(backend_of(device), SimulatedBackend)


def present() -> Backend | None:
    """The accelerator this process can use now, or None."""
    return next((backend for backend in backends() if backend.is_present()), None)


def same(one: torch.device, other: torch.device) -> bool:
    """True for devices that are the same once a missing index is read as the first one."""
    return one == other or (one.type == other.type and (one.index or 0) == (other.index or 0))
