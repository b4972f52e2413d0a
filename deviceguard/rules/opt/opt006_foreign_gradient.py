"""OPT006: a step that uses gradients another optimizer's loss has left behind."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import BackwardEnded, BackwardStarted, GradientsCleared, OptimizerStepped, OptimizerStepping
from deviceguard.findings import Finding, Severity, Site
from deviceguard.ledger.tensors import parameters_of
from deviceguard.naming.frames import user_site
from deviceguard.naming.phrases import listed
from deviceguard.rules.opt.gradient_watch import LeftOver, has_grown, left_over, look_before_backward
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch.optim import Optimizer


@dataclasses.dataclass(slots=True)
class _Foreign:
    """Gradients that lie on an optimizer's parameters while another one steps.

    Attributes:
        left: the gradients.
        stepped: name of the optimizer that stepped meanwhile.
        filled_at: line of the backward pass that left them.
        mixed: True when a later backward pass, in another line, has added to them.
    """

    left: list[LeftOver]
    stepped: str
    filled_at: Site | None
    mixed: bool = False


class ForeignGradient(Rule):
    """A step uses gradients that belong to another optimizer's loss.

    What it does:
        When an optimizer steps, it notes the gradients that lie on the parameters of the other optimizers. If a later
        backward pass in another line adds to them, and their optimizer then steps on the sum, that is reported.

    Why it hurts:
        In a GAN the discriminator is moved towards what pleases the generator. Training never works and nothing is
        said.

    Example:
        G, D = torch.nn.Linear(2, 2).to("cuda"), torch.nn.Linear(2, 1).to("cuda")
        opt_g, opt_d = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
        z = torch.ones(8, 2, device="cuda")
        D(G(z)).mean().neg().backward()
        opt_g.step()
        opt_g.zero_grad()
        D(G(z).detach()).mean().backward()
        opt_d.step()
        opt_d.zero_grad()

    Use instead:
        G, D = torch.nn.Linear(2, 2).to("cuda"), torch.nn.Linear(2, 1).to("cuda")
        opt_g, opt_d = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
        z = torch.ones(8, 2, device="cuda")
        opt_g.zero_grad()
        D(G(z)).mean().neg().backward()
        opt_g.step()
        opt_d.zero_grad()
        D(G(z).detach()).mean().backward()
        opt_d.step()

    When it stays silent:
        When the gradients are cleared before the backward pass, when several optimizers step on one loss, and for an
        optimizer that accumulates over several passes through the same line.

    Repair:
        None by itself.

    References:
        https://github.com/Lightning-AI/pytorch-lightning/issues/591
        https://github.com/FoundationVision/OmniTokenizer/issues/15
    """

    code: ClassVar[str] = "OPT006"
    name: ClassVar[str] = "foreign-gradient"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._foreign: weakref.WeakKeyDictionary[Optimizer, _Foreign] = weakref.WeakKeyDictionary()
        self._last_backward: Site | None = None

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> None:
        """Look at the gradients of the other optimizers."""
        self._foreign.pop(event.optimizer, None)
        if not self.context.steps.examined:
            return
        mine = {id(p) for p in parameters_of(event.optimizer)}
        for other, record in self.context.ledger.optimizers():
            if other is event.optimizer or other in self._foreign or record.fed:
                continue
            theirs = parameters_of(other)
            if any(id(p) in mine for p in theirs):
                continue
            left = left_over(theirs)
            if left:
                name = self.context.subjects.optimizer(event.optimizer).name
                self._foreign[other] = _Foreign(left, name, self._last_backward)

    @on(BackwardStarted)
    def backward_starts(self, event: BackwardStarted) -> None:
        """Are they still there?"""
        if not event.accumulates or not self.context.steps.examined:
            return
        self._last_backward = user_site()
        for foreign in self._foreign.values():
            if not foreign.mixed:
                foreign.left = look_before_backward(foreign.left)

    @on(BackwardEnded)
    def backward_ended(self, event: BackwardEnded) -> None:
        """Has another loss added to them?"""
        if not event.accumulates or not self.context.steps.examined:
            return
        for foreign in self._foreign.values():
            elsewhere = foreign.filled_at is not None and _place(self._last_backward) != _place(foreign.filled_at)
            foreign.mixed = foreign.mixed or (elsewhere and any(has_grown(left) for left in foreign.left))

    @on(GradientsCleared)
    def cleared(self, event: GradientsCleared) -> None:
        """Cleared in time."""
        if not self._foreign:
            return
        owner: Any = event.owner
        held = parameters_of(owner) if hasattr(owner, "param_groups") else list(owner.parameters())
        identities = {id(p) for p in held}
        for optimizer, foreign in list(self._foreign.items()):
            if any(id(left.parameter()) in identities for left in foreign.left):
                del self._foreign[optimizer]

    @on(OptimizerStepping)
    def stepping(self, event: OptimizerStepping) -> Iterator[Finding]:
        """The step that uses them."""
        foreign = self._foreign.get(event.optimizer)
        if foreign is None or not foreign.mixed or event.with_closure:
            return
        subject = self.context.subjects.optimizer(event.optimizer)
        parameters = [p for p in (left.parameter() for left in foreign.left) if p is not None]
        subjects = [self.context.subjects.parameter(p) for p in parameters]
        line = f" in line {foreign.filled_at.line}" if foreign.filled_at else ""
        yield self.finding(
            f"{subject.name} steps on gradients of two losses: the backward pass{line}, made for {foreign.stepped}, "
            f"also filled {listed([s.name + '.grad' for s in subjects])}, and nobody cleared them.",
            f"call {subject.name}.zero_grad() right before the backward pass of its own loss",
            [*subjects, subject],
            key=subject.name,
        )


def _place(site: Site | None) -> tuple[str, int] | None:
    return (site.file, site.line) if site is not None else None
