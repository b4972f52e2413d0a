"""DTY008: autocast goes on using casts of weights that are out of date."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import AutocastCacheCleared, ModuleCalled, OptimizerStepped
from deviceguard.findings import Finding, Severity, Site
from deviceguard.naming.frames import user_site
from deviceguard.rules.dty.dtypes import autocast_dtype, short
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch import nn

    from deviceguard.context import Context


class AutocastStaleCache(Rule):
    """Parameters are stepped, or first used without gradients, inside one autocast region that stays open.

    What it does:
        Autocast casts each weight once and keeps the cast until the outermost region ends. Speaks when a model runs
        again in the region in which its parameters were stepped; and when it runs with gradients in the region in which
        it ran under ``no_grad`` first.

    Why it hurts:
        After a step the model goes on computing with the weights from before it: training stands still until the region
        ends. Casts made under ``no_grad`` carry no gradient; in PyTorch versions that reuse them the weights get none.

    Example:
        net = torch.nn.Linear(4, 4).to("cuda")
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            for _ in range(3):
                opt.zero_grad()
                net(torch.randn(8, 4, device="cuda")).float().pow(2).mean().backward()
                opt.step()

    Use instead:
        net = torch.nn.Linear(4, 4).to("cuda")
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            opt.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = net(torch.randn(8, 4, device="cuda")).float().pow(2).mean()
            loss.backward()
            opt.step()

    When it stays silent:
        When each step has a region of its own, after ``torch.clear_autocast_cache()``, with ``cache_enabled=False``,
        and for modules without weights that autocast casts. A pass under ``no_grad`` first is advice only where this
        version of PyTorch keeps such casts apart.

    Repair:
        The casts are dropped with ``torch.clear_autocast_cache()``, which changes no result.

    References:
        https://github.com/pytorch/pytorch/issues/112583
        https://github.com/pytorch/pytorch/issues/105211
        https://github.com/pytorch/pytorch/issues/65766
        https://github.com/pytorch/pytorch/pull/165068
    """

    code: ClassVar[str] = "DTY008"
    name: ClassVar[str] = "autocast-stale-cache"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._ran: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._ran_without: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._stepped: dict[int, Site | None] = {}

    @on(AutocastCacheCleared)
    def cleared(self, event: AutocastCacheCleared) -> None:
        """The outermost region ended."""
        self._ran.clear()
        self._ran_without.clear()
        self._stepped.clear()

    @on(OptimizerStepped)
    def stepped(self, event: OptimizerStepped) -> None:
        """An optimizer changed its parameters."""
        if not self._ran:
            return
        site = user_site()
        for group in event.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and _is_cast(parameter):
                    self._stepped[id(parameter)] = site

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> Iterator[Finding]:
        """A model is called, perhaps inside a region."""
        import torch

        if not event.is_root or not _in_region(event.module):
            return
        if not torch.is_grad_enabled():
            self._ran_without.add(event.module)
            return
        if event.module in self._ran:
            yield from self._after_step(event.module)
        elif event.module in self._ran_without:
            yield from self._after_no_grad(event.module)
        self._ran.add(event.module)

    def _after_step(self, module: nn.Module) -> Iterator[Finding]:
        if not self._stepped:
            return
        for parameter in module.parameters():
            if id(parameter) in self._stepped:
                site = self._stepped[id(parameter)]
                self._stepped.clear()
                subject = self.context.subjects.parameter(parameter)
                where = f" in line {site.line}" if site is not None else ""
                yield self.finding(
                    f"{subject.name} was stepped{where} inside an autocast region that is still open: autocast goes on "
                    "using the cast it made before the step, so this forward computes with the old weights.",
                    "open the region around the forward and the loss of one step only (with torch.autocast(...): loss "
                    "= ...), and step outside of it",
                    [subject],
                )
                return

    def _after_no_grad(self, module: nn.Module) -> Iterator[Finding]:
        self._ran_without.discard(module)
        parameter = next((p for p in module.parameters() if _is_cast(p)), None)
        if parameter is None:
            return
        subject = self.context.subjects.parameter(parameter)
        model = self.context.subjects.model(module)
        loses = _loses_gradients()
        consequence = "so the weights get no gradient from this forward" if loses else "which older versions reuse"
        yield self.finding(
            f"{model.name} ran under no_grad and now runs with gradients in the same autocast region: the cast of "
            f"{subject.name} made under no_grad carries no gradient, {consequence}.",
            "give the pass without gradients a region of its own, or call torch.clear_autocast_cache() after it",
            [subject, model],
            severity=None if loses else Severity.ADVICE,
        )


def _in_region(module: nn.Module) -> bool:
    """True when autocast is on for the device of a module and keeps its casts."""
    import torch

    first = next(iter(module.parameters()), None)
    return first is not None and torch.is_autocast_cache_enabled() and autocast_dtype(first.device.type) is not None


def _is_cast(parameter: torch.Tensor) -> bool:
    """True for a parameter whose cast autocast keeps: a float32 leaf that learns, and not a bias or a gain."""
    return short(parameter.dtype) == "float32" and parameter.requires_grad and parameter.is_leaf and parameter.dim() > 1


@functools.cache
def _loses_gradients() -> bool:
    """Whether this version of PyTorch reuses a cast made under ``no_grad`` where gradients are wanted."""
    import torch

    weight: Any = torch.zeros(2, 2, requires_grad=True)
    given = torch.zeros(2, 2)
    if torch.is_autocast_enabled("cpu"):  # its cache is the program's, and is not to be touched
        return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < (2, 13)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            torch.nn.functional.linear(given, weight)
        return not torch.nn.functional.linear(given, weight).requires_grad
