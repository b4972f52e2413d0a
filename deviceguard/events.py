"""The events sources emit and rules consume: few, coarse, and free of how they were captured.

An event lives only while it is handled. It holds the user's objects by strong reference, so nobody keeps an event.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from deviceguard.findings import Site


@dataclasses.dataclass(slots=True, eq=False)
class Event:
    """Base of all events.

    ``occurrence`` is True for events that are themselves what a rule counts (a host read, an upload): inside an
    ``allow(...)`` region they do not reach the allowed rules. Events that carry state (a step, a conversion) always do.
    ``recurring`` is True for events that come with every step: the guard sleeps through them between its samples.
    ``heard_as`` names the event whose handlers hear this one too, where it has none of its own.
    """

    occurrence: ClassVar[bool] = False
    recurring: ClassVar[bool] = False
    heard_as: ClassVar[type[Event] | None] = None


@dataclasses.dataclass(slots=True, eq=False)
class RunStarted(Event):
    """The guarded block was entered."""


@dataclasses.dataclass(slots=True, eq=False)
class RunEnded(Event):
    """The guarded block is being left; the last chance to report what needed the whole run to judge.

    Attributes:
        error: the exception that leaves the block, or None.
    """

    error: BaseException | None = None


@dataclasses.dataclass(slots=True, eq=False)
class ModuleMade(Event):
    """``nn.Module.__init__`` ran for an object (its attributes are not there yet).

    Attributes:
        made_at: the user's line that makes it, without its text.
    """

    module: nn.Module
    made_at: Site | None = None


@dataclasses.dataclass(slots=True, eq=False)
class ParameterRegistered(Event):
    """A parameter became an attribute of a module.

    Attributes:
        previous: the parameter that had the name before, or None.
        made_at: the user's line, without its text.
    """

    module: nn.Module
    name: str
    parameter: torch.nn.Parameter | None
    previous: torch.nn.Parameter | None
    made_at: Site | None = None


@dataclasses.dataclass(slots=True, eq=False)
class ModuleRegistered(Event):
    """A module became a child of another.

    Attributes:
        previous: the child that had the name before, or None.
    """

    module: nn.Module
    name: str
    child: nn.Module | None
    previous: nn.Module | None


@dataclasses.dataclass(slots=True, eq=False)
class ModuleMet(Event):
    """A root module is about to be called that was never called in this mode, training or evaluation, before."""

    module: nn.Module


@dataclasses.dataclass(slots=True, eq=False)
class ModuleCalled(Event):
    """A module's ``__call__`` is about to run its forward.

    Attributes:
        is_root: True for the outermost module of this thread's call.
        parent: the module whose forward made this call, or None for a root.
    """

    recurring: ClassVar[bool] = True

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    is_root: bool
    parent: nn.Module | None


@dataclasses.dataclass(slots=True, eq=False)
class ModuleReturned(Event):
    """A module's forward returned. Not emitted when it raised."""

    recurring: ClassVar[bool] = True

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any
    is_root: bool
    parent: nn.Module | None


@dataclasses.dataclass(slots=True, eq=False)
class LossComputed(Event):
    """A loss function of ``torch.nn.functional`` returned.

    Attributes:
        function: its name, ``cross_entropy``.
        operands: the tensors by the argument's name: ``input``, ``target``, ``weight``, ``pos_weight``, ...
        output: what it returned.
    """

    recurring: ClassVar[bool] = True

    function: str
    operands: Mapping[str, torch.Tensor]
    output: Any


@dataclasses.dataclass(slots=True, eq=False)
class BackwardStarted(Event):
    """``backward()`` or ``autograd.grad()`` is about to run.

    Attributes:
        tensors: the roots of the graph.
        accumulates: True when gradients go to ``.grad`` (``backward``), False for ``autograd.grad``.
    """

    recurring: ClassVar[bool] = True

    tensors: Sequence[torch.Tensor]
    accumulates: bool


@dataclasses.dataclass(slots=True, eq=False)
class BackwardEnded(Event):
    """The backward pass returned. Fields as in :class:`BackwardStarted`."""

    recurring: ClassVar[bool] = True

    tensors: Sequence[torch.Tensor]
    accumulates: bool


