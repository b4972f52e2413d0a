"""A file that grows by one line of JSON for each finding, to be followed while the job runs."""

from __future__ import annotations

import json
import os
import pathlib

from deviceguard.findings import Finding
from deviceguard.reports.destination import Destination
from deviceguard.reports.json_report import finding_dict


class JsonLines(Destination):
    """Appends to a file, which is opened for each line: it may be rotated or removed meanwhile.

    Each line is written by one call, so that several processes can share the file; ``process`` tells them apart.

    Args:
        path: the file.
    """

    def __init__(self, path: str) -> None:
        self._path = pathlib.Path(path)

    def new(self, finding: Finding) -> None:  # noqa: D102
        self._write(finding)

    def grown(self, finding: Finding) -> None:  # noqa: D102
        self._write(finding)

    def _write(self, finding: Finding) -> None:
        line = json.dumps({**finding_dict(finding), "process": os.getpid()}, ensure_ascii=False) + "\n"
        target = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(target, line.encode("utf-8", "backslashreplace"))
        finally:
            os.close(target)
