"""Conversions of modules (``.to``, ``.cuda``, ``.half``, ``.to_empty``) and states loaded into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import nn

from deviceguard.events import Event, ModuleConverted, ModuleStateLoaded, ModuleStateTaken
from deviceguard.sources.patching import Depth, Patches
from deviceguard.sources.source import Emit, Source

_Held = list[tuple[nn.Module, str, nn.Parameter]]


class Conversions(Source):
    """Emits once for the outermost conversion or load, with the parameters that are other objects than before."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset({ModuleConverted, ModuleStateLoaded, ModuleStateTaken})

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._patches = Patches()
        self._converting = Depth()
        self._loading = Depth()
        self._taking = Depth()

    def install(self) -> None:  # noqa: D102
        self._patches.replace(nn.Module, "_apply", self._apply)
        self._patches.replace(nn.Module, "load_state_dict", self._load)
        self._patches.replace(nn.Module, "state_dict", self._take)

    def uninstall(self) -> None:  # noqa: D102
        self._patches.restore()

    def _apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            with self._converting as depth:
                if depth > 1 or ModuleConverted not in self.wanted:
                    return original(module, *args, **kwargs)
                held: _Held = self.attempt(_held, module, default=[])
                buffers: list[tuple[nn.Module, str, torch.Tensor]] = self.attempt(_held_buffers, module, default=[])
                before: frozenset[str] = self.attempt(_devices, module, default=frozenset())
                result = original(module, *args, **kwargs)
            self.tell(
                ModuleConverted,
                lambda: ModuleConverted(module, _replaced(held), before, _devices(module), _replaced_buffers(buffers)),
            )
            return result

        return apply

    def _load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load_state_dict(module: nn.Module, state_dict: Any, strict: bool = True, *args: Any, **kwargs: Any) -> Any:
            with self._loading as depth:
                if depth > 1 or ModuleStateLoaded not in self.wanted:
                    return original(module, state_dict, strict, *args, **kwargs)
                held: _Held = self.attempt(_held, module, default=[])
                result = original(module, state_dict, strict, *args, **kwargs)
            self.tell(
                ModuleStateLoaded,
                lambda: ModuleStateLoaded(module, state_dict, strict, _replaced(held), _matched(state_dict, result)),
            )
            return result

        return load_state_dict

    def _take(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def state_dict(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            with self._taking as depth:
                result = original(module, *args, **kwargs)
            if depth == 1:
                self.tell(ModuleStateTaken, lambda: ModuleStateTaken(module, result))
            return result

        return state_dict


def _matched(state: Any, result: Any) -> int:
    """How many keys of a state the module took."""
    return max(0, len(state) - len(getattr(result, "unexpected_keys", ())))


def _held(root: nn.Module) -> _Held:
    return [
        (module, name, parameter)
        for module in root.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None
    ]


def _replaced(held: _Held) -> list[tuple[nn.Parameter, nn.Parameter]]:
    pairs = []
    for module, name, old in held:
        new = _registered(module._parameters, name)
        if new is not None and new is not old:
            pairs.append((old, new))
    return pairs


def _registered(registry: Any, name: str) -> Any:
    """An entry of a registry; those of scripted modules have no ``get``."""
    return registry[name] if name in registry else None  # noqa: SIM401


def _held_buffers(root: nn.Module) -> list[tuple[nn.Module, str, torch.Tensor]]:
    return [
        (module, name, buffer)
        for module in root.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]


def _replaced_buffers(held: list[tuple[nn.Module, str, torch.Tensor]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    pairs = []
    for module, name, old in held:
        new = _registered(module._buffers, name)
        if new is not None and new is not old:
            pairs.append((old, new))
    return pairs


def _devices(root: nn.Module) -> frozenset[str]:
    return frozenset(str(tensor.device) for tensor in _tensors(root))


def _tensors(root: nn.Module) -> Iterator[Any]:
    for module in root.modules():
        yield from (tensor for tensor in module._parameters.values() if tensor is not None)
        yield from (tensor for tensor in module._buffers.values() if tensor is not None)