@dataclasses.dataclass(slots=True, eq=False)
class OptimizerCreated(Event):
    """An optimizer finished its constructor, or a copy of one was restored.

    Attributes:
        source: the optimizer it was deep-copied from, if that is known.
    """

    optimizer: Optimizer
    source: Optimizer | None = None


@dataclasses.dataclass(slots=True, eq=False)
class OptimizerStepping(Event):
    """``step()`` is about to run.

    Attributes:
        with_closure: True when it was given a closure, which will compute the gradients only then.
    """

    recurring: ClassVar[bool] = True

    optimizer: Optimizer
    with_closure: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class OptimizerStepped(Event):
    """``step()`` returned."""

    recurring: ClassVar[bool] = True

    optimizer: Optimizer


@dataclasses.dataclass(slots=True, eq=False)
class ParamGroupAdded(Event):
    """``add_param_group`` returned (also once per group while an optimizer is constructed)."""

    optimizer: Optimizer


@dataclasses.dataclass(slots=True, eq=False)
class OptimizerStateLoaded(Event):
    """``Optimizer.load_state_dict`` returned.

    Attributes:
        state: the dictionary that was loaded.
    """

    optimizer: Optimizer
    state: Mapping[str, Any]


@dataclasses.dataclass(slots=True, eq=False)
class GradientsCleared(Event):
    """``zero_grad`` of an optimizer or a module returned.

    Attributes:
        owner: the optimizer or module.
        set_to_none: False where gradients were filled with zeros.
    """

    recurring: ClassVar[bool] = True

    owner: Optimizer | nn.Module
    set_to_none: bool


@dataclasses.dataclass(slots=True, eq=False)
class GradientsClipped(Event):
    """A clipping function of ``torch.nn.utils`` is about to run.

    Attributes:
        function: ``clip_grad_norm_`` or ``clip_grad_value_``.
        parameters: the parameters it received, read without consuming the user's iterator.
        exhausted: True when it received an iterator that had nothing left.
        limit: the largest norm or value allowed; infinite where the call only measures.
    """

    recurring: ClassVar[bool] = True

    function: str
    parameters: Sequence[torch.Tensor]
    exhausted: bool
    limit: float = 0.0


@dataclasses.dataclass(slots=True, eq=False)
class ModuleConverted(Event):
    """The outermost ``_apply`` returned: ``.to``, ``.cuda``, ``.half``, ``.to_empty`` and the like.

    Attributes:
        replaced: (old, new) for each parameter that is another object than before.
        moved_from: the devices its parameters and buffers had before, as text.
        moved_to: the devices they have now.
        replaced_buffers: (old, new) for each buffer that is another object than before.
    """

    module: nn.Module
    replaced: Sequence[tuple[torch.nn.Parameter, torch.nn.Parameter]]
    moved_from: frozenset[str]
    moved_to: frozenset[str]
    replaced_buffers: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()


@dataclasses.dataclass(slots=True, eq=False)
class ModuleCopied(Event):
    """A module was deep-copied or unpickled.

    Attributes:
        source: the original of a deep copy; None for an unpickled module.
        copy: the new module (only this object; its children have events of their own).
    """

    source: nn.Module | None
    copy: nn.Module


@dataclasses.dataclass(slots=True, eq=False)
class ParameterCopied(Event):
    """A parameter was deep-copied."""

    source: torch.nn.Parameter
    copy: torch.nn.Parameter


@dataclasses.dataclass(slots=True, eq=False)
class ModuleStateLoaded(Event):
    """``Module.load_state_dict`` returned.

    Attributes:
        state: the dictionary that was loaded.
        replaced: (old, new) for each parameter that is another object than before (``assign=True``).
        matched: number of keys of ``state`` that the module took.
    """

    module: nn.Module
    state: Mapping[str, Any]
    strict: bool
    replaced: Sequence[tuple[torch.nn.Parameter, torch.nn.Parameter]]
    matched: int


@dataclasses.dataclass(slots=True, eq=False)
class ModuleStateTaken(Event):
    """The outermost ``Module.state_dict`` returned."""

    module: nn.Module
    state: Mapping[str, Any]


