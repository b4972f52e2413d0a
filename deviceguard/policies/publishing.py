"""Sends findings to the places a person has named, before anything else is done about them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from deviceguard.events import Event
from deviceguard.findings import Finding
from deviceguard.policies.policy import Policy
from deviceguard.reports.destination import Destination

if TYPE_CHECKING:
    from deviceguard.reports.report import Report
    from deviceguard.rules.rule import Rule

log = logging.getLogger("deviceguard")


class PublishingPolicy(Policy):
    """Around another policy: tells each destination of a new finding, and again when its count reaches a power of ten.

    Args:
        inner: the policy that acts.
        destinations: where findings go; one that fails is told of once and left out.
    """

    def __init__(self, inner: Policy, destinations: Iterable[Destination]) -> None:
        self.wanted = inner.wanted  # type: ignore[misc]
        self._inner = inner
        self._destinations = list(destinations)
        self._counts: dict[object, list[int]] = {}

    def attach(self, report: Report, rules: Mapping[str, Rule]) -> None:  # noqa: D102
        self._report = report
        self._inner.attach(report, rules)

    def apply(self, finding: Finding, event: Event) -> None:  # noqa: D102
        self._counts[finding.identity] = [finding.count, 10]
        self._each(lambda destination: destination.new(finding))
        self._inner.apply(finding, event)

    def again(self, finding: Finding, event: Event) -> None:  # noqa: D102
        entry = self._counts.setdefault(finding.identity, [0, 10])
        entry[0] += finding.count
        if entry[0] >= entry[1]:
            entry[1] = 10 ** len(str(entry[0]))
            whole = self._report.kept(finding)
            self._each(lambda destination: destination.grown(whole))
        self._inner.again(finding, event)

    def replaced_by(self, policy: Policy) -> Policy:  # noqa: D102
        self._inner = self._inner.replaced_by(policy)
        return self

    def close(self) -> None:
        """The run has ended."""
        self._each(lambda destination: destination.close(self._report))

    def _each(self, tell: Callable[[Destination], None]) -> None:
        for destination in list(self._destinations):
            try:
                tell(destination)
            except Exception:
                self._destinations.remove(destination)
                self._report.internal_errors += 1
                log.warning(
                    "deviceguard sends nothing more to %s; the run goes on", type(destination).__name__, exc_info=True
                )
