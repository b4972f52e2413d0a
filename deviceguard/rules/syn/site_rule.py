"""The common part of the rules that judge a rate: count by line, tell what happens in nearly every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.events import RunEnded
from deviceguard.findings import Finding, Severity
from deviceguard.rules.rule import Rule, on
from deviceguard.rules.syn.sites import Sites, Tally

if TYPE_CHECKING:
    from deviceguard.context import Context


class SiteRule(Rule):
    """A rule with one tally for each of the user's lines.

    Attributes:
        mends_libraries: True where its fix helps too when a library does it.
        loops: how often a line must do it in a run in which no steps were found, in multiples of ``min_steps``.
    """

    needs_accelerator: ClassVar[bool] = True
    mends_libraries: ClassVar[bool] = False
    loops: ClassVar[int] = 2

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.sites = Sites(context)

    @on(RunEnded)
    def close(self, event: RunEnded) -> Iterator[Finding]:
        """The rest of the counts, and the lines of a run that only ran models."""
        for tally in self.sites.closing(self.loops * self.context.settings.min_steps):
            yield self.told(tally)

    def message(self, tally: Tally) -> str:
        """What is wrong, from name, device, call and rate; without the full stop."""
        raise NotImplementedError

    def fix(self, tally: Tally) -> str:
        """The edit that repairs it."""
        raise NotImplementedError

    def gravity(self, tally: Tally) -> Severity:
        """The rule's severity for what the user did; advice for what a library did, or cannot be avoided."""
        return self.severity if tally.direct and tally.avoidable else Severity.ADVICE

    def told(self, tally: Tally) -> Finding:
        """The finding of a line, with the part of its count that no finding has told yet."""
        return self.finding(
            f"{self.message(tally)}.{_through(tally)}",
            self.fix(tally) if tally.direct or self.mends_libraries else _look(tally),
            [tally.subject] if tally.subject is not None else [],
            site=tally.site,
            severity=self.gravity(tally),
            count=self.sites.tell(tally),
            first_step=tally.since if tally.steps else None,
            last_step=tally.last if tally.steps else None,
            key=tally.call,
            cost=tally.cost(),
        )


def named(tally: Tally) -> str:
    """``loss (float32 on cuda:0)``."""
    subject = tally.subject
    return f"{subject.name} ({subject.dtype} on {subject.device})" if subject is not None else "a device tensor"


def _look(tally: Tally) -> str:
    """What to do about a library's own reads."""
    via = tally.site.via or "the library"
    return f"look whether {via} has a setting for it (an interval, a check that can be off), or call it less often"


def _through(tally: Tally) -> str:
    if tally.site.via is None:
        return ""
    if tally.direct:
        return f" It is {tally.site.via} that reads it, since it was handed a tensor."
    return f" {tally.site.via} does it inside this call."
