"""DTY011: optimizer state whose dtype ``load_state_dict`` changed."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import OptimizerStateLoaded, OptimizerStepping, RunEnded
from deviceguard.findings import Finding, Severity, Site
from deviceguard.naming.frames import user_site
from deviceguard.naming.phrases import listed
from deviceguard.rules.dty.dtypes import short
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from deviceguard.context import Context


class OptimizerStateDtype(Rule):
    """``load_state_dict`` cast the optimizer's state down to the dtype of the parameters.

    What it does:
        After a state dict was loaded, compares the dtype of each state tensor with the one that was saved. Speaks when
        the optimizer steps, or the run ends, with the narrower state still in place.

    Why it hurts:
        ``Optimizer.load_state_dict`` casts floating state to the dtype of its parameter. Moments that were kept in
        float32 lose most of their digits, and a resumed run is another run.

    Example:
        net = torch.nn.Linear(4, 4).to("cuda").bfloat16()
        opt = torch.optim.Adam(net.parameters())
        state = {
            index: {"step": torch.tensor(5.0), "exp_avg": torch.ones(p.shape), "exp_avg_sq": torch.ones(p.shape)}
            for index, p in enumerate(net.parameters())
        }
        opt.load_state_dict({"state": state, "param_groups": opt.state_dict()["param_groups"]})
        net(torch.randn(2, 4, device="cuda").bfloat16()).sum().backward()
        opt.step()

    Use instead:
        net = torch.nn.Linear(4, 4).to("cuda")
        opt = torch.optim.Adam(net.parameters())
        state = {
            index: {"step": torch.tensor(5.0), "exp_avg": torch.ones(p.shape), "exp_avg_sq": torch.ones(p.shape)}
            for index, p in enumerate(net.parameters())
        }
        opt.load_state_dict({"state": state, "param_groups": opt.state_dict()["param_groups"]})
        net(torch.randn(2, 4, device="cuda")).sum().backward()
        opt.step()

    When it stays silent:
        When the dtypes agree, when the state became wider, for step counters, and when the program puts the saved dtype
        back before it steps.

    Repair:
        None is applied: the saved tensors are gone by the time it matters.

    References:
        https://github.com/pytorch/pytorch/issues/43706
        https://github.com/vllm-project/speculators/pull/899
    """

    code: ClassVar[str] = "DTY011"
    name: ClassVar[str] = "optimizer-state-dtype"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._loaded: weakref.WeakKeyDictionary[Optimizer, tuple[dict[tuple[int, str], Any], Site | None]] = (
            weakref.WeakKeyDictionary()
        )

    @on(OptimizerStateLoaded)
    def loaded(self, event: OptimizerStateLoaded) -> None:
        """A state dict was loaded: which tensors are narrower than they were saved?"""
        narrowed = {
            (position, key): tensor.dtype
            for position, key, tensor in _saved_tensors(event.state)
            if _is_narrower(_present(event.optimizer, position, key), tensor)
        }
        if narrowed:
            self._loaded[event.optimizer] = (narrowed, user_site())

    @on(OptimizerStepping)
    def stepping(self, event: OptimizerStepping) -> Iterator[Finding]:
        """A step is about to use the state."""
        if event.optimizer in self._loaded:
            yield from self._judge(event.optimizer)

    @on(RunEnded)
    def run_ended(self, event: RunEnded) -> Iterator[Finding]:
        """The run is over."""
        for optimizer in list(self._loaded):
            yield from self._judge(optimizer)

    def _judge(self, optimizer: Optimizer) -> Iterator[Finding]:
        narrowed, site = self._loaded.pop(optimizer)
        names = list(dict.fromkeys(key for _, key in narrowed))
        keys, verb, them = (
            listed([repr(key) for key in names]),
            *(("was", "it") if len(names) == 1 else ("were", "them")),
        )
        for (position, key), saved in narrowed.items():
            present = _present(optimizer, position, key)
            if present is not None and present.dtype != saved:
                parameter = _parameters(optimizer)[position]
                subject = self.context.subjects.parameter(parameter)
                name = self.context.subjects.optimizer(optimizer)
                yield self.finding(
                    f"{keys} of {name.name} ({type(optimizer).__name__}) for {subject.name} {verb} saved as "
                    f"{short(saved)}, and load_state_dict cast {them} to {short(present.dtype)}, as the parameter is.",
                    "put the saved dtype back in a hook (optimizer.register_load_state_dict_post_hook), or keep the "
                    "parameters in float32",
                    [
                        self.context.subjects.tensor(
                            f"optimizer.state[{subject.name}][{key!r}]", present, "optimizer state"
                        ),
                        subject,
                        name,
                    ],
                    site=site,
                )
                return


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _saved_tensors(state: Mapping[str, Any]) -> Iterator[tuple[int, str, torch.Tensor]]:
    """(position, key, tensor) of each floating state tensor; positions are those of the saved param groups."""
    import torch

    order = [index for group in state.get("param_groups", ()) for index in group.get("params", ())]
    places = {index: position for position, index in enumerate(order)}
    for index, entries in state.get("state", {}).items():
        if index not in places or not isinstance(entries, Mapping):
            continue
        for key, value in entries.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point() and key != "step":
                yield places[index], str(key), value


def _present(optimizer: Optimizer, position: int, key: str) -> torch.Tensor | None:
    parameters = _parameters(optimizer)
    if position >= len(parameters):
        return None
    found = optimizer.state.get(parameters[position], {}).get(key)
    return found if hasattr(found, "is_floating_point") else None


def _is_narrower(present: torch.Tensor | None, saved: torch.Tensor) -> bool:
    return present is not None and present.is_floating_point() and present.dtype.itemsize < saved.dtype.itemsize
