"""Stands in for ``torch_xla.debug.metrics``."""

from __future__ import annotations

from typing import Any

from .. import _XLAC


def counter_names() -> list[str]:
    """The counters that are not zero."""
    return _XLAC._xla_counter_names()


def counter_value(name: str) -> int | None:
    """A counter; None for one that was never counted."""
    return _XLAC._xla_counter_value(name)


def clear_counters() -> None:
    """Set all counters to zero."""
    _XLAC._clear_xla_counters()


def metric_names() -> list[str]:
    """The metrics."""
    return _XLAC._xla_metric_names()


def metric_data(name: str) -> Any:
    """How often, how long in all, and no samples: a simulated device takes no time."""
    return _XLAC._xla_metric_data(name)


def clear_metrics() -> None:
    """No durations are kept."""
    _XLAC._clear_xla_metrics()


def clear_all() -> None:
    """Counters and metrics."""
    clear_metrics()
    clear_counters()


def metrics_report() -> str:
    """All counters as text."""
    return _XLAC._xla_metrics_report()


def short_metrics_report(counter_names: Any = None, metric_names: Any = None) -> str:
    """All counters as text."""
    return _XLAC._xla_metrics_report()


def executed_fallback_ops() -> list[str]:
    """Operations that ran on the host."""
    return _XLAC._get_executed_fallback_ops()


def save_metrics(metrics_file: Any = None) -> None:
    """Metrics are not written to files."""
