"""TorchScript and fake tensors: code that PyTorch runs, or looks at, past all function modes.

A scripted or traced function runs in an interpreter of its own, whose operations only the dispatcher sees: it is run
under the placement table. Fake tensors (``torch.export``) are made of the tensor that is there, which is a host tensor:
made with the label they would name a device this build of PyTorch lacks, and abort the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.meta_utils import MetaTensorDescriber

from deviceguard.simulate.devices import HOST, simulated
from deviceguard.simulate.errors import NotSimulatedError
from deviceguard.simulate.labels import device_of, label_tensor, label_tree, quiet, tensors_in
from deviceguard.simulate.mixed import PlacementMode
from deviceguard.simulate.patching import Patches

if TYPE_CHECKING:
    from deviceguard.simulate.mode import SimulationMode

_WITHOUT_DEVICE = ("not linked with support for", "without ATen_cuda library", "no NVIDIA driver")
#: On a storage: made on the host by code that was traced, where a simulated device is recorded as the host.
_TRACED = "_deviceguard_traced"


class InterpretedMode(PlacementMode):
    """The placement table for code that names devices itself, and whose errors the interpreter puts into its own.

    Tracing records the host for what was made on a simulated device. What such code makes goes where it is used.
    """

    def __init__(self, mode: SimulationMode) -> None:
        super().__init__(mode.memory, mode.check)
        self.refusal: RuntimeError | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        target = simulated(given.get("device"))
        if target is not None:
            result = func(*args, **{**given, "device": HOST})
            label_tree(result, target, self.memory)
            return result
        tensors = list(tensors_in((args, given)))
        traced = given.get("device") == HOST if not tensors else self._placed(tensors)
        try:
            result = super().__torch_dispatch__(func, types, args, given)
        except RuntimeError as error:
            self.refusal = error
            raise
        if traced:
            for tensor in tensors_in((result,)):
                setattr(tensor.untyped_storage(), _TRACED, True)
        return result

    def _placed(self, tensors: list[Tensor]) -> bool:
        """Put what traced code made where the other operands are; True where there is nothing but such tensors."""
        home = next(filter(None, map(device_of, tensors)), None)
        made = [tensor for tensor in tensors if getattr(tensor.untyped_storage(), _TRACED, False)]
        if home is not None:
            for tensor in made:
                label_tensor(tensor, home, self.memory)
        return home is None and len(made) == len(tensors)


def _interpreted(original: Callable[..., Any], mode: SimulationMode) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        placement = InterpretedMode(mode)
        try:
            with placement:
                return original(self, *args, **kwargs)
        except RuntimeError as error:
            if any(words in str(error) for words in _WITHOUT_DEVICE):
                raise NotSimulatedError(
                    "TorchScript code that moves a tensor to a device it names is not simulated: the interpreter asks "
                    "PyTorch itself for that device. Give it tensors that are there, or run without torch.jit."
                ) from error
            if placement.refusal is None or str(placement.refusal) in str(error):
                raise
            raise RuntimeError(f"{str(error).rstrip()} {placement.refusal}") from None  # which the interpreter dropped

    return call


def install(patches: Patches, mode: SimulationMode) -> None:
    """Replace how scripted code is called and loaded, and how fake tensors are described."""
    for owner in (torch._C.ScriptFunction, torch._C.ScriptMethod):
        patches.set(owner, "__call__", _interpreted(owner.__call__, mode))
    describe, load = MetaTensorDescriber.describe_tensor, torch.jit.load

    def describe_tensor(self: Any, *args: Any, **kwargs: Any) -> Any:
        with quiet():
            return describe(self, *args, **kwargs)

    def load_there(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        target = simulated(map_location)
        module = load(f, map_location if target is None else HOST, *args, **kwargs)
        if target is not None:
            for tensor in (*module.parameters(), *module.buffers()):
                with quiet():
                    label_tensor(tensor, target, mode.memory)
        return module

    patches.set(MetaTensorDescriber, "describe_tensor", describe_tensor)
    patches.set(torch.jit, "load", load_there)
