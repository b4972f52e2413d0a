"""OPT003: a trainable parameter of an optimizer whose module runs, and which never gets a gradient."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import ModuleCalled, OptimizerStepping, RunEnded
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.ledger.tensors import parameters_of
from deviceguard.ledger.values import gradient_of, versions_of
from deviceguard.naming.frames import outward
from deviceguard.naming.phrases import listed
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch

MIN_STEPS = 2
"""Steps in which a parameter must have been left out."""

_CHECKPOINT = "torch/utils/checkpoint.py"


@dataclasses.dataclass(slots=True)
class _Left:
    """A parameter without a gradient.

    Attributes:
        subject: its name, as text for the end of the run.
        optimizer: the optimizer that holds it.
        version: its version counter when it was first seen so.
        steps: steps in which its module ran and no gradient arrived.
        reached: True once one arrived.
    """

    subject: Subject
    optimizer: Subject
    version: int
    steps: int = 0
    reached: bool = False


class NoGradient(Rule):
    """A trainable parameter that the optimizer holds never gets a gradient although its module runs.

    What it does:
        For each parameter of an optimizer whose module ran in a training step it looks whether a gradient arrived.
        Those that got none in any step are reported at the end. It is a warning where the module ran inside reentrant
        checkpointing with gradients off, which is always a mistake; elsewhere the output may be unused on purpose, and
        it is advice.

    Why it hurts:
        The parameter is never trained. PyTorch skips it silently, or gives one warning in the middle of the log.

    Example:
        from torch.utils.checkpoint import checkpoint
        body, head = torch.nn.Linear(4, 4).to("cuda"), torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
        for _ in range(3):
            x = torch.ones(8, 4, device="cuda")
            optimizer.zero_grad()
            head(checkpoint(body, x, use_reentrant=True)).sum().backward()
            optimizer.step()

    Use instead:
        from torch.utils.checkpoint import checkpoint
        body, head = torch.nn.Linear(4, 4).to("cuda"), torch.nn.Linear(4, 1).to("cuda")
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
        for _ in range(3):
            x = torch.ones(8, 4, device="cuda")
            optimizer.zero_grad()
            head(checkpoint(body, x, use_reentrant=False)).sum().backward()
            optimizer.step()

    When it stays silent:
        For modules that did not run (experts that were not chosen), frozen parameters, gradients that are zero, and
        where modules of the same class beside it do get gradients.

    Repair:
        None by itself.

    References:
        https://github.com/locuslab/open-unlearning/issues/178
        https://github.com/kohya-ss/sd-scripts/issues/323
        https://github.com/huggingface/transformers/issues/23170
    """

    code: ClassVar[str] = "OPT003"
    name: ClassVar[str] = "no-gradient"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        from torch.utils.weak import WeakTensorKeyDictionary

        self._left = WeakTensorKeyDictionary()
        self._kept: list[_Left] = []
        self._checkpointed: set[str] = set()

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> None:
        """Remember modules with parameters that run with gradients off inside a checkpoint."""
        if event.is_root and not self.context.steps.examined:
            return
        import torch

        if torch.is_grad_enabled() or not event.module._parameters or not event.module.training:
            return
        if any(frame.f_code.co_filename.endswith(_CHECKPOINT) for frame in outward(sys._getframe())):
            for parameter in event.module._parameters.values():
                if parameter is not None and parameter.requires_grad:
                    self._checkpointed.add(self.context.subjects.parameter_name(parameter))

    @on(OptimizerStepping)
    def check(self, event: OptimizerStepping) -> None:
        """Which of the parameters that ran have no gradient."""
        if event.with_closure or not self.context.ledger.covered:
            return
        held = [p for p in parameters_of(event.optimizer) if p.is_leaf and p.requires_grad]
        lacking = [p for p in held if gradient_of(p) is None]
        for parameter, left in list(self._left.items()):
            left.reached = left.reached or gradient_of(parameter) is not None
        if not lacking or len(lacking) == len(held):
            return
        first = max(0, self.context.steps.index - 1)
        for parameter in lacking:
            if self.context.ledger.parameter(parameter).ran_in >= first:
                self._note(parameter, event)

    def _note(self, parameter: torch.Tensor, event: OptimizerStepping) -> None:
        left = self._left.get(parameter)
        if left is None:
            subjects = self.context.subjects
            version = versions_of([parameter])[0]
            left = _Left(subjects.parameter(parameter), subjects.optimizer(event.optimizer), version)
            self._left[parameter] = left
            self._kept.append(left)
            del self._kept[:-10_000]
        left.steps += 1

    @on(RunEnded)
    def end(self, event: RunEnded) -> Iterator[Finding]:
        """Report what no gradient has ever reached."""
        for parameter, left in list(self._left.items()):
            changed = versions_of([parameter]) != (left.version,)
            left.reached = left.reached or gradient_of(parameter) is not None or changed
        found = [left for left in self._kept if left.steps >= MIN_STEPS and not left.reached]
        if not found:
            return
        sure = [left for left in found if left.subject.name in self._checkpointed]
        for group, severity in ((sure, Severity.WARNING), ([x for x in found if x not in sure], Severity.ADVICE)):
            if group:
                yield self._finding(group, severity)

    def _finding(self, group: list[_Left], severity: Severity) -> Finding:
        names = [left.subject.name for left in group]
        many = len(names) > 1
        if severity is Severity.WARNING:
            why = "Reentrant checkpointing ran its module with gradients off, since no input of it requires a gradient."
            fix = "checkpoint(..., use_reentrant=False), or let the input require a gradient"
        else:
            why = "Its output is unused or detached, or it runs under no_grad."
            fix = "freeze what is not to be trained with requires_grad_(False), or remove the detach or no_grad"
        return self.finding(
            f"{listed(names)} {'never get' if many else 'never gets'} a gradient, although {group[0].optimizer.name} "
            f"holds {'them' if many else 'it'} and the module runs in every step.\n{why}",
            fix,
            [*(left.subject for left in group[:3]), group[0].optimizer],
            site=group[0].optimizer.made_at,
            severity=severity,
            count=max(left.steps for left in group),
            key=names[0],
        )
