"""The life of optimizers, through PyTorch's global step hooks and patches on ``Optimizer``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import nn
from torch.optim import Optimizer
from torch.optim import optimizer as hooks

from deviceguard.events import (
    Event,
    GradientsCleared,
    OptimizerCreated,
    OptimizerStateLoaded,
    OptimizerStateTaken,
    OptimizerStepped,
    OptimizerStepping,
    ParamGroupAdded,
)
from deviceguard.sources.copies import original_of_copy
from deviceguard.sources.patching import Depth, Patches
from deviceguard.sources.source import Emit, Source


class Optimizers(Source):
    """Emits when an optimizer is made, copied, extended, loaded, stepped, and when gradients are cleared."""

    provides: ClassVar[frozenset[type[Event]]] = frozenset(
        {
            GradientsCleared,
            OptimizerCreated,
            OptimizerStateLoaded,
            OptimizerStateTaken,
            OptimizerStepped,
            OptimizerStepping,
            ParamGroupAdded,
        }
    )

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._patches = Patches()
        self._loading = Depth()
        self._handles: list[Any] = []

    def install(self) -> None:  # noqa: D102
        self._patches.replace(Optimizer, "__init__", self._constructor)
        self._patches.replace(Optimizer, "__setstate__", self._restored)
        self._patches.replace(Optimizer, "add_param_group", self._extended)
        self._patches.replace(Optimizer, "load_state_dict", self._loaded)
        self._patches.replace(Optimizer, "state_dict", self._taken)
        self._patches.replace(Optimizer, "zero_grad", self._cleared)
        self._patches.replace(nn.Module, "zero_grad", self._cleared)
        self._handles = [
            hooks.register_optimizer_step_pre_hook(self._before_step),
            hooks.register_optimizer_step_post_hook(self._after_step),
        ]

    def uninstall(self) -> None:  # noqa: D102
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._patches.restore()

    def _constructor(self, original: Callable[..., None]) -> Callable[..., None]:
        def construct(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self.tell(OptimizerCreated, lambda: OptimizerCreated(optimizer))

        return construct

    def _restored(self, original: Callable[..., None]) -> Callable[..., None]:
        def __setstate__(optimizer: Optimizer, state: Any) -> None:  # noqa: N807
            original(optimizer, state)
            if self._loading.value == 0:
                self.tell(OptimizerCreated, lambda: OptimizerCreated(optimizer, original_of_copy(optimizer)))

        return __setstate__

    def _extended(self, original: Callable[..., None]) -> Callable[..., None]:
        def add_param_group(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self.tell(ParamGroupAdded, lambda: ParamGroupAdded(optimizer))

        return add_param_group

    def _loaded(self, original: Callable[..., None]) -> Callable[..., None]:
        def load_state_dict(optimizer: Optimizer, state_dict: Any, *args: Any, **kwargs: Any) -> None:
            with self._loading:
                original(optimizer, state_dict, *args, **kwargs)
            self.tell(OptimizerStateLoaded, lambda: OptimizerStateLoaded(optimizer, state_dict))

        return load_state_dict

    def _taken(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def state_dict(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            state = original(optimizer, *args, **kwargs)
            self.tell(OptimizerStateTaken, lambda: OptimizerStateTaken(optimizer, state))
            return state

        return state_dict

    def _cleared(self, original: Callable[..., None]) -> Callable[..., None]:
        def zero_grad(owner: Any, set_to_none: bool = True) -> None:
            original(owner, set_to_none)
            self.tell(GradientsCleared, lambda: GradientsCleared(owner, set_to_none))

        return zero_grad

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.tell(OptimizerStepping, lambda: OptimizerStepping(optimizer, _closure_in(args, kwargs) is not None))

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.tell(OptimizerStepped, lambda: OptimizerStepped(optimizer))


def _closure_in(args: Any, kwargs: Any) -> Any:
    """The closure among the arguments of ``step``; the hooks are given the optimizer as the first of them."""
    return kwargs.get("closure") or next((value for value in args[1:2] if callable(value)), None)
