"""DEV001: a module called with an input on another device than its own parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.backends.devices import backend_of, same
from deviceguard.events import CallFailed, ModuleCalled
from deviceguard.findings import Finding, Severity
from deviceguard.naming.expressions import running_call
from deviceguard.naming.frames import user_frame
from deviceguard.naming.phrases import how_it_came, site_of_call
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch import nn


class InputDevice(Rule):
    """A module is called with an input that is on another device than the module's own parameters and buffers.

    What it does:
        Compares the tensors a module is given with the module's own parameters and buffers. Where PyTorch refuses the
        call, the finding says which argument it was, where it came from and what to move. Where the backend accepts
        host operands silently (XLA), the finding comes from the call itself.

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
        where they are legal; for a model split over devices whose parts are each given what they need.

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
        """A call of a module that PyTorch refused."""
        if event.problem != "device" or event.kind != "module" or event.module is None:
            return
        home = device_of(event.module)
        if home is None:
            return
        for operand in event.operands:
            if same(operand.tensor.device, home):
                continue
            name = operand.expression or f"argument {operand.role!r}"
            module = self.context.subjects.model(event.module, "module", event.frame)
            yield self.finding(
                f"{name} is on {operand.tensor.device}, but {module.name} ({event.callee}), which is called with it, "
                f"has its parameters on {home}.{how_it_came(operand, event)}",
                _fix(name, operand.tensor.device, home, module.name),
                [self.context.subjects.tensor(name, operand.tensor, "input"), module],
                site=site_of_call(event),
                key=name,
            )
            return

    @on(ModuleCalled)
    def watch(self, event: ModuleCalled) -> Iterator[Finding]:
        """A call that the backend will accept by uploading the input."""
        if not _places_nothing_itself(event.module):
            return
        home = device_of(event.module)
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
        return self.finding(
            f"{name} is on {tensor.device}, but {module.name} has its parameters on {home}; it is uploaded silently "
            "at every call.",
            _fix(name, tensor.device, home, module.name),
            [self.context.subjects.tensor(name, tensor, "input"), module],
            key=name,
        )


def device_of(module: nn.Module) -> torch.device | None:
    """The device of a module's own parameters, else of its own buffers; None where it has none or they are split."""
    for registry in (module._parameters, module._buffers):
        devices = {tensor.device for tensor in registry.values() if tensor is not None}
        if devices:
            return devices.pop() if len(devices) == 1 else None
    return None


def _places_nothing_itself(module: nn.Module) -> bool:
    """True for PyTorch's own layers as they come: no user's forward, no hook that could move the input."""
    return (
        type(module).__module__.startswith("torch.nn.modules")
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


def _fix(name: str, device: torch.device, home: torch.device, module: str) -> str:
    if backend_of(home) is None:
        return f"move the module once before it is used: {module}.to({str(device)!r})"
    if name.isidentifier():
        return f"{name} = {name}.to({str(home)!r}) before the call"
    return f"give it on the right device: {name}.to({str(home)!r}), or make it with device={str(home)!r}"
