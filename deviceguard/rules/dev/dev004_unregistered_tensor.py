"""DEV004: a tensor in a plain attribute that a move left behind and that forward uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from deviceguard.events import CallFailed, Event
from deviceguard.findings import Finding, Severity
from deviceguard.naming.phrases import site_of_call
from deviceguard.naming.provenance import assignment_of
from deviceguard.remedies import MoveOperands, MoveStrays, Remedy
from deviceguard.rules.dev.blame import Blame, blame
from deviceguard.rules.rule import Rule, on


class UnregisteredTensor(Rule):
    """A tensor is kept in a plain attribute of a module, and a move of the module left it behind.

    What it does:
        When host and device tensors meet, looks whether the one that stayed behind hangs in an attribute, a list, a
        dictionary, a closure or the class of a module without being one of its parameters or buffers.

    Why it hurts:
        ``Module.to`` moves parameters and buffers only, and ``state_dict`` saves nothing else. The first forward on the
        device fails; on XLA the tensor is uploaded at every step.

    Example:
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(4, 5)
                self.prior = torch.linspace(-1, 1, 5)

            def forward(self, x):
                return self.fc(x) + self.prior

        net = Net().to("cuda")
        net(torch.randn(2, 4, device="cuda"))

    Use instead:
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(4, 5)
                self.register_buffer("prior", torch.linspace(-1, 1, 5), persistent=False)

            def forward(self, x):
                return self.fc(x) + self.prior

        net = Net().to("cuda")
        net(torch.randn(2, 4, device="cuda"))

    When it stays silent:
        For tensors that are used on the host only, are moved where they are used, or index a device tensor, and for
        0-dim host scalars.

    Repair:
        The tensor is moved to the device of the module; registering it is an edit for the constructor.

    References:
        https://github.com/Lightning-AI/pytorch-lightning/issues/3674
        https://github.com/pytorch/audio/pull/457
    """

    code: ClassVar[str] = "DEV004"
    name: ClassVar[str] = "unregistered-tensor"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    @on(CallFailed)
    def explain(self, event: CallFailed) -> Iterator[Finding]:
        """A call that PyTorch refused because the move missed the tensor."""
        found = blame(event, self.context)
        if found is None or found.code != self.code or found.holder is None or found.tensor is None:
            return
        holder = found.holder
        owner = self.context.subjects.model(holder.module, "model", event.frame)
        assigned = assignment_of(holder.attribute, type(holder.module))
        used = site_of_call(event)
        yield self.finding(
            f"{found.name} is on {found.device}, while the rest is on {found.home}: it is {_kind(found)} "
            f"{owner.name}, so .to() leaves it behind and state_dict() does not save it."
            + (f" It is used in line {used.line}." if used is not None and assigned is not None else ""),
            _fix(found),
            [self.context.subjects.tensor(found.name, found.tensor), owner],
            site=assigned or used,
            key=found.name,
        )

    def remedy(self, event: Event) -> Remedy | None:
        """What the move left behind is moved as well; what all instances of a class share, for this call only."""
        found = blame(event, self.context) if isinstance(event, CallFailed) else None
        if found is None or found.home is None or found.holder is None:
            return None
        if found.holder.shared:
            return MoveOperands(found.home)
        return MoveStrays(found.holder.module, found.holder.attribute, found.home)


def _kind(found: Blame) -> str:
    assert found.holder is not None
    if _is_parameter(found.tensor):
        return "an nn.Parameter in a plain container, so no parameter of"
    shared = "a class attribute, " if found.holder.shared else ""
    return f"{shared}neither parameter nor buffer of"


def _is_parameter(tensor: object) -> bool:
    from torch import nn

    return isinstance(tensor, nn.Parameter)


def _fix(found: Blame) -> str:
    from deviceguard.naming.strays import CLOSED_OVER

    assert found.holder is not None
    attribute, path = found.holder.attribute, found.holder.path
    if _is_parameter(found.tensor):
        kind = "ParameterDict" if path.startswith(f"{attribute}['") else "ParameterList"
        return f"self.{attribute} = nn.{kind}(...)"
    if found.holder.shared:
        return f'in __init__: self.register_buffer("{attribute}", ..., persistent=False), and no class attribute'
    closed = CLOSED_OVER.search(path)
    if closed is not None:
        name = closed.group(1)
        return f'self.register_buffer("{name}", {name}, persistent=False), and self.{name} in the function'
    if path == attribute:
        return f'self.register_buffer("{attribute}", ..., persistent=False)'
    return f"register each tensor of self.{attribute} with self.register_buffer(name, tensor, persistent=False)"
