"""Runs a program under the guard and ends as the program would have ended."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from types import TracebackType

from deviceguard.cli.target import Target
from deviceguard.cli.tracebacks import without_guard
from deviceguard.session import Session
from deviceguard.settings import Settings


class Supervision:
    """The run of one program.

    Args:
        settings: the settings in force.
        quiet: True for no summary at the end.
    """

    def __init__(self, settings: Settings, quiet: bool = False) -> None:
        self._settings = settings
        self._quiet = quiet

    def run(self, find: Callable[[], Target], arguments: list[str]) -> None:
        """Run the program; returns, or raises, what it ends with.

        Args:
            find: finds the program.
            arguments: its arguments, without ``sys.argv[0]``.
        """
        target = find()
        sys.argv[:] = [target.argument, *arguments]
        if target.folder is not None:
            sys.path[0:1] = [target.folder]
        main = target.module()
        self._previous_main = sys.modules["__main__"]
        sys.modules["__main__"] = main
        with contextlib.ExitStack() as stack:
            if self._settings.simulate is not None:
                from deviceguard.simulate import simulate

                stack.enter_context(simulate(self._settings.simulate))
            self._session = Session(self._settings)
            self._session.open()
            ending = _ending_of(lambda: exec(target.code, main.__dict__))
            ending = self._close(ending)
        self._end(ending)

    def _close(self, ending: BaseException | None) -> BaseException | None:
        """Close the session; what the program now ends with."""
        _wait_for_threads()
        failure = None if _is_success(ending) else ending
        raised = _ending_of(lambda: self._session.close(failure))
        return ending if raised is None else raised

    def _end(self, ending: BaseException | None) -> None:
        if ending is None:
            self._summarize()
            return
        if isinstance(ending, SystemExit):
            _say_exit(ending)
            self._summarize()
            raise ending
        without_guard(ending)
        hook, shown = sys.excepthook, ending.__traceback__

        def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
            if error is not ending:
                hook(kind, error, traceback)
                return
            hook(kind, error.with_traceback(shown), shown)
            self._summarize()

        sys.excepthook = show
        raise ending

    def _summarize(self) -> None:
        if self._quiet or self._settings.policy == "off":
            return
        from deviceguard.reports.terminal import show

        sys.stdout.flush()
        show(self._session.report, sys.stderr)


def _ending_of(action: Callable[[], object]) -> BaseException | None:
    try:
        action()
    except BaseException as error:
        return error
    return None


def _is_success(ending: BaseException | None) -> bool:
    return ending is None or (isinstance(ending, SystemExit) and ending.code in (None, 0))


def _wait_for_threads() -> None:
    """Wait, as Python does at its end, for the threads that are not daemons."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _say_exit(ending: SystemExit) -> None:
    """Print the text of ``sys.exit("text")`` as Python does, and leave its exit status."""
    if ending.code is None or isinstance(ending.code, int):
        return
    sys.stdout.flush()
    print(ending.code, file=sys.stderr)
    ending.code = 1
