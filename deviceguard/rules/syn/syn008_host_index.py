"""SYN008: a device tensor indexed with a host index or mask at every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from deviceguard.backends.estimates import upload_seconds
from deviceguard.events import Uploaded
from deviceguard.findings import Finding, Severity
from deviceguard.naming.attribution import charge
from deviceguard.naming.handled import handled
from deviceguard.rules.rule import on
from deviceguard.rules.syn.site_rule import SiteRule
from deviceguard.rules.syn.sites import Tally


class HostIndex(SiteRule):
    """A device tensor is indexed with a host tensor, a list or a NumPy array at every step.

    What it does:
        Counts ``x[index]`` and ``x[index] = value`` where ``x`` is on a device and the index is not, for each line of
        the program, and reports a line that does it in nearly every step.

    Why it hurts:
        PyTorch takes it silently: the index is uploaded from pageable memory each time, and the host waits.

    Example:
        images = torch.randn(256, 8, device="cuda")
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(10):
            chosen = torch.randint(0, 256, (16,))
            loss = net(images[chosen]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    Use instead:
        images = torch.randn(256, 8, device="cuda")
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(10):
            chosen = torch.randint(0, 256, (16,), device="cuda")
            loss = net(images[chosen]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    When it stays silent:
        For ints, slices and device indices, for host tensors, and outside of steps.

    Repair:
        None.

    References:
        https://github.com/pytorch/pytorch/pull/186484
        https://github.com/pytorch/pytorch/pull/80115
    """

    code: ClassVar[str] = "SYN008"
    name: ClassVar[str] = "host-index"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"
    raises_in_strict: ClassVar[bool] = True

    @on(Uploaded)
    def note(self, event: Uploaded) -> Iterator[Finding]:
        """An index that PyTorch uploaded."""
        if event.kind != "index":
            return
        charged = charge()
        if charged is None:
            return
        tally, is_new = self.sites.find(charged, event.call)
        if is_new:
            name = handled(event.result, charged.frame) or "a device tensor"
            tally.subject = self.context.subjects.tensor(name, event.result)
            tally.facts["index"] = _kind_of(event.source)
        self.sites.count(tally, event.nbytes, event.seconds, upload_seconds(event.nbytes))
        if self.sites.is_due(tally, strict=True):
            yield self.told(tally)

    def message(self, tally: Tally) -> str:  # noqa: D102
        name, device = (tally.subject.name, tally.subject.device) if tally.subject else ("a tensor", "a device")
        return (
            f"{name} is on {device} and indexed with {tally.facts['index']} {tally.how_often}; "
            "each time the index is uploaded and the host waits"
        )

    def fix(self, tally: Tally) -> str:  # noqa: D102
        device = tally.subject.device if tally.subject else "device"
        return f"make the index on the device: torch.randint(..., device={device!r}), or randperm, arange and so on"


def _kind_of(index: object) -> str:
    if hasattr(index, "dtype") and hasattr(index, "device"):
        return f"a host tensor ({str(index.dtype).removeprefix('torch.')} on {index.device})"
    return "a Python list" if isinstance(index, list) else "a NumPy array"
