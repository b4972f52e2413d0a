"""A small file that changes the guard of a running job: ``echo "off SYN001" > deviceguard.control``."""

from __future__ import annotations

import logging
import pathlib
import threading
from typing import TYPE_CHECKING

from deviceguard.errors import SettingsError
from deviceguard.rules.registry import expand

if TYPE_CHECKING:
    from deviceguard.session import Session

log = logging.getLogger("deviceguard")

_PERIOD = 1.0
"""Seconds between two looks at the file."""
_MOST = 4096
"""Bytes that are read of it."""


class Control:
    """Looks at the file from a thread of its own, so that a job that hangs can still be asked for its report.

    The file's lines are obeyed in order, each time the file has changed:

    - ``off``: the guard takes itself out of this run;
    - ``off SYN001 PIP``: these rules and families say nothing more; ``on`` is the reverse;
    - ``policy warn`` or ``policy strict``;
    - ``report``: the present report is written to its file, or shown on stderr where it has none.

    What was there before the run began is obeyed too. A line that cannot be obeyed is told to the log.

    Args:
        path: the file, which need not exist.
        session: whose guard it changes.
    """

    def __init__(self, path: str, session: Session) -> None:
        self._path = pathlib.Path(path)
        self._session = session
        self._seen: tuple[int, int, int] | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Look once, and then from the thread."""
        self.look()
        thread = threading.Thread(target=self._watch, name="deviceguard-control", daemon=True)
        try:
            thread.start()
        except RuntimeError as problem:  # no more threads, or the interpreter is ending
            log.warning("deviceguard cannot watch %s: %s", self._path, problem)

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()

    def look(self) -> None:
        """Obey the file if it has changed."""
        try:
            state = self._path.stat()
            seen = (state.st_mtime_ns, state.st_size, state.st_ino)
            if seen == self._seen:
                return
            self._seen = seen
            with self._path.open("rb") as file:
                lines = file.read(_MOST).decode("utf-8", "replace").splitlines()
        except OSError:
            return  # not there, or not there any more
        for line in lines:
            self._try(line.split("#")[0].split())

    def _watch(self) -> None:
        while not self._stopped.wait(_PERIOD):
            self.look()

    def _try(self, words: list[str]) -> None:
        if not words:
            return
        try:
            self._obey(words[0].lower(), words[1:])
        except Exception as problem:
            log.warning("deviceguard cannot do %r of %s: %s", " ".join(words), self._path, problem)
        else:
            log.info("deviceguard did %r of %s", " ".join(words), self._path)

    def _obey(self, word: str, rest: list[str]) -> None:
        engine = self._session.engine
        if word == "off":
            engine.switch_off(expand(rest) if rest else None)
        elif word == "on" and rest:
            engine.switch_on(expand(rest))
        elif word == "policy" and rest in (["off"], ["warn"], ["strict"]):
            if rest == ["off"]:
                engine.switch_off()
            else:
                self._session.change_policy(rest[0])
        elif word == "report":
            self._session.dump()
        else:
            raise SettingsError("known are off, off RULES, on RULES, policy off, policy warn, policy strict, report")
