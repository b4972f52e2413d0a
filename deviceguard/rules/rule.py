"""The base of all rules: what a rule declares, how it names the events it wants, how it makes a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from deviceguard.events import Event
from deviceguard.findings import Finding, Severity, Site, Subject

if TYPE_CHECKING:
    from deviceguard.context import Context
    from deviceguard.remedies import Remedy

Handler = Callable[[Any, Any], "Iterator[Finding] | None"]
_H = TypeVar("_H", bound=Callable[..., Any])


def on(*kinds: type[Event]) -> Callable[[_H], _H]:
    """Mark a method as the handler of the given events."""

    def mark(method: _H) -> _H:
        setattr(method, "_handles", kinds)
        return method

    return mark


class Rule:
    """One entry of the catalogue.

    A subclass sets the class attributes below; its docstring is its manual page. Its handlers, marked with :func:`on`,
    take one event and yield findings. A rule never raises, prints, or moves anything, and keeps no user object alive.

    Attributes:
        code: ``DEV001``; stable once released and never used again.
        name: the bad pattern in two or three words, ``input-device``.
        severity: the severity of its findings.
        since: the version that brought it.
        needs_accelerator: True for a rule that has nothing to say on a host without an accelerator.
        raises_in_strict: True for a warning that ``strict`` raises all the same.
        raises_again: True for a rule for which ``strict`` raises at each occurrence, not at the first only.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity]
    since: ClassVar[str]
    needs_accelerator: ClassVar[bool] = False
    raises_in_strict: ClassVar[bool] = False
    raises_again: ClassVar[bool] = False

    def __init__(self, context: Context) -> None:
        self.context = context

    def remedy(self, event: Event) -> Remedy | None:
        """What would undo the harm of what the rule has just found in an event; None where nothing certain would.

        Args:
            event: the event that led to the finding.
        """
        return None

    @classmethod
    def handlers(cls) -> dict[type[Event], list[str]]:
        """Names of the handler methods by event, in the order in which they are written."""
        found: dict[type[Event], list[str]] = {}
        for owner in reversed(cls.__mro__):
            for attribute, method in vars(owner).items():
                for kind in getattr(method, "_handles", ()):
                    names = found.setdefault(kind, [])
                    if attribute not in names:
                        names.append(attribute)
        return found

    def finding(
        self,
        message: str,
        fix: str,
        subjects: Sequence[Subject] = (),
        *,
        site: Site | None = None,
        severity: Severity | None = None,
        count: int = 1,
        first_step: int | None = None,
        last_step: int | None = None,
        key: str = "",
        cost: Sequence[tuple[str, float]] = (),
    ) -> Finding:
        """A finding of this rule. Site and steps that are not given are filled in by the engine."""
        return Finding(
            rule=self.code,
            name=self.name,
            severity=severity or self.severity,
            message=message,
            fix=fix,
            site=site,
            subjects=tuple(subjects),
            count=count,
            first_step=first_step,
            last_step=last_step,
            key=key,
            cost=tuple(cost),
        )
