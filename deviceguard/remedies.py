"""What would undo the harm a rule has found, and the call that waits for it. A rule says it, a policy decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import CallFailed, Event

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer


@dataclasses.dataclass(slots=True, eq=False)
class Remedy:
    """Base of all remedies. Like an event it lives only while it is handled."""


@dataclasses.dataclass(slots=True, eq=False)
class MoveOperands(Remedy):
    """Move the operands of the refused call that are elsewhere.

    Attributes:
        home: where to.
    """

    home: torch.device


@dataclasses.dataclass(slots=True, eq=False)
class MoveToHost(Remedy):
    """Give a call that works on host memory its operand there."""


@dataclasses.dataclass(slots=True, eq=False)
class CastOperands(Remedy):
    """Cast the floating operands of the refused call that no module owns.

    Attributes:
        dtype: what to.
    """

    dtype: torch.dtype


@dataclasses.dataclass(slots=True, eq=False)
class DrawElsewhere(Remedy):
    """Draw random numbers where the generator is, or with a generator where the result is wanted.

    Attributes:
        for_host: True where only the values are wanted, on the host (a sampler's permutation).
    """

    for_host: bool


@dataclasses.dataclass(slots=True, eq=False)
class MoveModule(Remedy):
    """Move a module that stayed behind.

    Attributes:
        module: the module.
        home: where to.
        root: the model it is part of, which is moved as a whole where all of it stayed behind.
    """

    module: nn.Module
    home: torch.device
    root: nn.Module | None = None


@dataclasses.dataclass(slots=True, eq=False)
class MoveStrays(Remedy):
    """Move what hangs unregistered under an attribute of a module.

    Attributes:
        module: the module that holds it.
        attribute: the attribute.
        home: where to.
    """

    module: nn.Module
    attribute: str
    home: torch.device


@dataclasses.dataclass(slots=True, eq=False)
class MoveState(Remedy):
    """Move each state tensor of an optimizer to the device of its parameter."""

    optimizer: Optimizer


@dataclasses.dataclass(slots=True, eq=False)
class Rebind(Remedy):
    """Give an optimizer the live parameters in place of those they replaced.

    Attributes:
        optimizer: the optimizer.
        pairs: (held, live).
    """

    optimizer: Optimizer
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]


@dataclasses.dataclass(slots=True, eq=False)
class TakeOver(Remedy):
    """Give an optimizer the parameters a wrapper made of all that it holds.

    Attributes:
        optimizer: the optimizer.
        live: the parameters.
    """

    optimizer: Optimizer
    live: Sequence[torch.Tensor]


Again = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""
Settle = Callable[[bool], None]


@dataclasses.dataclass(slots=True, eq=False)
class CallRefused(CallFailed):
    """A torch function refused its operands, and the call may still be made again with others.

    Rules hear it as :class:`CallFailed`.

    Attributes:
        function: the torch function.
        args: its positional arguments.
        kwargs: its keyword arguments.
        again: what a policy wants it to be called with; None to let the error go.
        settle: called with True once the call has succeeded so, with False where it failed again.
        repeat: does the same for a later refusal at the same place, without asking the rules again: given the
            arguments and the calling frame, returns ``again`` and ``settle`` for them, or None.
    """

    heard_as: ClassVar[type[Event]] = CallFailed
    function: Callable[..., Any] = print
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    again: Again | None = None
    settle: Settle | None = None
    repeat: Callable[[tuple[Any, ...], Mapping[str, Any], FrameType], tuple[Again, Settle] | None] | None = None
