"""One report of all ranks of a job, exchanged through ``torch.distributed``'s store in bounded size.

A rank publishes a finding when it is new, so that nothing is lost with a rank that dies. Of each finding (the same
rule at the same line) only the first ``_FULL`` ranks send the text; every further rank adds its number to a list. What
a rank sends depends on its own findings only, at most ``_MOST`` of them, and not on the number of ranks. Nothing goes
through the user's process groups: the store is a connection of our own to the rendezvous.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from deviceguard.findings import Finding, Severity, Site, Subject
from deviceguard.reports.destination import Destination
from deviceguard.reports.json_report import finding_dict
from deviceguard.reports.report import Report
from deviceguard.sources.patching import Patches

_PREFIX = "deviceguard/"
_FULL = 2
_MOST = 200
_LONGEST = 16_384
"""Bytes of one finding's text in the store."""
_PATIENCE = 10.0
"""Seconds the first rank waits at the end for the others."""
_PERIOD = 0.25
"""Seconds between two looks of the first rank."""
_TIMEOUT = datetime.timedelta(seconds=5)


class Ranks(Destination):
    """The findings of this rank to the store; on rank 0 those of all ranks from it.

    Args:
        report: of this rank; on rank 0 it becomes the report of all.
        changed: called on rank 0 when findings of other ranks have come.

    Attributes:
        rank: of this process; None where it has joined no job.
        published: True while what this rank has found is in the store.
    """

    def __init__(self, report: Report, changed: Callable[[], None]) -> None:
        self.rank: int | None = None
        self.published = False
        self._report = report
        self._changed = changed
        self._store: Any = None
        self._world = 1
        self._sent: set[str] = set()
        self._seen = 0
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._patches = Patches()

    def open(self) -> None:
        """Hear of the process group's beginning and end."""
        import torch

        if torch.distributed.is_available():
            for module in (torch.distributed, torch.distributed.distributed_c10d):
                self._patches.replace(module, "init_process_group", self._joining)
                self._patches.replace(module, "destroy_process_group", self._leaving)

    def _joining(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            with contextlib.suppress(Exception):
                if torch_rank() == 0:
                    self.join()  # the others connect when they have something to say
            return made

        return init_process_group

    def _leaving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):
                self.join()  # with the process group the way to the store is lost
                self._publish()
            return original(*args, **kwargs)

        return destroy_process_group

    def new(self, finding: Finding) -> None:  # noqa: D102
        self.join()
        self._publish()

    def join(self) -> bool:
        """Connect to the job's store if this process has joined one; True once it has."""
        if self._store is None:
            found = _default_store()
            if found is None:
                return False
            self.connect(*found)
        return True

    def connect(self, store: Any, rank: int, world: int) -> None:
        """Use a store.

        Args:
            store: a ``torch.distributed.Store`` that nobody else waits on.
            rank: of this process.
            world: number of ranks.
        """
        self._store, self.rank, self._world = store, rank, world
        self._ask(lambda store: store.add(_PREFIX + "joined", 1))
        if rank == 0:
            threading.Thread(target=self._watch, name="deviceguard-ranks", daemon=True).start()

    def close(self, report: Report) -> None:  # noqa: D102
        self._closed.set()
        self._patches.restore()
        if not self.join():
            return
        self._publish()
        if self.rank != 0:
            self._ask(lambda store: store.add(_PREFIX + "closed", 1))
        else:
            self._wait()
            self.gather()

    def gather(self) -> None:
        """Take what all ranks have published into the report of rank 0."""
        with self._lock:
            number = self._ask(lambda store: store.add(_PREFIX + "number", 0))
            for index in range(1, min(number or 0, _MOST * 8) + 1):
                found = self._ask(functools.partial(self._read, index))
                if found is not None:
                    self._report.combine(*found)
            self._report.world = self._world

    def _read(self, index: int, store: Any) -> tuple[Finding, tuple[int, ...]] | None:
        key = f"{_PREFIX}text/{index}"
        if not store.check([key]):
            return None  # the rank died between two words
        digest, text = json.loads(store.get(key))
        ranks = store.get(f"{_PREFIX}ranks/{digest}").decode().split(",")
        return finding_of(text), tuple(sorted({int(rank) for rank in ranks if rank}))

    def _publish(self) -> None:
        if self._store is None:
            return
        with self._lock:
            for finding in self._report.findings[:_MOST]:
                digest = digest_of(finding)
                if digest not in self._sent and len(self._sent) < _MOST and finding.is_of_this_rank:
                    self._sent.add(digest)
                    self._ask(functools.partial(self._send, digest, finding))

    def _send(self, digest: str, finding: Finding, store: Any) -> None:
        store.append(f"{_PREFIX}ranks/{digest}", f"{self.rank},")
        if store.add(f"{_PREFIX}times/{digest}", 1) <= _FULL:
            text = json.dumps([digest, finding_dict(finding)])
            if len(text) <= _LONGEST:
                store.set(f"{_PREFIX}text/{store.add(_PREFIX + 'number', 1)}", text)
        self.published = True

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """The store's answer; None, and no further question, once it does not answer."""
        if self._store is None:
            return None
        try:
            return question(self._store)
        except Exception:  # the rank that holds it is gone
            self._store, self.published = None, False
            return None

    def _watch(self) -> None:
        while not self._closed.wait(_PERIOD) and self._store is not None:
            number = self._ask(lambda store: store.add(_PREFIX + "number", 0))
            if number and number != self._seen:
                self._seen = number
                with contextlib.suppress(Exception):
                    self.gather()
                    self._changed()

    def _wait(self) -> None:
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            joined = self._ask(lambda store: store.add(_PREFIX + "joined", 0))
            closed = self._ask(lambda store: store.add(_PREFIX + "closed", 0))
            if joined is None or closed is None or closed >= joined - 1:
                return
            time.sleep(0.05)


def _default_store() -> tuple[Any, int, int] | None:
    """A connection of our own to the store of the default process group, with rank and number of ranks."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_world_size() < 2 or os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        return None  # the exchange is not proved yet for jobs that may restart
    from torch.distributed.distributed_c10d import _get_default_store

    store: Any = _get_default_store()
    while hasattr(store, "underlying_store"):  # prefixes that differ from one restart of a job to the next
        store = store.underlying_store
    own = store.clone()
    own.set_timeout(_TIMEOUT)
    return own, distributed.get_rank(), distributed.get_world_size()


def torch_rank() -> int:
    """The rank of this process in the default process group."""
    import torch

    return torch.distributed.get_rank()


def digest_of(finding: Finding) -> str:
    """What ranks know a finding by: 16 hexadecimal digits of rule, place and key."""
    return hashlib.sha256(repr(finding.identity).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def finding_of(fields: dict[str, Any]) -> Finding:
    """The finding that ``finding_dict`` made plain data of, as far as it is in there."""
    site = None
    if fields["file"] is not None:
        site = Site(fields["file"], fields["line"], fields["function"], fields["source"], fields["via"])
    return Finding(
        fields["rule"],
        fields["name"],
        Severity(fields["severity"]),
        fields["message"],
        fields["fix"],
        site=site,
        subjects=tuple(
            Subject(
                subject["name"],
                subject["kind"],
                subject["device"],
                subject["dtype"],
                tuple(subject["shape"]) if subject["shape"] is not None else None,
            )
            for subject in fields["subjects"]
        ),
        count=fields["count"],
        first_step=fields["first_step"],
        last_step=fields["last_step"],
        key=fields.get("key", ""),
    )
