"""The findings of one session, each once, with its count."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

from deviceguard.findings import Finding, Severity
from deviceguard.repairs import Repair, Repairs

if TYPE_CHECKING:
    from deviceguard.step_times import StepTimeSummary
    from deviceguard.steps import Steps


class Report:
    """What ``with deviceguard.watch() as report`` gives.

    Attributes:
        internal_errors: how often the guard itself failed; the run is not affected by it.
        world: number of ranks whose findings are here.
        notes: lines for the end of the summary.
        progress: the steps of the run; None where no guard was opened.
        time: where the time of a step went; None where no step on an accelerator was measured, and before the run ends.
        kept_repairs: what ``migrate`` has repaired, to be read through ``repairs``.
    """

    def __init__(self) -> None:
        self._findings: dict[tuple[Any, ...], Finding] = {}
        self._lock = threading.RLock()  # a signal can come while it is held, and its handler reads the report
        self.internal_errors = 0
        self.world = 1
        self.notes: list[str] = []
        self.progress: Steps | None = None
        self.time: StepTimeSummary | None = None
        self.kept_repairs = Repairs()

    @property
    def findings(self) -> list[Finding]:
        """The findings, worst first, then by the time they cost, then in the order in which they came."""
        with self._lock:
            return sorted(self._findings.values(), key=lambda finding: (finding.severity.rank, -finding.seconds))

    def add(self, finding: Finding) -> bool:
        """Take a finding in.

        Returns:
            True when it is new, False when it was merged with one already here.
        """
        with self._lock:
            earlier = self._findings.get(finding.identity)
            self._findings[finding.identity] = finding if earlier is None else earlier.merged_with(finding)
            return earlier is None

    def combine(self, finding: Finding, ranks: tuple[int, ...]) -> None:
        """Take in what ranks of the job have found; what this rank had too keeps its own text and count.

        Args:
            finding: as one of the ranks has it.
            ranks: those that have it.
        """
        with self._lock:
            own = self._findings.get(finding.identity)
            kept = finding if own is None else own
            is_own = own is not None and own.is_of_this_rank
            self._findings[finding.identity] = dataclasses.replace(kept, ranks=ranks, is_of_this_rank=is_own)

    def kept(self, finding: Finding) -> Finding:
        """A finding as it stands here, with its whole count; itself where it is not here."""
        with self._lock:
            return self._findings.get(finding.identity, finding)

    @property
    def steps(self) -> int:
        """Number of training steps of the run so far; 0 where none was recognised."""
        return self.progress.number + 1 if self.progress is not None and self.progress.training else 0

    @property
    def steps_watched(self) -> int:
        """Number of those that were looked at: counts and times of findings are of these."""
        return self.progress.index + 1 if self.progress is not None and self.progress.training else 0

    @property
    def repairs(self) -> list[Repair]:
        """What was repaired, in the order in which it was first done; empty but under ``migrate``."""
        return self.kept_repairs.list()

    def undo(self) -> int:
        """Take back what repairs changed in the user's objects, latest first.

        Returns:
            the number of repairs taken back.
        """
        return self.kept_repairs.undo()

    def price(self, finding: Finding, cost: tuple[tuple[str, float], ...]) -> None:
        """Note what the repairs of a finding have cost so far."""
        with self._lock:
            kept = self._findings.get(finding.identity)
            if kept is not None:
                self._findings[finding.identity] = dataclasses.replace(kept, cost=cost)

    def of(self, selector: str) -> list[Finding]:
        """The findings of a rule or family, ``"SYN"`` or ``"SYN001"``."""
        return [finding for finding in self.findings if finding.rule.startswith(selector.upper())]

    @property
    def worst(self) -> Severity | None:
        """The gravest severity present; None for an empty report."""
        found = self.findings
        return found[0].severity if found else None

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, in the published schema."""
        from deviceguard.reports.json_report import as_dict

        return as_dict(self)

    def __len__(self) -> int:
        return len(self._findings)

    def __repr__(self) -> str:
        return f"<deviceguard report: {len(self)} finding(s)>"
