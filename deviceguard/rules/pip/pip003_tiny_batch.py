"""PIP003: batches of one or a few, so that the device idles between launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.backends.devices import is_accelerator
from deviceguard.events import BackwardEnded, BatchFetched, LoaderStarted, RunEnded
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.rules.pip.waiting import Wait, Waiting
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from deviceguard.context import Context

_FEW_ROWS = 2
_FEW_ELEMENTS = 32_768
_MANY_BATCHES = 12
_USUAL_ROWS = 64


class TinyBatch(Rule):
    """The model is trained on batches of one or two small samples.

    What it does:
        Measures the batches that a ``DataLoader`` gives to a training loop: how many rows, how many numbers. It speaks
        when there are one or two rows with few numbers in them, again and again.

    Why it hurts:
        Each operation is launched by the host, which takes some microseconds however little there is to compute. With
        one small sample a GPU computes for less time than the launch takes, and idles for the rest.

    Example:
        data = torch.utils.data.TensorDataset(torch.randn(32, 784), torch.randint(0, 10, (32,)))
        net = torch.nn.Linear(784, 10).to("cuda")
        for images, labels in torch.utils.data.DataLoader(data, batch_size=1, pin_memory=True):
            output = net(images.to("cuda", non_blocking=True))
            torch.nn.functional.cross_entropy(output, labels.to("cuda", non_blocking=True)).backward()

    Use instead:
        data = torch.utils.data.TensorDataset(torch.randn(320, 784), torch.randint(0, 10, (320,)))
        net = torch.nn.Linear(784, 10).to("cuda")
        for images, labels in torch.utils.data.DataLoader(data, batch_size=64, pin_memory=True):
            output = net(images.to("cuda", non_blocking=True))
            torch.nn.functional.cross_entropy(output, labels.to("cuda", non_blocking=True)).backward()

    When it stays silent:
        For large single samples (volumes, long sequences, full images), in evaluation, and on hosts without an
        accelerator.

    Repair:
        None: the batch size changes the training, and the learning rate goes with it.

    References:
        https://github.com/runa91/barc_release/issues/9
        https://github.com/NVIDIA-NeMo/Speech/issues/1204
    """

    code: ClassVar[str] = "PIP003"
    name: ClassVar[str] = "tiny-batch"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"
    needs_accelerator: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._waiting = Waiting()
        self._latest: Wait | None = None
        self._trained: dict[int, int] = {}

    @on(LoaderStarted)
    def started(self, event: LoaderStarted) -> None:
        """A loop over a loader begins."""
        self._waiting.started(event)

    @on(BatchFetched)
    def fetched(self, event: BatchFetched) -> None:
        """A batch came."""
        self._latest = self._waiting.fetched(event)

    @on(BackwardEnded)
    def trained(self, event: BackwardEnded) -> None:
        """The latest batch is one that the model learns from."""
        if self._latest is not None and any(is_accelerator(tensor.device) for tensor in event.tensors):
            self._trained[id(self._latest)] = self._trained.get(id(self._latest), 0) + 1

    @on(RunEnded)
    def judge(self, event: RunEnded) -> Iterator[Finding]:
        """What the whole run says."""
        for loop in self._waiting.all():
            learns = self._trained.get(id(loop), 0) >= _MANY_BATCHES
            if learns and 0 < loop.rows <= _FEW_ROWS and loop.elements <= _FEW_ELEMENTS and _by_size(loop):
                yield self._found(loop)

    def _found(self, loop: Wait) -> Finding:
        return self.finding(
            f"the loader over {loop.facts.dataset} gives batches of {loop.rows} ({loop.elements:,} numbers); launching "
            "a step takes longer than the device needs to compute it, so it idles.",
            f"DataLoader(..., batch_size={_USUAL_ROWS}) or as much as fits, up to {_USUAL_ROWS // loop.rows} times as "
            "fast while launches take the time; raise the learning rate with it",
            [Subject(loop.facts.dataset, "data set")],
            site=loop.site,
            count=loop.seen,
            cost=[
                ("rows", float(loop.rows)),
                ("elements", float(loop.elements)),
                ("estimated_seconds", (loop.spent - loop.waited) * (1 - loop.rows / _USUAL_ROWS)),
            ],
        )


def _by_size(loop: Wait) -> bool:
    """True where the loader itself was told to make small batches; without a size the data set makes them."""
    size = loop.facts.batch_size
    return size is not None and size <= _FEW_ROWS
