"""PIP001: no loader workers while steps wait for data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import BatchFetched, LoaderStarted, RunEnded
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.rules.pip.waiting import Waiting
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from deviceguard.context import Context

_SHARE = 0.2
_SHORTEST = 1e-4
"""Seconds for a batch below which workers would cost more than they save."""


class LoaderWorkers(Rule):
    """Batches are made in the training process while the device waits for them.

    What it does:
        Measures how long the program waits for each batch of a ``DataLoader`` without workers, and says so when that is
        a good part of the time.

    Why it hurts:
        With ``num_workers=0`` reading, decoding and augmentation take turns with the training: while one runs, the
        other stands still.

    Example:
        class Images(torch.utils.data.Dataset):
            def __len__(self):
                return 64

            def __getitem__(self, index):
                image = torch.full((3, 64, 64), float(index))
                for _ in range(50):
                    image = image.roll(1, -1) * 0.99
                return image.flatten()


        net = torch.nn.Linear(12288, 2).to("cuda")
        for images in torch.utils.data.DataLoader(Images(), batch_size=4, pin_memory=True):
            net(images.to("cuda", non_blocking=True)).sum().backward()

    Use instead:
        class Images(torch.utils.data.Dataset):
            def __len__(self):
                return 64

            def __getitem__(self, index):
                image = torch.full((3, 64, 64), float(index))
                for _ in range(50):
                    image = image.roll(1, -1) * 0.99
                return image.flatten()


        net = torch.nn.Linear(12288, 2).to("cuda")
        for images in torch.utils.data.DataLoader(Images(), batch_size=4, pin_memory=True, num_workers=2):
            net(images.to("cuda", non_blocking=True)).sum().backward()

    When it stays silent:
        Where batches come quickly (data in memory), where they are on the device already, on hosts without an
        accelerator, and where the program's own work takes most of the time.

    Repair:
        None: how many processes the host can spare is for its owner to say.

    References:
        https://github.com/runa91/barc_release/issues/9
        https://github.com/NVIDIA-NeMo/Speech/issues/1204
    """

    code: ClassVar[str] = "PIP001"
    name: ClassVar[str] = "loader-workers"
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
            enough = loop.batches >= self.context.settings.min_steps
            slow = loop.each >= _SHORTEST and loop.share >= _SHARE
            if loop.facts.workers or loop.on_device or not enough or not slow:
                continue
            yield self.finding(
                f"the loader over {loop.facts.dataset} has no workers, and the program waits {1e3 * loop.each:.1f} ms "
                f"for each batch, {loop.share:.0%} of its time.",
                "DataLoader(..., num_workers=4, persistent_workers=True): up to "
                f"{1 / max(0.01, 1 - loop.share):.1f} times as fast if the workers keep up",
                [Subject(loop.facts.dataset, "data set")],
                site=loop.site,
                count=loop.batches,
                cost=[("share", round(loop.share, 3)), ("seconds", loop.waited)],
            )
