"""The ledger itself: takes note of events, answers questions of identity."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from deviceguard import events
from deviceguard.events import Event
from deviceguard.findings import Site
from deviceguard.ledger.former import Former
from deviceguard.ledger.records import (
    WRAPPED_AS,
    ModelRecord,
    ModuleRecord,
    OptimizerRecord,
    ParameterRecord,
    StateRecord,
)
from deviceguard.ledger.table import Table
from deviceguard.ledger.tensors import parameters_of as parameters_of
from deviceguard.ledger.tensors import tensors_in as tensors_in
from deviceguard.ledger.values import gradient_of, storage_of, versions_of
from deviceguard.naming.frames import spot_of, user_frame
from deviceguard.naming.objects import joined, variable_of

if TYPE_CHECKING:
    from torch import nn

    from deviceguard.steps import Steps


class Ledger:
    """Knows by weak reference what exists and where it came from.

    Its work is done on change (a module made, a parameter registered, a conversion) and on examined steps, never on
    every step. Objects that were there before the guard are taken in when they are first met; what is not known of
    them is None.

    Attributes:
        root_calls: calls of outermost modules so far.
        optimizer_steps: steps of all optimizers so far.
        replacements: parameters that took the place of others so far.
        notes: for events that come for each parameter: takes note, given the fields of the event.
        former: tensors that modules still hold although a conversion has passed them by.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.root_calls = 0
        self.optimizer_steps = 0
        self._parameters: Table[torch.Tensor, ParameterRecord] = Table()
        self._modules: Table[nn.Module, ModuleRecord] = Table()
        self._models: Table[nn.Module, ModelRecord] = Table()
        self._optimizers: Table[Optimizer, OptimizerRecord] = Table()
        self._trains: Table[Optimizer, list[weakref.ref[nn.Module]]] = Table()
        self._states: Table[torch.Tensor, StateRecord] = Table()
        self.replacements = 0
        self.former = Former()
        self._watch = (steps.index, True, steps.examined)
        self.notes: dict[type[Event], Callable[..., None]] = {
            events.ModuleMade: self._note_made,
            events.ParameterRegistered: self._note_parameter,
            events.ModuleRegistered: self._note_child,
            events.ParameterCopied: self._note_parameter_copied,
        }
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            events.ModuleCopied: self._on_module_copied,
            events.ModuleConverted: self._on_module_converted,
            events.ModuleStateLoaded: self._on_module_state_loaded,
            events.ModuleStateTaken: self._on_module_state_taken,
            events.ModuleCalled: self._on_module_called,
            events.OptimizerCreated: self._on_optimizer_created,
            events.OptimizerStepping: self._on_optimizer_stepping,
            events.OptimizerStepped: self._on_optimizer_stepped,
            events.ObjectSaved: self._on_object_saved,
        }

    @property
    def wanted(self) -> frozenset[type[Event]]:
        """The events the ledger lives on."""
        return frozenset({*self._handlers, *self.notes})

    def handle(self, event: Event) -> None:
        """Take note of an event, before any rule sees it."""
        index, _, examined = self._watch
        if index != self._steps.index:
            self._watch = (self._steps.index, examined, self._steps.examined)
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)
        elif type(event) in self.notes:
            self.notes[type(event)](*(getattr(event, field.name) for field in dataclasses.fields(event)))

    @property
    def covered(self) -> bool:
        """True when the work that leads to the present optimizer step was watched in full from its start."""
        return self._watch[1] and self._watch[2]

    # Questions about parameters

    def parameter(self, parameter: torch.Tensor) -> ParameterRecord:
        """The record of a parameter, made on the spot for one that was there before the guard."""
        record = self._parameters.get(parameter)
        if record is None:
            record = ParameterRecord()
            self._parameters[parameter] = record
        return record

    def ran(self, parameter: torch.Tensor, within: int = 1) -> bool:
        """True when a model with the parameter ran in the running step or in the ``within`` steps before it."""
        record = self._parameters.get(parameter)
        return record is not None and record.seen_in >= 0 and record.seen_in >= self._steps.index - within

    def running_parameters(self) -> list[torch.Tensor]:
        """The parameters of models that ran in this step or the one before."""
        first = max(0, self._steps.index - 1)
        return [parameter for parameter, record in self._parameters.items() if record.seen_in >= first]

    def unowned_with_gradient(self) -> list[torch.Tensor]:
        """Running trainable leaves that have a gradient and that no live optimizer holds."""
        owned = self.owned()
        return [
            p
            for p in self.running_parameters()
            if id(p) not in owned and p.requires_grad and gradient_of(p) is not None
        ]

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
        return list(self._models.items())

    def model(self, module: nn.Module) -> ModelRecord | None:
        """The record of a module that was called as a root."""
        return self._models.get(module)

    def modules(self) -> list[nn.Module]:
        """Every module that is known and alive."""
        return list(self._modules)

    def is_trained(self, module: nn.Module) -> bool:
        """True once an optimizer has stepped on a parameter of the module."""
        return any(record.trained for p in module.parameters() if (record := self._parameters.get(p)) is not None)

    def top_of(self, module: nn.Module) -> tuple[nn.Module, str]:
        """The outermost module a module is registered in, and its path there; wrappers do not count."""
        path: list[str] = []
        for _ in range(100):
            record = self._modules.get(module)
            holder = record.holder() if record is not None and record.holder is not None else None
            if record is None or holder is None or holder._modules.get(record.key) is not module:
                break
            if record.key in WRAPPED_AS:
                break
            path.insert(0, record.key)
            module = holder
        return module, ".".join(path)

    def owner_of(self, parameter: torch.Tensor) -> tuple[nn.Module | None, str]:
        """The model a parameter is part of and its path there; (None, its own name) when no model has it."""
        record = self._parameters.get(parameter)
        holder = record.owner() if record is not None and record.owner is not None else None
        if holder is not None and record is not None and holder._parameters.get(record.name) is parameter:
            top, path = self.top_of(holder)
            return top, f"{path}.{record.name}" if path else record.name
        for model, _ in self.models():
            for path, candidate in model.named_parameters():
                if candidate is parameter:
                    return model, path
        return None, record.name if record is not None else ""

    def former_name(self, parameter: torch.Tensor) -> str:
        """Path of the place a parameter was last registered at, whether it is still there or not."""
        record = self._parameters.get(parameter)
        holder = record.owner() if record is not None and record.owner is not None else None
        if record is None or holder is None:
            return record.name if record is not None else ""
        _, path = self.top_of(holder)
        return joined(path, record.name) if path else record.name

    def state_of(self, tensor: torch.Tensor) -> StateRecord | None:
        """The ``state_dict()`` call that a tensor is from, if it is from one."""
        return self._states.get(tensor)

    # Questions about optimizers

    def optimizers(self) -> list[tuple[Optimizer, OptimizerRecord]]:
        """The optimizers that are known and alive, with their records."""
        return list(self._optimizers.items())

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

    def trained_by(self, optimizer: Optimizer) -> list[nn.Module]:
        """The models (modules called as roots) that the optimizer's last examined step trained."""
        found = (reference() for reference in self._trains.get(optimizer) or ())
        return [model for model in found if model is not None]

    def search_heap_for_optimizers(self) -> None:
        """Take in optimizers that were made before the guard and have not stepped yet.

        Slow (a walk over all objects), so it is for the moment before a finding that hangs on it.
        """
        kinds = set(_kinds_of_optimizers())
        for candidate in [found for found in gc.get_objects() if type(found) in kinds]:
            if "param_groups" in vars(candidate):
                self.optimizer(candidate)

    # Taking note

    def _note_made(self, module: nn.Module, made_at: Site | None) -> None:
        record = self._modules.get(module)
        if record is None:
            self._modules[module] = ModuleRecord(made_at, self.root_calls)
        else:
            record.made_at, record.born = made_at, self.root_calls

    def _note_parameter(
        self,
        module: nn.Module,
        name: str,
        parameter: nn.Parameter | None,
        previous: nn.Parameter | None,
        made_at: Site | None,
    ) -> None:
        if parameter is None:
            return
        record = self._parameters.get(parameter)
        if record is None:
            self._parameters[parameter] = record = ParameterRecord(made_at, weakref.ref(module), name)
        else:
            record.owner, record.name = weakref.ref(module), name
            record.made_at = record.made_at or made_at
        if previous is not None and previous is not parameter and record.origin is None:
            record.origin, record.relation = TensorWeakRef(previous), "replaced"
            self.replacements += 1

    def _note_child(self, module: nn.Module, name: str, child: nn.Module | None, previous: nn.Module | None) -> None:
        if child is None:
            return
        record = self.module(child)
        record.holder, record.key = weakref.ref(module), name
        if previous is not None and not any(part is previous for part in child.modules()):
            self._link_by_name(previous, child)

    def _link_by_name(self, previous: nn.Module, child: nn.Module) -> None:
        """Parameters of a part that took another's place, where they have the same names."""
        before = dict(previous.named_parameters())
        for path, parameter in child.named_parameters():
            older = before.get(path)
            if older is not None and older is not parameter and self.parameter(parameter).origin is None:
                record = self.parameter(parameter)
                record.origin, record.relation = TensorWeakRef(older), "replaced"
                self.replacements += 1

    def _on_module_copied(self, event: events.ModuleCopied) -> None:
        record = self.module(event.copy)
        record.made_at = spot_of(user_frame())
        record.born = self.root_calls
        record.copied = True
        record.source = weakref.ref(event.source) if event.source is not None else None
        for name, parameter in event.copy._parameters.items():
            if parameter is not None:
                self._adopt(event.copy, name, parameter)
        for key, child in event.copy._modules.items():
            if child is not None:
                inner = self.module(child)
                inner.holder, inner.key = weakref.ref(event.copy), key
        if event.source is not None:
            self._link_copies(event.source, event.copy)

    def _link_copies(self, source: nn.Module, copy: nn.Module) -> None:
        for name, parameter in copy._parameters.items():
            older = source._parameters.get(name)
            if parameter is None or older is None or parameter is older:
                continue
            known = self.parameter(parameter).origin
            if known is None or known() is not older:  # where its own copying was not seen
                self._link(older, parameter, "copied")

    def _note_parameter_copied(self, source: nn.Parameter, copy: nn.Parameter) -> None:
        self._link(source, copy, "copied")

    def _on_module_converted(self, event: events.ModuleConverted) -> None:
        top, _ = self.top_of(event.module)
        self.former.note(event, self.model(event.module) is not None or self.model(top) is not None)
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

    def _on_module_state_taken(self, event: events.ModuleStateTaken) -> None:
        tensors = [value for value in event.state.values() if isinstance(value, torch.Tensor)]
        spot = spot_of(user_frame())
        record = StateRecord(weakref.ref(event.module), spot, self.optimizer_steps, versions_of(tensors[:8]))
        for value in tensors:
            self._states[value] = record

    def _on_module_called(self, event: events.ModuleCalled) -> None:
        examined = self._steps.examined
        if event.is_root:
            self.root_calls += 1
            self._note_root_call(event.module)
            if examined:
                self._note_seen(event.module)
        elif examined and event.parent is not None:
            self.module(event.module).parent = weakref.ref(event.parent)
        if examined:
            self._note_run(event.module)

    def _note_root_call(self, module: nn.Module) -> None:
        record = self._models.get(module)
        if record is None:
            frame = user_frame()
            name = variable_of(module, frame) or type(module).__name__
            record = ModelRecord(name, type(module).__name__, self.module(module).made_at, spot_of(frame))
            self._models[module] = record
        record.runs_since_trained += 1

    def _note_seen(self, root: nn.Module) -> None:
        index = self._steps.index
        for module in root.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    record = self._parameters.get(parameter) or self._adopt(module, name, parameter)
                    record.seen_in = index
                    record.ran_training = module.training

    def _note_run(self, module: nn.Module) -> None:
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            record = self._parameters.get(parameter) or self._adopt(module, name, parameter)
            record.ran_in = record.seen_in = self._steps.index
            record.ran_training = module.training

    def _on_optimizer_created(self, event: events.OptimizerCreated) -> None:
        source = weakref.ref(event.source) if event.source is not None else None
        self._optimizers[event.optimizer] = OptimizerRecord(spot_of(user_frame()), source)

    def _on_optimizer_stepping(self, event: events.OptimizerStepping) -> None:
        record = self.optimizer(event.optimizer)
        if self.covered and not event.with_closure:
            with_gradient = [p for p in parameters_of(event.optimizer) if gradient_of(p) is not None]
            record.fed |= bool(with_gradient) and not any(self.ran(p) for p in with_gradient)

    def _on_optimizer_stepped(self, event: events.OptimizerStepped) -> None:
        self.optimizer_steps += 1
        self.optimizer(event.optimizer).steps += 1
        self._note_trained(event.optimizer)
        for model in self.trained_by(event.optimizer):
            record = self._models.get(model)
            if record is not None:
                record.trained_steps += 1
                record.last_trained = self._steps.index
                record.runs_since_trained = 0
                record.saved_since_trained = False

    def _note_trained(self, optimizer: Optimizer) -> None:
        """Which models an optimizer trains: worked out again on examined steps only."""
        if not self._steps.examined and optimizer in self._trains:
            return
        reached = [p for p in parameters_of(optimizer) if gradient_of(p) is not None]
        held = {id(p) for p in reached}
        for p in reached:
            self.parameter(p).trained = True
        self._trains[optimizer] = [
            weakref.ref(model) for model, _ in self.models() if any(id(p) in held for p in model.parameters())
        ]

    def _on_object_saved(self, event: events.ObjectSaved) -> None:
        saved = {storage_of(item) for item in tensors_in(event.obj)}
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
        self.replacements += relation != "copied"
        record.origin = TensorWeakRef(old)
        record.relation = relation
        record.made_at = spot_of(user_frame())


def _kinds_of_optimizers(kind: type[Optimizer] = Optimizer) -> Iterator[type[Optimizer]]:
    yield kind
    for special in type.__subclasses__(kind):
        yield from _kinds_of_optimizers(special)
