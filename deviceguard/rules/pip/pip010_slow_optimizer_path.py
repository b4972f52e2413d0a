"""PIP010: the single-tensor optimizer loop where foreach or fused is available."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from deviceguard.backends.devices import is_accelerator
from deviceguard.events import OptimizerStepped
from deviceguard.findings import Finding, Severity
from deviceguard.rules.rule import Rule, on

_MANY = 4


class SlowOptimizerPath(Rule):
    """An optimizer is told to update one parameter after the other.

    What it does:
        Looks at the first step of each optimizer whether ``foreach=False`` was given while its parameters are on an
        accelerator, and nothing asks for ``fused`` or ``capturable``.

    Why it hurts:
        The loop launches a dozen small operations for each parameter; ``foreach`` and ``fused`` do the same in a few
        launches for all of them.

    Example:
        layers = [torch.nn.Linear(8, 8) for _ in range(4)]
        net = torch.nn.Sequential(*layers).to("cuda")
        optimizer = torch.optim.Adam(net.parameters(), lr=0.001, foreach=False)
        net(torch.randn(4, 8, device="cuda")).sum().backward()
        optimizer.step()

    Use instead:
        layers = [torch.nn.Linear(8, 8) for _ in range(4)]
        net = torch.nn.Sequential(*layers).to("cuda")
        optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
        net(torch.randn(4, 8, device="cuda")).sum().backward()
        optimizer.step()

    When it stays silent:
        With the defaults, for few parameters, on the host, and for differentiable optimizers.

    Repair:
        None.

    References:
        https://github.com/pytorch/pytorch/issues/68041
        https://github.com/pytorch/pytorch/pull/49039
        https://github.com/facebookresearch/schedule_free/pull/10
    """

    code: ClassVar[str] = "PIP010"
    name: ClassVar[str] = "slow-optimizer-path"
    severity: ClassVar[Severity] = Severity.ADVICE
    since: ClassVar[str] = "0.1.0"
    needs_accelerator: ClassVar[bool] = True

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> Iterator[Finding]:
        """A step; judged once for each optimizer."""
        record = self.context.ledger.optimizer(event.optimizer)
        if record.steps != 1:
            return
        slow = [group for group in event.optimizer.param_groups if _is_slow(group)]
        count = sum(is_accelerator(parameter.device) for group in slow for parameter in group["params"])
        if count < _MANY:
            return
        subject = self.context.subjects.optimizer(event.optimizer)
        yield self.finding(
            f"{subject.name} updates its {count} parameters one after the other, since foreach=False is set.",
            "leave foreach to its default, or fused=True",
            [subject],
            site=subject.made_at,
            key=subject.name,
            cost=[("parameters", float(count))],
        )


def _is_slow(group: dict[str, object]) -> bool:
    chosen = group.get("fused") or group.get("capturable") or group.get("differentiable")
    return group.get("foreach") is False and not chosen
