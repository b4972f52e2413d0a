"""DEV010: tensors on another index than the device this process works on."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.backends.devices import is_accelerator
from deviceguard.events import (
    CallFailed,
    ModuleCalled,
    ModuleStateLoaded,
    ObjectLoaded,
    OptimizerStateLoaded,
    OptimizerStepped,
    RunEnded,
)
from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.naming.frames import site_of, user_frame, user_site
from deviceguard.naming.objects import variable_of
from deviceguard.naming.phrases import came_from, site_of_call
from deviceguard.rules.dev.blame import Blame, blame, home_of
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch import nn

    from deviceguard.context import Context

_DEPTH = 4


class WrongDeviceIndex(Rule):
    """Tensors are on another index of the accelerator than the one this process works on.

    What it does:
        Follows checkpoints that were loaded without ``map_location`` and says when their tensors go into a model or an
        optimizer on another index. Looks, too, whether the parameters that train are on the device this process has
        made current, or that its local rank asks for; where nothing trains, whether the models that run are.

    Why it hurts:
        ``torch.load`` restores tensors to the device they were saved from. With one process per device every rank then
        takes memory on device 0, until that one is full; copying across hides the mistake.

    Example:
        import io

        saved = io.BytesIO()
        torch.save(torch.nn.Linear(4, 4).to("cuda:0").state_dict(), saved)
        saved.seek(0)
        state = torch.load(saved)
        net = torch.nn.Linear(4, 4).to("cuda:1")
        net.load_state_dict(state)

    Use instead:
        import io

        saved = io.BytesIO()
        torch.save(torch.nn.Linear(4, 4).to("cuda:0").state_dict(), saved)
        saved.seek(0)
        state = torch.load(saved, map_location="cuda:1")
        net = torch.nn.Linear(4, 4).to("cuda:1")
        net.load_state_dict(state)

    When it stays silent:
        When ``map_location`` was given; when the loaded tensors are on the device of the model; for models split over
        devices; for a single process that chose another index by name and left the current device at its default.

    Repair:
        None is applied: ``map_location`` belongs into the call that loads.

    References:
        https://github.com/pytorch/pytorch/issues/23138
        https://github.com/Lightning-AI/pytorch-lightning/issues/17737
        https://github.com/pytorch/examples/issues/969
    """

    code: ClassVar[str] = "DEV010"
    name: ClassVar[str] = "wrong-device-index"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"
    needs_accelerator: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        from torch.utils.weak import WeakTensorKeyDictionary

        self._loaded: Any = WeakTensorKeyDictionary()
        self._said: set[str] = set()
        self._looked_at: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._homes: set[torch.device] = set()
        self._astray: tuple[Subject, torch.device, tuple[int, str], Site | None] | None = None
        self._trains = False

    @on(ObjectLoaded)
    def loaded(self, event: ObjectLoaded) -> Iterator[Finding]:
        """A checkpoint was read."""
        if event.mapped:
            return
        site = site_of(user_frame())
        for tensor in _on_accelerator(event.obj):
            self._loaded[tensor] = site
            current = _current()
            if current is not None and current[1] and tensor.device.index != current[0] and site is not None:
                yield self._unmapped("the checkpoint", tensor, f"this process works on index {current[0]}", site)
                return

    @on(ModuleStateLoaded)
    def into_module(self, event: ModuleStateLoaded) -> Iterator[Finding]:
        """A state dict went into a module."""
        yield from self._check(event.state, event.module.parameters())

    @on(OptimizerStateLoaded)
    def into_optimizer(self, event: OptimizerStateLoaded) -> Iterator[Finding]:
        """A state dict went into an optimizer."""
        yield from self._check(event.state, (p for group in event.optimizer.param_groups for p in group["params"]))

    def _check(self, state: Any, parameters: Iterator[torch.Tensor]) -> Iterator[Finding]:
        homes = {parameter.device for parameter in parameters}
        home = homes.pop() if len(homes) == 1 else None
        if home is None or not is_accelerator(home):
            return
        for tensor in _on_accelerator(state):
            site = self._loaded.get(tensor)
            if site is not None and tensor.device.type == home.type and tensor.device.index != home.index:
                name = variable_of(state, user_frame()) or "the state"
                yield self._unmapped(name, tensor, f"what it is loaded into is on {home}", site, str(home))
                return

    def _unmapped(self, name: str, tensor: torch.Tensor, other: str, site: Site, home: str = "the device") -> Finding:
        where = repr(home) if home != "the device" else "device"
        return self.finding(
            f"{name} has its tensors on {tensor.device}, where they were saved from, while {other}: it was loaded "
            f"without map_location, and every process that does so takes memory on {tensor.device}.",
            f'torch.load(..., map_location={where}), or map_location="cpu"',
            [Subject(name, "checkpoint", device=str(tensor.device), dtype=str(tensor.dtype).removeprefix("torch."))],
            site=site,
        )

    @on(CallFailed)
    def explain(self, event: CallFailed) -> Iterator[Finding]:
        """A call that PyTorch refused because its tensors are on two indices."""
        found = blame(event, self.context)
        if found is None or found.code != self.code or found.tensor is None or found.home is None:
            return
        yield self.finding(
            f"{found.name} is on {found.device}, but the rest of {event.callee} is on {found.home}."
            f"{came_from(found.origin)} A device without an index is the current one, index 0 unless it was set.",
            f"{found.origin.factory}(..., device=...) with the device of what it meets"
            if _is_spelled_out(found)
            else f"say torch.{found.home.type}.set_device({found.home.index}) at the start of the process, or name the "
            f"device with its index: {str(found.home)!r}",
            [self.context.subjects.tensor(found.name, found.tensor)],
            site=site_of_call(event),
            key=found.name,
        )

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> Iterator[Finding]:
        """A step is done: is what trains on the device of this process?"""
        self._trains = True
        if not self.context.steps.examined or "step" in self._said:
            return
        parameters = [p for group in event.optimizer.param_groups for p in group["params"] if p.grad is not None]
        homes = {parameter.device for parameter in parameters}
        home = homes.pop() if len(homes) == 1 else None
        if home is None or not is_accelerator(home) or home.index is None:
            return
        meant = self._index_meant(home.index)
        if meant is None:
            return
        self._said.add("step")
        index, why = meant
        subject = self.context.subjects.parameter(parameters[0])
        yield self.finding(
            f"{subject.name} and what trains with it are on {home}, but {why}: nothing of this process is on index "
            f"{index}.",
            f"device = torch.device({home.type!r}, {index}), and move the model there",
            [subject],
        )

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> None:
        """A model runs for the first time: where?"""
        if not event.is_root or event.module in self._looked_at:
            return
        self._looked_at.add(event.module)
        home = home_of(event.module)
        if home is None or not is_accelerator(home) or home.index is None:
            return
        self._homes.add(home)
        meant = self._index_meant(home.index) if self._astray is None else None
        if meant is not None:
            self._astray = (self.context.subjects.model(event.module), home, meant, user_site())

    @on(RunEnded)
    def run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """The run is over, and nothing was trained: did all that ran do so on another device than this process's?"""
        if self._astray is None or self._trains or self._said or len(self._homes) > 1:
            return
        subject, home, (index, why), site = self._astray
        yield self.finding(
            f"{subject.name} runs on {home}, but {why}: nothing of this process is on index {index}.",
            f"device = torch.device({home.type!r}, {index}), and move the model there",
            [subject],
            site=site,
        )

    def _index_meant(self, used: int) -> tuple[int, str] | None:
        """The index this process should work on and why; None where the one in use is right or cannot be judged."""
        current = _current()
        if current is None:
            return None
        index, chosen = current
        rank = os.environ.get("LOCAL_RANK", "")
        if chosen and index != used:
            why = f"index {index} is this process's current device"
        elif not chosen and rank.isdigit() and used == 0 and 0 < int(rank) < _count() and _is_distributed():
            index, why = int(rank), f"its local rank is {rank}, so that all ranks of this host share one device"
        else:
            return None
        return None if self._something_on(index) else (index, why)

    def _something_on(self, index: int) -> bool:
        return any(
            is_accelerator(parameter.device) and parameter.device.index == index
            for model, _ in self.context.ledger.models()
            for parameter in model.parameters()
        )


def _current() -> tuple[int, bool] | None:
    """The current index and whether the program has chosen it; None where there is just one device."""
    import torch

    if _count() < 2:
        return None
    try:
        index = torch.accelerator.current_device_index()
    except Exception:
        return None
    return index, index != 0


def _count() -> int:
    import torch

    try:
        return torch.accelerator.device_count()
    except Exception:
        return 0


def _is_distributed() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _on_accelerator(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        if is_accelerator(value.device):
            yield value
    elif isinstance(value, torch.nn.Module):
        yield from (parameter for parameter in value.parameters() if is_accelerator(parameter.device))
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _on_accelerator(item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from _on_accelerator(item, depth - 1)


def _is_spelled_out(found: Blame) -> bool:
    """True where the call that makes the tensor names the wrong index itself."""
    made = found.origin.bound_at
    return found.origin.placed and made is not None and str(found.device) in (made.source or "")
