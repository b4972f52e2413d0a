"""XLA002: training steps that go on compiling new graphs."""

from __future__ import annotations

import collections
import dataclasses
import math
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.backends.devices import backend_of
from deviceguard.events import GraphChange, ModuleCalled, OptimizerStepped, StepMarked
from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.naming.expressions import running_call
from deviceguard.naming.frames import site_of, spot_of, user_frame
from deviceguard.rules.rule import Rule, on
from deviceguard.rules.xla.per_step import words_for

if TYPE_CHECKING:
    from torch import nn

_WARM_UP = 2
"""Steps at the start that may compile: the first, and the one that first meets gradients and optimizer state."""
_WINDOW = 5
_NEW_SHAPES = 3
_SHARE = 0.4
_BUCKET = 4
"""Sizes that are all multiples of this are taken for buckets, up to so many of them:"""
_MOST_BUCKETS = 8
_REMEMBERED = 64

_Signature = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(slots=True)
class _Shapes:
    """The input shapes one model has been trained with."""

    seen: collections.Counter[_Signature] = dataclasses.field(default_factory=collections.Counter)
    calls: int = 0


@dataclasses.dataclass(slots=True)
class _NewShape:
    """A shape that was not there before."""

    shapes: _Shapes
    usual: tuple[int, ...]
    now: tuple[int, ...]
    name: str
    site: Site | None
    subject: Subject


class Recompilation(Rule):
    """After the first steps, training goes on compiling new graphs.

    What it does:
        Reads, at each step marker, how many graphs were compiled since the last one. Where a training step past the
        first two compiled, the rule looks for what changed: the shapes a model was called with, or, in a recording of
        two steps in a row, the first Python number, shape or repeat count that differs.

    Why it hurts:
        Compiling takes seconds to minutes where running takes milliseconds, and each new shape, and each new value of
        a number that is part of the graph (a slice bound, a size, a loop count), needs a graph of its own. With
        several devices one of them compiles while the others wait.

    Example:
        import torch, torch_xla
        device = torch.device("xla")
        net = torch.nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        features = torch.randn(4, 32, device=device)
        for step in range(8):
            x = features[:, step : step + 8]
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
            torch_xla.sync()

    Use instead:
        import torch, torch_xla
        device = torch.device("xla")
        net = torch.nn.Linear(8, 1).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        features = torch.randn(4, 32, device=device)
        for step in range(8):
            columns = torch.arange(8, device=device) + torch.tensor(step).to(device)
            x = features.index_select(1, columns)
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
            torch_xla.sync()

    When it stays silent:
        In the first steps; for evaluation; for a handful of lengths that are all multiples of four (buckets); for a
        graph that is compiled now and then (a logging step, a new phase of training).

    Repair:
        None: padding and masking belong to the program.

    References:
        https://github.com/pytorch/xla/issues/2020
        https://github.com/pytorch/xla/issues/1509
        https://github.com/facebookresearch/fairseq/issues/4198
        https://github.com/pytorch/xla/pull/2543
    """

    code: ClassVar[str] = "XLA002"
    name: ClassVar[str] = "recompilation"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"
    needs_accelerator: ClassVar[bool] = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._models: weakref.WeakKeyDictionary[nn.Module, _Shapes] = weakref.WeakKeyDictionary()
        self._new: _NewShape | None = None
        self._trained: Site | None = None
        self._steps = 0
        self._compiled: collections.deque[bool] = collections.deque(maxlen=_WINDOW)
        self._change: GraphChange | None = None
        self._graphs = 0
        self._seconds = 0.0

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> None:
        """A model is run: are these shapes new?"""
        if not event.is_root or not event.module.training:
            return
        given = _traced(event)
        if not given:
            return
        shapes = self._models.setdefault(event.module, _Shapes())
        signature = tuple(tuple(tensor.shape) for _, tensor in given)
        shapes.calls += 1
        if signature not in shapes.seen and shapes.seen:
            self._new = self._described(event, shapes, given)
        if len(shapes.seen) < _REMEMBERED:
            shapes.seen[signature] += 1

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> None:
        """What is being collected is a training step."""
        self._trained = spot_of(user_frame())

    @on(StepMarked)
    def marked(self, event: StepMarked) -> Iterator[Finding]:
        """A step is over: did it compile, and why?"""
        trained, self._trained = self._trained, None
        new, self._new = self._new, None
        if trained is None:
            return
        self._steps += 1
        if event.compiled and self._steps > 1:
            self._graphs += event.compiled
            self._seconds += event.compile_seconds
        if event.compiled and new is not None:
            yield from self._judge_shape(new)
        elif self._steps > _WARM_UP:
            self._compiled.append(event.compiled > 0)
            self._change = event.change or (self._change if event.compiled else None)
            yield from self._judge_unexplained(trained)

    def _described(self, event: ModuleCalled, shapes: _Shapes, given: list[tuple[str, Any]]) -> _NewShape:
        usual = shapes.seen.most_common(1)[0][0]
        position = next((i for i, (_, t) in enumerate(given) if i >= len(usual) or tuple(t.shape) != usual[i]), 0)
        role, tensor = given[position]
        frame = user_frame()
        text = running_call(frame) if frame is not None else None
        name = (text.argument(_place(role), role) if text is not None else None) or _plain(role)
        return _NewShape(
            shapes,
            usual[position] if position < len(usual) else (),
            tuple(tensor.shape),
            name,
            site_of(frame),
            self.context.subjects.tensor(name, tensor, "input"),
        )

    def _judge_shape(self, new: _NewShape) -> Iterator[Finding]:
        if _is_last_batch(new):
            yield self._finding_for_shape(
                new,
                "the last batch of an epoch is smaller",
                "give the DataLoader drop_last=True, or pad the last batch",
            )
        elif _keeps_coming(new.shapes):
            yield self._finding_for_shape(
                new,
                f"{len(new.shapes.seen)} shapes in {new.shapes.calls} calls",
                f"pad {new.name} to one length, or to a few fixed ones (64, 128, 256), and mask the padding",
            )

    def _finding_for_shape(self, new: _NewShape, why: str, fix: str) -> Finding:
        return self.finding(
            f"{new.name} has shape {new.now} here and {new.usual} before ({why}). Each new shape compiles the whole "
            f"step again: {self._spent()}.",
            fix,
            [new.subject],
            site=new.site,
            key="shape",
        )

    def _judge_unexplained(self, trained: Site) -> Iterator[Finding]:
        count = sum(self._compiled)
        if not self._compiled or not self._compiled[-1]:
            return
        change = self._change
        if change is None:
            if count >= 4:
                yield self._finding_without_cause(trained)
        elif count >= (3 if change.kind in ("shape", "dtype") else 2):
            yield self._finding_for_change(change)

    def _finding_for_change(self, change: GraphChange) -> Finding:
        named = " and ".join(change.names[:3])
        subject = Subject(named or change.function, "number" if change.kind == "number" else change.kind)
        return self.finding(
            f"{_cause(change, named)} A new graph is compiled at each step for it: {self._spent()}.",
            _fix(change, named),
            [subject],
            site=change.site,
            key=change.kind,
        )

    def _finding_without_cause(self, trained: Site) -> Finding:
        return self.finding(
            f"Nearly every training step compiles a new graph although the model's inputs keep their shapes: "
            f"{self._spent()}. A Python number or a branch in the step must change from step to step.",
            "keep what changes in tensors on the device (torch.tensor(value).to(device), torch.where), and slices, "
            "sizes and loop counts fixed",
            site=trained,
        )

    def _spent(self) -> str:
        more = "s" if self._graphs != 1 else ""
        return f"{self._graphs} graph{more} after the first step, {self._seconds:.1f} s of compiling so far"


