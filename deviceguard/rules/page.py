"""A rule's manual page, read from the docstring of its class: one source for docs, ``explain`` and the tests."""

from __future__ import annotations

import dataclasses
import inspect
import re

from deviceguard.rules.registry import SECTIONS
from deviceguard.rules.rule import Rule

EXAMPLE_SECTIONS = ("Example", "Use instead")
"""Sections that are code, written for a simulated accelerator and run by the tests."""

_HEADING = re.compile(rf"^({'|'.join(map(re.escape, SECTIONS))}):\s*$")
_IMPORTS = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """What a person reads about a rule.

    Attributes:
        title: the first sentence of the docstring.
        sections: text by heading, in the order of the standard, without indentation.
    """

    title: str
    sections: dict[str, str]

    @property
    def example(self) -> str:
        """The code that the rule flags, as a script."""
        return as_script(self.sections["Example"])

    @property
    def use_instead(self) -> str:
        """The corrected code, as a script."""
        return as_script(self.sections["Use instead"])

    @property
    def references(self) -> list[str]:
        """The addresses of real reports."""
        return re.findall(r"https?://\S+", self.sections["References"])


def page_of(rule: type[Rule]) -> Page:
    """The page of a rule."""
    text = inspect.cleandoc(rule.__doc__ or "")
    head: list[str] = []
    bodies: dict[str, list[str]] = {}
    lines = head
    for line in text.splitlines():
        heading = _HEADING.match(line)
        if heading:
            lines = bodies.setdefault(heading.group(1), [])
        else:
            lines.append(line)
    return Page(" ".join(head).strip(), {name: inspect.cleandoc("\n".join(body)) for name, body in bodies.items()})


def as_script(code: str) -> str:
    """An example as it is run: it need not import what every training script imports."""
    return f"{_IMPORTS}{code}\n"
