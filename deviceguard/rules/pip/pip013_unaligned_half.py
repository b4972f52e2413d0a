"""PIP013: low-precision matrix work whose inner sizes are not multiples of 8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.backends.devices import is_accelerator
from deviceguard.events import ModuleCalled
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch

    from deviceguard.context import Context

_MULTIPLE = 8
_WIDE = 64
"""Sizes below it are not worth padding: a few classes, a few input channels."""


class UnalignedHalf(Rule):
    """A wide layer runs in a short format with a size that is no multiple of 8.

    What it does:
        Looks at the linear layers that run under autocast, or in float16 or bfloat16, on an accelerator: whether their
        input and output sizes, where they are 64 or more, are multiples of 8.

    Why it hurts:
        The matrix units take rows of 8 short numbers. With other sizes PyTorch falls back to slower kernels or pads at
        every call; a vocabulary of 50257 is the classic.

    Example:
        net = torch.nn.Linear(100, 1001).to("cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            net(torch.randn(8, 100, device="cuda"))

    Use instead:
        net = torch.nn.Linear(104, 1008).to("cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            net(torch.randn(8, 104, device="cuda"))

    When it stays silent:
        For multiples of 8, for sizes under 64, in float32, and on the host.

    Repair:
        None: sizes belong to the model.

    References:
        https://github.com/tensorflow/models/pull/7407
        https://github.com/NVIDIA/DeepLearningExamples/issues/534
    """

    code: ClassVar[str] = "PIP013"
    name: ClassVar[str] = "unaligned-half"
    severity: ClassVar[Severity] = Severity.ADVICE
    since: ClassVar[str] = "0.1.0"
    needs_accelerator: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._told: set[str] = set()

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> Iterator[Finding]:
        """A linear layer runs in a step that is examined."""
        module: Any = event.module
        if type(module).__name__ != "Linear" or not self.context.steps.examined:
            return
        weight = module.weight
        odd = [size for size in (module.in_features, module.out_features) if size >= _WIDE and size % _MULTIPLE]
        if not odd or not is_accelerator(weight.device) or not _is_short(weight):
            return
        name = self.context.subjects.model_name(module)
        if name in self._told:
            return
        self._told.add(name)
        padded = [-(-size // _MULTIPLE) * _MULTIPLE for size in odd]
        yield self.finding(
            f"{name} (Linear {module.in_features} to {module.out_features}) runs in a short format on {weight.device} "
            f"with {' and '.join(map(str, odd))} no multiple of {_MULTIPLE}: the fast matrix kernels do not take it.",
            f"pad it to {' and '.join(map(str, padded))}, and leave the rest unused",
            [Subject(name, "module", str(weight.device))],
            key=name,
        )


def _is_short(weight: torch.Tensor) -> bool:
    import torch

    return weight.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled(weight.device.type)
