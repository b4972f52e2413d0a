"""DEV005: a side container that still holds a tensor of the module's former device."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import CallFailed, Event, ModuleReturned, RunEnded
from deviceguard.findings import Finding, Severity
from deviceguard.naming.objects import joined
from deviceguard.naming.phrases import site_of_call
from deviceguard.naming.provenance import assignment_of
from deviceguard.remedies import MoveOperands, Remedy
from deviceguard.rules.dev.blame import blame
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch import nn

    from deviceguard.context import Context


class StaleTensorAlias(Rule):
    """A cache or side container of a module still holds a tensor that the module had on its former device.

    What it does:
        At each conversion of a module, remembers which plain attributes and containers hold a former parameter or
        buffer, or a cache that was filled while the module ran on the device it leaves. Speaks once the stale tensor is
        written to, or meets tensors of the new device.

    Why it hurts:
        ``Module.to`` replaces buffers by new tensors. A dictionary that kept the old ones goes on being read and
        updated, while the module itself uses the new ones: statistics that never change, caches on the wrong device.

    Example:
        class Stats(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("mean", torch.zeros(4))
                self.refs = {"mean": self.mean}

            def forward(self, x):
                self.refs["mean"].mul_(0.9).add_(x.mean(0).cpu(), alpha=0.1)
                return x - self.mean

        stats = Stats().to("cuda")
        stats(torch.randn(8, 4, device="cuda"))

    Use instead:
        class Stats(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("mean", torch.zeros(4))

            def forward(self, x):
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
                return x - self.mean

        stats = Stats().to("cuda")
        stats(torch.randn(8, 4, device="cuda"))

    When it stays silent:
        For copies (``clone``, ``deepcopy``) kept on purpose, for containers that are filled again after the move, and
        for references that nobody uses any more.

    Repair:
        A tensor cached before the move goes to the others when its call is refused. For a reference to a former buffer
        none is applied: it is to be looked up by name where it is used.

    References:
        https://github.com/pytorch/pytorch/issues/43815
        https://github.com/pytorch/pytorch/issues/29807
    """

    code: ClassVar[str] = "DEV005"
    name: ClassVar[str] = "stale-tensor-alias"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._said: weakref.WeakKeyDictionary[nn.Module, set[str]] = weakref.WeakKeyDictionary()

    @on(ModuleReturned)
    def watch(self, event: ModuleReturned) -> Iterator[Finding]:
        """A forward is done, and the alias outlived it."""
        yield from self._aliases(event.module)

    @on(RunEnded)
    def at_end(self, event: RunEnded) -> Iterator[Finding]:
        """The run is over: aliases in modules that are used through methods and never called."""
        for module in self.context.ledger.former.holders():
            yield from self._aliases(module)

    def _aliases(self, module: nn.Module) -> Iterator[Finding]:
        former = self.context.ledger.former
        for path, stale, new in former.aliases_in(module):
            if former.was_written(stale) and path not in self._said.setdefault(module, set()):
                self._said[module].add(path)
                yield self._alias(module, path, stale, new)

    @on(CallFailed)
    def explain(self, event: CallFailed) -> Iterator[Finding]:
        """A call that PyTorch refused because of a cache of the former device."""
        found = blame(event, self.context)
        if found is None or found.code != self.code or found.holder is None or found.tensor is None:
            return
        owner = self.context.subjects.model(found.holder.module, "model", event.frame)
        yield self.finding(
            f"{found.name} is on {found.device}, the former device of {owner.name}; the rest is on {found.home}. It "
            "was cached before the move, and a plain attribute is not moved.",
            f"key the cache by device, or clear self.{found.holder.attribute} when the module moves",
            [self.context.subjects.tensor(found.name, found.tensor), owner],
            site=site_of_call(event),
            key=found.name,
        )

    def remedy(self, event: Event) -> Remedy | None:
        """A cached tensor goes to the others; one whose place another has taken would be the wrong one there too."""
        found = blame(event, self.context) if isinstance(event, CallFailed) else None
        if found is None or found.home is None or found.tensor is None:
            return None
        return MoveOperands(found.home) if self.context.ledger.former.successor(found.tensor) is None else None

    def _alias(self, module: nn.Module, path: str, stale: torch.Tensor, new: torch.Tensor) -> Finding:
        owner = self.context.subjects.model(module)
        registered = next((name for name, tensor in _own(module) if tensor is new), "the registered tensor")
        attribute = path.split("[", 1)[0].split(".", 1)[0]
        name = f"{owner.name}.{path}"
        return self.finding(
            f"{name} still holds the tensor that {owner.name}.{registered} was before the move: it is on "
            f"{stale.device}, {owner.name}.{registered} is on {new.device}. What is written to one does not reach the "
            "other.",
            f"look it up where it is used, self.{registered}, instead of keeping a reference in self.{attribute}",
            [
                self.context.subjects.tensor(name, stale),
                self.context.subjects.tensor(joined(owner.name, registered), new, "buffer"),
                owner,
            ],
            site=assignment_of(attribute, type(module)),
            key=name,
        )


def _own(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from ((name, tensor) for name, tensor in module._buffers.items() if tensor is not None)
    yield from ((name, tensor) for name, tensor in module._parameters.items() if tensor is not None)
