"""DEV001: a module called with an input on another device than its own parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.backends.devices import backend_of, is_host, same
from deviceguard.events import CallFailed, Event, ModuleCalled
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.naming.expressions import running_call
from deviceguard.naming.frames import user_frame
from deviceguard.naming.phrases import came_from, site_of_call
from deviceguard.naming.provenance import origin_of
from deviceguard.remedies import MoveModule, MoveOperands, MoveToHost, Remedy
from deviceguard.rules.dev.blame import Blame, blame, home_of
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch import nn


class InputDevice(Rule):
    """A module is called with an input that is on another device than the module's own parameters and buffers.

    What it does:
        Compares the tensors a module is given with the module's own parameters and buffers. Where PyTorch refuses the
        call, the finding says which argument it was, where it came from and what to move. Where the backend accepts
        host operands silently (XLA), the finding comes from the call itself. Other refused mixes of devices that no
        rule of its own explains are explained here too.

    Why it hurts:
        On CUDA the call raises, far from the line that forgot the move. On XLA nothing is said, and the tensor is
        uploaded again at every step.

    Example:
        net = torch.nn.Linear(784, 10).to("cuda")
        images = torch.randn(1, 784)
        outputs = net(images)

    Use instead:
        net = torch.nn.Linear(784, 10).to("cuda")
        images = torch.randn(1, 784).to("cuda")
        outputs = net(images)

    When it stays silent:
        When the module moves its inputs itself, in ``forward`` or in hooks; for 0-dim host scalars and host indices
        where they are legal; for a model split over devices whose parts are each given what they need; for losses
        (DEV002) and for modules and tensors that a move missed because they are not registered (DEV003, DEV004).

    Repair:
        The input is moved to the device of the module's parameters before the call.

    References:
        https://github.com/Lightning-AI/pytorch-lightning/issues/3738
        https://github.com/benedekrozemberczki/pytorch_geometric_temporal/issues/18
    """

    code: ClassVar[str] = "DEV001"
    name: ClassVar[str] = "input-device"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    @on(CallFailed)
    def explain(self, event: CallFailed) -> Iterator[Finding]:
        """A call that PyTorch refused, and that no narrower rule explains."""
        if event.problem == "host-only":
            yield from self._wanted_on_host(event)
            return
        found = blame(event, self.context)
        if found is None or found.code != self.code:
            return
        if found.is_module:
            yield self._unmoved(event, found)
        else:
            yield self._refused(event, found)

    def remedy(self, event: Event) -> Remedy | None:
        """The input goes to the module; a module that was never moved goes to its input."""
        if not isinstance(event, CallFailed):
            return None
        if event.problem == "host-only":
            return MoveToHost()
        found = blame(event, self.context)
        if found is None or found.home is None:
            return None
        if found.is_module and found.module is not None:
            return MoveModule(found.module, found.home, self.context.ledger.top_of(found.module)[0])
        return MoveOperands(found.home)

    def _refused(self, event: CallFailed, found: Blame) -> Finding:
        subjects = [self._subject(found)]
        if event.module is not None:
            module = self.context.subjects.model(event.module, "module", event.frame)
            subjects.append(module)
            what = f"{module.name} ({event.callee}), which is called with it, has its parameters on {found.home}"
        else:
            what = f"{event.callee} also takes tensors on {found.home}"
        empty = found.device.type == "meta"
        return self.finding(
            f"{found.name} is on {found.device}, but {what}.{came_from(found.origin)}"
            + (" It was made without data, and nothing that was loaded has filled it." if empty else ""),
            f"make {found.name} anew on {found.home}: buffers with persistent=False are in no state dict"
            if empty
            else _fix(found.name, found.home),
            subjects,
            site=site_of_call(event),
            key=found.name,
        )

    def _subject(self, found: Blame) -> Subject:
        if found.tensor is None:
            return Subject(found.name, "input", device=str(found.device))
        return self.context.subjects.tensor(found.name, found.tensor, "input")

    def _unmoved(self, event: CallFailed, found: Blame) -> Finding:
        given = next((operand for operand in event.operands if not same(operand.tensor.device, found.device)), None)
        name = (given.expression or f"argument {given.role!r}") if given is not None else "its input"
        assert found.module is not None
        module = self.context.subjects.model(found.module, "module", event.frame)
        subjects = [module]
        if given is not None:
            subjects.append(self.context.subjects.tensor(name, given.tensor, "input"))
        return self.finding(
            f"{found.name} ({_kind(event, found.module)}) has its parameters on {found.device}, but it is called with "
            f"{name}, which is on {found.home}.",
            f"move the module once, before it is used: {found.name}.to({str(found.home)!r})",
            subjects,
            site=site_of_call(event),
            key=found.name,
        )

    def _wanted_on_host(self, event: CallFailed) -> Iterator[Finding]:
        wrong = [operand for operand in event.operands if not is_host(operand.tensor.device)]
        lengths = [operand for operand in wrong if "length" in (operand.expression or operand.role)]
        for operand in (lengths or wrong)[:1]:
            name = operand.expression or f"argument {operand.role!r}"
            yield self.finding(
                f"{name} is on {operand.tensor.device}, but {event.callee} works on host memory and takes it from the "
                "CPU only.",
                f"{name}.cpu()" if lengths else f"{name}.detach().cpu()",
                [self.context.subjects.tensor(name, operand.tensor, "input")],
                site=site_of_call(event),
                key=name,
            )

    @on(ModuleCalled)
    def watch(self, event: ModuleCalled) -> Iterator[Finding]:
        """A call that the backend will accept by uploading the input."""
        home = home_of(event.module) if _places_nothing_itself(event.module) else None
        backend = backend_of(home) if home is not None else None
        if home is None or backend is None or backend.refuses_host_operands:
            return
        for position, value in enumerate((*event.args, *event.kwargs.values())):
            for tensor in _tensors(value):
                if not same(tensor.device, home):
                    yield self._uploaded(event, position, tensor, home)
                    return

    def _uploaded(self, event: ModuleCalled, position: int, tensor: torch.Tensor, home: torch.device) -> Finding:
        frame = user_frame()
        text = running_call(frame) if frame is not None else None
        keywords = list(event.kwargs)
        keyword = keywords[position - len(event.args)] if position >= len(event.args) else None
        name = (text.argument(position, keyword) if text else None) or keyword or f"argument {position + 1}"
        module = self.context.subjects.model(event.module, "module")
        came = came_from(origin_of(name, frame, frame.f_lineno or 0)) if frame is not None else ""
        return self.finding(
            f"{name} is on {tensor.device}, but {module.name} has its parameters on {home}; it is uploaded silently "
            f"at every call.{came}",
            _fix(name, home),
            [self.context.subjects.tensor(name, tensor, "input"), module],
            key=name,
        )


def _kind(event: CallFailed, module: nn.Module) -> str:
    return event.callee if module is event.module else type(module).__name__


def _places_nothing_itself(module: nn.Module) -> bool:
    """True for PyTorch's own layers as they come: no user's forward, no hook that could move the input.

    Losses are left to DEV002, and recurrent layers refuse a mix on every backend.
    """
    made_by = type(module).__module__
    return (
        made_by.startswith("torch.nn.modules")
        and not made_by.endswith((".loss", ".rnn"))
        and "forward" not in vars(module)
        and not module._forward_pre_hooks
    )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if hasattr(value, "device") and hasattr(value, "dtype") and hasattr(value, "requires_grad"):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)


def _fix(name: str, home: torch.device | None) -> str:
    where = repr(str(home))
    if name.isidentifier():
        return f"{name} = {name}.to({where}) before the call"
    if name.endswith(")"):
        return f"make it on the right device: give device={where} to what makes it, or move it before the call"
    return f"give it on the right device: {name}.to({where}), or make it with device={where}"
