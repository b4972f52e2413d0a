"""``DEVICEGUARD=warn python train.py``: the guard with no change in the code.

PyTorch loads every entry point of the group ``torch.backends`` at the end of ``import torch``, in spawned
processes too.
Ours reads the environment and returns at once where nothing is asked of it. It never raises: an exception here would
break the user's ``import torch``. That is also why this file imports nothing of the package before it is asked for
something: a package that is half removed costs a line on stderr.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_OFF = frozenset({"", "0", "off"})


def start_from_environment() -> None:
    """The entry point. Opens what ``DEVICEGUARD`` and ``DEVICEGUARD_SIMULATE`` ask for, for the life of the process."""
    policy = os.environ.get("DEVICEGUARD", "")
    device = os.environ.get("DEVICEGUARD_SIMULATE", "")
    if policy in _OFF and not device:
        return
    try:
        _start(policy, device)
    except Exception as problem:
        _say(problem)


def _start(policy: str, device: str) -> None:
    if device:
        from deviceguard.simulate import enter_from_environment

        enter_from_environment()
    if policy in _OFF or "deviceguard.cli.run" in sys.modules:
        return
    from deviceguard.standing import STANDING

    STANDING.start({})
    _leave_loader_workers_alone()


def _leave_loader_workers_alone() -> None:
    """A spawned DataLoader worker imports torch too; the guard goes when its loop begins.

    The worker's loop is looked up by name after torch was imported, so it can be wrapped in the child alone.
    """
    import functools
    import multiprocessing

    being_spawned = getattr(multiprocessing.current_process(), "_inheriting", False)
    if multiprocessing.parent_process() is None and not being_spawned:
        return
    from torch.utils.data._utils import worker

    from deviceguard.standing import STANDING

    loop = worker._worker_loop

    @functools.wraps(loop)
    def unguarded(*args: Any, **kwargs: Any) -> Any:
        STANDING.leave()
        return loop(*args, **kwargs)

    worker._worker_loop = unguarded


def _say(problem: Exception) -> None:
    try:
        print(f"deviceguard stays off: {' '.join(str(problem).split()) or repr(problem)}", file=sys.stderr)
    except Exception:
        pass  # nobody to tell; the job matters more
