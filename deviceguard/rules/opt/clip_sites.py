"""What the two rules on clipping share: counts per line of how a clipping call found the gradients."""

from __future__ import annotations

import dataclasses

from deviceguard.findings import Site, Subject


@dataclasses.dataclass(slots=True)
class ClipSite:
    """One line that clips.

    Attributes:
        site: the line.
        function: what it calls.
        bad: calls that found what the rule is about.
        calls: all calls.
        subjects: objects of the last bad call, as text.
        told: True once reported.
    """

    site: Site
    function: str
    bad: int = 0
    calls: int = 0
    subjects: tuple[Subject, ...] = ()
    told: bool = False


class ClipSites(dict[tuple[str, int], ClipSite]):
    """The lines that clip, by place."""

    def at(self, site: Site | None, function: str) -> ClipSite | None:
        """The record of a line; None where no line is known."""
        if site is None:
            return None
        return self.setdefault((site.file, site.line), ClipSite(site, function))
