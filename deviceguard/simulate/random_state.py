"""``torch.cuda.manual_seed`` and the random states of simulated devices.

A simulated device draws from the host's default generator, so that the numbers are those of a CPU run. Seeding the
device alone therefore changes nothing (a CPU run's stream would not change either); reading and setting the device's
state reads and sets the host's, so that saving and restoring it replays the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from deviceguard.simulate.state import running


def _state(device: Any = "cuda") -> torch.Tensor:
    return torch.get_rng_state()


def _set_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
    torch.set_rng_state(new_state)


def _states() -> list[torch.Tensor]:
    return [torch.get_rng_state() for _ in range(running().count())]


def _set_states(new_states: Iterable[torch.Tensor]) -> None:
    for state in new_states:
        torch.set_rng_state(state)


def _seeder() -> Callable[..., None]:
    """Seeding the device leaves the host's stream, which it shares, alone.

    Each name gets a function of its own: dynamo has a rule for each name and refuses one object under two rules.
    """

    def unchanged(*_: Any) -> None:
        pass

    return unchanged


def answers() -> dict[str, Callable[..., Any]]:
    """The functions, by name."""
    return {
        "manual_seed": _seeder(),
        "manual_seed_all": _seeder(),
        "seed": _seeder(),
        "seed_all": _seeder(),
        "initial_seed": torch.initial_seed,
        "get_rng_state": _state,
        "get_rng_state_all": _states,
        "set_rng_state": _set_state,
        "set_rng_state_all": _set_states,
    }
