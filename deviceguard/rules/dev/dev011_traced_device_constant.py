"""DEV011: a traced or scripted module that holds a device constant other than the device of its inputs."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.backends.devices import is_accelerator, is_host, is_simulated
from deviceguard.events import CallFailed, ModuleCalled, ModuleTraced
from deviceguard.findings import Finding, Severity
from deviceguard.naming.phrases import site_of_call
from deviceguard.rules.dev.blame import blame, home_of, is_traced
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch import nn

    from deviceguard.context import Context


class TracedDeviceConstant(Rule):
    """A traced or scripted module holds a device as a constant, and is called with inputs on another one.

    What it does:
        When a traced or scripted module is called for the first time, compares the devices that stand as constants in
        its graph, and those it was traced with, with the devices of its inputs.

    Why it hurts:
        ``torch.jit.trace`` writes what ``x.device`` was into the graph. A trace made on the CPU goes on making host
        tensors wherever the module is moved; it fails on the device, far from the trace.

    Example:
        class Positions(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(3, 3)

            def forward(self, x):
                return self.fc(x) + torch.zeros(x.size(0), 1, device=x.device)

        traced = torch.jit.trace(Positions(), torch.randn(2, 3))
        traced.to("cuda")
        traced(torch.randn(2, 3, device="cuda"))

    Use instead:
        class Positions(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(3, 3)

            def forward(self, x):
                return self.fc(x) + torch.zeros(x.size(0), 1, device=x.device)

        traced = torch.jit.trace(Positions().to("cuda"), torch.randn(2, 3, device="cuda"))
        traced(torch.randn(2, 3, device="cuda"))

    When it stays silent:
        When the module was traced on the device it runs on, and when its graph names no device.

    Repair:
        None is applied: the module is to be traced on the device it runs on.

    References:
        https://github.com/pytorch/pytorch/issues/50971
        https://github.com/pytorch/pytorch/issues/69078
    """

    code: ClassVar[str] = "DEV011"
    name: ClassVar[str] = "traced-device-constant"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._traced_on: weakref.WeakKeyDictionary[nn.Module, frozenset[str]] = weakref.WeakKeyDictionary()
        self._seen: weakref.WeakKeyDictionary[nn.Module, frozenset[str]] = weakref.WeakKeyDictionary()

    @on(ModuleTraced)
    def traced(self, event: ModuleTraced) -> None:
        """A module was traced."""
        if is_traced(event.traced):
            self._traced_on[event.traced] = event.devices

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> Iterator[Finding]:
        """A module is called, perhaps a traced one."""
        if not is_traced(event.module):
            return
        given = frozenset(str(tensor.device) for tensor in _tensors((event.args, event.kwargs)))
        if self._seen.get(event.module) == given:
            return
        self._seen[event.module] = given
        stuck = self._stuck_on(event.module, given)
        if stuck is not None:
            yield self._finding(event.module, stuck, given)

    def _stuck_on(self, module: nn.Module, given: frozenset[str]) -> str | None:
        """The device that is written into a module and is none of those it is given; None where all is well."""
        import torch

        constants = _device_constants(module)
        accelerated = [device for device in given if is_accelerator(torch.device(device))]
        if not constants or not accelerated:
            return None
        traced_on = self._traced_on.get(module)
        if traced_on is not None:
            other = sorted(device for device in traced_on if device not in given)
            return other[0] if other and not traced_on & given else None
        if is_simulated(torch.device(accelerated[0])):
            return None  # a simulated device stands as the host in every graph
        types = {device.partition(":")[0] for device in given}
        stuck = sorted(device for device in constants if device.partition(":")[0] not in types)
        return stuck[0] if len(stuck) == len(constants) else None

    def _finding(self, module: nn.Module, stuck: str, given: frozenset[str]) -> Finding:
        subject = self.context.subjects.model(module)
        home = min(given)
        return self.finding(
            f"{subject.name} is called with inputs on {home}, but its graph holds {stuck} as a constant: the trace "
            "wrote the device of that moment into it, and moving the module does not change it.",
            f"trace it where it runs: move the module and its example inputs to {home!r} first",
            [subject],
            key=subject.name,
        )

    @on(CallFailed)
    def explain(self, event: CallFailed) -> Iterator[Finding]:
        """A traced module that failed, if its call said nothing before."""
        module = event.module
        found = blame(event, self.context)
        if module is None or event.problem != "device" or module in self._seen:
            return
        places = [operand.tensor.device for operand in event.operands] + [home_of(module)]
        given = [str(device) for device in places if device is not None and is_accelerator(device)]
        home = str(found.home) if found is not None else next(iter(given), None)
        constants = sorted(_device_constants(module) if is_traced(module) else _constants_in_graphs(module))
        if not constants or home is None or (found is not None and not is_traced(module)):
            return
        subject = self.context.subjects.model(module, "model", event.frame)
        how = "traced" if is_traced(module) else "exported"
        yield self.finding(
            f"{subject.name} failed on {home}: its graph holds {constants[0]} as a constant, the device of the moment "
            f"it was {how}, and moving the module does not change it.",
            f"{'trace' if is_traced(module) else 'export'} it where it runs: move the module and its example inputs to "
            f"{home!r} first",
            [subject],
            site=site_of_call(event),
        )


def _constants_in_graphs(module: nn.Module) -> frozenset[str]:
    """The host devices that an exported module's graphs give to the factories in them."""
    import torch

    graphs = [part.graph for part in module.modules() if isinstance(part, torch.fx.GraphModule)]
    devices = {node.kwargs.get("device") for graph in graphs for node in graph.nodes}
    return frozenset(str(device) for device in devices if isinstance(device, torch.device) and is_host(device))


def _device_constants(module: Any) -> frozenset[str]:
    found = set()
    try:
        graph = module.inlined_graph  # its nodes live no longer than it does
    except (AttributeError, RuntimeError):
        return frozenset()
    for node in graph.findAllNodes("prim::Constant", True):
        if node.output().type().kind() == "DeviceObjType" and node.hasAttribute("value"):
            found.add(node.s("value"))
    return frozenset(found)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
