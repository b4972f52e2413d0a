"""Random generators on another device than what they are to fill."""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from typing import Any

import torch

from deviceguard.backends.devices import is_host

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_WANTED = re.compile(r"'(\S+?)' (?:device type for )?generator")


def on_host(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments | None:
    """The call of a sampler, drawing where its host generator is; None where it named a device itself."""
    generator = kwargs.get("generator")
    if not isinstance(generator, torch.Generator) or not is_host(generator.device) or kwargs.get("device") is not None:
        return None
    return args, {**kwargs, "device": generator.device}


class Twins:
    """For a host generator that nothing was drawn from yet, one of the same seed on the device."""

    def __init__(self) -> None:
        self._twins: weakref.WeakKeyDictionary[torch.Generator, torch.Generator] = weakref.WeakKeyDictionary()

    def twin_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: str) -> Arguments | None:
        """The call with the twin in place of its generator; None where it is not certain what it would have drawn."""
        generator, device = kwargs.get("generator"), _device_in(args, kwargs, error)
        if not isinstance(generator, torch.Generator) or device is None or not is_host(generator.device):
            return None
        twin = self._twins.get(generator)
        if twin is None and _is_fresh(generator):
            twin = self._twins[generator] = torch.Generator(device).manual_seed(generator.initial_seed())
        return None if twin is None else (args, {**kwargs, "generator": twin})


def _device_in(args: tuple[Any, ...], kwargs: Mapping[str, Any], error: str) -> torch.device | None:
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    filled = next((value for value in args if isinstance(value, torch.Tensor)), None)
    if filled is not None:
        return filled.device
    named = _WANTED.search(error)
    return torch.device(named.group(1)) if named else None


def _is_fresh(generator: torch.Generator) -> bool:
    other = torch.Generator(generator.device).manual_seed(generator.initial_seed())
    return torch.equal(other.get_state(), generator.get_state())
