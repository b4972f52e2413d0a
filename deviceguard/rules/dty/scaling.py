"""What a gradient scaler has done to the gradients of each optimizer: scaled, unscaled, or neither."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from deviceguard.rules.dty.graphs import leaves_of

if TYPE_CHECKING:
    import torch

_MARK = "deviceguard.scaler"
_UNSCALED = "deviceguard.scaled by"


class Scaling:
    """Which gradients are multiplied by a scale now.

    A backward from a scaled loss scales the gradients of the leaves it reaches; ``unscale_`` and ``step`` of the scaler
    unscale those of one optimizer; clearing gradients ends it. Several optimizers on one scaler, several losses, and
    accumulation over several backward passes are all ordinary.
    """

    def __init__(self) -> None:
        from torch.utils.weak import WeakTensorKeyDictionary

        self._scaled: Any = WeakTensorKeyDictionary()
        self._reached: list[weakref.ref[torch.Tensor]] = []
        self._places: dict[int, weakref.ref[torch.Tensor]] = {}

    def loss_scaled(self, scaler: Any, losses: Iterable[torch.Tensor]) -> None:
        """A scaler multiplied losses.

        The mark goes onto the node of the graph: the tensor itself may be gone by the time its backward begins.
        """
        for loss in losses:
            node: Any = loss.grad_fn
            if node is not None:
                node.metadata[_MARK] = weakref.ref(scaler)
                for inner, _ in node.next_functions:
                    if inner is not None:
                        inner.metadata[_UNSCALED] = weakref.ref(scaler)

    def scaler_of_loss(self, root: torch.Tensor) -> Any | None:
        """The scaler a loss comes from, also when it was divided since; None for a loss that was not scaled."""
        for node in _first_nodes(root):
            reference = node.metadata.get(_MARK)
            if reference is not None:
                return reference()
        return None

    def scaler_passed_by(self, root: torch.Tensor) -> Any | None:
        """The scaler that scaled a loss, where the loss itself is the root and not what the scaler returned."""
        node: Any = root.grad_fn
        reference = node.metadata.get(_UNSCALED) if node is not None else None
        return reference() if reference is not None and self.scaler_of_loss(root) is None else None

    def backward(self, roots: Iterable[torch.Tensor]) -> None:
        """A backward from these roots is about to leave gradients on the leaves of their graphs."""
        self._reached = []
        for root in roots:
            scaler = self.scaler_of_loss(root)
            if scaler is not None:
                for leaf in leaves_of(root):
                    self._scaled[leaf] = (weakref.ref(scaler), None, 0)
                    self._reached.append(weakref.ref(leaf))

    def arrived(self) -> None:
        """The backward is over: from here on, who changes a gradient is the program."""
        leaves = [leaf for reference in self._reached if (leaf := reference()) is not None and leaf.grad is not None]
        self._reached = []
        self._places = {_place(leaf.grad): weakref.ref(leaf) for leaf in leaves if leaf.grad is not None}
        for leaf in leaves:
            scaler, _, _ = self._scaled.get(leaf, (None, None, 0))
            gradient = leaf.grad
            if scaler is not None and gradient is not None:
                self._scaled[leaf] = (scaler, weakref.ref(gradient), _version(gradient))

    def forget(self, parameters: Iterable[torch.Tensor]) -> None:
        """The gradients of these parameters are unscaled, or gone."""
        for parameter in parameters:
            self._scaled.pop(parameter, None)

    def scaler_of(self, parameter: torch.Tensor) -> Any | None:
        """The scaler whose scale is in a parameter's gradient now; None where there is none.

        A gradient that the program has changed or replaced since its backward may have been unscaled by hand.
        """
        scaler, gradient, version = self._scaled.get(parameter, (None, None, 0))
        if scaler is None or parameter.grad is None:
            return None
        if gradient is not None and (gradient() is not parameter.grad or _version(parameter.grad) != version):
            return None
        return scaler()

    def parameter_of(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """The parameter whose scaled gradient a tensor is, or shares its memory with as ``p.grad.data`` does."""
        reference = self._places.get(_place(gradient)) if self._places else None
        parameter = reference() if reference is not None else None
        if parameter is None or parameter.grad is None or _place(parameter.grad) != _place(gradient):
            return None
        return parameter if parameter.grad.shape == gradient.shape else None


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _place(tensor: torch.Tensor) -> int:
    """Where a tensor's memory begins; its identity where it has no memory of its own."""
    try:
        return tensor.data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _first_nodes(root: torch.Tensor) -> list[Any]:
    """The nodes from a root down while there is just one way to go: a division, a mean."""
    found: list[Any] = []
    node: Any = root.grad_fn
    while node is not None and len(found) < 4:
        found.append(node)
        following = [inner for inner, _ in node.next_functions if inner is not None]
        node = following[0] if len(following) == 1 else None
    return found
