"""SYN007: device tensors built from Python or host data at every step."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.backends.blocking import blocking_of
from deviceguard.backends.estimates import upload_seconds
from deviceguard.events import BatchFetched, RunEnded, Uploaded
from deviceguard.findings import Finding, Severity
from deviceguard.naming.attribution import Charge, charge
from deviceguard.naming.expressions import running_call, running_node
from deviceguard.naming.handled import handled
from deviceguard.rules.rule import on
from deviceguard.rules.syn.memory import BatchMemory, fingerprint
from deviceguard.rules.syn.site_rule import SiteRule
from deviceguard.rules.syn.sites import Tally

if TYPE_CHECKING:
    from types import FrameType

    from deviceguard.context import Context

_DRAWS = frozenset({"normal", "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"})
_FACTORIES = _DRAWS | {
    *("zeros", "ones", "full", "empty", "arange", "linspace", "logspace", "eye", "scalar_tensor"),
    *("zeros_like", "ones_like", "full_like", "tril_indices", "triu_indices", "hann_window"),
}
_MOVES = frozenset({"to", "cuda", "xpu"})
_CONSTANT_SHARE = 0.8
_LONGEST = 60


class HostDataUpload(SiteRule):
    """A device tensor is built from Python numbers or from a fresh host tensor at every step.

    What it does:
        Counts, for each line of the program, ``torch.tensor(number_or_list, device=...)``, tensors made on the host and
        moved at once (``torch.zeros(n).to(device)``), host data of unchanging content, and numbers written into device
        tensors (``x[0] = 1.0``). It reports a line that does it in nearly every step, with the bytes.

    Why it hurts:
        Each of these is a blocking copy from pageable memory: the host waits for the device, for data that could have
        been made on the device, or once before the loop.

    Example:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(10):
            hidden = torch.zeros(16, 8).to("cuda")
            loss = (net(hidden) - torch.tensor(0.5, device="cuda")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    Use instead:
        net = torch.nn.Linear(8, 1).to("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(10):
            hidden = torch.zeros(16, 8, device="cuda")
            loss = (net(hidden) - 0.5).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    When it stays silent:
        For batches, whose content is new at every step (from lists and arrays they are advice); for what a library
        uploads by itself; for a draw from a host generator that is named (``generator=``); outside of steps. Random
        numbers drawn on the host (``torch.randn(...).to(device)``) are advice, since they may stand for data or be
        drawn there to be the same on every device; so is all of it on devices that take uploads without waiting.

    Repair:
        None.

    References:
        https://github.com/pytorch/pytorch/issues/190217
        https://github.com/pytorch/pytorch/pull/186482
    """

    code: ClassVar[str] = "SYN007"
    name: ClassVar[str] = "host-data-upload"
    severity: ClassVar[Severity] = Severity.WARNING
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._batches = BatchMemory()

    @on(BatchFetched)
    def fetched(self, event: BatchFetched) -> None:
        """A batch is data, whatever it contains."""
        self._batches.take(event.batch)

    @on(Uploaded)
    def note(self, event: Uploaded) -> Iterator[Finding]:
        """An upload of data, of a number, or of a host tensor."""
        if event.kind == "index" or not event.nbytes:
            return
        charged = charge()
        if charged is None or (event.kind == "move" and not self._is_candidate(event)):
            return
        tally, is_new = self.sites.find(charged, event.call)
        if is_new:
            self._describe(tally, event, charged)
        self._compare(tally, event)
        self.sites.count(tally, event.nbytes, event.seconds, upload_seconds(event.nbytes))
        if (event.kind != "move" or self._is_needless(tally)) and self.sites.is_due(tally):
            yield self.told(tally)

    @on(RunEnded)
    def close(self, event: RunEnded) -> Iterator[Finding]:
        """The rest of the counts, and the lines of a run that only ran models."""
        for tally in self.sites.closing(self.loops * self.context.settings.min_steps):
            if tally.facts["kind"] != "move" or self._is_needless(tally):
                yield self.told(tally)

    def _is_candidate(self, event: Uploaded) -> bool:
        """A host tensor that is nobody's batch or parameter and lies in memory of its own."""
        source = event.source
        return not source.requires_grad and source.storage_offset() == 0 and source not in self._batches

    def _describe(self, tally: Tally, event: Uploaded, charged: Charge) -> None:
        node = running_node(charged.frame)
        made = _factory_moved(node)
        name = made or _name(event, charged.frame) or "a tensor"
        tally.subject = self.context.subjects.tensor(name, event.result)
        tally.instead = event.instead
        device = event.result.device.type
        tally.facts.update(kind=event.kind, made=made, number=_is_number(event), waits=blocking_of(device).uploads_wait)

    def _compare(self, tally: Tally, event: Uploaded) -> None:
        facts = tally.facts
        if event.kind == "move":
            facts["again"] = facts.get("again", 0) + _is_same_memory(event.source, facts.get("storage"))
            facts["storage"] = _reference(event.source)
        digest = fingerprint(event.source)
        if digest is not None and digest == facts.get("digest"):
            facts["same"] = facts.get("same", 0) + 1
        facts["digest"] = digest

    def _is_constant(self, tally: Tally) -> bool:
        return bool(tally.facts.get("same", 0) >= _CONSTANT_SHARE * max(1, tally.count - 1))

    def _is_needless(self, tally: Tally) -> bool:
        """Made on the host for nothing; memory that stays the same is SYN009's."""
        return not tally.facts.get("again") and (bool(tally.facts["made"]) or self._is_constant(tally))

    def gravity(self, tally: Tally) -> Severity:  # noqa: D102
        certain = tally.facts["number"] or tally.facts["kind"] == "write" or self._is_needless(tally)
        drawn = _is_draw(tally.facts["made"]) and not self._is_constant(tally)
        return super().gravity(tally) if certain and not drawn and tally.facts["waits"] else Severity.ADVICE

    def message(self, tally: Tally) -> str:  # noqa: D102
        subject = tally.subject
        name, device = (subject.name, subject.device) if subject is not None else ("a tensor", "the device")
        size = tally.nbytes // max(1, tally.count)
        same = ", always with the same content" if self._is_constant(tally) else ""
        return (
            f"{name} ({size:,} bytes) is uploaded to {device} from the host by {tally.call} {tally.how_often}{same}"
            + ("; each time the host waits" if tally.facts["waits"] else "")
        )

    def fix(self, tally: Tally) -> str:  # noqa: D102
        device = tally.subject.device if tally.subject is not None else "device"
        if tally.facts["made"]:
            return f"make it on the device: {tally.facts['made'].split('(')[0]}(..., device={device!r})"
        if tally.facts["kind"] == "write":
            return tally.instead or "write a value that is on the device already"
        if self._is_constant(tally):
            return "make it once before the loop and keep it on the device"
        return tally.instead or "build the batch in the loader, pin it and upload it with non_blocking=True"


def _factory_moved(node: ast.AST | None) -> str | None:
    """The text of ``torch.zeros(...)`` in ``torch.zeros(...).to(device)``; None for anything else."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in _MOVES:
        return None
    made = node.func.value
    if not isinstance(made, ast.Call) or any(keyword.arg == "generator" for keyword in made.keywords):
        return None
    name = made.func.attr if isinstance(made.func, ast.Attribute) else getattr(made.func, "id", "")
    return ast.unparse(made) if name in _FACTORIES else None


def _is_draw(made: str | None) -> bool:
    """True for ``torch.randn(...)`` and the like: noise that the device can draw, or made-up data."""
    return made is not None and made.split("(")[0].rpartition(".")[2] in _DRAWS


def _name(event: Uploaded, frame: FrameType) -> str | None:
    if event.kind == "move":
        return handled(event.source, frame)
    if event.kind == "write":
        return "a number" if isinstance(event.source, int | float) else handled(event.source, frame)
    text = running_call(frame)
    data = text.argument(0, "data") if text is not None else None
    return data if data is not None and len(data) <= _LONGEST else None


def _is_number(event: Uploaded) -> bool:
    return event.kind == "data" and isinstance(event.source, int | float | complex)


def _reference(source: Any) -> Any:
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(source.untyped_storage())


def _is_same_memory(source: Any, earlier: Any) -> bool:
    return earlier is not None and not earlier.expired() and earlier.cdata == source.untyped_storage()._cdata
