"""The exceptions and the warning a user can meet. Nothing here imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deviceguard.findings import Finding


class DeviceGuardError(RuntimeError):
    """Raised by the strict policy for a finding.

    Args:
        text: the finding as it is shown to a person.
        finding: the finding itself, for code that wants more than text.

    When the finding explains an exception that PyTorch raised, that exception is this one's ``__cause__``.
    """

    def __init__(self, text: str, finding: Finding) -> None:
        super().__init__(text)
        self.finding = finding

    def __reduce__(self) -> tuple[type[DeviceGuardError], tuple[str, Finding]]:
        return type(self), (str(self), self.finding)


class DeviceGuardWarning(UserWarning):
    """Category of every warning the guard gives, so that ``-W error::deviceguard.DeviceGuardWarning`` works."""


class SettingsError(ValueError):
    """A setting that does not exist or a value it cannot take. The message names the closest match."""


class RuleDefinitionError(TypeError):
    """A rule class that does not meet the standard of the catalogue (met by authors of rules, not by users)."""


for _public in (DeviceGuardError, DeviceGuardWarning, SettingsError):
    _public.__module__ = "deviceguard"
