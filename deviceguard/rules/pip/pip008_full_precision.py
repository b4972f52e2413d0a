"""PIP008: float32 matrix work on a device with faster short formats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.backends.devices import is_accelerator
from deviceguard.backends.facts import is_faster_with_short_numbers, may_shorten_matrix_work
from deviceguard.events import ModuleCalled, RunEnded
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch import nn

    from deviceguard.context import Context

_MATRICES = ("Linear", "Conv1d", "Conv2d", "Conv3d", "MultiheadAttention", "LSTM", "GRU")
_MUCH = 1_000_000


class FullPrecision(Rule):
    """A large model is trained in float32 on a device that is several times faster with shorter numbers.

    What it does:
        Looks at the models that are trained: how many float32 weights their matrix layers have, whether autocast is on
        when they run, and whether PyTorch may use TF32 (``torch.get_float32_matmul_precision()``).

    Why it hurts:
        The matrix units of current accelerators take TF32, bfloat16 and float16. Plain float32 leaves them unused and
        runs at an eighth of the speed or less.

    Example:
        net = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024)).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(3):
            loss = net(torch.randn(4, 1024, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    Use instead:
        net = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024)).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(3):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = net(torch.randn(4, 1024, device="cuda")).float().pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    When it stays silent:
        Under autocast, for models in short formats, with TF32 allowed, for small models, and on devices without such
        units.

    Repair:
        None: precision is the program's choice.

    References:
        https://github.com/pytorch/pytorch/issues/76440
        https://github.com/tensorpix/benchmarking-cv-models/issues/8
        https://github.com/association-rosia/flair-2/issues/23
    """

    code: ClassVar[str] = "PIP008"
    name: ClassVar[str] = "full-precision"
    severity: ClassVar[Severity] = Severity.ADVICE
    since: ClassVar[str] = "0.1.0"
    needs_accelerator: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._found: dict[str, Finding] = {}

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> None:
        """A model runs for training."""
        import torch

        if not event.is_root or not self.context.steps.examined or not event.module.training:
            return
        weight = next((parameter for parameter in event.module.parameters()), None)
        if weight is None or not is_accelerator(weight.device) or not torch.is_grad_enabled():
            return
        size = _matrix_weights(event.module)
        if size < _MUCH or not is_faster_with_short_numbers(weight.device):
            return
        name = self.context.subjects.model_name(event.module)
        if torch.is_autocast_enabled(weight.device.type) or may_shorten_matrix_work():
            self._found.pop(name, None)
        elif name not in self._found:
            self._found[name] = self._advice(event.module, name, size)

    @on(RunEnded)
    def judge(self, event: RunEnded) -> Iterator[Finding]:
        """Only what was trained."""
        if self.context.steps.training:
            yield from self._found.values()

    def _advice(self, module: nn.Module, name: str, size: int) -> Finding:
        from deviceguard.naming.frames import user_site

        subject = self.context.subjects.model(module)
        return self.finding(
            f"{name} multiplies with {size:,} float32 weights on {subject.device}, whose matrix units take shorter "
            "numbers several times as fast; neither autocast nor TF32 is on.",
            "with torch.autocast(device.type, dtype=torch.bfloat16): around forward and loss, or "
            "torch.set_float32_matmul_precision('high')",
            [Subject(name, "model", subject.device, "float32")],
            site=user_site(),
            key=name,
        )


def _matrix_weights(root: nn.Module) -> int:
    import torch

    return sum(
        parameter.numel()
        for module in root.modules()
        if type(module).__name__ in _MATRICES
        for parameter in module.parameters(recurse=False)
        if parameter.dim() > 1 and parameter.dtype is torch.float32
    )