def _traced(event: ModuleCalled) -> list[tuple[str, Any]]:
    """(role, tensor) for the tensors on a tracing device; the role is the position or the keyword."""
    found: list[tuple[str, Any]] = []
    for role, value in (*((str(i), a) for i, a in enumerate(event.args)), *event.kwargs.items()):
        found += [(role, tensor) for tensor in _tensors(value)]
    return found


def _tensors(value: Any, depth: int = 2) -> Iterator[Any]:
    if hasattr(value, "device") and hasattr(value, "shape"):
        backend = backend_of(value.device)
        if backend is not None and backend.traced:
            yield value
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item, depth - 1)
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item, depth - 1)


def _place(role: str) -> int:
    return int(role) if role.isdigit() else -1


def _plain(role: str) -> str:
    return f"argument {int(role) + 1}" if role.isdigit() else role


def _is_last_batch(new: _NewShape) -> bool:
    """Fewer rows than ever before, and nothing else is different."""
    largest = max((signature[0][0] for signature in new.shapes.seen if signature and signature[0]), default=0)
    return bool(new.now) and new.now[1:] == new.usual[1:] and new.now[0] < new.usual[0] == largest


def _keeps_coming(shapes: _Shapes) -> bool:
    new = len(shapes.seen) - 1
    if new < _NEW_SHAPES or new < _SHARE * shapes.calls:
        return False
    return not (_are_buckets(shapes) and len(shapes.seen) <= _MOST_BUCKETS)


def _are_buckets(shapes: _Shapes) -> bool:
    """True where the sizes that vary are all multiples of a step."""
    signatures = [signature for signature in shapes.seen if signature]
    flat = [[size for shape in signature for size in shape] for signature in signatures]
    if len({len(sizes) for sizes in flat}) != 1:
        return False
    varying = [column for column in zip(*flat, strict=True) if len(set(column)) > 1]
    return bool(varying) and all(math.gcd(*column) >= _BUCKET for column in varying)


def _cause(change: GraphChange, named: str) -> str:
    line = f" in `{change.site.source}`" if change.site is not None and change.site.source else ""
    called = words_for(change.function)
    if change.kind == "number":
        what = f"{named} changes what {called} is given" if named else f"{called} is given other numbers at each step"
        return f"{what}{line}: {change.before}, then {change.after}. Numbers given there are part of the graph."
    if change.kind == "count":
        return f"{called}{line} runs {change.before} in one step and {change.after} in the next."
    return f"{called}{line} gets a tensor of {change.kind} {change.before}, then one of {change.after}."


def _fix(change: GraphChange, named: str) -> str:
    if change.kind == "number":
        name = named.split(" and ")[0] if named else "the number"
        return (
            f"make {name} data: torch.tensor({name if named else 'number'}).to(device), used with index_select, gather "
            "or torch.where over a fixed shape; or keep it the same at every step"
        )
    if change.kind == "count":
        return "run the loop a fixed number of times and mask what is too much, or use torch_xla's scan"
    return "pad to one shape, or to a few fixed ones, and mask the padding"
