"""DTY010: updates lost to rounding in a low-precision weight."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import Blended, ModuleCopied, OptimizerStepped, OptimizerStepping, RunEnded, StepEnded
from deviceguard.findings import Finding, Severity, Site
from deviceguard.naming.frames import user_frame, user_site
from deviceguard.naming.objects import variable_of
from deviceguard.rules.dev.optimizer_state import is_stock
from deviceguard.rules.dty.dtypes import short
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from deviceguard.context import Context

_NARROW = ("bfloat16", "float16")
_STEPS = 6
_SAMPLE = 512
_PARAMETERS = 32
_STUCK = 0.98


@dataclasses.dataclass(slots=True)
class _Watch:
    """What is known of one optimizer."""

    steps: int = 0
    rates: list[float] = dataclasses.field(default_factory=list)
    moved: int = 0
    stuck: int = 0
    site: Site | None = None
    said: bool = False


class UpdateBelowPrecision(Rule):
    """Updates of low-precision weights, or averages kept in low precision, are rounded away.

    What it does:
        On steps that are examined in full, samples the bfloat16 and float16 parameters of PyTorch's own optimizers
        before and after the step. Speaks when, step after step, the elements that have a gradient stand still. Does the
        same for low-precision copies of a model that are written to and do not change while the model does.

    Why it hurts:
        A bfloat16 number has 8 bits: a change of less than a 512th of the weight is lost. The run stagnates where
        float32 learns, and an average with a decay of 0.999 never moves.

    Example:
        net = torch.nn.Linear(4, 4, bias=False).to("cuda").bfloat16()
        with torch.no_grad():
            net.weight.fill_(1.0)
        opt = torch.optim.SGD(net.parameters(), lr=1e-4)
        for _ in range(10):
            opt.zero_grad()
            net(torch.ones(1, 4, device="cuda", dtype=torch.bfloat16)).sum().backward()
            opt.step()

    Use instead:
        net = torch.nn.Linear(4, 4, bias=False).to("cuda")
        with torch.no_grad():
            net.weight.fill_(1.0)
        opt = torch.optim.SGD(net.parameters(), lr=1e-4)
        for _ in range(10):
            opt.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = net(torch.ones(1, 4, device="cuda")).sum()
            loss.backward()
            opt.step()

    When it stays silent:
        For float32 weights, for a learning rate of zero or one that is growing, where part of the weights does move,
        and for optimizers written by others, which may keep master weights or round stochastically.

    Repair:
        None is applied: weights are to be kept in float32 and computed with under autocast.

    References:
        https://github.com/pytorch/ao/pull/1124
        https://github.com/tianweiy/CausVid/issues/19
        https://github.com/meta-pytorch/torchtune/issues/2254
    """

    code: ClassVar[str] = "DTY010"
    name: ClassVar[str] = "update-below-precision"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._watches: weakref.WeakKeyDictionary[Optimizer, _Watch] = weakref.WeakKeyDictionary()
        self._before: list[tuple[Any, Any, Any]] = []
        self._places: set[tuple[str, int]] = set()
        from torch.utils.weak import WeakTensorKeyDictionary

        self._blends: Any = WeakTensorKeyDictionary()
        self._copies: weakref.WeakKeyDictionary[nn.Module, _Average] = weakref.WeakKeyDictionary()

    @on(OptimizerStepping)
    def stepping(self, event: OptimizerStepping) -> None:
        """A step is about to run: what are the weights?"""
        self._before = []
        watch = self._watches.setdefault(event.optimizer, _Watch())
        if watch.said or not self.context.steps.examined or not is_stock(event.optimizer):
            return
        self._before = [
            (weakref.ref(parameter), _sample(parameter), _sample(parameter.grad) != 0)
            for parameter in _narrow_parameters(event.optimizer)
        ]

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> Iterator[Finding]:
        """A step is done: did they move?"""
        before, self._before = self._before, []
        watch = self._watches.get(event.optimizer)
        if watch is None or not before:
            return
        moved, learning = _moved(before)
        if learning == 0:
            return
        watch.steps += 1
        watch.site = watch.site or user_site()
        watch.rates.append(max(float(group.get("lr", 0.0)) for group in event.optimizer.param_groups))
        watch.moved += moved
        watch.stuck += learning - moved
        if watch.steps >= _STEPS:
            yield from self._judge(event.optimizer, watch)

    def _judge(self, optimizer: Optimizer, watch: _Watch) -> Iterator[Finding]:
        still = watch.stuck / (watch.stuck + watch.moved)
        growing = watch.rates[-1] > watch.rates[0] or watch.rates[-1] == 0.0
        if still < _STUCK or growing:
            watch.steps, watch.moved, watch.stuck, watch.rates = 0, 0, 0, []
            return
        watch.said = True
        parameter = next(iter(_narrow_parameters(optimizer)))
        subject = self.context.subjects.parameter(parameter)
        name = self.context.subjects.optimizer(optimizer)
        yield self.finding(
            f"{subject.name} is {short(parameter.dtype)}, and {still:.0%} of the weights that {name.name} steps did "
            f"not change in {watch.steps} steps although they have gradients: at a learning rate of "
            f"{watch.rates[-1]:g} the updates are smaller than the weights can hold.",
            "keep the weights in float32 and compute under torch.autocast(..., dtype=torch.bfloat16)",
            [subject, name],
            site=watch.site,
        )

    @on(ModuleCopied)
    def copied(self, event: ModuleCopied) -> None:
        """A module was copied, perhaps to keep an average in it."""
        if event.source is not None:
            self._copies[event.copy] = _Average()

    @on(Blended)
    def blended(self, event: Blended) -> Iterator[Finding]:
        """An average is about to be written: did the last write leave a trace?"""
        if not self.context.steps.examined or len(self._blends) > _PARAMETERS:
            return
        now, given = _sample(event.target), _sample(event.other)
        before, lost = self._blends.get(event.target, (None, 0))
        if before is not None and bool((now == before).all()) and _is_apart(now, given):
            lost += 1
        else:
            lost = 0
        self._blends[event.target] = (now, lost)
        frame = user_frame()
        if lost == _STEPS // 2 and not self._said_at(frame):
            name = variable_of(event.target, frame) or "an average"
            yield self.finding(
                f"{name} is {short(event.target.dtype)}, and what {event.call} blends into it is rounded away: its "
                f"values did not change in {lost} writes in a row.",
                "keep the average in float32, and cast where it is used",
                [self.context.subjects.tensor(name, event.target)],
            )

    def _said_at(self, frame: FrameType | None) -> bool:
        """True for a line that was reported already: one finding for all tensors of an average."""
        place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)
        said = place in self._places
        self._places.add(place)
        return said

    @on(StepEnded)
    def step_ended(self, event: StepEnded) -> Iterator[Finding]:
        """A step is over: were averages written to, and did they change?"""
        if self.context.steps.examined:
            for copy, average in list(self._copies.items()):
                yield from self._average(copy, average)

    @on(RunEnded)
    def run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """The run is over."""
        for copy, average in list(self._copies.items()):
            yield from self._average(copy, average)

    def _average(self, copy: nn.Module, average: _Average) -> Iterator[Finding]:
        if average.said or self._places or not average.look(copy, self._origin_of):
            return
        average.said = True
        _, parameter = next(iter(_narrow_of(copy)))
        subject = self.context.subjects.parameter(parameter)
        yield self.finding(
            f"{subject.name} is {short(parameter.dtype)} and is written to at every step, but its values do not change "
            "while those of the model do: the average moves by less than the dtype can hold.",
            "keep the average in float32: copy the model with .float(), and cast where it is used",
            [subject],
            site=self.context.ledger.module(copy).made_at,
        )

    def _origin_of(self, parameter: torch.Tensor) -> torch.Tensor | None:
        return next((older for _, older in self.context.ledger.ancestry(parameter)), None)


class _Average:
    """What was seen of a copy's low-precision parameters."""

    def __init__(self) -> None:
        self.said = False
        self._last: dict[str, tuple[int, Any, Any]] = {}
        self._lost = 0

    def look(self, copy: nn.Module, origin_of: Any) -> bool:
        """Take a sample; True once the copy was written to without effect often enough."""
        written = changed = learned = False
        for name, parameter in _narrow_of(copy):
            origin = origin_of(parameter)
            now = (parameter._version, _sample(parameter), None if origin is None else _sample(origin))
            before = self._last.get(name)
            self._last[name] = now
            if before is None or origin is None or before[2] is None:
                continue
            written = written or now[0] > before[0]
            changed = changed or bool((now[1] != before[1]).any())
            learned = learned or bool((now[2] != before[2]).any())
        self._lost = self._lost + 1 if written and learned and not changed else 0
        return self._lost >= _STEPS // 2


def _narrow_of(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    found: list[tuple[str, torch.Tensor]] = []
    for name, parameter in module.named_parameters():
        if short(parameter.dtype) in _NARROW:
            found.append((name, parameter))
    return found[:_PARAMETERS]


def _narrow_parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    found = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and short(parameter.dtype) in _NARROW and not parameter.grad.is_sparse:
                found.append(parameter)
    return found[:_PARAMETERS]


def _sample(tensor: Any) -> Any:
    flat = tensor.detach().reshape(-1)
    stride = max(1, flat.numel() // _SAMPLE)
    return flat[::stride][:_SAMPLE].clone()


def _is_apart(one: Any, other: Any) -> bool:
    """True when most elements differ by more than a few steps of the low precision."""
    return bool(((one.float() - other.float()).abs() > one.float().abs() / 100).float().mean() > 0.5)


def _moved(before: list[tuple[Any, Any, Any]]) -> tuple[int, int]:
    """How many sampled elements changed, and how many had a gradient."""
    moved = learning = 0
    for reference, value, has_gradient in before:
        parameter = reference()
        if parameter is None:
            continue
        changed = (_sample(parameter) != value) & has_gradient
        moved += int(changed.sum())
        learning += int(has_gradient.sum())
    return moved, learning
