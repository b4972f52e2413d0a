"""XLA005: parameters that were one before the move and are two after it."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import ModuleConverted, OptimizerStepping
from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.naming.frames import site_of, user_frame
from deviceguard.naming.objects import joined
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch import nn


@dataclasses.dataclass(slots=True)
class _Broken:
    """Parameters that were one object before a conversion."""

    model: weakref.ref[nn.Module]
    paths: tuple[str, ...]
    site: Site | None


class UntiedWeights(Rule):
    """Two layers share a parameter, and moving the model to the device made two parameters of it.

    What it does:
        Compares, in ``.to()``, the parameters before and after. Where one object became several, and they still are
        several when the optimizer steps, the tie is lost.

    Why it hurts:
        On XLA, ``Module.to`` makes new parameters, one for each place a parameter is registered in. From then on the
        two are trained apart: the model has more parameters than on a GPU, learns something else, and reports nothing.

    Example:
        import torch, torch_xla
        device = torch.device("xla")
        embed, head = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10, bias=False)
        net = torch.nn.Sequential(embed, head)
        head.weight = embed.weight
        net.to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        net(torch.tensor([1, 2, 3], device=device)).sum().backward()
        optimizer.step()
        torch_xla.sync()

    Use instead:
        import torch, torch_xla
        device = torch.device("xla")
        embed, head = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10, bias=False)
        net = torch.nn.Sequential(embed, head)
        net.to(device)
        head.weight = embed.weight
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        net(torch.tensor([1, 2, 3], device=device)).sum().backward()
        optimizer.step()
        torch_xla.sync()

    When it stays silent:
        When the weights are tied again before the first step, and where a conversion keeps the objects (CUDA).

    Repair:
        None: which of the two holds the weights that count is for the program to say.

    References:
        https://github.com/pytorch/xla/issues/2719
        https://github.com/Lightning-AI/pytorch-lightning/issues/2705
        https://github.com/huggingface/transformers/pull/13030
        https://github.com/pytorch/xla/issues/7042
    """

    code: ClassVar[str] = "XLA005"
    name: ClassVar[str] = "untied-weights"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._broken: list[_Broken] = []

    @on(ModuleConverted)
    def converted(self, event: ModuleConverted) -> None:
        """A conversion: did one parameter become several?"""
        by_old: dict[int, list[Any]] = {}
        for old, new in event.replaced:
            by_old.setdefault(id(old), []).append(new)
        for news in by_old.values():
            if len({id(new) for new in news}) > 1:
                self._remember(event.module, news)

    @on(OptimizerStepping)
    def about_to_step(self, event: OptimizerStepping) -> Iterator[Finding]:
        """Training begins: is the tie still broken?"""
        broken, self._broken = self._broken, []
        for tie in broken:
            model = tie.model()
            if model is not None and len(_objects(model, tie.paths)) > 1:
                yield self._found(model, tie)

    def _remember(self, model: nn.Module, news: list[Any]) -> None:
        wanted = {id(new) for new in news}
        named = model.named_parameters(remove_duplicate=False)
        paths = tuple(path for path, parameter in named if id(parameter) in wanted)
        self._broken.append(_Broken(weakref.ref(model), paths, site_of(user_frame())))

    def _found(self, model: nn.Module, tie: _Broken) -> Finding:
        model_name = self.context.subjects.model_name(model, user_frame())
        names = [joined(model_name, path) for path in tie.paths]
        parameters = dict(model.named_parameters(remove_duplicate=False))
        subjects = [
            self.context.subjects.tensor(name, parameters[path], "parameter")
            if path in parameters
            else Subject(name, "parameter")
            for name, path in zip(names, tie.paths, strict=True)
        ]
        first, second = names[0], names[1] if len(names) > 1 else names[0]
        return self.finding(
            f"{first} and {second} were one parameter before this move and are two after it; they are trained apart "
            "from here on.",
            f"tie them again after the move and before the optimizer is built: {second} = {first}",
            subjects,
            site=tie.site,
            key=second,
        )


def _objects(model: nn.Module, paths: tuple[str, ...]) -> set[int]:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {id(parameters[path]) for path in paths if path in parameters}
