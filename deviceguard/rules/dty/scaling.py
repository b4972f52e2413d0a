"""What a gradient scaler has done to the gradients of each optimizer: scaled, unscaled, or neither."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from deviceguard.rules.dty.graphs import leaves_of

if TYPE_CHECKING:
    import torch

_MARK = "deviceguard.scaler"


class Scaling:
    """Which gradients are multiplied by a scale now.

    A backward from a scaled loss scales the gradients of the leaves it reaches; ``unscale_`` and ``step`` of the scaler
    unscale those of one optimizer; clearing gradients ends it. Several optimizers on one scaler, several losses, and
    accumulation over several backward passes are all ordinary.
    """

    def __init__(self) -> None:
        from torch.utils.weak import WeakTensorKeyDictionary

        self._scaled: Any = WeakTensorKeyDictionary()

    def loss_scaled(self, scaler: Any, losses: Iterable[torch.Tensor]) -> None:
        """A scaler multiplied losses.

        The mark goes onto the node of the graph: the tensor itself may be gone by the time its backward begins.
        """
        for loss in losses:
            node: Any = loss.grad_fn
            if node is not None:
                node.metadata[_MARK] = weakref.ref(scaler)

    def scaler_of_loss(self, root: torch.Tensor) -> Any | None:
        """The scaler a loss comes from, also when it was divided since; None for a loss that was not scaled."""
        for node in _first_nodes(root):
            reference = node.metadata.get(_MARK)
            if reference is not None:
                return reference()
        return None

    def backward(self, roots: Iterable[torch.Tensor]) -> None:
        """A backward from these roots is about to leave gradients on the leaves of their graphs."""
        for root in roots:
            scaler = self.scaler_of_loss(root)
            if scaler is not None:
                for leaf in leaves_of(root):
                    self._scaled[leaf] = weakref.ref(scaler)

    def forget(self, parameters: Iterable[torch.Tensor]) -> None:
        """The gradients of these parameters are unscaled, or gone."""
        for parameter in parameters:
            self._scaled.pop(parameter, None)

    def scaler_of(self, parameter: torch.Tensor) -> Any | None:
        """The scaler whose scale is in a parameter's gradient now; None where there is none."""
        reference = self._scaled.get(parameter)
        return None if reference is None or parameter.grad is None else reference()


def _first_nodes(root: torch.Tensor) -> list[Any]:
    """The nodes from a root down while there is just one way to go: a division, a mean."""
    found: list[Any] = []
    node: Any = root.grad_fn
    while node is not None and len(found) < 4:
        found.append(node)
        following = [inner for inner, _ in node.next_functions if inner is not None]
        node = following[0] if len(following) == 1 else None
    return found
