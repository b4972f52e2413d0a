"""PIP014: a bias that the batch normalisation after it cancels."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import ModuleCalled, ModuleReturned, RunEnded
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.naming.frames import with_source
from deviceguard.naming.phrases import listed
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from deviceguard.context import Context
    from deviceguard.findings import Site

_BIASED = ("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")
_NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "InstanceNorm1d", "InstanceNorm2d")


class BiasBeforeNorm(Rule):
    """A layer has a trainable bias that the normalisation right after it subtracts again.

    What it does:
        Follows the output of linear and convolution layers in the steps that are examined, and notes those whose output
        goes straight into a batch or instance normalisation in training mode.

    Why it hurts:
        The normalisation subtracts the mean of each channel, and the bias with it. Its gradient is rounding error, its
        memory, optimizer state and additions are for nothing.

    Example:
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).to("cuda")
        net(torch.randn(4, 3, 8, 8, device="cuda")).sum().backward()

    Use instead:
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8)).to("cuda")
        net(torch.randn(4, 3, 8, 8, device="cuda")).sum().backward()

    When it stays silent:
        Without a bias, with a frozen one, in evaluation mode, and where anything stands between the two layers.

    Repair:
        None: the parameters of a model are the program's.

    References:
        https://github.com/milesial/Pytorch-UNet/pull/325
        https://github.com/4uiiurz1/pytorch-nested-unet/issues/39
    """

    code: ClassVar[str] = "PIP014"
    name: ClassVar[str] = "bias-before-norm"
    severity: ClassVar[Severity] = Severity.ADVICE
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._output: weakref.ref[Any] | None = None
        self._layer: weakref.ref[Any] | None = None
        self._found: dict[str, Site | None] = {}

    @on(ModuleReturned)
    def returned(self, event: ModuleReturned) -> None:
        """A layer with a bias returned."""
        if type(event.module).__name__ not in _BIASED or not self.context.steps.examined:
            return
        bias = getattr(event.module, "bias", None)
        if bias is not None and bias.requires_grad and event.module.training:
            self._output, self._layer = weakref.ref(event.output), weakref.ref(event.module)

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> None:
        """A normalisation is given what the layer returned."""
        if self._output is None or type(event.module).__name__ not in _NORMS or not event.args:
            return
        layer = self._layer() if self._layer is not None and self._output() is event.args[0] else None
        if layer is not None and event.module.training and _normalises(event.module):
            name = self.context.subjects.model_name(layer)
            self._found.setdefault(name, self.context.ledger.module(layer).made_at)

    @on(RunEnded)
    def judge(self, event: RunEnded) -> Iterator[Finding]:
        """All layers in one finding."""
        if not self._found:
            return
        names = sorted(self._found)
        has = "has a bias" if len(names) == 1 else "have biases"
        yield self.finding(
            f"{listed(names)} {has} that the normalisation right after subtracts again.",
            "bias=False for a layer before a batch or instance normalisation",
            [Subject(f"{name}.bias", "parameter") for name in names],
            site=with_source(self._found[names[0]]),
            count=len(names),
        )


def _normalises(module: Any) -> bool:
    """True where the statistics are those of the batch itself."""
    return bool(module.track_running_stats or module.training)