@dataclasses.dataclass(slots=True, eq=False)
class ObjectSaved(Event):
    """``torch.save`` returned.

    Attributes:
        obj: what was saved.
    """

    obj: Any


@dataclasses.dataclass(slots=True, eq=False)
class HostRead(Event):
    """The host has waited for a value of an accelerator tensor.

    Attributes:
        call: how the value was asked for, as the user writes it: ``.item()``, ``float()``, ``tolist()``.
        family: ``scalar``, ``format``, ``copy``, ``branch``, ``shape``, ``number``, ``check``: what kind of read it is.
        tensor: the tensor read.
        explicit: True where the person wrote the transfer, False where it is a side effect.
        instead: what to write in its place where this call has an answer of its own; empty elsewhere.
        avoidable: False where the wait is part of what was asked for (an eigenvalue solver's own check).
        waits: how often the call waits.
        seconds: wall time of the call; None where it was not measured.
    """

    recurring: ClassVar[bool] = True
    occurrence: ClassVar[bool] = True
    call: str
    family: str
    tensor: torch.Tensor
    explicit: bool
    instead: str = ""
    avoidable: bool = True
    waits: int = 1
    seconds: float | None = None


@dataclasses.dataclass(slots=True, eq=False)
class StepEnded(Event):
    """A training step (or, in a run without an optimizer, an inference step) is over.

    Attributes:
        index: its number, counted from 0.
        training: False for an inference step.
    """

    recurring: ClassVar[bool] = True

    index: int
    training: bool


@dataclasses.dataclass(slots=True, eq=False)
class Operand:
    """A tensor that took part in a call which failed.

    Attributes:
        role: the callee's name for it: ``input``, ``target``, ``weight``, ``self``; positional ones ``argument 1``.
        expression: the user's expression for it (``images``, ``batch["x"]``); None when it cannot be told.
        tensor: the tensor.
    """

    role: str
    expression: str | None
    tensor: torch.Tensor


@dataclasses.dataclass(slots=True, eq=False)
class CallFailed(Event):
    """An exception leaves the guarded block and comes from a call into PyTorch.

    Attributes:
        error: the exception; None where a backend accepted what others refuse.
        traceback: its traceback; None likewise.
        problem: ``device``, ``dtype``, ``index-device``, ``generator-device``, ... or ``other``.
        callee: what refused, as the user would call it: ``nn.Linear``, ``F.mse_loss``, ``a + b``, ``SGD.step``.
        kind: ``module``, ``loss``, ``function``, ``operator``, ``index``, ``optimizer``, ``backward``.
        module: the module that refused, for ``module`` and loss modules.
        optimizer: the optimizer, for ``optimizer``.
        operands: the tensors that took part.
        frame: the user's frame.
        line: line in that frame where the call stands.
    """

    error: BaseException | None
    traceback: TracebackType | None
    problem: str
    callee: str
    kind: str
    module: nn.Module | None
    optimizer: Optimizer | None
    operands: Sequence[Operand]
    frame: FrameType
    line: int


@dataclasses.dataclass(slots=True, eq=False)
class HostOperandTaken(CallFailed):
    """A backend is about to take a host tensor beside device tensors, without a word, where others refuse the call.

    Rules hear it as :class:`CallFailed`; ``error`` and ``traceback`` are None, and the call is still running.
    """

    recurring: ClassVar[bool] = True
    heard_as: ClassVar[type[Event] | None] = CallFailed


@dataclasses.dataclass(slots=True, eq=False)
class Uploaded(Event):
    """Host data was copied to an accelerator.

    Attributes:
        call: how it was asked for, as the user writes it: ``.to()``, ``torch.tensor()``, ``x[index]``.
        kind: ``move`` (a host tensor), ``data`` (Python or NumPy data), ``index``, ``write`` (into a device tensor).
        source: the host tensor, or the Python or NumPy data.
        result: the device tensor that took it.
        nbytes: how much was copied.
        pinned: True where the source lies in pinned memory.
        non_blocking: True where the program asked not to wait.
        explicit: True where the person wrote the transfer, False where it is a side effect.
        instead: what to write in its place where this call has an answer of its own; empty elsewhere.
        seconds: wall time of the call; None where it was not measured.
    """

    recurring: ClassVar[bool] = True
    occurrence: ClassVar[bool] = True
    call: str
    kind: str
    source: Any
    result: torch.Tensor
    nbytes: int
    pinned: bool = False
    non_blocking: bool = False
    explicit: bool = True
    instead: str = ""
    seconds: float | None = None


