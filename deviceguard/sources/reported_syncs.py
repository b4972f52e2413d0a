"""Waits that PyTorch itself reports and no other source sees: kernels in backward, TorchScript, what is hidden in C++.

The report is a warning. Nobody but us sees it, unless the program asked for it; while the program is inside a
``warnings.catch_warnings()`` block of its own, where it may turn warnings into errors or collect them, none is made.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar

import torch

from deviceguard.backends.devices import present
from deviceguard.backends.sync_reports import SILENT, WARN, SyncReports
from deviceguard.busy import BUSY
from deviceguard.events import Event, HostRead
from deviceguard.naming.frames import outward
from deviceguard.sources.covering import COVER
from deviceguard.sources.patching import Patches
from deviceguard.sources.source import Emit, Source

_MUTATES = ("simplefilter", "filterwarnings", "resetwarnings")
_BACKWARD = "_engine_run_backward"


class ReportedSyncs(Source):
    """Turns the backend's reports on while somebody wants to hear of waits; the program's own setting is respected.

    A program that asks for reports, or for errors, gets them, and is told the setting it chose.
    """

    provides: ClassVar[frozenset[type[Event]]] = frozenset({HostRead})

    def __init__(self, emit: Emit) -> None:
        self._reports: SyncReports | None = None
        self._wanted: frozenset[type[Event]] = frozenset()
        super().__init__(emit)
        self._patches = Patches()
        self._device = ""
        self._chosen = SILENT
        self._blocks = 0
        self._filter: Any = None

    @property
    def wanted(self) -> frozenset[type[Event]]:
        """The events somebody wants now; nothing is reported while waits are not among them."""
        return self._wanted

    @wanted.setter
    def wanted(self, wanted: frozenset[type[Event]]) -> None:
        self._wanted = wanted
        if self._reports is not None:
            self._arm(self._reports)

    def install(self) -> None:  # noqa: D102
        backend = present()
        reports = backend.reports if backend is not None else None
        if backend is None or reports is None or not reports.is_available():
            return
        self._reports, self._device, self._chosen = reports, backend.device_name(), reports.get()
        (owner, setter), (_, getter) = reports.setters()
        self._patches.replace(owner, setter, self._choosing)
        self._patches.replace(owner, getter, self._chosen_one)
        self._patches.replace(warnings, "showwarning", self._showing)
        for name in _MUTATES:
            self._patches.replace(warnings, name, self._mutating)
        self._patches.replace(warnings.catch_warnings, "__enter__", self._entering)
        self._patches.replace(warnings.catch_warnings, "__exit__", self._leaving)
        self._listen(reports)
        self._arm(reports)

    def uninstall(self) -> None:  # noqa: D102
        if self._reports is None:
            return
        self._set(self._reports, self._chosen)
        self._patches.restore()
        if self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]
            getattr(warnings, "_filters_mutated", lambda: None)()
        self._reports = None

    def _arm(self, reports: SyncReports) -> None:
        """Report, or not, as the program chose and as somebody listens."""
        listens = HostRead in self._wanted and not self._blocks
        self._set(reports, WARN if self._chosen == SILENT and listens else self._chosen)

    def _set(self, reports: SyncReports, mode: int) -> None:
        if reports.get() != mode:
            reports.set(mode)

    def _listen(self, reports: SyncReports) -> None:
        """Have every report shown, to our own ``showwarning``."""
        self._filter = ("always", re.compile(f"{reports.text}|{reports.notice}", re.IGNORECASE), UserWarning, None, 0)
        self._put_first()

    def _put_first(self) -> None:
        filters: Any = warnings.filters
        if self._filter in filters:
            filters.remove(self._filter)
        filters.insert(0, self._filter)
        getattr(warnings, "_filters_mutated", lambda: None)()

    # What the program does with the setting and with warnings

    def _choosing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def set_mode(*args: Any, **kwargs: Any) -> Any:
            reports = self._reports
            result = original(*args, **kwargs)
            if reports is not None:
                self._chosen = reports.get()
                self._arm(reports)
            return result

        return set_mode

    def _chosen_one(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_mode() -> Any:
            return self._chosen if self._reports is not None else original()

        return get_mode

    def _mutating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def mutate(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self._reports is not None and not self._blocks:
                self._put_first()
            return result

        return mutate

    def _entering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __enter__(block: Any) -> Any:  # noqa: N807
            reports = self._reports
            if reports is not None:
                self._blocks += 1
                self._arm(reports)
            return original(block)

        return __enter__

    def _leaving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __exit__(block: Any, *exc: Any) -> Any:  # noqa: N807
            result = original(block, *exc)
            reports = self._reports
            if reports is not None:
                self._blocks = max(0, self._blocks - 1)
                self._arm(reports)
            return result

        return __exit__

    # What PyTorch says

    def _showing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def showwarning(message: Any, *args: Any, **kwargs: Any) -> Any:
            reports = self._reports
            text = str(message)
            if reports is not None and text.startswith(reports.text):
                if not BUSY.value and not COVER.depth:
                    self.tell(HostRead, lambda: self._report(sys._getframe(3)))
                if self._chosen == SILENT:
                    return None
            elif reports is not None and text.startswith(reports.notice) and self._chosen == SILENT:
                return None
            return original(message, *args, **kwargs)

        return showwarning

    def _report(self, frame: FrameType) -> HostRead:
        """A wait of which only the line is known."""
        in_backward = any(outer.f_code.co_name == _BACKWARD for outer in outward(frame))
        call = "backward()" if in_backward else "a call"
        return HostRead(call, "check", torch.empty(0, device=self._device), explicit=False, avoidable=False)
