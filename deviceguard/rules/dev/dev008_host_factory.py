"""DEV008: a tensor made on the host in passing meets device tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from deviceguard.events import CallFailed, Event
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.naming.phrases import site_of_call
from deviceguard.remedies import MoveOperands, Remedy
from deviceguard.rules.dev.blame import Blame, blame
from deviceguard.rules.rule import Rule, on

_TAKE_NO_DEVICE = ("from_numpy", "frombuffer", "multinomial", "bernoulli", "Tensor")


class HostFactory(Rule):
    """A tensor that a factory such as ``torch.ones`` or ``torch.arange`` made without a device meets device tensors.

    What it does:
        When host and device tensors meet in an operation, looks in the source whether the host one comes from a factory
        call without ``device``.

    Why it hurts:
        The factory makes its result on the host whatever the rest of the function works on: the line fails on an
        accelerator only, and on XLA it costs an upload at each step.

    Example:
        def weighted(prediction, target):
            weight = torch.ones(prediction.shape[1])
            return ((prediction - target).pow(2) * weight).mean()

        prediction = torch.randn(8, 3, device="cuda")
        weighted(prediction, torch.zeros(8, 3, device="cuda"))

    Use instead:
        def weighted(prediction, target):
            weight = torch.ones(prediction.shape[1], device=prediction.device)
            return ((prediction - target).pow(2) * weight).mean()

        prediction = torch.randn(8, 3, device="cuda")
        weighted(prediction, torch.zeros(8, 3, device="cuda"))

    When it stays silent:
        For 0-dim host scalars in device arithmetic, for host tensors that are moved before use or only index, and for
        inputs of modules (DEV001) and losses (DEV002).

    Repair:
        The host tensor is moved to the device of the other operands.

    References:
        https://github.com/iscyy/ultralyticsPro/issues/159
        https://github.com/rballester/tntorch/pull/19
    """

    code: ClassVar[str] = "DEV008"
    name: ClassVar[str] = "host-factory"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    @on(CallFailed)
    def explain(self, event: CallFailed) -> Iterator[Finding]:
        """An operation that PyTorch refused."""
        found = blame(event, self.context)
        if found is None or found.code != self.code:
            return
        made = found.origin.bound_at or found.origin.factory_at
        where = f" in line {made.line}" if made is not None else ""
        others = [operand.expression for operand in event.operands if operand.tensor.device == found.home]
        how = "puts it there" if found.origin.placed else "is called without a device"
        like = next((name for name in others if name and name.isidentifier()), None)
        device = f"{like}.device" if like else repr(str(found.home))
        yield self.finding(
            f"{found.name} is on {found.device}: {found.origin.factory}{where} {how}. It meets "
            f"{like or 'tensors'} on {found.home}.",
            f"{found.name} = {found.name}.to({device})"
            if str(found.origin.factory).endswith(_TAKE_NO_DEVICE)
            else f"{found.origin.factory}(..., device={device})",
            [_subject(found) if found.tensor is None else self.context.subjects.tensor(found.name, found.tensor)],
            site=site_of_call(event),
            key=found.name,
        )

    def remedy(self, event: Event) -> Remedy | None:
        """The host tensor goes to the others."""
        found = blame(event, self.context) if isinstance(event, CallFailed) else None
        return MoveOperands(found.home) if found is not None and found.home is not None else None


def _subject(found: Blame) -> Subject:
    return Subject(found.name, "tensor", device=str(found.device))