@dataclasses.dataclass(slots=True, eq=False)
class MovedBetweenDevices(Event):
    """A tensor was copied from one accelerator to another.

    Attributes:
        call: how it was asked for.
        source: the tensor.
        result: its copy.
    """

    recurring: ClassVar[bool] = True
    occurrence: ClassVar[bool] = True
    call: str
    source: torch.Tensor
    result: torch.Tensor


@dataclasses.dataclass(slots=True, eq=False)
class CopyQueued(Event):
    """A copy between host and device was queued that the host does not wait for.

    Attributes:
        direction: ``download`` or ``upload``.
        host: the tensor on the host's side.
        call: how it was asked for.
    """

    recurring: ClassVar[bool] = True

    direction: str
    host: torch.Tensor
    call: str


@dataclasses.dataclass(slots=True, eq=False)
class UnsettledAccess(Event):
    """The host uses a tensor while a queued copy from or to it may still be running.

    Attributes:
        direction: of the copy, ``download`` or ``upload``.
        access: ``read``, ``write``, or ``alias`` where it is only given another name (``.numpy()``).
        tensor: the host tensor.
        call: name of the function that uses it.
    """

    recurring: ClassVar[bool] = True
    occurrence: ClassVar[bool] = True
    direction: str
    access: str
    tensor: torch.Tensor
    call: str


@dataclasses.dataclass(slots=True, eq=False)
class Synchronized(Event):
    """The host has waited for a device, a stream or an event because the program said so.

    Attributes:
        call: as the user writes it, ``torch.cuda.synchronize()``.
        scope: ``device``, ``stream``, ``event``; ``query`` for a look that found everything done.
        seconds: wall time of the call.
        needed: True where an asynchronous copy was queued before, whose data the host may only use after a wait.
    """

    recurring: ClassVar[bool] = True
    occurrence: ClassVar[bool] = True
    call: str
    scope: str
    seconds: float | None = None
    needed: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class CacheEmptied(Event):
    """The allocator's free blocks were given back to the driver.

    Attributes:
        call: as the user writes it, ``torch.cuda.empty_cache()``.
        seconds: wall time of the call.
    """

    recurring: ClassVar[bool] = True
    occurrence: ClassVar[bool] = True
    call: str
    seconds: float | None = None


@dataclasses.dataclass(slots=True, eq=False)
class ClockRead(Event):
    """The user's code read a clock of the host.

    Attributes:
        call: as the user writes it, ``time.perf_counter()``.
        unsettled: True where device work was launched since the clock was last read and nobody has waited for it.
    """

    recurring: ClassVar[bool] = True
    occurrence: ClassVar[bool] = True
    call: str
    unsettled: bool


@dataclasses.dataclass(slots=True, eq=False)
class ArraysConverted(Event):
    """A tensor was built from a list of NumPy arrays, element by element.

    Attributes:
        call: as the user writes it, ``torch.tensor()``.
        count: number of arrays.
        nbytes: size of the tensor.
        seconds: wall time of the call.
    """

    recurring: ClassVar[bool] = True
    occurrence: ClassVar[bool] = True
    call: str
    count: int
    nbytes: int
    seconds: float | None = None


@dataclasses.dataclass(slots=True, frozen=True)
class LoaderFacts:
    """A ``DataLoader``, described; the loader itself may be gone while it is iterated over.

    Attributes:
        number: the same for all iterations over one loader.
        workers: number of worker processes.
        pins: True where it puts batches into pinned memory.
        batch_size: its ``batch_size``; None where batches come from the sampler or the data set.
        dataset: class name of the data set.
        forks: True where its workers are forked.
    """

    number: int
    workers: int
    pins: bool
    batch_size: int | None
    dataset: str
    forks: bool


@dataclasses.dataclass(slots=True, eq=False)
class LoaderStarted(Event):
    """Iteration over a ``DataLoader`` begins.

    Attributes:
        loader: the loader.
        facts: what is known of it.
    """

    loader: torch.utils.data.DataLoader[Any]
    facts: LoaderFacts


