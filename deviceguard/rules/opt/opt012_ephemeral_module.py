"""OPT012: a layer with parameters that is made inside ``forward``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import ModuleCalled
from deviceguard.findings import Finding, Severity, Site
from deviceguard.naming.phrases import made_at
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch import nn

ENOUGH = 2
"""Root calls in which a layer is made at the same line."""


class EphemeralModule(Rule):
    """A layer with parameters is constructed inside ``forward``.

    What it does:
        Looks for layers with trainable parameters that are run in the same call of the model in which they were made,
        and are registered nowhere. The same line in two calls is reported.

    Why it hurts:
        Each call uses a fresh random layer, which no optimizer and no checkpoint ever sees.

    Example:
        class Block(torch.nn.Module):
            def forward(self, x):
                return torch.nn.Linear(4, 2).to(x.device)(x)
        net = Block()
        net(torch.ones(2, 4, device="cuda"))
        net(torch.ones(2, 4, device="cuda"))

    Use instead:
        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 2)
            def forward(self, x):
                return self.layer(x)
        net = Block().to("cuda")
        net(torch.ones(2, 4, device="cuda"))
        net(torch.ones(2, 4, device="cuda"))

    When it stays silent:
        For layers without parameters, frozen ones, layers that are built once and kept, layers that are given
        parameters made elsewhere, and copies (learners of a meta-learning loop).

    Repair:
        None by itself.

    References:
        https://github.com/wangyida/softpool/issues/11
        https://github.com/graykode/nlp-tutorial/issues/29
    """

    code: ClassVar[str] = "OPT012"
    name: ClassVar[str] = "ephemeral-module"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._lines: dict[tuple[str, int], int] = {}

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> Iterator[Finding]:
        """A layer younger than the call it runs in."""
        if event.is_root or event.parent is None or not event.module._parameters:
            return
        record = self.context.ledger.module(event.module)
        if record.born != self.context.ledger.root_calls or record.copied or record.made_at is None:
            return
        if self._is_kept(event.module) or not self._has_own_parameters(event.module, record.made_at):
            return
        place = (record.made_at.file, record.made_at.line)
        before = self._lines.get(place)
        if before is None or before == record.born:
            self._lines[place] = record.born
            return
        self._lines[place] = record.born
        yield self._finding(event.module, event.parent, record.made_at)

    def _is_kept(self, module: nn.Module) -> bool:
        """True when it is part of a module that is older than the call, or an attribute of one that runs."""
        top, _ = self.context.ledger.top_of(module)
        record = self.context.ledger.module(top)
        if record.born != self.context.ledger.root_calls:
            return True
        parent = self.context.ledger.module(module).parent
        owner = parent() if parent is not None else None
        return owner is not None and any(value is module for value in vars(owner).values())

    def _has_own_parameters(self, module: nn.Module, made: Site) -> bool:
        """True when its trainable parameters were made with it, at the same line."""
        for parameter in module._parameters.values():
            if parameter is None or not parameter.requires_grad:
                continue
            at = self.context.ledger.parameter(parameter).made_at
            if at is not None and (at.file, at.line) == (made.file, made.line):
                return True
        return False

    def _finding(self, module: nn.Module, parent: nn.Module, site: Site) -> Finding:
        kind = type(module).__name__
        owner = self.context.subjects.model(parent)
        return self.finding(
            f"{owner.name}{made_at(owner.made_at)} makes a new nn.{kind} at every call: its weights are random each "
            "time, are in no optimizer and in no checkpoint.",
            f"make it once in {type(parent).__name__}.__init__ (self.layer = nn.{kind}(...)) and use self.layer here",
            [owner, self.context.subjects.model(module, "module")],
            site=site,
        )
