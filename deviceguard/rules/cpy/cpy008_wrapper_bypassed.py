"""CPY008: the model inside a DDP or DataParallel wrapper is run in training, past the wrapper."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import BackwardEnded, ModuleCalled, ReplicasWrapped, RunEnded
from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.ledger.values import gradient_of
from deviceguard.naming.frames import user_site
from deviceguard.naming.phrases import made_at
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch import nn

ENOUGH = 2
"""Backward passes after which it is reported."""


@dataclasses.dataclass(slots=True)
class _Wrapper:
    """A wrapper.

    Attributes:
        reduces: True for DDP.
        made_at: where the model was wrapped.
        inner: identities of the model inside and its parts.
        wrapped_ran: True when the wrapper itself ran since the last backward pass.
        bypassed: the line of a call past it since then.
        passes: backward passes after such calls only.
    """

    reduces: bool
    made_at: Site | None
    inner: frozenset[int]
    subject: Subject | None = None
    wrapped_ran: bool = False
    bypassed: Site | None = None
    site: Site | None = None
    passes: int = 0
    told: bool = False


class WrapperBypassed(Rule):
    """The model inside a DDP or DataParallel wrapper is run in a training step, past the wrapper.

    What it does:
        Notes wrappers when they are made. When the model inside, or a part of it, is called directly with gradients on,
        the wrapper is not, and a backward pass follows, again and again, it says so.

    Why it hurts:
        DDP prepares the reduction of gradients in its own ``forward``. Past it each rank trains alone; past
        DataParallel one device does all the work.

    Example:
        import tempfile
        import torch.distributed as dist
        file = tempfile.mktemp()
        dist.init_process_group("gloo", init_method="file://" + file, rank=0, world_size=1)
        net = torch.nn.Linear(4, 1)
        ddp = torch.nn.parallel.DistributedDataParallel(net)
        for _ in range(3):
            ddp.module(torch.ones(8, 4)).sum().backward()
        dist.destroy_process_group()

    Use instead:
        import tempfile
        import torch.distributed as dist
        file = tempfile.mktemp()
        dist.init_process_group("gloo", init_method="file://" + file, rank=0, world_size=1)
        net = torch.nn.Linear(4, 1)
        ddp = torch.nn.parallel.DistributedDataParallel(net)
        for _ in range(3):
            ddp(torch.ones(8, 4)).sum().backward()
        dist.destroy_process_group()

    When it stays silent:
        For evaluation of the inner model, and for extra calls of its parts beside the wrapper's own in the same pass.

    Repair:
        None by itself.

    References:
        https://github.com/rosinality/swapping-autoencoder-pytorch/issues/22
        https://github.com/k2-fsa/icefall/issues/226
    """

    code: ClassVar[str] = "CPY008"
    name: ClassVar[str] = "wrapper-bypassed"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        from torch.utils.weak import WeakIdKeyDictionary

        self._wrappers: Any = WeakIdKeyDictionary()
        self._all: list[_Wrapper] = []

    @on(ReplicasWrapped)
    def wrapped(self, event: ReplicasWrapped) -> None:
        """A model is wrapped."""
        parts = frozenset(id(part) for part in event.module.modules())
        known = _Wrapper(event.reduces, user_site(), parts)
        if not event.reduces and len(getattr(event.wrapper, "device_ids", ())) < 2:
            return  # on one device it hands the call on
        self._wrappers[event.wrapper] = known
        self._all = [*self._all[-20:], known]

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> None:
        """Through the wrapper, or past it?"""
        if not event.is_root or not len(self._wrappers):
            return
        import torch

        if not torch.is_grad_enabled():
            return
        for wrapper, known in list(self._wrappers.items()):
            if event.module is wrapper:
                known.wrapped_ran = True
            elif id(event.module) in known.inner and event.module.training and not hasattr(event.module, "_is_replica"):
                known.bypassed = known.bypassed or user_site()
                known.subject = known.subject or self.context.subjects.model(wrapper)

    @on(BackwardEnded)
    def backward(self, event: BackwardEnded) -> Iterator[Finding]:
        """Gradients of a pass that went past the wrapper."""
        if not event.accumulates:
            return
        for wrapper, known in list(self._wrappers.items()):
            if known.bypassed is not None and not known.wrapped_ran and _has_gradient(wrapper):
                known.passes, known.site = known.passes + 1, known.bypassed
                if known.passes >= ENOUGH and not known.told:
                    known.told = True
                    yield self._finding(known)
            known.bypassed, known.wrapped_ran = None, False

    @on(RunEnded)
    def end(self, event: RunEnded) -> Iterator[Finding]:
        """A run of one step."""
        yield from (self._finding(known) for known in self._all if known.passes and not known.told)

    def _finding(self, known: _Wrapper) -> Finding:
        name = known.subject.name if known.subject else "the wrapper"
        kind = "DDP" if known.reduces else "DataParallel"
        harm = "its gradients are not reduced over the ranks" if known.reduces else "only one device is used"
        return self.finding(
            f"The model inside {name} ({kind}{made_at(known.made_at)}) is run directly in training: {harm}.",
            f"call {name}(...) here; what forward does not cover belongs into it",
            [known.subject] if known.subject else [],
            site=known.site,
            severity=self.severity if known.reduces else Severity.WARNING,
            count=known.passes,
            key=name,
        )


def _has_gradient(wrapper: nn.Module) -> bool:
    return any(gradient_of(p) is not None for p in wrapper.parameters())
