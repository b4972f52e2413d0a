"""The JSON report: plain data with a versioned schema, written whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from deviceguard.findings import Finding, Site, Subject

if TYPE_CHECKING:
    from deviceguard.repairs import Repair
    from deviceguard.reports.report import Report

SCHEMA = 1


def as_dict(report: Report) -> dict[str, Any]:
    """The report as plain data."""
    from deviceguard import __version__

    torch = sys.modules.get("torch")
    return {
        "schema": SCHEMA,
        "deviceguard": __version__,
        "torch": str(torch.__version__) if torch is not None else None,
        "steps": report.steps,
        "steps_watched": report.steps_watched,
        "internal_errors": report.internal_errors,
        "ranks": report.world,
        "findings": [finding_dict(finding) for finding in report.findings],
        "repairs": [_repair_dict(repair) for repair in report.repairs],
        "time": _time_dict(report),
    }


def _time_dict(report: Report) -> dict[str, Any] | None:
    """The mean step, and what the lines of the findings cost, worst first; seconds."""
    time = report.time
    if time is None:
        return None
    costly = sorted((finding for finding in report.findings if finding.seconds), key=lambda f: -f.seconds)
    return {
        "steps": time.steps,
        "seconds_per_step": time.mean.total,
        "parts": dataclasses.asdict(time.mean),
        "device_busy": time.device,
        "estimated": time.estimated,
        "sites": [_site_cost(finding) for finding in costly],
    }


def _site_cost(finding: Finding) -> dict[str, Any]:
    site = finding.site
    return {
        "rule": finding.rule,
        "file": site.file if site else None,
        "line": site.line if site else None,
        "source": site.source if site else None,
        "count": finding.count,
        "seconds": finding.seconds,
        "estimated": finding.is_estimate,
    }


def finding_dict(finding: Finding) -> dict[str, Any]:
    """One finding as plain data."""
    site = finding.site
    return {
        "rule": finding.rule,
        "name": finding.name,
        "severity": finding.severity.value,
        "message": finding.message,
        "file": site.file if site else None,
        "line": site.line if site else None,
        "function": site.function if site else None,
        "source": site.source if site else None,
        "via": site.via if site else None,
        "subjects": [_subject_dict(subject) for subject in finding.subjects],
        "fix": finding.fix,
        "count": finding.count,
        "first_step": finding.first_step,
        "last_step": finding.last_step,
        "key": finding.key,
        "ranks": list(finding.ranks),
        "cost": {name: value if math.isfinite(value) else None for name, value in finding.cost},
    }


def _repair_dict(repair: Repair) -> dict[str, Any]:
    return {
        "rule": repair.rule,
        "name": repair.name,
        "what": repair.what,
        "file": repair.site.file if repair.site else None,
        "line": repair.site.line if repair.site else None,
        "old": repair.old,
        "new": repair.new,
        "count": repair.count,
        "copies": repair.copies,
        "bytes": repair.nbytes,
        "steps": repair.steps,
    }


def _subject_dict(subject: Subject) -> dict[str, Any]:
    return {
        "name": subject.name,
        "kind": subject.kind,
        "device": subject.device,
        "dtype": subject.dtype,
        "shape": list(subject.shape) if subject.shape is not None else None,
        "made_at": _site_dict(subject.made_at),
    }


def _site_dict(site: Site | None) -> dict[str, Any] | None:
    if site is None:
        return None
    return {"file": site.file, "line": site.line, "function": site.function, "source": site.source}


def write(report: Report, path: str | os.PathLike[str]) -> None:
    """Write the report to a file, replacing it in one move, so that a reader never sees half of it.

    Raises:
        OSError: the file cannot be written.
    """
    replace_text(path, json.dumps(as_dict(report), indent=1) + "\n")


def replace_text(path: str | os.PathLike[str], text: str) -> None:
    """Replace the content of a file in one move.

    What is there and is no plain file (``/dev/null``, a pipe) is written to as it is: putting a file in its place would
    take a device away from the whole machine.

    Raises:
        OSError: the file cannot be written.
    """
    target = pathlib.Path(path)
    if target.exists() and not target.is_file():
        with target.open("w", encoding="utf-8") as stream:
            stream.write(text)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        pathlib.Path(name).chmod(0o666 & ~mask)
        pathlib.Path(name).replace(target)
    except BaseException:
        pathlib.Path(name).unlink(missing_ok=True)
        raise
