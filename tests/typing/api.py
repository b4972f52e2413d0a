"""Code as users write it; it only has to type-check."""

from __future__ import annotations

import deviceguard


def train() -> float:
    return 0.0


with deviceguard.watch(select="DEV,OPT", ignore=["SYN001"]) as report:
    loss: float = train()

for finding in report.findings:
    place: str = str(finding.site) if finding.site is not None else "unknown"
    severity: deviceguard.Severity = finding.severity
    names: list[str] = [subject.name for subject in finding.subjects]

worst: deviceguard.Severity | None = report.worst
data: dict[str, object] = report.to_dict()


@deviceguard.strict(simulate="cuda")
def guarded(steps: int) -> list[float]:
    return [train() for _ in range(steps)]


@deviceguard.simulate("cuda:2")
def simulated() -> float:
    return train()


@deviceguard.allow("SYN")
def reading() -> float:
    return train()


@deviceguard.transfers(host_to_device="log", device_to_host="disallow")
def without_transfers() -> float:
    return train()


losses: list[float] = guarded(3)
value: float = simulated() + reading()

try:
    with deviceguard.migrate(json="report.json"), deviceguard.allow("SYN001", "PIP"):
        train()
except deviceguard.DeviceGuardError as error:
    rule: str = error.finding.rule
except deviceguard.SettingsError as problem:
    text: str = str(problem)
