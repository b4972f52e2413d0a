"""PIP011: a run that compares devices or copies with no seed set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import ModuleCalled, RunEnded
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.naming.frames import spot_of, user_frame, with_source
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from deviceguard.context import Context
    from deviceguard.findings import Site

_NEVER_SEEDED = 67280421310721
"""The seed PyTorch's generators start with when nobody sets one."""


class UnseededRun(Rule):
    """One model is run on two devices, or compared with a copy, and no seed was set.

    What it does:
        Notes on which devices each trained model runs, and at the end of the run whether ``torch.manual_seed`` was ever
        called.

    Why it hurts:
        Two results can only be compared when both start from the same numbers. Without a seed a difference between
        devices cannot be told from chance.

    Example:
        torch.seed()
        net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))
        on_host = net(torch.randn(4, 8)).mean()
        on_device = net.to("cuda")(torch.randn(4, 8).to("cuda")).mean()

    Use instead:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))
        on_host = net(torch.randn(4, 8)).mean()
        on_device = net.to("cuda")(torch.randn(4, 8).to("cuda")).mean()

    When it stays silent:
        Once a seed was set, and for models that run on one device only.

    Repair:
        None.

    References:
        https://github.com/pytorch/pytorch/issues/2976
        https://github.com/mrdbourke/pytorch-deep-learning/issues/759
    """

    code: ClassVar[str] = "PIP011"
    name: ClassVar[str] = "unseeded-run"
    severity: ClassVar[Severity] = Severity.ADVICE
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._devices: dict[str, tuple[set[str], Site | None]] = {}

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> None:
        """A model runs, in training mode, on some device."""
        if not event.is_root or not event.module.training or not self.context.steps.examined:
            return
        weight = next(iter(event.module.parameters()), None)
        if weight is not None:
            name = self.context.subjects.model_name(event.module)
            devices, _ = self._devices.get(name, (set(), None))
            self._devices[name] = (devices | {str(weight.device)}, spot_of(user_frame()))

    @on(RunEnded)
    def judge(self, event: RunEnded) -> Iterator[Finding]:
        """What the whole run says."""
        if _is_seeded():
            return
        for name, (devices, site) in self._devices.items():
            if len(devices) > 1:
                yield self.finding(
                    f"{name} runs on {' and '.join(sorted(devices))} in one run, and no seed is set: a difference "
                    "between them cannot be told from chance.",
                    "torch.manual_seed(0) at the start, and again before each of the runs to compare",
                    [Subject(name, "model")],
                    site=with_source(site),
                    key=name,
                )


def _is_seeded() -> bool:
    import torch

    seed = torch.initial_seed()
    return seed != _NEVER_SEEDED and seed < 1 << 40
