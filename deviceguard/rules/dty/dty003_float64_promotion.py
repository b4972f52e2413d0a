"""DTY003: a float64 constant or buffer that promotes activations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import BackwardStarted, ModuleReturned
from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.naming.frames import locals_of, site_of, user_frame
from deviceguard.naming.objects import joined, variable_of
from deviceguard.naming.provenance import assignment_of
from deviceguard.rules.dty.dtypes import short
from deviceguard.rules.dty.graphs import find_promotion
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch import nn

    from deviceguard.context import Context

_MOST = 3
"""So many tensors are named for one promotion."""


class Float64Promotion(Rule):
    """A float64 constant or buffer meets float32 activations and promotes everything after it to float64.

    What it does:
        On steps that are examined in full, looks whether the loss or the output of a model is float64 although no
        parameter is, finds the operation in the graph where float32 became float64 without being asked to, and names
        the tensor that did it.

    Why it hurts:
        NumPy arrays are float64, and one of them is enough: what follows runs in float64, many times slower on an
        accelerator, with twice the memory.

    Example:
        import numpy

        class Head(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(4, 3)
                self.register_buffer("scale", torch.from_numpy(numpy.array([1.0, 2.0, 4.0])))

            def forward(self, x):
                return self.fc(x) * self.scale

        head = Head().to("cuda")
        head(torch.randn(8, 4, device="cuda")).pow(2).mean().backward()

    Use instead:
        import numpy

        class Head(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(4, 3)
                self.register_buffer("scale", torch.tensor(numpy.array([1.0, 2.0, 4.0]), dtype=torch.float32))

            def forward(self, x):
                return self.fc(x) * self.scale

        head = Head().to("cuda")
        head(torch.randn(8, 4, device="cuda")).pow(2).mean().backward()

    When it stays silent:
        For a cast that is written out (``.double()``), for models with float64 parameters or inputs, for 0-dim scalars,
        which promote nothing, and for losses over float64 targets (DTY002).

    Repair:
        The constant is cast to the dtype it meets.

    References:
        https://github.com/pytorch/pytorch/issues/541
        https://github.com/netket/netket/pull/1218
        https://github.com/cupy/cupy/issues/7630
    """

    code: ClassVar[str] = "DTY003"
    name: ClassVar[str] = "float64-promotion"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._said: set[str] = set()

    @on(BackwardStarted)
    def backward(self, event: BackwardStarted) -> Iterator[Finding]:
        """A backward pass begins: is it one in float64 that nobody asked for?"""
        if self.context.steps.examined:
            for root in event.tensors:
                if short(root.dtype) == "float64" and root.grad_fn is not None:
                    yield from self._judge(root, None)

    @on(ModuleReturned)
    def returned(self, event: ModuleReturned) -> Iterator[Finding]:
        """A model gave its output."""
        output = event.output
        if not event.is_root or not hasattr(output, "grad_fn") or short(output.dtype) != "float64":
            return
        if not self.context.steps.examined:
            return
        if output.grad_fn is not None:
            yield from self._judge(output, event.module)
        elif not _has_wide_input(event.args) and not _has_wide_parameters(event.module):
            buffer = _wide_buffer(event.module)
            if buffer is not None:
                yield from self._tell(*buffer)

    def _judge(self, root: torch.Tensor, module: nn.Module | None) -> Iterator[Finding]:
        promotion = find_promotion(root)
        if promotion is None:
            return
        suspects = [promotion.culprit] if promotion.culprit is not None else self._search(promotion.shape)
        held = [
            (part, name, tensor)
            for model, _ in self.context.ledger.models()
            for part in model.modules()
            for name, tensor in _wide_tensors(part)
            if any(tensor is suspect for suspect in suspects)
        ]
        for part, name, tensor in held[:_MOST]:
            yield from self._tell(part, name, tensor)
        if held or len(suspects) != 1:
            return
        culprit = suspects[0]
        frame = user_frame()
        variable = variable_of(culprit, frame)
        if variable is not None:
            yield from self._finding(variable, culprit, "constant", site_of(frame))

    def _search(self, shape: tuple[int, ...]) -> list[torch.Tensor]:
        """The float64 tensors in sight that could have promoted, where the operation saved none."""
        import torch

        found: dict[int, torch.Tensor] = {}
        for model, _ in self.context.ledger.models():
            for part in model.modules():
                found |= {id(tensor): tensor for _, tensor in _wide_tensors(part)}
        frame = user_frame()
        scopes = (locals_of(frame), frame.f_globals) if frame is not None else ()
        for scope in scopes:
            for value in list(scope.values()):
                if isinstance(value, torch.Tensor) and short(value.dtype) == "float64" and value.grad_fn is None:
                    found[id(value)] = value
        return [t for t in found.values() if t.dim() > 0 and _broadcasts(tuple(t.shape), shape)]

    def _tell(self, module: nn.Module, attribute: str, tensor: torch.Tensor) -> Iterator[Finding]:
        owner = self.context.subjects.model_name(module)
        name = joined(owner, attribute)
        kind = "buffer" if attribute in module._buffers else "attribute"
        yield from self._finding(name, tensor, kind, assignment_of(attribute, type(module)))

    def _finding(self, name: str, tensor: torch.Tensor, kind: str, site: Site | None) -> Iterator[Finding]:
        if name in self._said:
            return
        self._said.add(name)
        yield self.finding(
            f"{name} ({kind}) is float64 and meets float32 activations: everything computed from them, the backward "
            "pass included, runs in float64.",
            f"cast it where it is made: {name.rpartition('.')[2]} as torch.float32 (NumPy arrays are float64 unless "
            "told otherwise)",
            [self._subject(name, tensor, kind)],
            site=site,
            key=name,
        )

    def _subject(self, name: str, tensor: torch.Tensor, kind: str) -> Subject:
        return self.context.subjects.tensor(name, tensor, kind)


def _wide_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The float64 buffers and plain tensor attributes of one module that are no scalars."""
    from deviceguard.naming.strays import strays_of

    for name, buffer in module._buffers.items():
        if buffer is not None and short(buffer.dtype) == "float64" and buffer.dim() > 0:
            yield name, buffer
    for stray in strays_of(module):
        if _is_wide(stray.value) and stray.value.dim() > 0:
            yield stray.path, stray.value


def _wide_buffer(root: nn.Module) -> tuple[nn.Module, str, torch.Tensor] | None:
    return next(((part, name, tensor) for part in root.modules() for name, tensor in _wide_tensors(part)), None)


def _has_wide_parameters(module: nn.Module) -> bool:
    return any(short(parameter.dtype) == "float64" for parameter in module.parameters())


def _has_wide_input(args: tuple[Any, ...]) -> bool:
    return any(_is_wide(value) for value in args)


def _is_wide(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.dtype == torch.float64


def _broadcasts(one: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(one) <= len(shape) and all(a in (1, b) for a, b in zip(reversed(one), reversed(shape), strict=False))
