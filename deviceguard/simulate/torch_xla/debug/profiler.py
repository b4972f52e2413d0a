"""Stands in for ``torch_xla.debug.profiler``: there is nothing to profile."""

from __future__ import annotations

import contextlib
from typing import Any

from deviceguard.simulate import xla_api

__getattr__ = xla_api.absent("torch_xla.debug.profiler", "trace trace_detached")


def start_server(port: int, only_on_master: bool = True) -> object:
    """No server."""
    return object()


class Trace(contextlib.nullcontext[None]):
    """A named block."""

    def __init__(self, name: str, **_: Any) -> None:
        super().__init__()
        self.name = name


class StepTrace(Trace):
    """A named block that is one step."""

    def __enter__(self) -> None:
        from .. import sync

        self._sync = sync

    def __exit__(self, *_: object) -> None:
        self._sync()
