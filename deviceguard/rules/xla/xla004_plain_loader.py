"""XLA004: a training loop fed by a plain DataLoader."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.backends.devices import backend_of, is_host
from deviceguard.backends.tracing import Tracing
from deviceguard.events import BatchFetched, OptimizerStepped
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.naming.frames import outward, user_frame
from deviceguard.naming.objects import variable_of
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_BATCHES = 2


class PlainLoader(Rule):
    """Training on a device that collects graphs takes its batches from a plain ``DataLoader``.

    What it does:
        Notices batches of host tensors that a ``DataLoader`` hands to the training loop itself, with optimizer steps
        of such a device in between.

    Why it hurts:
        The upload of a batch waits for the loop, and the loop for the upload. ``MpDeviceLoader`` uploads the next
        batches in the background while the device works, and marks the steps.

    Example:
        import torch, torch_xla
        device = torch.device("xla")
        net = torch.nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        data = torch.utils.data.TensorDataset(torch.randn(32, 8))
        loader = torch.utils.data.DataLoader(data, batch_size=8)
        for (x,) in loader:
            optimizer.zero_grad()
            net(x.to(device)).sum().backward()
            optimizer.step()
            torch_xla.sync()

    Use instead:
        import torch, torch_xla
        import torch_xla.distributed.parallel_loader as pl
        device = torch.device("xla")
        net = torch.nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        data = torch.utils.data.TensorDataset(torch.randn(32, 8))
        loader = pl.MpDeviceLoader(torch.utils.data.DataLoader(data, batch_size=8), device)
        for (x,) in loader:
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()

    When it stays silent:
        For loaders wrapped in ``MpDeviceLoader`` or ``ParallelLoader``, loaders read outside of training, loaders that
        give device tensors, and on any other kind of device.

    Repair:
        None: the loop would have to lose its own uploads and markers.

    References:
        https://github.com/pytorch/xla/pull/1059
        https://github.com/pytorch/xla/issues/2383
    """

    code: ClassVar[str] = "XLA004"
    name: ClassVar[str] = "plain-loader"
    severity: ClassVar[Severity] = Severity.ADVICE
    since: ClassVar[str] = "0.1.0"
    needs_accelerator: ClassVar[bool] = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._served: weakref.WeakKeyDictionary[DataLoader[Any], int] = weakref.WeakKeyDictionary()
        self._last: weakref.ref[DataLoader[Any]] | None = None
        self._stepped: Tracing | None = None

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> None:
        """A training step, on a device that collects graphs or another."""
        first = next((p for group in event.optimizer.param_groups for p in group["params"]), None)
        backend = backend_of(first.device) if first is not None else None
        self._stepped = backend.tracing if backend is not None else None

    @on(BatchFetched)
    def fetched(self, event: BatchFetched) -> Iterator[Finding]:
        """A loader gave a batch."""
        tracing, self._stepped = self._stepped, None
        if event.loader is None:
            return
        last, self._last = self._last, weakref.ref(event.loader)
        if tracing is None or last is None or last() is not event.loader or _is_wrapped(tracing):
            return
        served = self._served.get(event.loader, 0) + 1
        self._served[event.loader] = served
        if served == _BATCHES and _has_host_tensor(event.batch):
            yield self._found(event, tracing)

    def _found(self, event: BatchFetched, tracing: Tracing) -> Finding:
        name = variable_of(event.loader, user_frame()) or "the DataLoader"
        short = tracing.loader.rpartition(".")[2]
        return self.finding(
            f"{name} feeds the training loop directly, so that each batch is uploaded while the device waits.",
            f"from {tracing.loader_module} import {short}; iterate over {short}({name}, device), which uploads in the "
            "background and marks each step",
            [Subject(name, "loader")],
        )


def _is_wrapped(tracing: Tracing) -> bool:
    """True where a loader of the backend's package does the fetching."""
    module = tracing.loader_module.rpartition(".")[2]
    return any(module in frame.f_code.co_filename for frame in outward(sys._getframe(1)))


def _has_host_tensor(value: Any, depth: int = 3) -> bool:
    if hasattr(value, "device") and hasattr(value, "dtype"):
        return is_host(value.device)
    if depth and isinstance(value, Mapping):
        return any(_has_host_tensor(item, depth - 1) for item in value.values())
    if depth and isinstance(value, list | tuple):
        return any(_has_host_tensor(item, depth - 1) for item in value)
    return False
