"""SYN005: operations whose result's size depends on the values, at every step."""

from __future__ import annotations

from typing import ClassVar

from deviceguard.findings import Severity
from deviceguard.rules.syn.host_reads import HostReadRule
from deviceguard.rules.syn.site_rule import named
from deviceguard.rules.syn.sites import Tally


class DataDependentShape(HostReadRule):
    """The size of a result depends on the values of a device tensor, at every step.

    What it does:
        Counts boolean masks as indices, ``nonzero``, ``torch.where`` with one argument, ``masked_select``, ``unique``,
        ``bincount``, ``repeat_interleave`` without ``output_size`` and the like for each line of the program, and
        reports a line that does it in nearly every step.

    Why it hurts:
        To allocate the result the host must know its size, so it waits until the device has counted.

    Example:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        target = torch.randn(16, 1, device="cuda")
        for step in range(10):
            error = (net(torch.randn(16, 8, device="cuda")) - target).pow(2)
            loss = error[target > 0].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    Use instead:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        target = torch.randn(16, 1, device="cuda")
        for step in range(10):
            error = (net(torch.randn(16, 8, device="cuda")) - target).pow(2)
            valid = target > 0
            loss = (error * valid).sum() / valid.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    When it stays silent:
        For masks on the host; for ``x[mask] = 0.0``, three-argument ``where`` and other forms that keep the shape; for
        sizes that are given (``output_size``, ``num_classes``, ``nonzero_static``); outside of steps.

    Repair:
        None.

    References:
        https://github.com/pytorch/pytorch/issues/12461
        https://github.com/pytorch/pytorch/issues/131256
        https://github.com/pytorch/pytorch/issues/62320
    """

    code: ClassVar[str] = "SYN005"
    name: ClassVar[str] = "data-dependent-shape"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"
    families: ClassVar[frozenset[str]] = frozenset({"shape"})

    def message(self, tally: Tally) -> str:  # noqa: D102
        return (
            f"{tally.call} on {named(tally)} gives a result whose size depends on the values, {tally.how_often}; "
            "each time the host waits to learn it"
        )

    def fix(self, tally: Tally) -> str:  # noqa: D102
        return tally.instead or "keep the shape: multiply by the mask, or torch.where(mask, x, 0)"
