"""OPT011: two optimizers that share the tensors of their state."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import OptimizerStateLoaded, OptimizerStepping
from deviceguard.findings import Finding, Severity, Site
from deviceguard.ledger.values import storage_of
from deviceguard.naming.frames import user_site
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch.optim import Optimizer


class SharedOptimizerState(Rule):
    """Two optimizers that both step share the tensors of their state.

    What it does:
        After ``load_state_dict`` on an optimizer it looks whether state tensors of another live optimizer, for other
        parameters, are the very same memory. It speaks when both of them step afterwards.

    Why it hurts:
        ``load_state_dict`` does not copy: each optimizer's momentum is then overwritten by the other's steps.

    Example:
        one, two = torch.nn.Linear(4, 1).to("cuda"), torch.nn.Linear(4, 1).to("cuda")
        opt1, opt2 = torch.optim.Adam(one.parameters()), torch.optim.Adam(two.parameters())
        x = torch.ones(8, 4, device="cuda")
        one(x).sum().backward()
        opt1.step()
        opt2.load_state_dict(opt1.state_dict())
        for net, optimizer in ((one, opt1), (two, opt2)):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()

    Use instead:
        import copy
        one, two = torch.nn.Linear(4, 1).to("cuda"), torch.nn.Linear(4, 1).to("cuda")
        opt1, opt2 = torch.optim.Adam(one.parameters()), torch.optim.Adam(two.parameters())
        x = torch.ones(8, 4, device="cuda")
        one(x).sum().backward()
        opt1.step()
        opt2.load_state_dict(copy.deepcopy(opt1.state_dict()))
        for net, optimizer in ((one, opt1), (two, opt2)):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()

    When it stays silent:
        When the other optimizer is given up (a rebuilt optimizer that takes over the state), and for wrappers that
        hold the state of the optimizer inside.

    Repair:
        The state that was loaded is deep-copied.

    References:
        https://github.com/pytorch/pytorch/issues/196083
        https://github.com/pytorch/pytorch/pull/106082
    """

    code: ClassVar[str] = "OPT011"
    name: ClassVar[str] = "shared-optimizer-state"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._pairs: list[tuple[weakref.ref[Optimizer], weakref.ref[Optimizer], Site | None, set[int]]] = []

    @on(OptimizerStateLoaded)
    def loaded(self, event: OptimizerStateLoaded) -> None:
        """Whose memory is it?"""
        mine = _storages(event.optimizer)
        for other, _ in self.context.ledger.optimizers():
            if other is event.optimizer or other.state is event.optimizer.state:
                continue
            theirs = _storages(other)
            shared = {storage for storage in mine.keys() & theirs.keys() if mine[storage] != theirs[storage]}
            if shared:
                self._pairs = [
                    *self._pairs[-50:],
                    (weakref.ref(event.optimizer), weakref.ref(other), user_site(), set()),
                ]

    @on(OptimizerStepping)
    def stepping(self, event: OptimizerStepping) -> Iterator[Finding]:
        """Do both step?"""
        for pair in list(self._pairs):
            one, other = pair[0](), pair[1]()
            if one is None or other is None:
                self._pairs.remove(pair)
            elif event.optimizer is one or event.optimizer is other:
                pair[3].add(id(event.optimizer))
                if len(pair[3]) == 2:
                    self._pairs.remove(pair)
                    if _storages(one).keys() & _storages(other).keys():
                        yield self._finding(one, other, pair[2])

    def _finding(self, one: Optimizer, other: Optimizer, site: Site | None) -> Finding:
        loaded, source = self.context.subjects.optimizer(one), self.context.subjects.optimizer(other)
        return self.finding(
            f"{loaded.name} and {source.name} share their state since this line: load_state_dict does not copy the "
            "tensors, and both optimizers step, each overwriting the moments of the other.",
            f"{loaded.name}.load_state_dict(copy.deepcopy({source.name}.state_dict()))",
            [loaded, source],
            site=site,
            key=loaded.name,
        )


def _storages(optimizer: Optimizer) -> dict[int, int]:
    """Storage of each state tensor, with the identity of its parameter."""
    return {
        storage_of(value): id(parameter)
        for parameter, entry in optimizer.state.items()
        if isinstance(entry, dict)
        for value in entry.values()
        if hasattr(value, "untyped_storage")
    }
