"""What blocks the host on each kind of device, as data: by device type, so that a simulated device answers as the real.

The functions named here are replaced while the guard watches for explicit waits; they are found by name when they are
needed, because a simulation puts its own in their place and torch_xla is imported by the program or not at all.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Wait:
    """A function with which a program waits for a device, or gives memory back to the driver.

    Attributes:
        path: where it is: module, then attributes, ``torch.cuda:Stream.synchronize``.
        call: as the user writes it.
        scope: ``device``, ``stream``, ``event``, ``query`` (only looks; has waited when it says True), ``cache``.
    """

    path: str
    call: str
    scope: str

    def owner(self) -> tuple[Any, str] | None:
        """The object and attribute to replace; None where this process does not have it."""
        module, _, attributes = self.path.partition(":")
        found: Any = sys.modules.get(module)
        *holders, name = attributes.split(".")
        for holder in holders:
            found = getattr(found, holder, None)
        return (found, name) if found is not None and hasattr(found, name) else None


@dataclasses.dataclass(frozen=True, slots=True)
class Blocking:
    """How one kind of device treats calls that look harmless.

    Attributes:
        waits: the functions that wait for it.
        uploads_written_numbers: True where ``x[0] = 1.0`` copies the number from the host and waits.
        counts_masks_when_filling: True where ``x[mask] = 0.0`` counts the mask's elements on the host.
        pins: True where pinned host memory makes a copy asynchronous.
        uploads_wait: True where an upload from pageable memory holds up the host.
    """

    waits: tuple[Wait, ...] = ()
    uploads_written_numbers: bool = True
    counts_masks_when_filling: bool = False
    pins: bool = True
    uploads_wait: bool = True


_ANY = (
    Wait("torch.accelerator:synchronize", "torch.accelerator.synchronize()", "device"),
    Wait("torch.accelerator:empty_cache", "torch.accelerator.empty_cache()", "cache"),
)


def _named(kind: str) -> tuple[Wait, ...]:
    module = f"torch.{kind}"
    return (
        Wait(f"{module}:synchronize", f"{module}.synchronize()", "device"),
        Wait(f"{module}:Stream.synchronize", "stream.synchronize()", "stream"),
        Wait(f"{module}:Event.synchronize", "event.synchronize()", "event"),
        Wait(f"{module}:Event.query", "event.query()", "query"),
        Wait(f"{module}:Stream.query", "stream.query()", "query"),
        Wait(f"{module}:empty_cache", f"{module}.empty_cache()", "cache"),
        *_ANY,
    )


_XLA = (
    Wait("torch_xla.core.xla_model:wait_device_ops", "xm.wait_device_ops()", "device"),
    Wait("torch_xla:sync", "torch_xla.sync()", "marker"),
    *_ANY,
)

_BY_TYPE = {
    "cuda": Blocking(_named("cuda")),
    "xpu": Blocking(_named("xpu")),
    "hpu": Blocking(_named("hpu")),
    "npu": Blocking(_named("npu")),
    "mps": Blocking(_named("mps"), pins=False),
    "xla": Blocking(
        _XLA, uploads_written_numbers=False, counts_masks_when_filling=True, pins=False, uploads_wait=False
    ),
}


def blocking_of(device_type: str) -> Blocking:
    """The answers for a device type; careful defaults for one that is not known."""
    return _BY_TYPE.get(device_type, Blocking(_ANY))


def present_types() -> tuple[str, ...]:
    """The accelerator types this process has now, real or simulated."""
    from deviceguard.backends.devices import present

    backend = present()
    return () if backend is None else (backend.device_name(),)


def all_waits() -> Iterator[Wait]:
    """The waits of the accelerators this process has now."""
    seen = set()
    for device_type in present_types():
        for wait in blocking_of(device_type).waits:
            if wait.path not in seen:
                seen.add(wait.path)
                yield wait


def wait_call(device_type: str) -> str:
    """How a program waits for a device of the type: ``torch.cuda.synchronize()``."""
    if device_type == "xla":
        return "torch_xla.sync(wait=True)"
    return next((wait.call for wait in blocking_of(device_type).waits if wait.scope == "device"), _ANY[0].call)
