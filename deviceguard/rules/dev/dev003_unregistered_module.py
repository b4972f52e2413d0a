"""DEV003: modules kept in a list, a dictionary or another container, so that nothing moves, saves or trains them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.backends.devices import backend_of, is_host, same
from deviceguard.events import CallFailed, Event, ModuleCalled, OptimizerStepped
from deviceguard.findings import Finding, Severity
from deviceguard.naming.phrases import site_of_call
from deviceguard.naming.provenance import assignment_of
from deviceguard.remedies import MoveStrays, Remedy
from deviceguard.rules.dev.blame import blame, home_of
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch import nn

    from deviceguard.context import Context
    from deviceguard.naming.strays import Holder

_STEPS_TO_WAIT = 2


class UnregisteredModule(Rule):
    """A module with parameters or buffers hangs on another module without being registered there.

    What it does:
        Looks for modules in plain containers (lists, dictionaries, tuples, data classes, nested ones) in the attributes
        of a module. Speaks when it has a consequence: a move of the outer module left the inner one behind and it is
        used, or its parameters receive gradients and no optimizer owns them.

    Why it hurts:
        ``Module.to``, ``state_dict`` and ``parameters`` see registered modules only. What is in a list stays on the
        host, is missing from the checkpoint, and never trains.

    Example:
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = [torch.nn.Linear(4, 4) for _ in range(3)]
                self.head = torch.nn.Linear(4, 1)

            def forward(self, x):
                for layer in self.layers:
                    x = torch.relu(layer(x))
                return self.head(x)

        net = Net().to("cuda")
        net(torch.randn(2, 4, device="cuda"))

    Use instead:
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
                self.head = torch.nn.Linear(4, 1)

            def forward(self, x):
                for layer in self.layers:
                    x = torch.relu(layer(x))
                return self.head(x)

        net = Net().to("cuda")
        net(torch.randn(2, 4, device="cuda"))

    When it stays silent:
        For a module that is registered elsewhere too; for a frozen teacher or feature network hidden in a list on
        purpose and placed by hand; for hidden modules that an optimizer owns.

    Repair:
        What the move left behind is moved too when its first call is refused. It stays unregistered: the edit belongs
        into the constructor.

    References:
        https://github.com/pytorch/pytorch/issues/8017
        https://github.com/pytorch/pytorch/issues/1053
        https://github.com/pytorch/pytorch/issues/21905
        https://github.com/Lightning-AI/pytorch-lightning/issues/17624
    """

    code: ClassVar[str] = "DEV003"
    name: ClassVar[str] = "unregistered-module"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._said: weakref.WeakKeyDictionary[nn.Module, set[str]] = weakref.WeakKeyDictionary()
        self._stepped = 0

    @on(CallFailed)
    def explain(self, event: CallFailed) -> Iterator[Finding]:
        """A call that PyTorch refused because a move missed the module."""
        found = blame(event, self.context)
        if found is None or found.code != self.code or found.holder is None:
            return
        what = f"{found.name} is on {found.device}, while the rest is on {found.home}"
        yield from self._tell(found.holder, what, event)

    def remedy(self, event: Event) -> Remedy | None:
        """What the move left behind is moved as well."""
        found = blame(event, self.context) if isinstance(event, CallFailed) else None
        if found is None or found.home is None or found.holder is None:
            return None
        return MoveStrays(found.holder.module, found.holder.attribute, found.home)

    @on(ModuleCalled)
    def watch(self, event: ModuleCalled) -> Iterator[Finding]:
        """A call that the backend will accept by uploading what the move missed."""
        if event.parent is None:
            return
        own, outer = home_of(event.module), home_of(event.parent)
        backend = backend_of(outer) if outer is not None else None
        if own is None or outer is None or backend is None or backend.refuses_host_operands or not is_host(own):
            return
        given = [value for value in event.args if hasattr(value, "requires_grad")]
        if given and not any(same(value.device, own) for value in given):
            holder = self._holder(event.module)
            if holder is not None:
                yield from self._tell(holder, f"it is on {own}, while the rest is on {outer}", None)

    @on(OptimizerStepped)
    def trained(self, event: OptimizerStepped) -> Iterator[Finding]:
        """A step is done: are there parameters with gradients that hang unregistered and that no optimizer owns?"""
        if not self.context.steps.examined:
            return
        self._stepped += 1
        if self._stepped < _STEPS_TO_WAIT:
            return  # its own optimizer may be about to step
        owned = self.context.ledger.owned()
        for module in self.context.ledger.modules():
            record = self.context.ledger.module(module)
            if record.parent is None or not _learns_unowned(module, owned):
                continue
            holder = self._holder(module)
            if holder is not None:
                yield from self._tell(holder, "it receives gradients, but no optimizer owns its parameters", None)

    def _holder(self, module: nn.Module) -> Holder | None:
        from deviceguard.naming.strays import holder_of

        return holder_of(module, self.context.ledger.modules())

    def _tell(self, holder: Holder, what: str, event: CallFailed | None) -> Iterator[Finding]:
        if holder.attribute in self._said.setdefault(holder.module, set()):
            return
        self._said[holder.module].add(holder.attribute)
        frame = event.frame if event is not None else None
        owner = self.context.subjects.model(holder.module, "model", frame)
        container = getattr(type(vars(holder.module).get(holder.attribute)), "__name__", "container")
        name = f"{owner.name}.{holder.path}"
        inner = self.context.subjects.model(holder.stray, "module", frame)
        subject = type(inner)(name, "module", inner.device, inner.dtype, made_at=inner.made_at)
        assigned = assignment_of(holder.attribute, type(holder.module))
        used = site_of_call(event) if event is not None else None
        yield self.finding(
            f"{name} ({type(holder.stray).__name__}) is in a plain {container}, so {owner.name} does not register it: "
            f".to(), state_dict() and parameters() miss it. Here {what}.",
            _fix(holder, container),
            [subject, owner],
            site=assigned or used,
            key=name,
        )


def _learns_unowned(module: nn.Module, owned: set[int]) -> bool:
    return any(
        parameter.requires_grad and parameter.is_leaf and parameter.grad is not None and id(parameter) not in owned
        for parameter in module._parameters.values()
        if parameter is not None
    )


def _fix(holder: Holder, container: str) -> str:
    nested = ", and the same for each container in it" if holder.path.count("[") > 1 else ""
    if container in ("list", "tuple", "deque", "set", "frozenset"):
        return f"self.{holder.attribute} = nn.ModuleList(...){nested}"
    if container in ("dict", "OrderedDict", "defaultdict"):
        return f"self.{holder.attribute} = nn.ModuleDict(...){nested}"
    return f"register it as well: self.add_module({holder.attribute!r}, ...), or keep it in a plain attribute of self"
