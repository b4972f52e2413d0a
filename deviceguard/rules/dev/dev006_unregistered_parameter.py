"""DEV006: a parameter that was moved before it was assigned, so that the module holds a plain tensor."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import FrameType, GeneratorType
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import CallFailed, ModuleCalled, ModuleConverted, OptimizerCreated
from deviceguard.findings import Finding, Severity
from deviceguard.naming.phrases import how_it_came, site_of_call
from deviceguard.naming.provenance import assignment_of
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch import nn

    from deviceguard.context import Context

_LONGEST = 6


class UnregisteredParameter(Rule):
    """The result of an operation on a new ``nn.Parameter`` is assigned, and not the parameter itself.

    What it does:
        Looks at the plain tensors in the attributes of a module when it is first called or converted. Speaks for one
        that was computed (``.to(device)``, ``* 0.02``, ``.half()``) from an ``nn.Parameter`` that no module holds.
        Explains an optimizer's "can't optimize a non-leaf Tensor": which tensor it is, and the line that made it.

    Why it hurts:
        ``nn.Parameter(...).to(device)`` is no parameter any more where the move makes a copy: no optimizer sees it, no
        move takes it along, no checkpoint holds it, and its second backward fails. On the CPU the same line works,
        because there ``.to`` returns the parameter itself.

    Example:
        class Scale(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(4)).to("cuda")

            def forward(self, x):
                return x * self.weight

        scale = Scale()
        scale(torch.randn(2, 4, device="cuda"))

    Use instead:
        class Scale(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(4, device="cuda"))

            def forward(self, x):
                return x * self.weight

        scale = Scale()
        scale(torch.randn(2, 4, device="cuda"))

    When it stays silent:
        For tensors computed from registered parameters (casts kept for a step, weight normalisation, fast weights of
        meta-learning), and for parameters that an optimizer owns.

    Repair:
        None is applied: the edit belongs into the constructor.

    References:
        https://discuss.pytorch.org/t/valueerror-cant-optimize-a-non-leaf-tensor/21751
        https://stackoverflow.com/questions/72679858/cant-optimize-a-non-leaf-tensor-on-torch-parameter
    """

    code: ClassVar[str] = "DEV006"
    name: ClassVar[str] = "unregistered-parameter"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._said: weakref.WeakKeyDictionary[nn.Module, set[str]] = weakref.WeakKeyDictionary()

    @on(ModuleConverted)
    def converted(self, event: ModuleConverted) -> None:
        """A module was moved: it is looked at again when it is called, by then it has a name."""
        self._seen.discard(event.module)

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> Iterator[Finding]:
        """A model is called for the first time."""
        if event.is_root and event.module not in self._seen:
            self._seen.add(event.module)
            yield from self._walk(event.module)

    @on(OptimizerCreated)
    def collected(self, event: OptimizerCreated) -> Iterator[Finding]:
        """An optimizer was made: which modules are there whose parameters it could not see?"""
        for module in self.context.ledger.modules():
            yield from self._walk(module, deep=False)

    @on(CallFailed)
    def explain(self, event: CallFailed) -> Iterator[Finding]:
        """An optimizer refused a tensor that was computed."""
        if event.problem != "non-leaf":
            return
        for operand in event.operands:
            if operand.tensor.grad_fn is None:
                continue
            name = operand.expression or "the tensor"
            how = type(operand.tensor.grad_fn).__name__.partition("Backward")[0]
            yield self.finding(
                f"{name} is no leaf: it was computed ({how}) from the tensor that requires a gradient, so "
                f"{event.callee} refuses it.{how_it_came(operand, event)}",
                f"make the leaf last: {name} = tensor.to(device).detach().requires_grad_(), or give it a device "
                "where it is made",
                [self.context.subjects.tensor(name, operand.tensor)],
                site=site_of_call(event),
                key=name,
            )
            return

    def _walk(self, root: nn.Module, deep: bool = True) -> Iterator[Finding]:
        from deviceguard.naming.strays import strays_of

        for module in root.modules() if deep else (root,):
            for stray in strays_of(module):
                leaf = _lost_leaf(stray.value)
                if leaf is None or stray.path in self._said.get(module, ()):
                    continue
                self._said.setdefault(module, set()).add(stray.path)
                if not _is_held(leaf):
                    yield self._finding(module, stray.path, stray.attribute, stray.value)

    def _finding(self, module: nn.Module, path: str, attribute: str, tensor: torch.Tensor) -> Finding:
        owner = self.context.subjects.model(module)
        name = f"{owner.name}.{path}"
        return self.finding(
            f"{name} is no parameter: it was computed from an nn.Parameter that nothing holds, so "
            f"{owner.name}.parameters() does not give it and no optimizer will ever see it.",
            f"self.{attribute} = nn.Parameter(tensor.to(device)): move first, make the parameter last",
            [self.context.subjects.tensor(name, tensor), owner],
            site=assignment_of(attribute, type(module)),
            key=name,
        )


def _is_held(leaf: torch.Tensor) -> bool:
    """True when a module, an optimizer or anything else still refers to a parameter, beside the graph."""
    passing = (FrameType, GeneratorType)
    return any(not isinstance(holder, passing) for holder in gc.get_referrers(leaf))


def _lost_leaf(value: object) -> torch.Tensor | None:
    """The one ``nn.Parameter`` a tensor was computed from by a chain of operations, if there is just one."""
    import torch

    if not isinstance(value, torch.Tensor) or value.grad_fn is None:
        return None
    node = value.grad_fn
    for _ in range(_LONGEST):
        inputs = [following for following, _ in node.next_functions if following is not None]
        if len(inputs) != 1:
            return None
        node = inputs[0]
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            return leaf if isinstance(leaf, torch.nn.Parameter) else None
    return None
