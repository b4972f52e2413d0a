"""DEV009: a random generator on another device than the tensor it fills."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from deviceguard.backends.devices import backend_of, same
from deviceguard.events import CallFailed, Event, LoaderStarted
from deviceguard.findings import Finding, Severity, Subject
from deviceguard.naming.frames import locals_of
from deviceguard.naming.objects import variable_of
from deviceguard.naming.phrases import site_of_call
from deviceguard.remedies import DrawElsewhere, Remedy
from deviceguard.rules.rule import Rule, on

if TYPE_CHECKING:
    import torch


_EXPECTED = re.compile(r"Expected an? '(\w+)'")


class GeneratorDevice(Rule):
    """A random generator is on another device than the tensor it fills, or than the default device.

    What it does:
        Explains the refusal: which generator it is, where it is, and what asked for another one. A ``DataLoader`` that
        shuffles while the default device is an accelerator is the usual case: its sampler draws a permutation on the
        default device with a generator on the host.

    Why it hurts:
        The error comes from inside the sampler and names neither the loader nor ``set_default_device``.

    Example:
        import torch.utils.data

        data = torch.utils.data.TensorDataset(torch.randn(16, 4))
        with torch.device("cuda"):
            for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True):
                batch.sum()

    Use instead:
        import torch.utils.data

        data = torch.utils.data.TensorDataset(torch.randn(16, 4))
        for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True):
            batch.to("cuda").sum()

    When it stays silent:
        For a generator on the device it is used for, and for host generators of host samplers.

    Repair:
        None is applied: which of the two devices is meant is the program's to say.

    References:
        https://github.com/pytorch/pytorch/issues/98792
        https://github.com/pytorch/pytorch/issues/62152
    """

    code: ClassVar[str] = "DEV009"
    name: ClassVar[str] = "generator-device"
    severity: ClassVar[Severity] = Severity.ERROR
    since: ClassVar[str] = "0.1.0"

    @on(CallFailed)
    def explain(self, event: CallFailed) -> Iterator[Finding]:
        """A call that PyTorch refused."""
        if event.problem != "generator-device":
            return
        generator, in_sampler = _generator_in(event)
        default = _wanted(str(event.error)) or str(_default_device())
        where = str(generator.device) if generator is not None else "another device"
        subjects = []
        if in_sampler:
            message = (
                f"The sampler of the DataLoader draws on {default}, the default device, with a generator on {where}."
            )
            fix = (
                f"leave the default device on the CPU, or give the loader generator=torch.Generator(device={default!r})"
            )
            subjects.append(Subject("the sampler's generator", "generator", device=where))
        else:
            name = variable_of(generator, event.frame) or "the generator"
            message = f"{name} is on {where}, but {event.callee} fills a tensor on {_target(event, default)}."
            fix = f"make it there: torch.Generator(device={_target(event, default)!r})"
            subjects.append(Subject(name, "generator", device=where))
        yield self.finding(message, fix, subjects, site=site_of_call(event))

    def remedy(self, event: Event) -> Remedy | None:
        """A sampler draws on the host; elsewhere a generator on the wanted device, of the same seed, takes over."""
        if not isinstance(event, CallFailed):
            return None
        return DrawElsewhere(for_host=_generator_in(event)[1])

    @on(LoaderStarted)
    def started(self, event: LoaderStarted) -> Iterator[Finding]:
        """A loader begins to shuffle on a backend that takes the foreign generator silently."""
        import torch

        default = _default_device()
        backend = backend_of(default)
        if backend is None or backend.refuses_host_operands:
            return
        sampler = event.loader.sampler
        generator = getattr(sampler, "generator", None)
        if isinstance(sampler, torch.utils.data.RandomSampler) and (
            generator is None or not same(generator.device, default)
        ):
            yield self.finding(
                f"The sampler of the DataLoader draws its permutation on {default}, the default device, with a "
                "generator on the host.",
                "leave the default device on the CPU while loaders are iterated",
                [Subject("the sampler's generator", "generator", device="cpu")],
            )


def _generator_in(event: CallFailed) -> tuple[torch.Generator | None, bool]:
    """The generator of the refused call, and whether a sampler made the call."""
    import torch

    found: torch.Generator | None = None
    in_sampler = False
    entry = event.traceback
    inside = False
    while entry is not None:
        frame = entry.tb_frame
        inside = inside or frame is event.frame
        if inside:
            in_sampler = in_sampler or "data/sampler" in frame.f_code.co_filename.replace("\\", "/")
            candidates = [value for value in locals_of(frame).values() if isinstance(value, torch.Generator)]
            found = candidates[0] if candidates else found
        entry = entry.tb_next
    return found, in_sampler


def _wanted(text: str) -> str | None:
    match = _EXPECTED.search(text)
    return match.group(1) if match else None


def _target(event: CallFailed, default: str) -> str:
    return str(event.operands[0].tensor.device) if event.operands else default


def _default_device() -> torch.device:
    import torch

    return torch.get_default_device()
