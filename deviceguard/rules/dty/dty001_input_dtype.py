"""DTY001: a module called with an input of another dtype than its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.backends.devices import backend_of
from deviceguard.events import CallFailed, Event, ModuleCalled, Operand
from deviceguard.findings import Finding, Severity
from deviceguard.naming.expressions import running_call
from deviceguard.naming.frames import user_frame
from deviceguard.naming.phrases import how_it_came, site_of_call
from deviceguard.remedies import CastOperands, Remedy
from deviceguard.rules.dty.dtypes import autocast_dtype, floating_dtype_of, short
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch import nn

_CAST_THEMSELVES = ("Norm", "Embedding", "Loss")


class InputDtype(Rule):
    """A module is called with a floating input of another dtype than its parameters.

    What it does:
        Explains the refusal of a module, a function or an operator whose operands differ in dtype: which variable it
        is, what dtype it has, where it came from, and which dtype the parameters have. Where the backend accepts the
        mix silently (XLA) the finding comes from the call itself.

    Why it hurts:
        NumPy makes float64 arrays and ``from_numpy`` keeps that; ``model.half()`` casts the model and not its batches.
        The error appears far from the line that should have cast.

    Example:
        import numpy

        net = torch.nn.Linear(4, 1).to("cuda")
        batch = numpy.random.default_rng(0).normal(size=(8, 4))
        x = torch.from_numpy(batch).to("cuda")
        net(x)

    Use instead:
        import numpy

        net = torch.nn.Linear(4, 1).to("cuda")
        batch = numpy.random.default_rng(0).normal(size=(8, 4))
        x = torch.as_tensor(batch, dtype=torch.float32).to("cuda")
        net(x)

    When it stays silent:
        Under autocast, for integer inputs of embeddings, for modules that cast their inputs themselves, for frozen
        models in other dtypes that are given what they need.

    Repair:
        The input is cast to the dtype of the module's parameters before the call.

    References:
        https://github.com/pytorch/pytorch/issues/2138
        https://github.com/pytorch/pytorch/issues/541
        https://github.com/LeapLabTHU/ACmix/issues/15
        https://github.com/NVIDIA/apex/issues/764
    """

    code: ClassVar[str] = "DTY001"
    name: ClassVar[str] = "input-dtype"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    @on(CallFailed)
    def explain(self, event: CallFailed) -> Iterator[Finding]:
        """A call that PyTorch refused."""
        if event.problem != "dtype" or event.kind in ("loss", "optimizer", "backward"):
            return
        home = floating_dtype_of(event.module) if event.module is not None else None
        if event.module is not None and home is not None:
            yield from self._for_module(event, event.module, home)
        else:
            yield from self._for_function(event)

    def remedy(self, event: Event) -> Remedy | None:
        """A floating input is cast to the dtype of its module's parameters; without a module it is unsure."""
        module = event.module if isinstance(event, CallFailed) else None
        home = floating_dtype_of(module) if module is not None else None
        return CastOperands(home) if home is not None else None

    def _for_module(self, event: CallFailed, module: nn.Module, home: torch.dtype) -> Iterator[Finding]:
        wants_index = "Embedding" in type(module).__name__
        for operand in event.operands:
            dtype = operand.tensor.dtype
            if dtype.is_floating_point if wants_index else dtype != home:
                name = operand.expression or f"argument {operand.role!r}"
                subject = self.context.subjects.model(module, "module", event.frame)
                wanted = "takes integer indices" if wants_index else f"has {short(home)} parameters"
                yield self.finding(
                    f"{name} is {short(dtype)}, but {subject.name} ({event.callee}), which is called with it, {wanted}."
                    f"{how_it_came(operand, event)}{_numpy(operand)}",
                    _fix(name, "long" if wants_index else short(home)),
                    [self.context.subjects.tensor(name, operand.tensor, "input"), subject],
                    site=site_of_call(event),
                    key=name,
                )
                return

    def _for_function(self, event: CallFailed) -> Iterator[Finding]:
        floating = [operand for operand in event.operands if operand.tensor.is_floating_point()]
        dtypes = [operand.tensor.dtype for operand in floating]
        if len(set(dtypes)) < 2:
            odd = next((o for o in event.operands if not o.tensor.is_floating_point()), None)
            other = floating[0] if floating else None
        else:
            odd = next((o for o in floating if short(o.tensor.dtype) == "float64"), floating[0])
            other = next((o for o in floating if o.tensor.dtype != odd.tensor.dtype), None)
        if odd is None or other is None:
            return
        name, second = (o.expression or o.role for o in (odd, other))
        yield self.finding(
            f"{name} is {short(odd.tensor.dtype)} and {second} is {short(other.tensor.dtype)}, but {event.callee} "
            f"takes operands of one dtype.{how_it_came(odd, event)}{_numpy(odd)}",
            _fix(name, short(other.tensor.dtype)),
            [self.context.subjects.tensor(name, odd.tensor), self.context.subjects.tensor(second, other.tensor)],
            site=site_of_call(event),
            key=name,
        )

    @on(ModuleCalled)
    def watch(self, event: ModuleCalled) -> Iterator[Finding]:
        """A call whose mix of dtypes the backend will accept."""
        home = floating_dtype_of(event.module) if _casts_nothing(event.module) else None
        if home is None:
            return
        for position, given in enumerate(event.args):
            odd = next((value for value in _tensors(given) if value.is_floating_point() and value.dtype != home), None)
            if odd is not None:
                yield from self._accepted(event, position, odd, home)
                return

    def _accepted(self, event: ModuleCalled, position: int, odd: torch.Tensor, home: torch.dtype) -> Iterator[Finding]:
        backend = backend_of(odd.device)
        if backend is None or backend.refuses_host_operands or autocast_dtype(odd.device.type) is not None:
            return
        frame = user_frame()
        text = running_call(frame) if frame is not None else None
        name = (text.argument(position) if text else None) or f"argument {position + 1}"
        module = self.context.subjects.model(event.module, "module")
        yield self.finding(
            f"{name} is {short(odd.dtype)}, but {module.name} has {short(home)} parameters; the mix is accepted and "
            "computed in the wider dtype.",
            _fix(name, short(home)),
            [self.context.subjects.tensor(name, odd, "input"), module],
            key=name,
        )


def _tensors(given: object) -> list[torch.Tensor]:
    """A tensor, or the tensors of a tuple such as the states of an LSTM."""
    parts = given if isinstance(given, tuple | list) else (given,)
    return [part for part in parts if hasattr(part, "requires_grad") and hasattr(part, "dtype")]


def _casts_nothing(module: nn.Module) -> bool:
    kind = type(module)
    return (
        kind.__module__.startswith("torch.nn.modules")
        and not any(part in kind.__name__ for part in _CAST_THEMSELVES)
        and "forward" not in vars(module)
        and not module._forward_pre_hooks
    )


def _numpy(operand: Operand) -> str:
    return " NumPy arrays are float64 unless told otherwise." if short(operand.tensor.dtype) == "float64" else ""


def _fix(name: str, dtype: str) -> str:
    if name.isidentifier():
        return f"{name} = {name}.to(torch.{dtype}) before the call, or make it in that dtype"
    return f"cast it: {name}.to(torch.{dtype})"
