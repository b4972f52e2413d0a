"""What makes the host wait, form by form: every form below was measured on PyTorch's own CUDA build."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import deviceguard
from deviceguard.events import (
    ArraysConverted,
    CacheEmptied,
    CopyQueued,
    Event,
    HostRead,
    Synchronized,
    UnsettledAccess,
    Uploaded,
)
from deviceguard.sources.calls import Calls
from deviceguard.sources.synchronisation import Synchronisation

WATCHED: tuple[type[Event], ...] = (
    HostRead,
    Uploaded,
    CopyQueued,
    UnsettledAccess,
    Synchronized,
    CacheEmptied,
    ArraysConverted,
)


class Things:
    """Tensors for the forms, made on the simulated device."""

    def __init__(self) -> None:
        self.x = torch.randn(6, device="cuda")
        self.m = torch.rand(4, 3, device="cuda")
        self.mask = self.x > 0
        self.index = torch.tensor([0, 2, 3]).to("cuda")
        self.t = torch.tensor(2).to("cuda")
        self.v = torch.tensor(0.5).to("cuda")
        self.square = torch.eye(3, device="cuda") + self.m[:3] * 0.1
        self.host = torch.randn(6)


@contextlib.contextmanager
def captured(device: str = "cuda") -> Iterator[list[Event]]:
    """The events of the block, under simulation."""
    events: list[Event] = []
    sources = [Calls(events.append), Synchronisation(events.append)]
    with deviceguard.simulate(device):
        for source in sources:
            source.wanted = frozenset(WATCHED)
            source.install()
        try:
            yield events
        finally:
            for source in reversed(sources):
                source.uninstall()


def seen(form: Callable[[Things], Any]) -> list[str]:
    """The families and kinds of what a form does, each once, sorted."""
    with captured() as events:
        things = Things()
        events.clear()
        form(things)
        return sorted({kind_of(event) for event in events})


def kind_of(event: Event) -> str:
    if isinstance(event, HostRead):
        return event.family
    if isinstance(event, Uploaded):
        return event.kind
    return type(event).__name__


def _set(target: Any, index: Any, value: Any) -> None:
    target[index] = value


READS: dict[str, tuple[str, Callable[[Things], Any]]] = {
    "item": ("scalar", lambda a: a.v.item()),
    "float": ("scalar", lambda a: float(a.v)),
    "int": ("scalar", lambda a: int(a.t)),
    "complex": ("scalar", lambda a: complex(a.v)),
    "tolist": ("scalar", lambda a: a.x.tolist()),
    "math function": ("scalar", lambda a: __import__("math").sqrt(a.v)),
    "if": ("branch", lambda a: 1 if a.v > 0 else 0),
    "not": ("branch", lambda a: not a.v),
    "is_nonzero method": ("branch", lambda a: a.v.is_nonzero()),
    "is_nonzero": ("branch", lambda a: torch.is_nonzero(a.v)),
    "builtin max": ("branch", lambda a: max(a.x[0], a.x[1])),
    "contains": ("branch", lambda a: 0.5 in a.x),
    "list contains": ("branch", lambda a: a.v in [a.x[1]]),
    "equal": ("branch", lambda a: torch.equal(a.x, a.x + 1)),
    "allclose": ("branch", lambda a: torch.allclose(a.x, a.x + 1)),
    "assert": ("branch", lambda a: torch._assert(a.v > 0, "positive")),
    "f-string of a scalar": ("format", lambda a: f"{a.v:.3f}"),
    "f-string of a tensor": ("format", lambda a: f"{a.x}"),
    "str": ("format", lambda a: str(a.x)),
    "percent s": ("format", lambda a: "%s" % a.x),  # noqa: UP031
    "cpu": ("copy", lambda a: a.x.cpu()),
    "to cpu": ("copy", lambda a: a.x.to("cpu")),
    "to a host tensor": ("copy", lambda a: a.x.to(a.host)),
    "type": ("copy", lambda a: a.x.type(torch.FloatTensor)),
    "type_as": ("copy", lambda a: a.x.type_as(a.host)),
    "copy_ to the host": ("copy", lambda a: a.host.copy_(a.x)),
    "copy_ to pageable memory": ("copy", lambda a: a.host.copy_(a.x, non_blocking=True)),
    "numpy by force": ("copy", lambda a: a.x.numpy(force=True)),
    "state dict": ("copy", lambda a: {k: v.cpu() for k, v in nn.Linear(2, 2).to("cuda").state_dict().items()}),
    "boolean mask": ("shape", lambda a: a.x[a.mask]),
    "mask with device value": ("shape", lambda a: _set(a.x, a.mask, a.v)),
    "index_put_ by mask": ("shape", lambda a: a.x.index_put_((a.mask,), a.v)),
    "nonzero": ("shape", lambda a: torch.nonzero(a.x)),
    "nonzero method": ("shape", lambda a: a.x.nonzero()),
    "argwhere": ("shape", lambda a: torch.argwhere(a.x)),
    "masked_select": ("shape", lambda a: torch.masked_select(a.x, a.mask)),
    "where of a condition": ("shape", lambda a: torch.where(a.mask)),
    "unique": ("shape", lambda a: torch.unique(a.index)),
    "unique by dim": ("shape", lambda a: torch.unique(a.m, dim=0)),
    "unique method": ("shape", lambda a: a.index.unique()),
    "unique_consecutive": ("shape", lambda a: torch.unique_consecutive(a.index)),
    "bincount": ("shape", lambda a: torch.bincount(a.index, minlength=5)),
    "histc": ("shape", lambda a: torch.histc(a.x, 4)),
    "repeat_interleave": ("shape", lambda a: torch.repeat_interleave(a.index, a.index)),
    "one_hot": ("shape", lambda a: F.one_hot(a.index)),
    "isin, many": ("shape", lambda a: torch.isin(a.x, torch.randn(64, device="cuda"))),
    "mode": ("shape", lambda a: torch.mode(a.x)),
    "to_sparse": ("shape", lambda a: a.m.to_sparse()),
    "index by device scalar": ("number", lambda a: a.x[a.t]),
    "slice by device scalar": ("number", lambda a: a.x[: a.t]),
    "write by device scalar": ("number", lambda a: _set(a.x, a.t, a.v)),
    "alpha": ("number", lambda a: a.x.sub(a.x, alpha=a.v)),
    "alpha of torch.add": ("number", lambda a: torch.add(a.x, a.x, alpha=a.v)),
    "foreach alpha": ("number", lambda a: torch._foreach_add([a.x], [a.x], alpha=a.v)),
    "range": ("number", lambda a: list(range(a.t))),
    "list index": ("number", lambda a: [1, 2, 3][a.t]),
    "view": ("number", lambda a: a.x.view(a.t, 3)),
    "zeros": ("number", lambda a: torch.zeros(a.t)),
    "full": ("number", lambda a: torch.full((2,), a.v)),
    "full_like": ("number", lambda a: torch.full_like(a.x, a.v)),
    "arange": ("number", lambda a: torch.arange(a.t)),
    "linspace": ("number", lambda a: torch.linspace(0, a.v, 3)),
    "randint": ("number", lambda a: torch.randint(a.t, (2,))),
    "uniform_": ("number", lambda a: a.x.uniform_(0, a.v)),
    "roll": ("number", lambda a: torch.roll(a.x, a.t)),
    "narrow": ("number", lambda a: a.x.narrow(0, a.t, 1)),
    "clamp of both kinds": ("number", lambda a: torch.clamp(a.x, min=a.v, max=1.0)),
    "masked_fill by a tensor": ("number", lambda a: a.x.masked_fill(a.mask, a.v)),
    "index_fill by a tensor": ("number", lambda a: a.x.index_fill_(0, a.index, a.v)),
    "leaky_relu": ("number", lambda a: F.leaky_relu(a.x, a.v)),
    "tensor of tensors": ("number", lambda a: torch.tensor([a.v, a.v])),
    "inv": ("check", lambda a: torch.linalg.inv(a.square)),
    "solve": ("check", lambda a: torch.linalg.solve(a.square, a.square)),
    "cholesky": ("check", lambda a: torch.linalg.cholesky(a.square @ a.square.T)),
    "svd": ("check", lambda a: torch.linalg.svd(a.square)),
    "eigh": ("check", lambda a: torch.linalg.eigh(a.square + a.square.T)),
    "spectral norm": ("check", lambda a: torch.linalg.matrix_norm(a.square, 2)),
    "cov": ("check", lambda a: torch.cov(a.m)),
    "gaussian_nll_loss": ("check", lambda a: F.gaussian_nll_loss(a.x, a.x, a.x.abs())),
    "weighted and smoothed": (
        "check",
        lambda a: F.cross_entropy(
            a.m, a.index.new_tensor([0, 1, 2, 0]), torch.ones(3, device="cuda"), label_smoothing=0.1
        ),
    ),
    "searchsorted with sorter": ("check", lambda a: torch.searchsorted(a.x, a.x, sorter=a.x.argsort())),
}

UPLOADS: dict[str, tuple[str, Callable[[Things], Any]]] = {
    "to": ("move", lambda a: a.host.to("cuda")),
    "cuda": ("move", lambda a: a.host.cuda()),
    "to without waiting": ("move", lambda a: a.host.to("cuda", non_blocking=True)),
    "pinned but blocking": ("move", lambda a: a.host.pin_memory().to("cuda")),
    "copy_ to the device": ("move", lambda a: a.x.copy_(a.host)),
    "from_numpy": ("move", lambda a: torch.from_numpy(a.host.numpy()).to("cuda")),
    "tensor of a number": ("data", lambda a: torch.tensor(3.0, device="cuda")),
    "tensor of a list": ("data", lambda a: torch.tensor([1.0, 2.0], device="cuda")),
    "as_tensor of a list": ("data", lambda a: torch.as_tensor([1.0, 2.0], device="cuda")),
    "as_tensor of an array": ("data", lambda a: torch.as_tensor(a.host.numpy(), device="cuda")),
    "new_tensor": ("data", lambda a: a.x.new_tensor([1.0])),
    "host index": ("index", lambda a: a.x[torch.tensor([0, 2])]),
    "list index": ("index", lambda a: a.x[[0, 2]]),
    "array index": ("index", lambda a: a.x[torch.tensor([0, 2]).numpy()]),
    "host mask": ("index", lambda a: a.x[torch.tensor([True] * 6)]),
    "number into one place": ("write", lambda a: _set(a.x, 0, 1.0)),
    "number into one place of two dimensions": ("write", lambda a: _set(a.m, (0, 0), 1.0)),
    "number by index": ("write", lambda a: _set(a.x, a.index, 1.0)),
    "host tensor into a slice": ("write", lambda a: _set(a.x, slice(None), a.host)),
    "unravel_index": ("write", lambda a: torch.unravel_index(a.index, (2, 3))),
}

WAITS: dict[str, tuple[str, Callable[[Things], Any]]] = {
    "synchronize": ("Synchronized", lambda a: torch.cuda.synchronize()),
    "accelerator synchronize": ("Synchronized", lambda a: torch.accelerator.synchronize()),
    "current stream": ("Synchronized", lambda a: torch.cuda.current_stream().synchronize()),
    "stream": ("Synchronized", lambda a: torch.cuda.Stream().synchronize()),
    "event": ("Synchronized", lambda a: torch.cuda.Event().synchronize()),
    "empty_cache": ("CacheEmptied", lambda a: torch.cuda.empty_cache()),
}

SILENT: dict[str, Callable[[Things], Any]] = {
    "index by int, None, ellipsis": lambda a: (a.x[1], a.x[None], a.x[...]),
    "device index": lambda a: a.x[a.index],
    "slices": lambda a: a.x[1:3],
    "number into a row": lambda a: _set(a.m, 0, 1.0),
    "number into a slice": lambda a: _set(a.x, slice(0, 2), 1.0),
    "number everywhere": lambda a: _set(a.x, ..., 1.0),
    "number by mask": lambda a: _set(a.x, a.mask, 1.0),
    "device value by index": lambda a: _set(a.x, a.index, a.v),
    "device scalar into one place": lambda a: _set(a.x, 0, a.v),
    "facts": lambda a: (a.x.shape, a.x.size(), a.x.numel(), a.x.stride(), len(a.x), a.x.dim(), a.x.dtype, a.x.device),
    "iteration": lambda a: list(a.m),
    "hash": lambda a: {a.x: 1},
    "deepcopy and clone": lambda a: (__import__("copy").deepcopy(a.x), a.x.clone(), a.x.detach()),
    "sum of a list": lambda a: sum([a.v, a.v]),
    "fill_": lambda a: (a.x.fill_(1.0), a.x.fill_(a.v)),
    "factories": lambda a: (
        torch.full((2,), 1.0, device="cuda"),
        torch.zeros(2, device="cuda"),
        torch.arange(3, device="cuda"),
        torch.randperm(3, device="cuda"),
    ),
    "where of three": lambda a: torch.where(a.mask, a.x, 0.0),
    "masked_fill by a number": lambda a: a.x.masked_fill(a.mask, 0.0),
    "count_nonzero": lambda a: torch.count_nonzero(a.x),
    "gather and scatter": lambda a: (a.x.gather(0, a.index), a.x.index_add_(0, a.index, a.x[a.index])),
    "clamp of one kind": lambda a: (torch.clamp(a.x, 0.0, 1.0), torch.clamp(a.x, min=a.v, max=a.v + 1)),
    "arithmetic with device scalars": lambda a: (torch.lerp(a.x, a.x, a.v), a.x * a.v, a.x**a.v),
    "host scalar operand": lambda a: a.x + torch.tensor(1.0),
    "random": lambda a: (torch.multinomial(a.x.abs(), 2), torch.bernoulli(a.x.sigmoid())),
    "sorting": lambda a: (a.x.sort(), a.x.argsort(), a.x.topk(2), a.x.median(), a.x.cumsum(0)),
    "isclose without bool": lambda a: torch.isclose(a.x, a.x).all(),
    "one_hot with classes": lambda a: F.one_hot(a.index, 5),
    "histc with range": lambda a: torch.histc(a.x, 4, min=-1, max=1),
    "repeat_interleave with size": lambda a: torch.repeat_interleave(a.index, a.index, output_size=5),
    "cross_entropy": lambda a: F.cross_entropy(a.m, a.index.new_zeros(4), label_smoothing=0.1),
    "embedding": lambda a: nn.Embedding(5, 2).cuda() and None,
    "attention": lambda a: F.scaled_dot_product_attention(*([a.m[None]] * 3)),
    "linalg without checks": lambda a: (torch.linalg.qr(a.square), torch.linalg.inv_ex(a.square)),
    "clip_grad_norm_": lambda a: nn.utils.clip_grad_norm_([a.x.detach().requires_grad_()], 1.0),
    "backward": lambda a: (a.x.detach().requires_grad_() * 2).sum().backward(),
    "events and streams": lambda a: (
        torch.cuda.Event().record(),
        torch.cuda.Stream().wait_stream(torch.cuda.current_stream()),
    ),
    "memory questions": lambda a: (torch.cuda.memory_allocated(), torch.cuda.mem_get_info()),
    "between devices of one kind": lambda a: a.x.to("cuda:0"),
    "stack": lambda a: torch.stack([a.v, a.v]),
    "item of a host tensor": lambda a: (a.host[0].item(), float(a.host.sum()), bool(a.host.sum() > 0), a.host.numpy()),
}

#: Moves parameters or uploads by design, which is not what the form is about.
_SET_UP = frozenset({"embedding"})


@pytest.mark.parametrize("name", READS)
def test_read_is_seen(name):
    family, form = READS[name]

    assert family in seen(form)


@pytest.mark.parametrize("name", UPLOADS)
def test_upload_is_seen(name):
    kind, form = UPLOADS[name]

    assert kind in seen(form)


@pytest.mark.parametrize("name", WAITS)
def test_wait_is_seen(name):
    kind, form = WAITS[name]

    assert seen(form) == [kind]


@pytest.mark.parametrize("name", [name for name in SILENT if name not in _SET_UP])
def test_harmless_form_is_silent(name):
    assert seen(SILENT[name]) == []


def test_pinned_upload_without_waiting_is_a_queued_copy():
    with captured() as events:
        pinned = torch.randn(4).pin_memory()
        events.clear()
        pinned.to("cuda", non_blocking=True)

    assert [kind_of(event) for event in events] == ["move", "CopyQueued"]
    assert events[0].pinned
    assert events[0].non_blocking


def test_download_without_waiting_is_a_queued_copy_and_no_read():
    with captured() as events:
        x = torch.randn(4, device="cuda")
        events.clear()
        x.to("cpu", non_blocking=True)

    assert [kind_of(event) for event in events] == ["CopyQueued"]


def test_list_of_arrays():
    import numpy as np

    with captured() as events:
        torch.tensor([np.zeros(3), np.zeros(3)])

    assert [kind_of(event) for event in events] == ["ArraysConverted"]


def test_hooks_inside_backward_are_seen():
    with captured() as events:
        weight = torch.randn(3, device="cuda", requires_grad=True)
        weight.register_hook(lambda gradient: gradient.sum().item() and None)
        loss = (weight * 2).sum()
        events.clear()
        loss.backward()

    assert [kind_of(event) for event in events] == ["scalar"]


def test_checkpoint_recomputation_is_seen():
    from torch.utils.checkpoint import checkpoint

    def block(x):
        x.sum().item()
        return x.sin()

    with captured() as events:
        x = torch.randn(3, device="cuda", requires_grad=True)
        loss = checkpoint(block, x, use_reentrant=False).sum()
        events.clear()
        loss.backward()

    assert "scalar" in [kind_of(event) for event in events]


def test_a_call_counts_once():
    with captured() as events:
        x = torch.randn((), device="cuda")
        events.clear()
        x.item()
        f"{x:.3f}"
        print(x)

    assert [kind_of(event) for event in events] == ["scalar", "format", "format"]


def test_what_does_not_wait_on_a_traced_device():
    from deviceguard.backends.blocking import blocking_of

    assert not blocking_of("xla").uploads_written_numbers
    assert blocking_of("xla").counts_masks_when_filling


def test_a_refused_call_keeps_its_own_error():
    with captured(), pytest.raises(TypeError):
        torch.tensor([1.0]).to("cuda").numpy()
