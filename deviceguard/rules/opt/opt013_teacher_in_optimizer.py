"""OPT013: an optimizer that updates a model in eval mode, such as a teacher."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import ModuleCalled, OptimizerStepping
from deviceguard.findings import Finding, Severity
from deviceguard.ledger.families import share_parameters, structure_of, unwrapped
from deviceguard.ledger.tensors import parameters_of
from deviceguard.ledger.values import gradient_of
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch import nn

ENOUGH = 2
"""Steps in which it happens."""


class TeacherInOptimizer(Rule):
    """An optimizer updates the parameters of a model that is in eval mode beside the one that is trained.

    What it does:
        In a training step it looks for a model in eval mode that was run on the same input as a model in training
        mode, or has its structure, that got gradients, and whose parameters the stepping optimizer holds.

    Why it hurts:
        ``eval()`` does not freeze. The teacher drifts towards the student, or a reference towards what it judges.

    Example:
        student, teacher = torch.nn.Linear(4, 2).to("cuda"), torch.nn.Linear(4, 2).to("cuda").eval()
        optimizer = torch.optim.SGD([*student.parameters(), *teacher.parameters()], lr=0.1)
        for _ in range(3):
            x = torch.ones(8, 4, device="cuda")
            optimizer.zero_grad()
            F.mse_loss(student(x), teacher(x)).backward()
            optimizer.step()

    Use instead:
        student, teacher = torch.nn.Linear(4, 2).to("cuda"), torch.nn.Linear(4, 2).to("cuda").eval()
        teacher.requires_grad_(False)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        for _ in range(3):
            x = torch.ones(8, 4, device="cuda")
            optimizer.zero_grad()
            F.mse_loss(student(x), teacher(x)).backward()
            optimizer.step()

    When it stays silent:
        For layers kept in eval mode inside a model that trains (frozen batch statistics), a backbone in eval mode
        whose output the trained part takes, and models trained in eval mode alone.

    Repair:
        None by itself.

    References:
        https://github.com/huangzongmou/yolov8_Distillation/issues/16
    """

    code: ClassVar[str] = "OPT013"
    name: ClassVar[str] = "teacher-in-optimizer"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._ran: list[tuple[weakref.ref[nn.Module], bool, frozenset[int]]] = []
        self._seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> None:
        """Roots of this step: in which mode, on which inputs."""
        if not event.is_root or not self.context.steps.examined:
            return
        module = unwrapped(event.module)
        inputs = frozenset(id(value) for value in (*event.args, *event.kwargs.values()) if hasattr(value, "dtype"))
        self._ran = [*self._ran[-63:], (weakref.ref(module), module.training, inputs)]

    @on(OptimizerStepping)
    def stepping(self, event: OptimizerStepping) -> Iterator[Finding]:
        """Does it hold one that is in eval mode?"""
        ran, self._ran = self._ran, []
        if event.with_closure or not ran:
            return
        held = {id(p) for p in parameters_of(event.optimizer) if gradient_of(p) is not None}
        for reference, training, inputs in ran:
            module = reference()
            if training or module is None or module.training or any(part.training for part in module.modules()):
                continue
            if not any(id(p) in held for p in module.parameters()):
                continue
            student = self._student(module, inputs, ran, held)
            if student is not None:
                self._seen[module] = self._seen.get(module, 0) + 1
                if self._seen[module] >= ENOUGH:
                    yield self._finding(module, student, event)

    def _student(self, teacher: nn.Module, inputs: frozenset[int], ran: list[Any], held: set[int]) -> nn.Module | None:
        for reference, training, others in ran:
            module = reference()
            if module is None or module is teacher or not training or share_parameters(module, teacher):
                continue
            alike = type(module) is type(teacher) and structure_of(module) == structure_of(teacher)
            if (inputs & others or alike) and any(id(p) in held for p in module.parameters()):
                return module
        return None

    def _finding(self, teacher: nn.Module, student: nn.Module, event: OptimizerStepping) -> Finding:
        subject, pupil = self.context.subjects.model(teacher), self.context.subjects.model(student)
        optimizer = self.context.subjects.optimizer(event.optimizer)
        return self.finding(
            f"{optimizer.name} updates {subject.name}, which is in eval mode and runs beside {pupil.name}: eval() does "
            "not freeze a model, and it drifts with every step.",
            f"{subject.name}.requires_grad_(False), run it under torch.no_grad(), and leave its parameters out of "
            f"{optimizer.name}",
            [subject, pupil, optimizer],
            key=subject.name,
        )
