"""PIP006: a good part of the step is spent waiting for data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import BatchFetched, LoaderStarted, RunEnded
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.rules.pip.waiting import Wait, Waiting
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from deviceguard.context import Context

_SHARE = 0.3


class DataBound(Rule):
    """A large part of the run is spent waiting for batches.

    What it does:
        Measures the share of the time that a loop over a ``DataLoader`` spends waiting for its next batch, and says
        what could be gained by an input pipeline that keeps up.

    Why it hurts:
        The device has nothing to do while the host waits for data. A faster device would not help.

    Example:
        import time


        class Slow(torch.utils.data.Dataset):
            def __len__(self):
                return 16

            def __getitem__(self, index):
                time.sleep(0.01)
                return torch.full((8,), float(index))


        net = torch.nn.Linear(8, 1).to("cuda")
        for rows in torch.utils.data.DataLoader(Slow(), batch_size=1, pin_memory=True):
            with torch.no_grad():
                net(rows.to("cuda", non_blocking=True))

    Use instead:
        rows = torch.randn(16, 8)
        net = torch.nn.Linear(8, 1).to("cuda")
        data = torch.utils.data.TensorDataset(rows)
        for (row,) in torch.utils.data.DataLoader(data, batch_size=1, pin_memory=True):
            with torch.no_grad():
                net(row.to("cuda", non_blocking=True))

    When it stays silent:
        Where batches come quickly, and on hosts without an accelerator. On a simulated device the computation takes the
        time of the host, so the share is lower than it will be.

    Repair:
        None.

    References:
        https://github.com/facebookresearch/mmf/issues/1166
        https://github.com/pytorch/examples/issues/387
    """

    code: ClassVar[str] = "PIP006"
    name: ClassVar[str] = "data-bound"
    severity: ClassVar[Severity] = Severity.ADVICE
    since: ClassVar[str] = "0.1.0"
    needs_accelerator: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._waiting = Waiting()

    @on(LoaderStarted)
    def started(self, event: LoaderStarted) -> None:
        """A loop over a loader begins."""
        self._waiting.started(event)

    @on(BatchFetched)
    def fetched(self, event: BatchFetched) -> None:
        """A batch came."""
        self._waiting.fetched(event)

    @on(RunEnded)
    def judge(self, event: RunEnded) -> Iterator[Finding]:
        """What the whole run says."""
        for loop in self._waiting.all():
            if loop.batches >= self.context.settings.min_steps and loop.share >= _SHARE:
                yield self._found(loop)

    def _found(self, loop: Wait) -> Finding:
        gain = 1 / max(0.01, 1 - loop.share)
        more = f"more than {loop.facts.workers} workers" if loop.facts.workers else "num_workers=4"
        return self.finding(
            f"{loop.share:.0%} of the time of this loop is spent waiting for the loader over {loop.facts.dataset}, "
            f"{1e3 * loop.each:.1f} ms for each batch.",
            f"take {more}, less work for each sample, or data prepared once; at most {gain:.1f} times as fast, if the "
            "wait disappears entirely",
            [Subject(loop.facts.dataset, "data set")],
            site=loop.site,
            count=loop.batches,
            cost=[("share", round(loop.share, 3)), ("seconds", loop.waited)],
        )
