"""Which transfers between host and devices are wanted: levels by direction, and the regions that change them.

The words are those of JAX's transfer guard. An *explicit* transfer is one the person wrote (``.to``, ``.cpu``,
``.item``, ``torch.tensor(..., device=...)``), an *implicit* one comes with something else (printing, branching, a host
index).
"""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from types import MappingProxyType

DIRECTIONS = ("host_to_device", "device_to_host", "device_to_device")
LEVELS = ("allow", "log", "disallow", "log_explicit", "disallow_explicit")
"""``log`` and ``disallow`` are about implicit transfers only, the other two about all."""

_Layers = tuple[Mapping[str, str], ...]
_layers: contextvars.ContextVar[_Layers] = contextvars.ContextVar("deviceguard_transfers", default=())
"""What each region that this thread and task is in says, outermost first."""


def enter(levels: Mapping[str, str]) -> None:
    """A region begins in this thread and task."""
    _layers.set((*_layers.get(), MappingProxyType(dict(levels))))


def leave(levels: Mapping[str, str]) -> None:
    """The innermost region with these levels ends; regions in generators can end out of order."""
    layers = list(_layers.get())
    for position in reversed(range(len(layers))):
        if layers[position] == levels:
            del layers[position]
            break
    _layers.set(tuple(layers))


def region_level(direction: str) -> str | None:
    """What the innermost region that says anything of a direction says; None outside of regions."""
    return next((layer[direction] for layer in reversed(_layers.get()) if direction in layer), None)


def verdict(level: str, explicit: bool) -> str:
    """``allow``, ``log`` or ``disallow`` for one transfer."""
    action, _, scope = level.partition("_")
    return "allow" if explicit and scope != "explicit" else action
