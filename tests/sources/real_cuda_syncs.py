"""Runs each form on a CUDA device, or on PyTorch's CUDA build over a runtime that does nothing, and prints as JSON what
PyTorch reported and what we saw: ``{form: [reports, kinds seen, error, reports we added]}``.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


def measure() -> dict[str, list[object]]:
    """Each form twice: under PyTorch's own reports, and under all of our sources."""
    import torch

    from deviceguard.events import HostRead
    from deviceguard.sources.reported_syncs import ReportedSyncs
    from tests.sources.sync_forms import READS, SILENT, UPLOADS, WAITS, Things, captured, kind_of

    torch.backends.cudnn.enabled = False
    forms = {name: form for table in (READS, UPLOADS, WAITS) for name, (_, form) in table.items()} | SILENT
    outcomes: dict[str, list[object]] = {}
    for name, form in forms.items():
        if name in sys.argv[1:]:
            continue
        outcomes[name] = []
        things = Things()
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            error = ""
            try:
                form(things)
            except Exception as problem:
                error = f"{type(problem).__name__}: {problem}".splitlines()[0]
            torch.cuda.set_sync_debug_mode("default")
        reports = sum("synchronizing" in str(warning.message) for warning in shown)
        with captured(None) as events:
            source = ReportedSyncs(events.append)
            source.wanted = frozenset({HostRead})
            source.install()
            things = Things()
            events.clear()
            try:
                form(things)
            except Exception:
                pass
            finally:
                source.uninstall()
        added = sum(getattr(event, "call", "") in ("a call", "backward()") for event in events)
        outcomes[name] = [reports, sorted({kind_of(event) for event in events}), error, added]
    return outcomes


if __name__ == "__main__":
    print(json.dumps(measure()))
    sys.stdout.flush()
    os._exit(0)  # over a runtime that does nothing, the end of the process may abort