@dataclasses.dataclass(slots=True, eq=False)
class BatchFetched(Event):
    """A ``DataLoader`` gave its next batch.

    Attributes:
        loader: the loader; None for one that was made for the loop only and is gone.
        facts: what is known of it.
        batch: what it gave.
        seconds: how long the program waited for it.
    """

    recurring: ClassVar[bool] = True

    loader: torch.utils.data.DataLoader[Any] | None
    facts: LoaderFacts
    batch: Any
    seconds: float


@dataclasses.dataclass(slots=True, eq=False)
class LoaderFailed(Event):
    """A ``DataLoader`` raised while it fetched a batch.

    Attributes:
        facts: what is known of the loader.
        error: what it raised; PyTorch puts a worker's traceback into its text.
    """

    facts: LoaderFacts
    error: BaseException


@dataclasses.dataclass(slots=True, eq=False)
class GraphChange:
    """The first difference between two recorded steps whose graphs are not the same.

    Attributes:
        kind: ``number`` (a Python number that is part of the graph), ``shape``, or ``count`` (a line that ran more or
            less often).
        function: name of the torch function called there.
        site: the user's line.
        before: what it was given in the earlier step, as text: ``3:11``, ``(8, 16)``, ``2 times``.
        after: what it is given now.
        names: the user's numbers in that line that have changed, as they write them.
    """

    kind: str
    function: str
    site: Site | None
    before: str
    after: str
    names: Sequence[str] = ()


@dataclasses.dataclass(slots=True, eq=False)
class StepMarked(Event):
    """The operations collected since the last step marker were handed to a backend that traces.

    All figures are counted from the marker before.

    Attributes:
        form: how the program marks its steps: ``torch_xla.sync()``, ``MpDeviceLoader``.
        compiled: graphs compiled.
        compile_seconds: time that took.
        executed_early: graphs run before this marker because something asked for a value.
        fallbacks: operations that ran on the host because the device has none, with how often.
        change: where this step differs from the one before; only for recorded steps that compiled.
        recorded: True when single calls of this step were watched, so that early reads and fallbacks had events.
    """

    recurring: ClassVar[bool] = True

    form: str
    compiled: int
    compile_seconds: float
    executed_early: int
    fallbacks: Mapping[str, int]
    change: GraphChange | None = None
    recorded: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class PendingRead(Event):
    """A call asked for a value that was not computed yet, so that an unfinished graph had to run.

    Attributes:
        call: name of the function, ``item``.
        compiled: True when that graph had to be compiled first.
    """

    recurring: ClassVar[bool] = True
    occurrence: ClassVar[bool] = True
    call: str
    compiled: bool


@dataclasses.dataclass(slots=True, eq=False)
class HostFallback(Event):
    """A call ran operations on the host because the device has none.

    Attributes:
        ops: their names, ``nonzero``, with how often each ran.
        call: name of the function called.
    """

    recurring: ClassVar[bool] = True
    occurrence: ClassVar[bool] = True
    ops: Mapping[str, int]
    call: str


@dataclasses.dataclass(slots=True, eq=False)
class OptimizerStateTaken(Event):
    """``Optimizer.state_dict`` returned."""

    optimizer: Optimizer
    state: Mapping[str, Any]


@dataclasses.dataclass(slots=True, eq=False)
class SchedulerStepped(Event):
    """``step()`` of a learning rate scheduler returned (not the one its constructor makes).

    Attributes:
        scheduler: the scheduler.
        optimizer: the optimizer it drives.
    """

    scheduler: Any
    optimizer: Optimizer


@dataclasses.dataclass(slots=True, eq=False)
class ReplicasWrapped(Event):
    """A model was wrapped in ``DistributedDataParallel`` or ``DataParallel``.

    Attributes:
        wrapper: the wrapper.
        module: the model inside.
        reduces: True where the wrapper hooks the gradients of the parameters it saw now.
    """

    wrapper: nn.Module
    module: nn.Module
    reduces: bool


