"""Switch a simulation on and off: one per process, counted, with every replaced object put back at the end."""

from __future__ import annotations

import importlib
import os
import threading
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.cuda
import torch.distributed
import torch.optim
import torch.utils.data

from deviceguard.simulate import (
    accelerator_api,
    attribution,
    autocast,
    autocast_lists,
    backward,
    compiling,
    composite,
    cuda_api,
    distributed,
    exchange,
    generators,
    legacy,
    moving,
    optimizers,
    parallel,
    profiling,
    questions,
    refusals,
    scripted,
    sequences,
    serialization,
    threads,
    xla_api,
)
from deviceguard.simulate.lazy_graph import LazyGraph
from deviceguard.simulate.lazy_mode import LazyMode, with_graph
from deviceguard.simulate.memory import DeviceMemory
from deviceguard.simulate.mode import SimulationMode, Special
from deviceguard.simulate.patching import Patches
from deviceguard.simulate.spec import Spec
from deviceguard.simulate.state import ENVIRONMENT_VARIABLE, PROCESS, Simulation

_LOCK = threading.RLock()


@dataclass(slots=True)
class _Session:
    """What belongs to the running simulation."""

    mode: SimulationMode
    patches: Patches
    entered: int = 0
    by_thread: dict[int, int] = field(default_factory=dict)


_SESSIONS: list[_Session] = []


def enter(spec: Spec, memory: int | None) -> None:
    """Switch the simulation on, or count one more user of it."""
    with _LOCK:
        if not _SESSIONS:
            _SESSIONS.append(_start(spec, memory))
        elif PROCESS.simulation is not None and PROCESS.simulation.spec != spec:
            raise RuntimeError(
                f"deviceguard.simulate({str(spec)!r}) inside deviceguard.simulate({str(PROCESS.simulation.spec)!r}): "
                "one process simulates one kind of device at a time"
            )
        session, thread = _SESSIONS[0], threading.get_ident()
        session.entered += 1
        session.by_thread[thread] = session.by_thread.get(thread, 0) + 1
        if session.by_thread[thread] == 1 and not threads.is_entered(session.mode):
            threads.push_below(session.mode)
            autocast.SwappedState(spec.type).exchange()


def leave() -> None:
    """Count one user less; the last one puts everything back."""
    with _LOCK:
        session, thread = _SESSIONS[0], threading.get_ident()
        session.entered -= 1
        session.by_thread[thread] = session.by_thread.get(thread, 0) - 1
        if session.by_thread[thread] <= 0:
            del session.by_thread[thread]
            if PROCESS.simulation is not None:
                autocast.SwappedState(PROCESS.simulation.type).exchange()
            threads.remove(session.mode)
        if session.entered == 0:
            _SESSIONS.clear()
            session.patches.undo()
            PROCESS.simulation = None


def _start(spec: Spec, memory: int | None) -> _Session:
    # dynamo remembers the functions of torch by identity when it is first imported, which any optimizer does: it must
    # see the real ones.
    importlib.import_module("torch._dynamo")
    PROCESS.simulation = Simulation(spec, memory)
    patches = Patches()
    try:
        books = DeviceMemory(memory)
        table = questions.handlers() | moving.handlers() | backward.handlers() | sequences.handlers()
        table |= exchange.handlers()
        mode = _cuda(patches, books, table) if spec.type == "cuda" else _xla(patches, books, table)
        _install(patches, mode, books, spec)
    except BaseException:
        patches.undo()
        PROCESS.simulation = None
        raise
    return _Session(mode, patches)


def _cuda(patches: Patches, books: DeviceMemory, table: dict[Any, Special]) -> SimulationMode:
    """What there is for a CUDA device only."""
    cuda_api.install(patches, books)
    accelerator_api.install(patches, books)
    table |= refusals.handlers() | composite.handlers() | legacy.handlers() | autocast_lists.handlers()
    mode = SimulationMode(books, table)
    autocast_lists.install(patches)
    legacy.install(patches, mode)
    return mode


def _xla(patches: Patches, books: DeviceMemory, table: dict[Any, Special]) -> SimulationMode:
    """What there is for an XLA device only."""
    graph = LazyGraph()
    xla_api.install(patches, books, graph)
    mode = LazyMode(books, graph)
    mode.special.update(with_graph(table | composite.handlers()))
    return mode


def _install(patches: Patches, mode: SimulationMode, books: DeviceMemory, spec: Spec) -> None:
    for name, value in autocast.replacements().items():
        patches.set_existing(torch, name, value)
    patches.set(torch, "Generator", generators.Generator)
    serialization.install(patches, books)
    backward.install(patches, mode)
    threads.install(patches, mode)
    distributed.install(patches)
    compiling.install(patches)
    optimizers.install(patches)
    parallel.install(patches)
    profiling.install(patches)
    scripted.install(patches, mode)
    exchange.install(patches, mode)
    attribution.ATTRIBUTION.install()
    patches.on_undo(attribution.ATTRIBUTION.uninstall)
    patches.set_item(os.environ, ENVIRONMENT_VARIABLE, str(spec))
