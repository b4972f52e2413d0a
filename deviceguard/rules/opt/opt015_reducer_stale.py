"""OPT015: parameters replaced, unfrozen or moved after wrapping in DDP, which never reduces them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import ModuleCalled, ModuleConverted, ReplicasWrapped
from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.naming.frames import user_site
from deviceguard.naming.phrases import listed, made_at
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclasses.dataclass(slots=True)
class _Wrapped:
    """What a wrapper hooked.

    Attributes:
        seen: identities and addresses of the parameters it hooked.
        made_at: where it was made.
        moved_at: where the model was moved to another device afterwards.
        told: names that were reported.
    """

    seen: set[int]
    made_at: Site | None
    moved_at: Site | None = None
    told: bool = False


class ReducerStale(Rule):
    """Parameters were replaced, unfrozen or moved after the model was wrapped in ``DistributedDataParallel``.

    What it does:
        Remembers the parameters that DDP hooked when it was made. When the wrapper runs in training and the model has
        other trainable parameters by then, or was moved to another device in between, it says so.

    Why it hurts:
        DDP reduces the gradients of the parameters it saw in its constructor. Others are never reduced: each rank
        trains alone and the ranks drift apart, in silence.

    Example:
        import tempfile
        import torch.distributed as dist
        file = tempfile.mktemp()
        dist.init_process_group("gloo", init_method="file://" + file, rank=0, world_size=1)
        net = torch.nn.Linear(4, 1)
        ddp = torch.nn.parallel.DistributedDataParallel(net)
        net.weight = torch.nn.Parameter(torch.zeros(1, 4))
        ddp(torch.ones(8, 4)).sum().backward()
        dist.destroy_process_group()

    Use instead:
        import tempfile
        import torch.distributed as dist
        file = tempfile.mktemp()
        dist.init_process_group("gloo", init_method="file://" + file, rank=0, world_size=1)
        net = torch.nn.Linear(4, 1)
        net.weight = torch.nn.Parameter(torch.zeros(1, 4))
        ddp = torch.nn.parallel.DistributedDataParallel(net)
        ddp(torch.ones(8, 4)).sum().backward()
        dist.destroy_process_group()

    When it stays silent:
        For moves to the device the model is on, and for a model that is moved after training and only evaluated.

    Repair:
        None by itself: the model has to be wrapped again, on all ranks.

    References:
        https://github.com/pytorch/pytorch/issues/104336
        https://github.com/pytorch/pytorch/issues/12603
    """

    code: ClassVar[str] = "OPT015"
    name: ClassVar[str] = "reducer-stale"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        from torch.utils.weak import WeakIdKeyDictionary

        self._wrapped = WeakIdKeyDictionary()

    @on(ReplicasWrapped)
    def wrapped(self, event: ReplicasWrapped) -> None:
        """Remember what it hooks."""
        if event.reduces:
            hooked = {id(p) for p in event.module.parameters() if p.requires_grad}
            self._wrapped[event.wrapper] = _Wrapped(hooked, user_site())

    @on(ModuleConverted)
    def moved(self, event: ModuleConverted) -> None:
        """A move to another device drops the hooks, also after moving back."""
        if event.moved_from == event.moved_to or not len(self._wrapped):
            return
        parts = {id(part) for part in event.module.modules()}
        for wrapper, known in list(self._wrapped.items()):
            inner = wrapper._modules.get("module")
            if inner is not None and (id(wrapper) in parts or id(inner) in parts):
                known.moved_at = known.moved_at or user_site()

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> Iterator[Finding]:
        """The wrapper runs in training."""
        known = self._wrapped.get(event.module) if len(self._wrapped) else None
        if known is None or known.told or not event.module.training or not self.context.steps.examined:
            return
        import torch as framework

        if not framework.is_grad_enabled():
            return
        strange: list[torch.Tensor] = [
            p for p in event.module.parameters() if p.requires_grad and id(p) not in known.seen
        ]
        if strange or known.moved_at is not None:
            known.told = True
            yield self._replaced(strange, known) if strange else self._moved(event.module, known)

    def _replaced(self, strange: list[torch.Tensor], known: _Wrapped) -> Finding:
        subjects: list[Subject] = [self.context.subjects.parameter(p) for p in strange]
        many = len(strange) > 1
        return self.finding(
            f"{listed([s.name for s in subjects])} {'are' if many else 'is'} not what DDP hooked when it wrapped "
            f"the model{made_at(known.made_at)}: replaced or unfrozen since{made_at(subjects[0].made_at)}.\nTheir "
            "gradients are never reduced, and each rank trains them alone.",
            "change and unfreeze the model before it is wrapped, or wrap it again afterwards",
            subjects[:3],
            site=subjects[0].made_at,
            key=subjects[0].name,
        )

    def _moved(self, wrapper: nn.Module, known: _Wrapped) -> Finding:
        subject = self.context.subjects.model(wrapper)
        return self.finding(
            f"{subject.name} was moved to another device after it was wrapped in DDP{made_at(known.made_at)}: the move "
            "drops the hooks that reduce gradients, also when it is moved back, and each rank trains alone.",
            "do not move a wrapped model; wrap it again after the move",
            [subject],
            site=known.moved_at,
            key=subject.name,
        )