@dataclasses.dataclass(slots=True, eq=False)
class ReplicaMade(Event):
    """A short-lived replica of a module was made for one forward pass."""

    recurring: ClassVar[bool] = True

    source: nn.Module
    replica: nn.Module


@dataclasses.dataclass(slots=True, eq=False)
class AverageUpdated(Event):
    """``AveragedModel.update_parameters`` returned.

    Attributes:
        average: the averaged model.
        source: the model whose parameters were added.
    """

    recurring: ClassVar[bool] = True

    average: nn.Module
    source: nn.Module


@dataclasses.dataclass(slots=True, eq=False)
class LossScaled(Event):
    """An enabled gradient scaler multiplied a loss.

    Attributes:
        scaler: the scaler.
        scaled: the tensors it gave back.
    """

    recurring: ClassVar[bool] = True

    scaler: torch.amp.GradScaler
    scaled: Sequence[torch.Tensor]


@dataclasses.dataclass(slots=True, eq=False)
class GradientsUnscaling(Event):
    """An enabled gradient scaler is about to divide the gradients of an optimizer by its scale.

    Attributes:
        scaler: the scaler.
        optimizer: whose gradients.
    """

    recurring: ClassVar[bool] = True

    scaler: torch.amp.GradScaler
    optimizer: Optimizer


@dataclasses.dataclass(slots=True, eq=False)
class ScalerStepping(Event):
    """``step`` of an enabled gradient scaler is about to run."""

    recurring: ClassVar[bool] = True

    scaler: torch.amp.GradScaler
    optimizer: Optimizer


@dataclasses.dataclass(slots=True, eq=False)
class ScalerUpdated(Event):
    """``update`` of an enabled gradient scaler returned."""

    recurring: ClassVar[bool] = True

    scaler: torch.amp.GradScaler


@dataclasses.dataclass(slots=True, eq=False)
class AutocastEntered(Event):
    """An autocast context was entered.

    Attributes:
        device_type: the device type it is for.
        dtype: what it casts to.
        enabled: False for a context that turns autocast off.
    """

    recurring: ClassVar[bool] = True

    device_type: str
    dtype: torch.dtype
    enabled: bool


@dataclasses.dataclass(slots=True, eq=False)
class AutocastCacheCleared(Event):
    """The casts of weights that autocast keeps were dropped: by leaving the outermost context, or by hand."""

    recurring: ClassVar[bool] = True


@dataclasses.dataclass(slots=True, eq=False)
class ObjectLoaded(Event):
    """``torch.load`` returned.

    Attributes:
        obj: what it gave.
        mapped: True where the call said where to (``map_location``).
    """

    obj: Any
    mapped: bool


@dataclasses.dataclass(slots=True, eq=False)
class ModuleTraced(Event):
    """``torch.jit.trace`` returned.

    Attributes:
        traced: the traced module.
        devices: the devices of the example inputs, as text.
    """

    traced: Any
    devices: frozenset[str]


@dataclasses.dataclass(slots=True, eq=False)
class IntegersWritten(Event):
    """Floating values are about to be written into an integer tensor by a call that truncates them silently.

    Attributes:
        call: as the user writes it, ``t[...] = value``.
        target: the integer tensor.
        value: the floating tensor or Python number.
    """

    recurring: ClassVar[bool] = True
    occurrence: ClassVar[bool] = True
    call: str
    target: torch.Tensor
    value: torch.Tensor | float


@dataclasses.dataclass(slots=True, eq=False)
class Blended(Event):
    """A small part of one tensor is about to be added in place to a low-precision one, as averages do.

    Attributes:
        call: ``.lerp_()`` or ``.add_()``.
        target: the tensor that is changed.
        other: what is blended in.
    """

    recurring: ClassVar[bool] = True

    call: str
    target: torch.Tensor
    other: torch.Tensor


@dataclasses.dataclass(slots=True, eq=False)
class GradientHandled(Event):
    """A tensor without a graph, which may be a gradient, is about to be clamped or measured.

    Attributes:
        call: ``.clamp_()`` or ``.norm()``.
        tensor: what is handled.
        limit: the larger of the bounds; infinite where the call only measures; not a number where it is a tensor.
    """

    recurring: ClassVar[bool] = True

    call: str
    tensor: torch.Tensor
    limit: float
