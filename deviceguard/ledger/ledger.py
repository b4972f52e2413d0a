"""The ledger itself: takes note of events, answers questions of identity."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary, WeakTensorKeyDictionary

from deviceguard import events
from deviceguard.events import Event
from deviceguard.ledger.records import ModelRecord, ModuleRecord, OptimizerRecord, ParameterRecord
from deviceguard.naming.frames import origin, outward, spot_of, user_frame
from deviceguard.naming.objects import variable_of

if TYPE_CHECKING:
    from torch import nn

    from deviceguard.steps import Steps


class Ledger:
    """Knows by weak reference what exists and where it came from.

    Its work is done on change (a module made, a parameter registered, a conversion) and on examined steps, never on
    every step. Objects that were there before the guard are taken in when they are first met; what is not known of
    them is None.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._parameters: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._modules: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._models: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._optimizers: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._trains: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._searched_heap = False
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            events.ModuleMade: self._on_module_made,
            events.ParameterRegistered: self._on_parameter_registered,
            events.ModuleCopied: self._on_module_copied,
            events.ParameterCopied: self._on_parameter_copied,
            events.ModuleConverted: self._on_module_converted,
            events.ModuleStateLoaded: self._on_module_state_loaded,
            events.ModuleCalled: self._on_module_called,
            events.OptimizerCreated: self._on_optimizer_created,
            events.OptimizerStepping: self._on_optimizer_stepping,
            events.OptimizerStepped: self._on_optimizer_stepped,
            events.ObjectSaved: self._on_object_saved,
        }

    @property
    def wanted(self) -> frozenset[type[Event]]:
        """The events the ledger lives on."""
        return frozenset(self._handlers)

    def handle(self, event: Event) -> None:
        """Take note of an event, before any rule sees it."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    # Questions about parameters

    def parameter(self, parameter: torch.Tensor) -> ParameterRecord:
        """The record of a parameter, made on the spot for one that was there before the guard."""
        record = self._parameters.get(parameter)
        if record is None:
            record = ParameterRecord()
            self._parameters[parameter] = record
        return record

    def ran(self, parameter: torch.Tensor, within: int = 1) -> bool:
        """True when the parameter's module ran in the running step or in the ``within`` steps before it."""
        record = self._parameters.get(parameter)
        return record is not None and record.ran_in >= 0 and record.ran_in >= self._steps.index - within

    def running_parameters(self) -> list[torch.Tensor]:
        """The parameters whose modules ran in this step or the one before."""
        return [parameter for parameter in list(self._parameters) if self.ran(parameter)]

    def ancestry(self, parameter: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """(relation, older parameter) for each parameter this one came from, nearest first."""
        seen = {id(parameter)}
        record = self._parameters.get(parameter)
        while record is not None and record.origin is not None:
            older = record.origin()
            if older is None or id(older) in seen:
                return
            seen.add(id(older))
            yield record.relation, older
            record = self._parameters.get(older)

    # Questions about models

    def module(self, module: nn.Module) -> ModuleRecord:
        """The record of a module, made on the spot for one that was there before the guard."""
        record = self._modules.get(module)
        if record is None:
            record = ModuleRecord()
            self._modules[module] = record
        return record

    def models(self) -> list[tuple[nn.Module, ModelRecord]]:
        """The modules that were called as roots and are alive, with their records."""
        return [(model, record) for model, record in list(self._models.items()) if model is not None]

    def model(self, module: nn.Module) -> ModelRecord | None:
        """The record of a module that was called as a root."""
        return self._models.get(module)

    def modules(self) -> list[nn.Module]:
        """Every module that is known and alive."""
        return [module for module in list(self._modules) if module is not None]

    def owner_of(self, parameter: torch.Tensor) -> tuple[nn.Module | None, str]:
        """The model a parameter is part of and its path there; (None, its own name) when no model has it."""
        record = self._parameters.get(parameter)
        for model, _ in self.models():
            for path, candidate in model.named_parameters():
                if candidate is parameter:
                    return model, path
        holder = record.owner() if record is not None and record.owner is not None else None
        if holder is not None and record is not None and holder._parameters.get(record.name) is parameter:
            return holder, record.name
        return None, record.name if record is not None else ""

    # Questions about optimizers

    def optimizers(self) -> list[tuple[Optimizer, OptimizerRecord]]:
        """The optimizers that are known and alive, with their records."""
        return [(optimizer, record) for optimizer, record in list(self._optimizers.items()) if optimizer is not None]

    def optimizer(self, optimizer: Optimizer) -> OptimizerRecord:
        """The record of an optimizer, made on the spot for one that was there before the guard."""
        record = self._optimizers.get(optimizer)
        if record is None:
            record = OptimizerRecord(None)
            self._optimizers[optimizer] = record
        return record

    def owned(self) -> set[int]:
        """Identities of all parameters that some live optimizer holds."""
        return {id(parameter) for optimizer, _ in self.optimizers() for parameter in parameters_of(optimizer)}

    def search_heap_for_optimizers(self) -> None:
        """Take in optimizers that were made before the guard and have not stepped yet.

        Slow (a walk over all objects), so it is for the moment before a finding that hangs on it.
        """
        for candidate in gc.get_objects():
            if issubclass(type(candidate), Optimizer) and "param_groups" in vars(candidate):
                self.optimizer(candidate)

    # Taking note

    def _on_module_made(self, event: events.ModuleMade) -> None:
        self.module(event.module).made_at = spot_of(_construction_frame(event.module))

    def _on_parameter_registered(self, event: events.ParameterRegistered) -> None:
        if event.parameter is None:
            return
        record = self.parameter(event.parameter)
        record.owner = weakref.ref(event.module)
        record.name = event.name
        if record.made_at is None:
            record.made_at = spot_of(user_frame())
        if event.previous is not None and event.previous is not event.parameter and record.origin is None:
            record.origin, record.relation = weakref.ref(event.previous), "replaced"

    def _on_module_copied(self, event: events.ModuleCopied) -> None:
        record = self.module(event.copy)
        record.made_at = spot_of(user_frame())
        record.copied = True
        record.source = weakref.ref(event.source) if event.source is not None else None
        for name, parameter in event.copy._parameters.items():
            if parameter is not None:
                self._adopt(event.copy, name, parameter)
        if event.source is not None:
            self._link_copies(event.source, event.copy)

    def _link_copies(self, source: nn.Module, copy: nn.Module) -> None:
        for name, parameter in copy._parameters.items():
            older = source._parameters.get(name)
            if parameter is not None and older is not None and parameter is not older:
                self._link(older, parameter, "copied")

    def _on_parameter_copied(self, event: events.ParameterCopied) -> None:
        self._link(event.source, event.copy, "copied")

    def _on_module_converted(self, event: events.ModuleConverted) -> None:
        for old, new in event.replaced:
            self._link(old, new, "converted")
        if event.replaced:
            self._adopt_all(event.module)

    def _on_module_state_loaded(self, event: events.ModuleStateLoaded) -> None:
        for module in event.module.modules():
            self.module(module).loaded = True
        for old, new in event.replaced:
            self._link(old, new, "loaded")
        if event.replaced:
            self._adopt_all(event.module)

    def _on_module_called(self, event: events.ModuleCalled) -> None:
        if event.is_root:
            self._note_root_call(event.module)
        elif self._steps.examined and event.parent is not None:
            self.module(event.module).parent = weakref.ref(event.parent)
        if self._steps.examined:
            self._note_run(event.module)

    def _note_root_call(self, module: nn.Module) -> None:
        record = self._models.get(module)
        if record is None:
            frame = user_frame()
            name = variable_of(module, frame) or type(module).__name__
            record = ModelRecord(name, type(module).__name__, self.module(module).made_at, spot_of(frame))
            self._models[module] = record
        record.runs_since_trained += 1

    def _note_run(self, module: nn.Module) -> None:
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            record = self._parameters.get(parameter)
            if record is None:
                record = self._adopt(module, name, parameter)
            record.ran_in = self._steps.index
            record.ran_training = module.training

    def _on_optimizer_created(self, event: events.OptimizerCreated) -> None:
        source = weakref.ref(event.source) if event.source is not None else None
        self._optimizers[event.optimizer] = OptimizerRecord(spot_of(user_frame()), source)

    def _on_optimizer_stepping(self, event: events.OptimizerStepping) -> None:
        record = self.optimizer(event.optimizer)
        if self._steps.examined:
            held = parameters_of(event.optimizer)
            with_gradient = [p for p in held if p.is_leaf and p.grad is not None]
            record.fed = bool(with_gradient) and not any(self.ran(p) for p in with_gradient)

    def _on_optimizer_stepped(self, event: events.OptimizerStepped) -> None:
        self.optimizer(event.optimizer).steps += 1
        trained = self._trained_by(event.optimizer)
        for reference in trained:
            model = reference()
            record = self._models.get(model) if model is not None else None
            if record is not None:
                record.trained_steps += 1
                record.last_trained = self._steps.index
                record.runs_since_trained = 0
                record.saved_since_trained = False

    def _trained_by(self, optimizer: Optimizer) -> list[weakref.ref[Any]]:
        if self._steps.examined or optimizer not in self._trains:
            held = {id(p) for p in parameters_of(optimizer) if p.is_leaf and p.grad is not None}
            models = [
                weakref.ref(model)
                for model, _ in self.models()
                if any(id(parameter) in held for parameter in model.parameters())
            ]
            self._trains[optimizer] = models
        return self._trains[optimizer]

    def _on_object_saved(self, event: events.ObjectSaved) -> None:
        saved = {storage_of(item) for item in _tensors_in(event.obj)}
        for model, record in self.models():
            if any(storage_of(parameter) in saved for parameter in model.parameters()):
                record.saved_since_trained = True

    def _adopt_all(self, root: nn.Module) -> None:
        for module in root.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    self._adopt(module, name, parameter)

    def _adopt(self, module: nn.Module, name: str, parameter: torch.Tensor) -> ParameterRecord:
        record = self.parameter(parameter)
        record.owner = weakref.ref(module)
        record.name = name
        if record.made_at is None:
            record.made_at = spot_of(user_frame())
        return record

    def _link(self, old: torch.Tensor, new: torch.Tensor, relation: str) -> None:
        record = self.parameter(new)
        record.origin = weakref.ref(old)
        record.relation = relation
        record.made_at = spot_of(user_frame())


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """The tensors of all param groups, in order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def storage_of(tensor: torch.Tensor) -> int:
    """A number that tensors sharing memory have in common; the tensor's own identity where it has no storage."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return id(tensor)


def _construction_frame(module: nn.Module) -> FrameType | None:
    """The user's frame that makes a module: the first beyond the constructors that are building it."""
    inside = True
    for frame in outward(user_frame()):
        names = frame.f_code.co_varnames
        if inside and frame.f_code.co_name == "__init__" and names and frame.f_locals.get(names[0]) is module:
            continue
        inside = False
        if origin(frame.f_code.co_filename) == "user":
            return frame
    return None


def _tensors_in(obj: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    if isinstance(obj, torch.Tensor):
        yield obj
    elif isinstance(obj, torch.nn.Module):
        yield from obj.parameters()
    elif isinstance(obj, dict) and depth:
        for value in obj.values():
            yield from _tensors_in(value, depth - 1)
    elif isinstance(obj, list | tuple) and depth:
        for value in obj:
            yield from _tensors_in(value, depth - 1)
