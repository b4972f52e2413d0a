"""PyTorch's own reports of waits: heard once, shown to nobody who did not ask, and the setting left as it was."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterator

import pytest

from deviceguard.backends.backend import Backend
from deviceguard.backends.sync_reports import SyncReports
from deviceguard.events import Event, HostRead
from deviceguard.sources import reported_syncs
from deviceguard.sources.covering import COVER
from deviceguard.sources.reported_syncs import ReportedSyncs


class Reports(SyncReports):
    """A backend's setting as PyTorch has it, with a warning for each wait while it is on."""

    text = "called a synchronizing operation"
    notice = "a prototype"

    def __init__(self) -> None:
        self.mode = 0
        self.api = types.SimpleNamespace(set_mode=self.set, get_mode=self.get)

    def is_available(self) -> bool:
        return True

    def get(self) -> int:
        return self.mode

    def set(self, mode: int) -> None:
        self.mode = mode

    def setters(self):
        return (self.api, "set_mode"), (self.api, "get_mode")

    def wait(self) -> None:
        if self.mode == 1:
            warnings.warn(self.text, UserWarning, stacklevel=2)
        elif self.mode == 2:
            raise RuntimeError(self.text)


class Device(Backend):
    """The host, as if it reported."""

    name = "cpu"

    def __init__(self, reports: Reports) -> None:
        self.reports = reports


@pytest.fixture
def reports(monkeypatch) -> Reports:
    made = Reports()
    monkeypatch.setattr(reported_syncs, "present", lambda: Device(made))
    return made


@pytest.fixture
def events(reports) -> Iterator[list[Event]]:
    heard: list[Event] = []
    source = ReportedSyncs(heard.append)
    source.wanted = frozenset({HostRead})
    source.install()
    yield heard
    source.uninstall()


def test_each_report_is_heard_and_none_is_shown(reports, events):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        source = ReportedSyncs(events.append)
        source.wanted = frozenset({HostRead})
        source.install()
        for _ in range(3):
            reports.wait()
        source.uninstall()

    assert [(event.call, event.family) for event in events] == [("a call", "check")] * 3
    assert shown == []


def test_what_another_source_tells_is_not_heard_again(reports, events):
    COVER.run(reports.wait, (), {})

    assert events == []
    assert COVER.depth == 0


def test_filters_and_setting_are_left_as_they_were(reports):
    filters, showwarning, enter = list(warnings.filters), warnings.showwarning, warnings.catch_warnings.__enter__
    source = ReportedSyncs(lambda event: None)
    source.wanted = frozenset({HostRead})
    source.install()
    assert reports.mode == 1
    source.uninstall()

    assert (reports.mode, list(warnings.filters)) == (0, filters)
    assert (warnings.showwarning, warnings.catch_warnings.__enter__) == (showwarning, enter)
    assert (reports.api.set_mode, reports.api.get_mode) == (reports.set, reports.get)


def test_a_program_that_turns_warnings_into_errors_is_not_stopped(reports, events):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reports.wait()
    reports.wait()

    assert len(events) == 1


def test_filters_set_for_good_do_not_come_before_ours(reports, events):
    before = list(warnings.filters)
    try:
        warnings.filterwarnings("error", category=UserWarning)
        reports.wait()
    finally:
        warnings.filters[:] = before

    assert len(events) == 1


def test_a_program_that_asked_for_reports_gets_them(reports, events, monkeypatch):
    reports.api.set_mode(1)
    assert reports.api.get_mode() == 1
    with pytest.warns(UserWarning, match="synchronizing"):
        reports.wait()

    reports.api.set_mode(0)
    assert (reports.api.get_mode(), reports.mode) == (0, 1)
    reports.wait()
    assert len(events) == 1


def test_a_program_that_asked_for_errors_gets_them(reports, events):
    reports.api.set_mode(2)

    with pytest.raises(RuntimeError):
        reports.wait()
    assert reports.api.get_mode() == 2
    reports.api.set_mode(0)


def test_nothing_is_reported_while_nobody_listens(reports):
    source = ReportedSyncs(lambda event: None)
    source.install()
    assert reports.mode == 0
    source.wanted = frozenset({HostRead})
    assert reports.mode == 1
    source.wanted = frozenset()
    assert reports.mode == 0
    source.uninstall()
