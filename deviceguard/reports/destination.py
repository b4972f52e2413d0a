"""The base of the places findings go to while a run goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deviceguard.findings import Finding

if TYPE_CHECKING:
    from deviceguard.reports.report import Report


class Destination:
    """Takes findings as they come.

    What is raised here ends the destination, not the run: it is logged once and the destination hears no more.
    """

    def new(self, finding: Finding) -> None:
        """A finding that was not seen before."""

    def grown(self, finding: Finding) -> None:
        """A finding seen again, whose count is a power of ten: a finding that repeats for a week is a few lines.

        Args:
            finding: as it stands in the report, with its count and steps.
        """

    def close(self, report: Report) -> None:
        """The run has ended; the report is complete."""
