"""OPT014: an optimizer built over parameters on the meta device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from deviceguard.backends.devices import META
from deviceguard.events import OptimizerStepping
from deviceguard.findings import Finding, Severity
from deviceguard.ledger.tensors import parameters_of
from deviceguard.naming.phrases import listed, made_at
from deviceguard.rules.rule import Rule, on


class MetaParameters(Rule):
    """An optimizer steps over parameters on the meta device.

    What it does:
        When an optimizer steps, it looks whether parameters it holds are still on the meta device: shapes without
        values.

    Why it hurts:
        Materialising the model makes new parameters, and the optimizer keeps the empty ones. Its steps do nothing.

    Example:
        net = torch.nn.Linear(4, 1, device="meta")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net.to_empty(device="cuda")
        net.reset_parameters()
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.ones(8, 4, device="cuda")).sum().backward()
            optimizer.step()

    Use instead:
        net = torch.nn.Linear(4, 1, device="meta")
        net.to_empty(device="cuda")
        net.reset_parameters()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.ones(8, 4, device="cuda")).sum().backward()
            optimizer.step()

    When it stays silent:
        When the model is materialised in place before the first step, and for optimizers that never step.

    Repair:
        The optimizer is given the materialised parameters.

    References:
        https://github.com/Lightning-AI/pytorch-lightning/pull/19067
        https://github.com/pytorch/pytorch/pull/131153
    """

    code: ClassVar[str] = "OPT014"
    name: ClassVar[str] = "meta-parameters"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    @on(OptimizerStepping)
    def stepping(self, event: OptimizerStepping) -> Iterator[Finding]:
        """Are they all real?"""
        if not self.context.steps.examined:
            return
        empty = [p for p in parameters_of(event.optimizer) if p.device.type == META]
        if not empty:
            return
        optimizer = self.context.subjects.optimizer(event.optimizer)
        names = [self.context.ledger.former_name(p) or "a parameter" for p in empty]
        yield self.finding(
            f"{optimizer.name}{made_at(optimizer.made_at)} steps, but {len(empty)} of its parameters ({listed(names)}) "
            "are on the meta device: they have no values, and the model that runs has others.",
            f"build {optimizer.name} after to_empty() or the load that materialises the model",
            [*(self.context.subjects.parameter(p) for p in empty[:3]), optimizer],
            key=optimizer.name,
        )
