"""What the ledger remembers of each object. Records hold text and weak references, never objects."""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING, Any

from deviceguard.findings import Site

if TYPE_CHECKING:
    from torch.utils.weak import TensorWeakRef

WRAPPED_AS = ("module", "_orig_mod")
"""Names under which wrappers (DDP, DataParallel, a compiled model) hold the model a person thinks of."""


@dataclasses.dataclass(slots=True)
class ParameterRecord:
    """A parameter.

    Attributes:
        made_at: the user's line that made it.
        owner: the module it was last registered on.
        name: its name there.
        origin: the parameter it was converted or copied from, or whose place it took.
        relation: how it came from ``origin``: ``converted``, ``copied``, ``loaded``, ``replaced``; empty without one.
        ran_in: number of the last examined step in which its module ran; -1 for never.
        seen_in: number of the last examined step in which a model ran that it is part of; -1 for never.
        ran_training: whether the module was in training mode then.
        trained: True once an optimizer that holds it stepped on a gradient of it.
    """

    made_at: Site | None = None
    owner: weakref.ref[Any] | None = None
    name: str = ""
    origin: TensorWeakRef | None = None
    relation: str = ""
    ran_in: int = -1
    seen_in: int = -1
    ran_training: bool = False
    trained: bool = False


@dataclasses.dataclass(slots=True)
class ModuleRecord:
    """A module.

    Attributes:
        made_at: the user's line that made or copied it.
        born: number of root calls begun when it was made; -1 when it was there before the guard.
        copied: True for a deep copy or an unpickled module.
        source: the module it was copied from, if that is known and alive.
        loaded: True once a state dict was loaded into it.
        parent: for a module that ran but is registered nowhere: the module whose forward called it.
        holder: the module it was last registered in.
        key: its name there.
    """

    made_at: Site | None = None
    born: int = -1
    copied: bool = False
    source: weakref.ref[Any] | None = None
    loaded: bool = False
    parent: weakref.ref[Any] | None = None
    holder: weakref.ref[Any] | None = None
    key: str = ""


@dataclasses.dataclass(slots=True)
class ModelRecord:
    """A module that was called as a root.

    Attributes:
        name: the user's name for it.
        kind: its class name.
        made_at: where it was made.
        first_run: where it was first called.
        trained_steps: optimizer steps that trained parameters of it.
        last_trained: number of the last such step; -1 for never.
        runs_since_trained: calls as a root since then.
        saved_since_trained: True once its state was saved after its last training step.
    """

    name: str
    kind: str
    made_at: Site | None
    first_run: Site | None
    trained_steps: int = 0
    last_trained: int = -1
    runs_since_trained: int = 0
    saved_since_trained: bool = False


@dataclasses.dataclass(slots=True)
class OptimizerRecord:
    """An optimizer.

    Attributes:
        made_at: the user's line that made or copied it; None when it was there before the guard.
        source: the optimizer it was copied from.
        steps: its steps under the guard.
        fed: True once it stepped on gradients that no backward of a tracked model left there (master copies, A3C).
    """

    made_at: Site | None
    source: weakref.ref[Any] | None = None
    steps: int = 0
    fed: bool = False


@dataclasses.dataclass(slots=True)
class StateRecord:
    """A dictionary that ``Module.state_dict`` returned.

    Attributes:
        module: whose state it is.
        taken_at: the user's line that took it.
        taken_in: optimizer steps of the whole run when it was taken.
        versions: version counters of its first tensors then; they are shared with the module's own.
    """

    module: weakref.ref[Any]
    taken_at: Site | None
    taken_in: int
    versions: tuple[int, ...] = ()
