"""PIP004: device tensors made inside a loader worker."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from typing import Any, ClassVar

from deviceguard.backends.devices import is_accelerator
from deviceguard.events import BatchFetched, LoaderFailed
from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.naming.frames import origin
from deviceguard.rules.rule import Rule, on
from deviceguard.rules.syn.memory import tensors_in

_REFUSALS = ("in forked subprocess", "cannot pin")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


class WorkerDeviceTensor(Rule):
    """A loader worker makes tensors on the accelerator.

    What it does:
        Explains the failure of a loader whose worker process used the device ("Cannot re-initialize CUDA in forked
        subprocess", "cannot pin"), by the line of the data set that did it. Device tensors that come out of a spawned
        worker are advice.

    Why it hurts:
        A forked process cannot use the device context of its parent. People then set ``num_workers=0``, and the device
        waits for the data ever after. Where it works (spawn), each worker holds a context of its own, some hundred
        megabytes of device memory.

    Example:
        class Rows(torch.utils.data.Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, index):
                return torch.full((4,), float(index)).to("cuda")


        net = torch.nn.Linear(4, 1).to("cuda")
        for rows in torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=1, multiprocessing_context="fork"):
            net(rows).sum().backward()

    Use instead:
        class Rows(torch.utils.data.Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, index):
                return torch.full((4,), float(index))


        net = torch.nn.Linear(4, 1).to("cuda")
        for rows in torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=1, multiprocessing_context="fork"):
            net(rows.to("cuda")).sum().backward()

    When it stays silent:
        For loaders without workers, and for host tensors.

    Repair:
        None.

    References:
        https://github.com/pytorch/pytorch/issues/77159
        https://github.com/pytorch/pytorch/issues/40403
        https://github.com/pytorch/pytorch/issues/13775
    """

    code: ClassVar[str] = "PIP004"
    name: ClassVar[str] = "worker-device-tensor"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"
    needs_accelerator: ClassVar[bool] = True

    @on(LoaderFailed)
    def explain(self, event: LoaderFailed) -> Iterator[Finding]:
        """A loader whose worker was refused the device."""
        text = str(event.error)
        if not any(refusal in text for refusal in _REFUSALS):
            return
        site = _site_in(text)
        where = f"{event.facts.dataset}.{site.function}" if site is not None else event.facts.dataset
        yield self.finding(
            f"{where} makes a device tensor inside a worker process of the loader (num_workers={event.facts.workers}); "
            "a forked worker cannot use the device.",
            "return host tensors from the data set and move the batch in the training loop: batch.to(device)",
            [Subject(event.facts.dataset, "data set")],
            site=site,
            key=event.facts.dataset,
        )

    @on(BatchFetched)
    def fetched(self, event: BatchFetched) -> Iterator[Finding]:
        """A batch of a loader with workers."""
        if not event.facts.workers or not _any_on_device(event.batch):
            return
        yield self.finding(
            f"the {event.facts.workers} workers of the loader over {event.facts.dataset} make device tensors; each of "
            "them holds a device context of its own.",
            "return host tensors from the data set and move the batch in the training loop: batch.to(device)",
            [Subject(event.facts.dataset, "data set")],
            severity=Severity.ADVICE,
            key=event.facts.dataset,
        )


def _any_on_device(batch: Any) -> bool:
    return any(is_accelerator(tensor.device) for tensor in tensors_in(batch))


def _site_in(text: str) -> Site | None:
    """The user's innermost line in the traceback that PyTorch put into the message."""
    found = [match for match in _FRAME.finditer(text) if origin(match["file"]) == "user"]
    if not found:
        return None
    file, line = found[-1]["file"], int(found[-1]["line"])
    return Site(file, line, found[-1]["function"], linecache.getline(file, line).strip() or None)
