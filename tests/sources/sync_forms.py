"""Calls that make the host wait for a CUDA device, and their harmless neighbours, as people write them.

Each was measured on PyTorch's own CUDA build; ``test_real_cuda_syncs.py`` measures again where there is one.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

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
    """Tensors for the forms, with values that are known wherever kernels run or not."""

    def __init__(self) -> None:
        self.x = torch.randn(6).to("cuda")
        self.m = torch.rand(4, 3).to("cuda")
        self.mask = torch.tensor([True, False, True, False, False, True]).to("cuda")
        self.index = torch.tensor([0, 2, 3]).to("cuda")
        self.t = torch.tensor(2).to("cuda")
        self.v = torch.tensor(0.5).to("cuda")
        self.square = (torch.eye(3) + torch.rand(3, 3) * 0.1).to("cuda")
        self.host = torch.randn(6)


@contextlib.contextmanager
def captured(simulate: str | None = "cuda") -> Iterator[list[Event]]:
    """The events of the block, under simulation or, with None, on the devices there are."""
    events: list[Event] = []
    sources = [Calls(events.append), Synchronisation(events.append)]
    with deviceguard.simulate(simulate) if simulate is not None else contextlib.nullcontext():
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


def _ones(*size: int) -> torch.Tensor:
    return torch.ones(*size, dtype=torch.long).to("cuda")


def _log_probabilities() -> torch.Tensor:
    return torch.randn(5, 1, 4).to("cuda").log_softmax(2)


def _on_device(module: nn.Module) -> nn.Module:
    return module.to("cuda")


def _encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 1, 8), 1, enable_nested_tensor=False).to("cuda")


def _causal(size: int) -> torch.Tensor:
    return nn.Transformer.generate_square_subsequent_mask(size).to("cuda")


def _packed() -> Any:
    batch = torch.randn(3, 2, 4).to("cuda")
    return nn.utils.rnn.pack_padded_sequence(batch, torch.tensor([2, 3]), enforce_sorted=False)


def _multivariate(a: Things) -> Any:
    return torch.distributions.MultivariateNormal(a.x[:3], a.square @ a.square.T, validate_args=False)


def _with_gradient() -> nn.Parameter:
    parameter = nn.Parameter(torch.randn(3).to("cuda"))
    parameter.grad = torch.ones(3).to("cuda")
    return parameter


def _scaler() -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(torch.ones(1).to("cuda"))
    return scaler


def _scaled_step() -> None:
    scaler, parameter = torch.amp.GradScaler("cuda"), _with_gradient()
    scaler.scale((parameter * 2).sum()).backward()
    scaler.step(torch.optim.SGD([parameter], lr=0.1))


def _adam_with_device_step() -> None:
    parameter = _with_gradient()
    optimizer = torch.optim.Adam([parameter], foreach=False)
    optimizer.step()
    optimizer.state[parameter]["step"] = optimizer.state[parameter]["step"].to("cuda")
    optimizer.step()


def _lbfgs() -> None:
    parameter = _with_gradient()

    def closure() -> torch.Tensor:
        loss = (parameter * parameter).sum()
        loss.backward()
        return loss

    torch.optim.LBFGS([parameter], max_iter=1).step(closure)


def _sparse_adam(a: Things) -> None:
    embedding = nn.Embedding(5, 2, sparse=True).to("cuda")
    embedding(a.index).sum().backward()
    torch.optim.SparseAdam(embedding.parameters()).step()


_OPTIMIZERS = (
    *(torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad),
    *(torch.optim.Adadelta, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Rprop),
)


def _elapsed() -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    end.record()
    return start.elapsed_time(end)


def _scaled() -> None:
    scaler, parameter = torch.amp.GradScaler("cuda"), _with_gradient()
    scaler.scale((parameter * 2).sum()).backward()
    scaler.unscale_(torch.optim.SGD([parameter], lr=0.1))


def _housekeeping() -> None:
    optimizer = torch.optim.Adam([_with_gradient()])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    optimizer.state_dict()


def _plateau() -> Any:
    return torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD([_with_gradient()], lr=0.1))


def _averaged() -> None:
    model = nn.Linear(2, 2).to("cuda")
    torch.optim.swa_utils.AveragedModel(model, device="cuda").update_parameters(model)


def _sparse(a: Things) -> torch.Tensor:
    return torch.sparse_coo_tensor(_ones(2, 2) - 1, a.x[:2], (3, 3))


def _spectrum() -> torch.Tensor:
    window = torch.ones(8).to("cuda")
    return torch.stft(torch.randn(64).to("cuda"), 8, window=window, return_complex=True)


def _broken(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


READS: dict[str, tuple[str, Callable[[Things], Any]]] = {
    "item": ("scalar", lambda a: a.v.item()),
    "float": ("scalar", lambda a: float(a.v)),
    "int": ("scalar", lambda a: int(a.t)),
    "complex": ("scalar", lambda a: complex(a.v)),
    "tolist": ("scalar", lambda a: a.x.tolist()),
    "math function": ("scalar", lambda a: math.sqrt(a.v)),
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
    "mode": ("shape", lambda a: torch.mode(torch.zeros(3000, device="cuda"))),
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
    "operator.index": ("number", lambda a: operator.index(a.t)),
    "percent f": ("scalar", lambda a: "%f" % a.v),  # noqa: UP031
    "uint8 mask": ("shape", lambda a: a.x[a.mask.to(torch.uint8)]),
    "module to the host": ("copy", lambda a: nn.Linear(2, 2).to("cuda").cpu()),
    "select": ("number", lambda a: a.x.select(0, a.t)),
    "slice written": ("number", lambda a: _set(a.x, slice(None, a.t), 1.0)),
    "split": ("number", lambda a: torch.split(a.x, [a.t, 4])),
    "corrcoef": ("check", lambda a: torch.corrcoef(a.m)),
    "assert_close": ("branch", lambda a: torch.testing.assert_close(a.x, a.x + 0)),
    "addcmul value": ("number", lambda a: torch.addcmul(a.x, a.x, a.x, value=a.v)),
    "addmm beta": ("number", lambda a: torch.addmm(a.square, a.square, a.square, beta=a.v)),
    "index_add alpha": ("number", lambda a: a.x.index_add_(0, a.index, a.x[a.index], alpha=a.v)),
    "dropout": ("number", lambda a: F.dropout(a.x, a.v)),
    "threshold": ("number", lambda a: F.threshold(a.x, a.v, 0.0)),
    "logspace": ("number", lambda a: torch.logspace(0, a.v, 3)),
    "new_full": ("number", lambda a: a.x.new_full((2,), a.v)),
    "pad": ("number", lambda a: F.pad(a.x, (a.t, 1))),
    "expand": ("number", lambda a: a.x.expand(a.t, 6)),
    "repeat": ("number", lambda a: a.x.repeat(a.t)),
    "unflatten": ("number", lambda a: a.x.unflatten(0, (a.t, 3))),
    "random_": ("number", lambda a: a.x.random_(0, a.t)),
    "geometric_": ("number", lambda a: a.x.geometric_(a.v)),
    "interpolate": ("number", lambda a: F.interpolate(a.m[None, None], size=(a.t, a.t))),
    "as_tensor of tensors": ("number", lambda a: torch.as_tensor([a.v, a.v])),
    "legacy constructor": ("scalar", lambda a: torch.FloatTensor([a.v])),
    "lu_factor": ("check", lambda a: torch.linalg.lu_factor(a.square)),
    "ldl_factor": ("check", lambda a: torch.linalg.ldl_factor(a.square)),
    "eigvalsh": ("check", lambda a: torch.linalg.eigvalsh(a.square)),
    "eig": ("check", lambda a: torch.linalg.eig(a.square)),
    "eigvals": ("check", lambda a: torch.linalg.eigvals(a.square)),
    "svdvals": ("check", lambda a: torch.linalg.svdvals(a.square)),
    "lstsq": ("check", lambda a: torch.linalg.lstsq(a.square, a.square)),
    "pinv": ("check", lambda a: torch.linalg.pinv(a.square)),
    "cond": ("check", lambda a: torch.linalg.cond(a.square)),
    "matrix_rank": ("check", lambda a: torch.linalg.matrix_rank(a.square)),
    "inverse": ("check", lambda a: torch.inverse(a.square)),
    "pca_lowrank": ("check", lambda a: torch.pca_lowrank(a.m, 2)),
    "matrix_exp": ("check", lambda a: torch.linalg.matrix_exp(a.square)),
    "ctc_loss": ("check", lambda a: F.ctc_loss(_log_probabilities(), _ones(1, 2), [5], [2])),
    "adaptive softmax": ("shape", lambda a: nn.AdaptiveLogSoftmaxWithLoss(3, 6, [2, 4]).cuda()(a.m, _ones(4))),
    "cumulative batch norm": ("scalar", lambda a: nn.BatchNorm1d(3, momentum=None).cuda()(a.m)),
    "encoder with a mask": ("branch", lambda a: _encoder()(torch.randn(3, 1, 4).to("cuda"), mask=_causal(3))),
    "pad_packed_sequence": ("copy", lambda a: nn.utils.rnn.pad_packed_sequence(_packed())),
    "unpad_sequence": ("shape", lambda a: nn.utils.rnn.unpad_sequence(a.m[:, :2], torch.tensor([1, 3]).to("cuda"))),
    "trunc_normal_": ("branch", lambda a: nn.init.trunc_normal_(a.m)),
    "FakeQuantize": ("branch", lambda a: torch.ao.quantization.FakeQuantize().cuda()(a.x)),
    "observer": ("branch", lambda a: torch.ao.quantization.MovingAverageMinMaxObserver().cuda()(a.x)),
    "distribution": ("branch", lambda a: torch.distributions.Normal(a.x, a.x.abs() + 1, validate_args=True)),
    "log_prob": (
        "branch",
        lambda a: torch.distributions.Categorical(logits=a.m, validate_args=True).log_prob(_ones(4).float()),
    ),
    "multivariate normal": ("check", lambda a: _multivariate(a).sample()),
    "clip_grad_norm_ that checks": ("branch", lambda a: nn.utils.clip_grad_norm_([_with_gradient()], 1.0, 2.0, True)),
    "GradScaler.step": ("scalar", lambda a: _scaled_step()),
    "GradScaler.get_scale": ("scalar", lambda a: _scaler().get_scale()),
    "Adam with its step on the device": ("scalar", lambda a: _adam_with_device_step()),
    "learning rate on the device": ("branch", lambda a: torch.optim.SGD([_with_gradient()], lr=a.v)),
    "SGD step with it": ("number", lambda a: torch.optim.SGD([_with_gradient()], lr=a.v).step()),
    "Adam step with it": ("number", lambda a: torch.optim.Adam([_with_gradient()], lr=a.v, foreach=False).step()),
    "ASGD": ("scalar", lambda a: torch.optim.ASGD([_with_gradient()], foreach=False).step()),
    "Adafactor": ("scalar", lambda a: torch.optim.Adafactor([_with_gradient()]).step()),
    "LBFGS": ("scalar", lambda a: _lbfgs()),
    "SparseAdam": ("shape", lambda a: _sparse_adam(a)),
    "ReduceLROnPlateau": ("scalar", lambda a: _plateau().step(a.v)),
    "AveragedModel": ("branch", lambda a: _averaged()),
    "update_bn": ("scalar", lambda a: torch.optim.swa_utils.update_bn([a.m], nn.BatchNorm1d(3).cuda())),
    "graph that crosses to the host": ("copy", lambda a: (a.x.requires_grad_() * 2).cpu().sum().backward()),
    "coalesce": ("shape", lambda a: _sparse(a).coalesce()),
    "sparse mm": ("shape", lambda a: torch.sparse.mm(_sparse(a), a.square)),
    "sparse without size": ("shape", lambda a: torch.sparse_coo_tensor(_ones(1, 2) - 1, a.x[:2])),
    "to_sparse_csr": ("shape", lambda a: a.m.to_sparse_csr()),
    "combinations": ("shape", lambda a: torch.combinations(a.x)),
    "istft": ("check", lambda a: torch.istft(_spectrum(), 8, window=torch.ones(8).to("cuda"))),
    "normal with a tensor": ("check", lambda a: torch.normal(a.x, a.x.abs())),
    "graph break": ("scalar", lambda a: torch.compile(_broken, backend="eager")(a.x)),
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
    "lu_unpack": ("write", lambda a: torch.lu_unpack(*torch.linalg.lu_factor_ex(a.square)[:2])),
    "unravel_index": ("write", lambda a: torch.unravel_index(a.index, (2, 3))),
    "asarray of a list": ("data", lambda a: torch.asarray([1.0], device="cuda")),
    "list written": ("write", lambda a: _set(a.x, [0, 2], 1.0)),
    "host tensor into a row": ("write", lambda a: _set(a.m, 0, torch.zeros(3))),
    "index_put_ by host indices": ("index", lambda a: a.x.index_put_((torch.tensor([0, 2]),), a.v)),
    "pinned with gaps": ("move", lambda a: torch.zeros(4, 4).pin_memory()[:, :2].to("cuda", non_blocking=True)),
    "module to the device": ("move", lambda a: nn.Linear(2, 2).to("cuda")),
    "state dict of the host": (
        "move",
        lambda a: nn.Linear(2, 2).to("cuda").load_state_dict(nn.Linear(2, 2).state_dict()),
    ),
    "pack_padded_sequence": ("move", lambda a: _packed()),
    "init.sparse_": ("write", lambda a: nn.init.sparse_(a.m, 0.5)),
    "prune": ("write", lambda a: prune.l1_unstructured(nn.Linear(3, 2).cuda(), "weight", amount=2)),
    "Binomial": ("data", lambda a: torch.distributions.Binomial(3, probs=a.v)),
    "leaf on the host": ("move", lambda a: (a.host.requires_grad_().to("cuda") * 2).sum().backward()),
    "sparse_csr_tensor": ("write", lambda a: torch.sparse_csr_tensor(_ones(2) - _ones(2), _ones(0), a.x[:0], (1, 1))),
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
    "elapsed time": lambda a: _elapsed(),
    "scaler without a step": lambda a: _scaled(),
    "optimizers": lambda a: [kind([_with_gradient()]).step() for kind in _OPTIMIZERS],
    "nonzero_static": lambda a: torch.nonzero_static(a.x, size=3),
    "more gathering": lambda a: (
        a.x.index_copy_(0, a.index, a.x[a.index]),
        a.x.index_select(0, a.index),
        a.x.take(a.index),
        a.x.scatter_add_(0, a.index, a.x[a.index]),
        a.x.scatter_reduce(0, a.index, a.x[a.index], "amax"),
    ),
    "searching": lambda a: (torch.searchsorted(a.x, a.x), torch.bucketize(a.x, a.x), a.x.kthvalue(2), a.x.nanmedian()),
    "embedding of device indices": lambda a: F.embedding(a.index, a.m, max_norm=None),
    "recurrent": lambda a: torch.gru_cell(a.m[:1], a.m[1:2], a.m[:, :1].new_ones(9, 3), a.m.new_ones(9, 3)),
    "layers": lambda a: (
        F.layer_norm(a.m, (3,)),
        F.batch_norm(a.m, None, None, training=True, momentum=0.1),
        F.group_norm(a.m, 1),
        F.avg_pool1d(a.m, 2),
        F.dropout(a.m, 0.5),
        F.interpolate(a.m[None], scale_factor=2.0),
    ),
    "clip_grad_value_": lambda a: nn.utils.clip_grad_value_([_with_gradient()], 1.0),
    "autograd.grad": lambda a: torch.autograd.grad((a.x.requires_grad_() ** 2).sum(), a.x, create_graph=True),
    "housekeeping": lambda a: _housekeeping(),
    "record_stream": lambda a: a.x.record_stream(torch.cuda.current_stream()),
}

#: Moves parameters or uploads by design, which is not what the form is about.
SET_UP = frozenset({"embedding", "clip_grad_value_", "optimizers", "housekeeping", "scaler without a step"})
