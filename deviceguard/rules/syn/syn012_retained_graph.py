"""SYN012: tensors with their graph kept across steps, so that memory only grows."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import BackwardEnded, ModuleReturned, StepEnded
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.naming.frames import user_frame
from deviceguard.rules.rule import Rule, on
from deviceguard.rules.syn.graph_holders import Holder, holder_from
from deviceguard.rules.syn.graph_marks import GraphMarks
from deviceguard.rules.syn.memory import tensors_in

if TYPE_CHECKING:
    from deviceguard.context import Context

_SHARE = 0.8


class RetainedGraph(Rule):
    """Tensors are kept from step to step together with the graph that made them.

    What it does:
        Marks the graphs of losses and of models' outputs, and looks at the end of each step which marks are still
        there. Where the graphs of nearly all steps so far live on, it names the variable that holds them and the line
        that adds to it. It keeps no graph alive itself.

    Why it hurts:
        A graph refers to everything its step computed. Memory grows with each step until it runs out, far from the
        line that is wrong; on a traced device the steps also pile up into one program that is compiled at the end.

    Example:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        losses = []
        for step in range(10):
            loss = net(torch.randn(16, 8, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)

    Use instead:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        losses = []
        for step in range(10):
            loss = net(torch.randn(16, 8, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())

    When it stays silent:
        For detached values, for a loss that lives until the next one takes its place, for outputs that are gathered
        within one step and go when it ends.

    Repair:
        None: what is added has to be detached, in the program.

    References:
        https://github.com/BatsResearch/labelmodels/issues/4
        https://github.com/pytorch/pytorch/issues/17568
        https://github.com/boschresearch/Continuous-Recurrent-Units/pull/4
        https://github.com/pytorch/xla/issues/2796
    """

    code: ClassVar[str] = "SYN012"
    name: ClassVar[str] = "retained-graph"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._marks = GraphMarks()
        self._training = False
        self._first = -1
        self._least = context.settings.min_steps

    @on(BackwardEnded)
    def mark_losses(self, event: BackwardEnded) -> None:
        """The graphs that a backward pass has just used."""
        for tensor in event.tensors:
            self._mark(tensor)

    @on(ModuleReturned)
    def mark_outputs(self, event: ModuleReturned) -> None:
        """The graph of a model's output."""
        if event.is_root and self.context.steps.training:
            for tensor in tensors_in(event.output):
                self._mark(tensor)

    @on(StepEnded)
    def look(self, event: StepEnded) -> Iterator[Finding]:
        """Which of the earlier steps' graphs are left."""
        if self._first < 0:
            return
        alive = self._alive(event.index)
        if len(alive) < self._least:
            return
        gc.collect()  # a graph in a cycle is not held by anybody
        alive = self._alive(event.index)
        if len(alive) < self._least:
            self._least *= 2
            return
        self._least = 1 << 60
        yield self._found(len(alive))

    def _mark(self, tensor: object) -> None:
        steps = self.context.steps
        if steps.training != self._training:
            self._marks.clear()  # steps are counted anew once an optimizer steps
            self._training, self._first = steps.training, -1
        self._first = steps.index if self._first < 0 else self._first
        self._marks.put(tensor, steps.index)

    def _alive(self, index: int) -> set[int]:
        """Earlier steps whose graphs are left, if they are nearly all there were since the first of them."""
        alive = self._marks.steps_alive(index)
        if not alive or len(alive) < _SHARE * (index - min(alive)):
            return set()
        return alive

    def _found(self, count: int) -> Finding:
        holder = holder_from(user_frame())
        if holder is None:
            return self.finding(
                f"the graphs of {count} earlier steps are still alive: something keeps their losses or outputs with "
                "their grad_fn, and memory grows with each step.",
                "detach what is kept across steps: loss.detach(), output.detach()",
                count=count,
            )
        return self.finding(
            f"{holder.name} keeps the graphs of {count} earlier steps alive: {_how(holder)}, and memory grows with "
            "each step.",
            _fix(holder),
            [self._subject(holder)],
            site=holder.line,
            count=count,
            key=holder.name,
        )

    def _subject(self, holder: Holder) -> Subject:
        if holder.is_container:
            return Subject(holder.name, type(holder.value).__name__)
        return self.context.subjects.tensor(holder.name, holder.value)


def _how(holder: Holder) -> str:
    if holder.is_container:
        return "its tensors still have their grad_fn"
    return "its grad_fn reaches back through them"


def _fix(holder: Holder) -> str:
    if holder.added is not None and len(holder.added) < 40:
        return f"add {holder.added}.detach() instead of {holder.added}"
    return "detach what is added to it (.detach()), or add its number every N steps (.item())"
