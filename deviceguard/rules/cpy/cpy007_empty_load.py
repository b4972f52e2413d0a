"""CPY007: ``load_state_dict(strict=False)`` that matched nothing, or next to nothing."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import ModuleCalled, ModuleStateLoaded, RunEnded
from deviceguard.findings import Finding, Severity
from deviceguard.naming.frames import user_site
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from torch import nn

LITTLE = 0.1
"""Share of keys below which next to nothing matched, of the state's and of the module's."""

PREFIXES = ("module.", "model.", "_orig_mod.", "net.", "backbone.", "encoder.", "state_dict.")


@dataclasses.dataclass(slots=True)
class _Empty:
    """A load that matched nothing, reported when the module is used without a better one."""

    module: weakref.ref[nn.Module]
    finding: Finding


class EmptyLoad(Rule):
    """``load_state_dict(strict=False)`` matches none of the keys, or next to none.

    What it does:
        Compares the keys of the state with those of the module. When hardly any matches, and the module is run without
        another load, it says why: a prefix, or a dictionary that holds the state under another key.

    Why it hurts:
        ``strict=False`` says nothing. The "pretrained" model is random.

    Example:
        net = torch.nn.Linear(4, 1).to("cuda")
        state = {"module.weight": torch.zeros(1, 4), "module.bias": torch.zeros(1)}
        net.load_state_dict(state, strict=False)
        net(torch.ones(8, 4, device="cuda"))

    Use instead:
        net = torch.nn.Linear(4, 1).to("cuda")
        state = {"module.weight": torch.zeros(1, 4), "module.bias": torch.zeros(1)}
        net.load_state_dict({key.removeprefix("module."): value for key, value in state.items()})
        net(torch.ones(8, 4, device="cuda"))

    When it stays silent:
        For partial states all of whose keys match (adapters, a backbone), states that fill the whole module, an empty
        state, and a first attempt that is followed by one that matches.

    Repair:
        The prefix is removed and the state loaded again.

    References:
        https://github.com/pytorch/examples/issues/1029
        https://github.com/pytorch/pytorch/issues/141256
    """

    code: ClassVar[str] = "CPY007"
    name: ClassVar[str] = "empty-load"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._empty: list[_Empty] = []

    @on(ModuleStateLoaded)
    def loaded(self, event: ModuleStateLoaded) -> None:
        """Did anything match?"""
        parts = {id(part) for part in event.module.modules()}
        own = set(event.module.state_dict().keys())
        matched = len(own & set(event.state))
        little = matched < LITTLE * len(event.state) and matched < LITTLE * len(own)
        if event.strict or not event.state or not own or not little:
            self._empty = [e for e in self._empty if (module := e.module()) is None or id(module) not in parts]
            return
        self._empty = [*self._empty[-20:], _Empty(weakref.ref(event.module), self._finding(event, own, matched))]

    @on(ModuleCalled)
    def called(self, event: ModuleCalled) -> Iterator[Finding]:
        """It is used as it is."""
        if not event.is_root or not self._empty:
            return
        parts = {id(part) for part in event.module.modules()}
        for empty in list(self._empty):
            if id(empty.module()) in parts:
                self._empty.remove(empty)
                yield empty.finding

    @on(RunEnded)
    def end(self, event: RunEnded) -> Iterator[Finding]:
        """Never put right."""
        yield from (empty.finding for empty in self._empty)

    def _finding(self, event: ModuleStateLoaded, own: set[str], matched: int) -> Finding:
        subject = self.context.subjects.model(event.module)
        why, fix = _reason(event.state, own, subject.name)
        return self.finding(
            f"{subject.name}.load_state_dict(strict=False) matched {matched} of {len(event.state)} keys: "
            f"{subject.name} keeps its own weights.\n{why}",
            fix,
            [subject],
            site=user_site(),
            key=subject.name,
        )


def _reason(state: Mapping[str, Any], own: set[str], name: str) -> tuple[str, str]:
    """Why the keys differ, and the edit."""
    for key, value in state.items():
        if isinstance(value, Mapping) and own & set(value):
            return f"The state lies under the key {key!r}.", f"{name}.load_state_dict(state[{key!r}])"
    keys = [key for key in state if isinstance(key, str)]
    for prefix in dict.fromkeys((*PREFIXES, *(key.partition(".")[0] + "." for key in keys[:1]))):
        if own & {key.removeprefix(prefix) for key in keys if key.startswith(prefix)}:
            fix = f"{{k.removeprefix({prefix!r}): v for k, v in state.items()}}"
            return f"Its keys begin with {prefix!r}.", f"{name}.load_state_dict({fix})"
        if any(key.startswith(prefix) for key in own) and {prefix + key for key in keys} & own:
            fix = f"{{{prefix!r} + k: v for k, v in state.items()}}"
            return f"Its keys lack the prefix {prefix!r}.", f"{name}.load_state_dict({fix})"
    first = next(iter(keys), "")
    return (
        f"It has keys such as {first!r}, the module such as {min(own)!r}.",
        "rename the keys, and check missing_keys and unexpected_keys of what load_state_dict returns",
    )
