"""DEV002: the operands of a loss on different devices."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, ClassVar

from deviceguard.backends.devices import backend_of, is_accelerator, same
from deviceguard.events import CallFailed, Event, LossComputed
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.naming.expressions import running_call
from deviceguard.naming.frames import locals_of, user_frame
from deviceguard.naming.objects import variable_of
from deviceguard.naming.phrases import came_from, site_of_call
from deviceguard.naming.provenance import origin_of
from deviceguard.remedies import MoveModule, MoveOperands, Remedy
from deviceguard.rules.dev.blame import Blame, blame
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch


class LossDevice(Rule):
    """The input, target or class weights of a loss are on different devices.

    What it does:
        Looks at the operands of losses: modules such as ``nn.CrossEntropyLoss`` with their ``weight`` and
        ``pos_weight`` buffers, the functions of ``torch.nn.functional``, and losses written out by hand. Where PyTorch
        refuses the call the finding names the operand that stayed behind; where the backend accepts it silently (XLA)
        the finding comes from the call.

    Why it hurts:
        On CUDA the loss raises although the forward pass was fine. On XLA the operand is uploaded again at every step.

    Example:
        net = torch.nn.Linear(4, 3).to("cuda")
        criterion = torch.nn.CrossEntropyLoss(weight=torch.tensor([0.2, 0.3, 0.5]))
        logits = net(torch.randn(8, 4, device="cuda"))
        loss = criterion(logits, torch.randint(0, 3, (8,), device="cuda"))

    Use instead:
        net = torch.nn.Linear(4, 3).to("cuda")
        criterion = torch.nn.CrossEntropyLoss(weight=torch.tensor([0.2, 0.3, 0.5])).to("cuda")
        logits = net(torch.randn(8, 4, device="cuda"))
        loss = criterion(logits, torch.randint(0, 3, (8,), device="cuda"))

    When it stays silent:
        For a 0-dim host scalar where PyTorch takes one, for the host lengths of ``ctc_loss``, and when all operands
        share a device, whichever that is.

    Repair:
        The operand that is on the host is moved to the device of the loss's input.

    References:
        https://github.com/pytorch/pytorch/issues/122757
        https://github.com/open-mmlab/mmaction2/issues/1456
        https://github.com/JieyuZ2/wrench/issues/4
        https://github.com/snap-stanford/ogb/issues/68
    """

    code: ClassVar[str] = "DEV002"
    name: ClassVar[str] = "loss-device"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    @on(CallFailed)
    def explain(self, event: CallFailed) -> Iterator[Finding]:
        """A loss that PyTorch refused."""
        found = blame(event, self.context)
        if found is None or found.code != self.code:
            return
        loss = self._name_of_loss(event)
        yield self.finding(
            f"{found.name} is on {found.device}, but the other operands of {loss} are on {found.home}."
            f"{_origin(found, event)}",
            _fix(found, event, loss),
            [self._subject(found)],
            site=site_of_call(event),
            key=found.name,
        )

    def remedy(self, event: Event) -> Remedy | None:
        """The criterion is moved once, an operand before the call."""
        found = blame(event, self.context) if isinstance(event, CallFailed) else None
        if found is None or found.home is None:
            return None
        if found.module is not None and _is_part(found):
            return MoveModule(found.module, found.home)
        return MoveOperands(found.home)

    def _name_of_loss(self, event: CallFailed) -> str:
        if event.module is None:
            return event.callee if event.kind == "loss" else "this loss"
        return f"{self.context.subjects.model_name(event.module, event.frame)} ({event.callee})"

    def _subject(self, found: Blame) -> Subject:
        kind = "buffer" if _is_part(found) else "target"
        if found.tensor is None:
            return Subject(found.name, kind, device=str(found.device))
        return self.context.subjects.tensor(found.name, found.tensor, kind)

    @on(LossComputed)
    def watch(self, event: LossComputed) -> Iterator[Finding]:
        """A loss that the backend computed by uploading an operand."""
        devices = {tensor.device for tensor in event.operands.values()}
        home = next((device for device in devices if is_accelerator(device)), None) if len(devices) > 1 else None
        backend = backend_of(home) if home is not None else None
        if home is None or backend is None or backend.refuses_host_operands:
            return
        for role, tensor in event.operands.items():
            if not same(tensor.device, home) and tensor.dim() > 0 and "length" not in role:
                yield self._uploaded(event, role, tensor, home)
                return

    def _uploaded(self, event: LossComputed, role: str, tensor: torch.Tensor, home: torch.device) -> Finding:
        frame = user_frame()
        text = running_call(frame) if frame is not None else None
        name = variable_of(tensor, frame) or (text.argument(-1, role) if text else None) or role
        criterion = text.callee if text is not None and frame is not None and _holds(frame, text.callee, tensor) else ""
        came = came_from(origin_of(name, frame, frame.f_lineno or 0)) if frame is not None and not criterion else ""
        return self.finding(
            f"{name} ({role} of {event.function}) is on {tensor.device}, but the other operands are on {home}; it is "
            f"uploaded silently at every step.{came}",
            f"move the criterion once, where it is made: {criterion}.to({str(home)!r})"
            if criterion
            else f"move it once: {name}.to({str(home)!r})",
            [self.context.subjects.tensor(name, tensor, "target" if role == "target" else "tensor")],
            key=name,
        )


def _holds(frame: FrameType, name: str, tensor: torch.Tensor) -> bool:
    """True where a variable is a criterion that has a tensor among its buffers."""
    criterion = locals_of(frame).get(name, frame.f_globals.get(name))
    buffers = getattr(criterion, "__dict__", {}).get("_buffers")
    return isinstance(buffers, dict) and any(tensor is buffer for buffer in buffers.values())


def _is_part(found: Blame) -> bool:
    return found.module is not None and any(found.tensor is buffer for buffer in found.module._buffers.values())


def _origin(found: Blame, event: CallFailed) -> str:
    if _is_part(found):
        return " The criterion is a module of its own, and nothing moved it."
    return came_from(found.origin)


def _fix(found: Blame, event: CallFailed, loss: str) -> str:
    where = repr(str(found.home))
    if _is_part(found):
        return f"move the criterion once, where it is made: {loss.split(' ')[0]}.to({where})"
    if found.name.isidentifier():
        return f"{found.name} = {found.name}.to({where}) before the loss"
    if found.tensor is None and found.origin.factory is not None:
        return f"{found.origin.factory}(..., device={where})"
    return f"give it on the right device: {found.name}.to({where}), or make it with device={where}"
