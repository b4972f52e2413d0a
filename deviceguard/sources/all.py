"""The sources there are, in the order in which they are installed."""

from __future__ import annotations

from deviceguard.sources.accepted_mixes import AcceptedMixes
from deviceguard.sources.amp import MixedPrecision
from deviceguard.sources.averages import Averages
from deviceguard.sources.backward import Backward
from deviceguard.sources.calls import Calls
from deviceguard.sources.clipping import Clipping
from deviceguard.sources.clocks import Clocks
from deviceguard.sources.construction import Construction
from deviceguard.sources.conversions import Conversions
from deviceguard.sources.copies import Copies
from deviceguard.sources.loaders import Loaders
from deviceguard.sources.loading import Loading
from deviceguard.sources.modules import ModuleCalls
from deviceguard.sources.optimizers import Optimizers
from deviceguard.sources.parallel import Parallel
from deviceguard.sources.refused_calls import RefusedCalls
from deviceguard.sources.reported_syncs import ReportedSyncs
from deviceguard.sources.schedulers import Schedulers
from deviceguard.sources.source import Source
from deviceguard.sources.step_markers import StepMarkers
from deviceguard.sources.synchronisation import Synchronisation

SOURCES: tuple[type[Source], ...] = (
    Construction,
    Conversions,
    Copies,
    Optimizers,
    Schedulers,
    Clipping,
    Averages,
    Parallel,
    MixedPrecision,
    Loading,
    Backward,
    ModuleCalls,
    StepMarkers,
    AcceptedMixes,
    Loaders,
    Synchronisation,
    ReportedSyncs,
    Clocks,
    RefusedCalls,
    Calls,
)
