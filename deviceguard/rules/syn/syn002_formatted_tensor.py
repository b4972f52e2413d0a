"""SYN002: a device tensor printed or formatted at every step."""

from __future__ import annotations

from typing import ClassVar

from deviceguard.findings import Severity
from deviceguard.rules.syn.host_reads import HostReadRule
from deviceguard.rules.syn.site_rule import named
from deviceguard.rules.syn.sites import Tally


class FormattedTensor(HostReadRule):
    """A device tensor is printed or put into text at every step.

    What it does:
        Counts ``print``, f-strings, ``%s``, ``str`` and ``repr`` of device tensors for each line of the program,
        progress bars and loggers that are handed a tensor included, and reports a line that does it in nearly every
        step.

    Why it hurts:
        Text needs the values. Formatting one number waits for the device once, printing a whole tensor up to a dozen
        times, and a progress bar does it although nobody can read that fast.

    Example:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(10):
            loss = net(torch.randn(16, 8, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            line = f"step {step} loss {loss:.3f}"

    Use instead:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(10):
            loss = net(torch.randn(16, 8, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 5 == 0:
                line = f"step {step} loss {loss.item():.3f}"

    When it stays silent:
        For tensors on the host, for text made every N steps, at the end of an epoch or in evaluation.

    Repair:
        None.

    References:
        https://github.com/openvdb/fvdb-reality-capture/pull/144
        https://github.com/Nerogar/OneTrainer/pull/1608
    """

    code: ClassVar[str] = "SYN002"
    name: ClassVar[str] = "formatted-tensor"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"
    families: ClassVar[frozenset[str]] = frozenset({"format"})

    def message(self, tally: Tally) -> str:  # noqa: D102
        return f"{named(tally)} is turned into text {tally.how_often}; each time the host waits for the device"

    def fix(self, tally: Tally) -> str:  # noqa: D102
        return "make the text every N steps only, from one value read then (.item())"
