"""Makes subjects for findings: the name, device, dtype and shape of a live object."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING

from deviceguard.findings import Subject
from deviceguard.naming.frames import user_frame, with_source
from deviceguard.naming.objects import joined, path_of, variable_of

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from deviceguard.ledger.ledger import Ledger


class Subjects:
    """Names things as the user does, with the help of the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def model_name(self, module: nn.Module, frame: FrameType | None = None) -> str:
        """``net``; ``net.encoder`` for a part; the class name where no variable holds it.

        Args:
            module: what to name.
            frame: where to look for variables; the running user frame by default.
        """
        record = self._ledger.model(module)
        if record is not None and record.name != record.kind:
            return record.name
        start = frame or user_frame()
        found = variable_of(module, start)
        if found == "self":  # what a method calls its own module; the callers may know where in which model it is
            found = path_of(module, start) or found
        if found:
            return found
        for root, root_record in self._ledger.models():
            for path, part in root.named_modules():
                if part is module and path:
                    return joined(root_record.name, path)
        return self._as_stray(module) or type(module).__name__

    def _as_stray(self, module: nn.Module) -> str | None:
        """The name of a module that is registered nowhere, by the attribute of the module that calls it."""
        record = self._ledger.module(module)
        parent = record.parent() if record.parent is not None else None
        if parent is None:
            return None
        prefix = self.model_name(parent)
        for attribute, value in vars(parent).items():
            if value is module:
                return f"{prefix}.{attribute}"
            if isinstance(value, list | tuple):
                for index, item in enumerate(value):
                    if item is module:
                        return f"{prefix}.{attribute}[{index}]"
            if isinstance(value, dict) and not attribute.startswith("_"):
                for key, item in value.items():
                    if item is module:
                        return f"{prefix}.{attribute}[{key!r}]"
        return None

    def parameter_name(self, parameter: torch.Tensor) -> str:
        """``net.layers[3].weight``; the bare attribute name where no model has it."""
        owner, path = self._ledger.owner_of(parameter)
        if owner is None:
            return variable_of(parameter, user_frame()) or path or "a parameter"
        return joined(self.model_name(owner), path)

    def parameter(self, parameter: torch.Tensor, kind: str = "parameter") -> Subject:
        """A parameter with the place it was made."""
        made_at = with_source(self._ledger.parameter(parameter).made_at)
        return self.tensor(self.parameter_name(parameter), parameter, kind, made_at=made_at)

    def tensor(self, name: str, tensor: torch.Tensor, kind: str = "tensor", **known: object) -> Subject:
        """A tensor under a name that is already known."""
        return Subject(
            name=name,
            kind=kind,
            device=str(tensor.device),
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(int(size) for size in tensor.shape),
            **known,  # type: ignore[arg-type]
        )

    def model(self, module: nn.Module, kind: str = "model", frame: FrameType | None = None) -> Subject:
        """A module, with the device of its first parameter and the place it was made."""
        first = next(iter(module.parameters()), None)
        return Subject(
            name=self.model_name(module, frame),
            kind=kind,
            device=str(first.device) if first is not None else None,
            dtype=str(first.dtype).removeprefix("torch.") if first is not None else None,
            made_at=with_source(self._ledger.module(module).made_at),
        )

    def optimizer(self, optimizer: Optimizer, frame: FrameType | None = None) -> Subject:
        """An optimizer with the place it was made."""
        start = frame or user_frame()
        name = variable_of(optimizer, start)
        if name == "self" and start is not None:  # in a method of the optimizer's own
            name = variable_of(optimizer, start.f_back)
        name = name or type(optimizer).__name__
        made_at = with_source(self._ledger.optimizer(optimizer).made_at)
        return Subject(name=name, kind="optimizer", made_at=made_at)
