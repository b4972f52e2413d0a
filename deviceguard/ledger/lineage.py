"""Which parameters stand in for which: through conversion, copy, load or replacement."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deviceguard.ledger.values import gradient_of, readable

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from deviceguard.ledger.ledger import Ledger


@dataclasses.dataclass(frozen=True, slots=True)
class Stale:
    """A parameter an optimizer holds, and the one that is trained in its stead.

    Attributes:
        held: what the optimizer holds; no gradient reaches it.
        live: what the running model uses; it has a gradient and no optimizer.
        relation: ``converted``, ``loaded``, ``replaced``, ``copied``, or ``shape`` where only the shapes agree.
    """

    held: torch.Tensor
    live: torch.Tensor
    relation: str


def stale_pairs(ledger: Ledger, optimizer: Optimizer, unowned: Sequence[torch.Tensor]) -> list[Stale]:
    """Pairs of a held parameter that gets no gradient and the unowned one that gets it.

    Pairs by equal shape are only made when not one held parameter has a gradient.

    Args:
        ledger: the memory of identity.
        optimizer: whose parameters to look at.
        unowned: running parameters with gradients that no optimizer holds.
    """
    held = [p for group in optimizer.param_groups for p in group["params"]]
    trainable = [p for p in held if p.is_leaf and p.requires_grad]
    free = list(unowned)
    pairs: list[Stale] = []
    for parameter in trainable:
        found = next(((live, how) for live in free if (how := relation(ledger, parameter, live))), None)
        if found is not None and is_idle(parameter):
            pairs.append(Stale(parameter, *found))
            _remove(free, found[0])
    if not pairs and trainable and all(gradient_of(p) is None for p in trainable):
        pairs = _by_shape(trainable, free)
    return pairs


def relation(ledger: Ledger, held: torch.Tensor, live: torch.Tensor) -> str:
    """How ``live`` came to stand in for ``held``; empty when it did not."""
    above = {id(older): how for how, older in ledger.ancestry(live)}
    if id(held) in above:
        return above[id(held)]
    if _took_the_place(ledger, held, live):
        return "replaced"
    siblings = {id(live), *above}
    return next((how for how, older in ledger.ancestry(held) if id(older) in siblings), "")


def is_idle(parameter: torch.Tensor) -> bool:
    """True when no gradient has arrived, or only zeros from ``zero_grad(set_to_none=False)``."""
    gradient = gradient_of(parameter)
    return gradient is None or (readable(gradient) and not bool(gradient.any()))


def _took_the_place(ledger: Ledger, held: torch.Tensor, live: torch.Tensor) -> bool:
    """True when the module that had ``held`` now has ``live``: under the same name, or in the same shape."""
    record = ledger.parameter(held)
    module = record.owner() if record.owner is not None else None
    if module is None or any(parameter is held for parameter in module._parameters.values()):
        return False
    if module._parameters.get(record.name) is live:
        return True
    own = any(parameter is live for parameter in module._parameters.values())
    return own and live.shape == held.shape


def _by_shape(lacking: Sequence[torch.Tensor], free: Sequence[torch.Tensor]) -> list[Stale]:
    rest = list(free)
    pairs = []
    for parameter in lacking:
        match = next((live for live in rest if live.shape == parameter.shape and live.dtype == parameter.dtype), None)
        if match is None:
            return []
        pairs.append(Stale(parameter, match, "shape"))
        _remove(rest, match)
    return pairs


def _remove(tensors: list[torch.Tensor], tensor: torch.Tensor) -> None:
    tensors[:] = [other for other in tensors if other is not tensor]
