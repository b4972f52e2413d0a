"""Mixed precision: what gradient scalers do, and when autocast begins and forgets its casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.amp import autocast_mode
from torch.amp.grad_scaler import GradScaler

from deviceguard.events import (
    AutocastCacheCleared,
    AutocastEntered,
    Event,
    GradientsUnscaling,
    LossScaled,
    ScalerStepping,
    ScalerUpdated,
)
from deviceguard.sources.patching import Patches
from deviceguard.sources.source import Emit, Source


class MixedPrecision(Source):
    """Emits around the calls of enabled scalers and at the edges of autocast regions."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset(
        {AutocastCacheCleared, AutocastEntered, GradientsUnscaling, LossScaled, ScalerStepping, ScalerUpdated}
    )

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._patches = Patches()

    def install(self) -> None:  # noqa: D102
        self._patches.replace(GradScaler, "scale", self._scale)
        self._patches.replace(GradScaler, "unscale_", self._unscale)
        self._patches.replace(GradScaler, "step", self._step)
        self._patches.replace(GradScaler, "update", self._update)
        self._patches.replace(autocast_mode.autocast, "__enter__", self._enter)
        self._patches.replace(torch, "clear_autocast_cache", self._clear)

    def uninstall(self) -> None:  # noqa: D102
        self._patches.restore()

    def _scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: GradScaler, outputs: Any) -> Any:
            result = original(scaler, outputs)
            if not torch.compiler.is_compiling() and scaler.is_enabled():
                self.tell(LossScaled, lambda: LossScaled(scaler, _tensors(result)))
            return result

        return scale

    def _unscale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def unscale_(scaler: GradScaler, optimizer: Any) -> Any:
            if scaler.is_enabled():
                self.tell(GradientsUnscaling, lambda: GradientsUnscaling(scaler, optimizer))
            return original(scaler, optimizer)

        return unscale_

    def _step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: GradScaler, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if scaler.is_enabled():
                self.tell(ScalerStepping, lambda: ScalerStepping(scaler, optimizer))
            return original(scaler, optimizer, *args, **kwargs)

        return step

    def _update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def update(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            if scaler.is_enabled():
                self.tell(ScalerUpdated, lambda: ScalerUpdated(scaler))
            return result

        return update

    def _enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __enter__(region: Any) -> Any:  # noqa: N807
            if torch.compiler.is_compiling():
                return original(region)
            result = original(region)
            if isinstance(region.fast_dtype, torch.dtype):
                self.tell(
                    AutocastEntered, lambda: AutocastEntered(region.device, region.fast_dtype, bool(region._enabled))
                )
            return result

        return __enter__

    def _clear(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def clear_autocast_cache() -> None:
            if torch.compiler.is_compiling():
                return original()
            original()
            self.tell(AutocastCacheCleared, lambda: AutocastCacheCleared())
            return None

        return clear_autocast_cache


def _tensors(result: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(result, torch.Tensor):
        return (result,)
    return tuple(item for item in result if isinstance(item, torch.Tensor)) if isinstance(result, list | tuple) else ()
