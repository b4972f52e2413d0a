"""DTY012: autocast runs in another dtype than the one the run is configured for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

from deviceguard.events import AutocastEntered
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.naming.frames import locals_of, site_of, user_frame
from deviceguard.rules.dty.dtypes import short
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    from deviceguard.context import Context

_NAME = re.compile(r"dtype|precision|^amp$|^amp_|_amp$", re.IGNORECASE)
_WORDS = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "bf16-mixed": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
    "half": "float16",
    "16-mixed": "float16",
    "torch.bfloat16": "bfloat16",
    "torch.float16": "float16",
}
_HALF = ("bfloat16", "float16")


class AutocastDtypeIgnored(Rule):
    """Autocast uses its default dtype while a setting of the run names another one.

    What it does:
        When a region is entered whose call names no dtype, looks for a setting in reach (a variable, an attribute of a
        configuration, an entry of a dictionary whose name speaks of dtype or precision) that names the other half
        precision.

    Why it hurts:
        The default is float16 on CUDA and bfloat16 on the CPU. A run that is labelled bfloat16 and does not pass the
        dtype on computes in float16 without anybody noticing.

    Example:
        amp_dtype = torch.bfloat16
        net = torch.nn.Linear(4, 4).to("cuda")
        with torch.autocast("cuda"):
            net(torch.randn(8, 4, device="cuda"))

    Use instead:
        amp_dtype = torch.bfloat16
        net = torch.nn.Linear(4, 4).to("cuda")
        with torch.autocast("cuda", dtype=amp_dtype):
            net(torch.randn(8, 4, device="cuda"))

    When it stays silent:
        When the call names a dtype, when no setting in reach speaks of one, and when the settings disagree.

    Repair:
        None is applied: the dtype is to be passed on.

    References:
        https://github.com/datawhalechina/happy-llm/pull/215
    """

    code: ClassVar[str] = "DTY012"
    name: ClassVar[str] = "autocast-dtype-ignored"
    severity: ClassVar[Severity] = Severity.ADVICE
    since: ClassVar[str] = "0.1.0"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._looked_at: set[tuple[str, int]] = set()

    @on(AutocastEntered)
    def entered(self, event: AutocastEntered) -> Iterator[Finding]:
        """A region begins."""
        frame = user_frame()
        used = short(event.dtype)
        if frame is None or not event.enabled or used not in _HALF:
            return
        place = (frame.f_code.co_filename, frame.f_lineno)
        if place in self._looked_at:
            return
        self._looked_at.add(place)
        if not _names_no_dtype(frame):
            return
        found = dict(_settings(frame))
        if found and used not in found.values():
            name, wanted = next(iter(found.items()))
            yield self.finding(
                f"{name} is {wanted}, but this autocast region computes in {used}, the default for "
                f"{event.device_type}: the setting is not passed on.",
                f"torch.autocast({event.device_type!r}, dtype={name if _is_dtype(frame, name) else 'torch.' + wanted})",
                [Subject(name, "setting", dtype=wanted), Subject("autocast", "region", dtype=used)],
                site=site_of(frame),
            )


def _names_no_dtype(frame: FrameType) -> bool:
    """True when the line enters a region with a call of autocast that gives no dtype."""
    from deviceguard.naming.provenance import statement_at

    statement = statement_at(frame)
    if not isinstance(statement, ast.With | ast.AsyncWith):
        return False
    calls = [node for item in statement.items for node in ast.walk(item.context_expr) if isinstance(node, ast.Call)]
    named = [call for call in calls if "autocast" in ast.unparse(call.func)]
    return bool(named) and not any(
        len(call.args) > 1 or any(_gives_dtype(keyword, frame) for keyword in call.keywords) for call in named
    )


def _gives_dtype(keyword: ast.keyword, frame: FrameType) -> bool:
    if keyword.arg is not None:
        return keyword.arg == "dtype"
    given = None  # **options
    if isinstance(keyword.value, ast.Name):
        given = locals_of(frame).get(keyword.value.id, frame.f_globals.get(keyword.value.id))
    return not isinstance(given, dict) or "dtype" in given


def _settings(frame: FrameType) -> Iterator[tuple[str, str]]:
    """(name, dtype) of the settings in reach of a frame."""
    for scope in (locals_of(frame), frame.f_globals):
        for name, value in list(scope.items()):
            if name.startswith("__"):
                continue
            if _NAME.search(name):
                dtype = _dtype_named(value)
                if dtype is not None:
                    yield name, dtype
            else:
                yield from _inside(name, value)


def _inside(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if type(value) is dict:
        entries: Mapping[Any, Any] = value
        pattern = "{}[{!r}]"
    elif isinstance(getattr(value, "__dict__", None), dict) and type(value).__name__ in _configurations(value):
        entries, pattern = vars(value), "{}.{}"
    else:
        return
    for key, item in list(entries.items())[:256]:
        if isinstance(key, str) and _NAME.search(key):
            dtype = _dtype_named(item)
            if dtype is not None:
                yield pattern.format(name, key), dtype


def _configurations(value: Any) -> frozenset[str]:
    """The class names under which settings are kept: name spaces, data classes, what calls itself so."""
    import dataclasses

    kind = type(value).__name__
    known = {"Namespace", "SimpleNamespace"}
    if dataclasses.is_dataclass(value) or re.search(r"config|cfg|args|settings|options", kind, re.IGNORECASE):
        known.add(kind)
    return frozenset(known)


def _dtype_named(value: Any) -> str | None:
    import torch

    if isinstance(value, torch.dtype):
        return short(value) if short(value) in _HALF else None
    return _WORDS.get(value.lower()) if isinstance(value, str) else None


def _is_dtype(frame: FrameType, name: str) -> bool:
    import torch

    return isinstance(locals_of(frame).get(name, frame.f_globals.get(name)), torch.dtype)
