"""PIP005: a batch built element by element from a list of NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from deviceguard.events import ArraysConverted
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.naming.attribution import charge
from deviceguard.naming.expressions import running_call
from deviceguard.rules.rule import on
from deviceguard.rules.syn.site_rule import SiteRule
from deviceguard.rules.syn.sites import Tally

_OFTEN = 2
_MANY = 4


class ListOfArrays(SiteRule):
    """A tensor is built from a list of NumPy arrays, again and again.

    What it does:
        Counts ``torch.tensor`` and ``torch.as_tensor`` of a list or tuple of NumPy arrays for each line of the program,
        and reports a line that does it more than once.

    Why it hurts:
        PyTorch reads such a list number by number, through Python objects: hundreds of times slower than one copy of
        the same memory, while the device waits for the batch.

    Example:
        import numpy as np

        rows = [np.zeros(32, dtype=np.float32) for _ in range(64)]
        net = torch.nn.Linear(32, 1).to("cuda")
        for step in range(3):
            net(torch.tensor(rows).to("cuda")).sum().backward()

    Use instead:
        import numpy as np

        rows = [np.zeros(32, dtype=np.float32) for _ in range(64)]
        net = torch.nn.Linear(32, 1).to("cuda")
        for step in range(3):
            net(torch.from_numpy(np.stack(rows)).to("cuda")).sum().backward()

    When it stays silent:
        For a single conversion, for a few arrays only, for NumPy scalars, and on hosts without an accelerator (there
        PyTorch's own warning says it).

    Repair:
        None.

    References:
        https://github.com/Unity-Technologies/ml-agents/issues/5811
        https://github.com/pytorch/pytorch/issues/13918
        https://github.com/pfnet/pfrl/issues/189
    """

    code: ClassVar[str] = "PIP005"
    name: ClassVar[str] = "list-of-arrays"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    @on(ArraysConverted)
    def note(self, event: ArraysConverted) -> Iterator[Finding]:
        """A list of arrays became a tensor."""
        charged = charge() if event.count >= _MANY else None
        if charged is None:
            return
        tally, is_new = self.sites.find(charged, event.call)
        if is_new:
            text = running_call(charged.frame)
            tally.subject = Subject((text.argument(0) if text else None) or "a list of arrays", "list of arrays")
            tally.facts["arrays"] = event.count
        self.sites.count(tally, event.nbytes, event.seconds)
        if tally.count == _OFTEN:
            yield self.told(tally)

    def message(self, tally: Tally) -> str:  # noqa: D102
        name = tally.subject.name if tally.subject is not None else "a list"
        what = f"{name}, a list of {tally.facts['arrays']} NumPy arrays"
        return f"{tally.call} reads {what}, number by number, {tally.count} times"

    def fix(self, tally: Tally) -> str:  # noqa: D102
        name = tally.subject.name if tally.subject is not None and tally.subject.name.isidentifier() else "arrays"
        return f"torch.from_numpy(np.stack({name}))"
