"""The sources there are, in the order in which they are installed."""

from __future__ import annotations

from deviceguard.sources.backward import Backward
from deviceguard.sources.calls import Calls
from deviceguard.sources.construction import Construction
from deviceguard.sources.conversions import Conversions
from deviceguard.sources.copies import Copies
from deviceguard.sources.modules import ModuleCalls
from deviceguard.sources.optimizers import Optimizers
from deviceguard.sources.source import Source

SOURCES: tuple[type[Source], ...] = (
    Construction,
    Conversions,
    Copies,
    Optimizers,
    Backward,
    ModuleCalls,
    Calls,
)
