"""What makes the host wait for an accelerator, function by function.

A row says when a call of the function waits, and which kind of read that is. A row is asked before the call
(:data:`BEFORE`) where the arguments tell, or after it (:data:`AFTER`) where the result does. What is said of each
function was measured on PyTorch's CUDA build, not read from its documentation.

What no row can catch, because no Python call is made for it: syncs of kernels inside backward (boolean masks,
``prod``), those of TorchScript, of ``pickle`` on storages, of the allocator, of NCCL.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from deviceguard.events import ArraysConverted, Event, HostRead, Uploaded
from deviceguard.sources import indexing, transfers
from deviceguard.sources.device_queue import QUEUE
from deviceguard.sources.transfers import on_device

Before = Callable[[tuple[Any, ...], dict[str, Any]], "list[Event]"]
After = Callable[[tuple[Any, ...], dict[str, Any], Any], "list[Event]"]

_VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

_WAITS_OF_A_PRINT = 8
"""In the middle of the 2 to 13 that were measured; how many they are depends on the values."""
_LONGEST_FUSED_SLICE = 2048
"""Elements along the dimension up to which ``mode`` runs in one kernel."""

# The kinds of row


def _reads(
    call: str, family: str, *, explicit: bool = False, instead: str = "", avoidable: bool = True, waits: int = 1
) -> Before:
    """Waits whenever its first tensor is on a device, once or more."""

    def classify(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
        tensor = _first(args, kwargs)
        return [] if tensor is None else [_read(call, family, tensor, explicit, instead, avoidable, waits)]

    return classify


def _reads_if(
    condition: Callable[[tuple[Any, ...], dict[str, Any]], bool],
    call: str,
    family: str,
    *,
    instead: str = "",
    avoidable: bool = True,
    waits: int = 1,
) -> Before:
    """Waits when its first tensor is on a device and the condition holds for the arguments."""
    always = _reads(call, family, instead=instead, avoidable=avoidable, waits=waits)

    def classify(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
        return always(args, kwargs) if condition(args, kwargs) else []

    return classify


def _numbers(call: str, skip: int, names: Iterable[str] | None = None) -> Before:
    """Waits for each device tensor given where a Python number is wanted.

    Args:
        call: how the user writes it.
        skip: number of leading arguments that are tensors by right.
        names: the keyword arguments that are numbers; all when None.
    """
    wanted = None if names is None else frozenset(names)

    def classify(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
        given: list[Any] = list(args[skip:]) if wanted is None else []
        given += [value for name, value in kwargs.items() if wanted is None or name in wanted]
        return [_read(call, "number", tensor) for tensor in _device_scalars(given)]

    return classify


def _uploads(call: str, kind: str, instead: str) -> Before:
    """Uploads a few host numbers of its own whenever its first tensor is on a device."""

    def classify(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
        tensor = _first(args, kwargs)
        if tensor is None:
            return []
        QUEUE.settle()
        return [Uploaded(call, kind, None, tensor, 8, explicit=False, instead=instead)]

    return classify


def _read(
    call: str,
    family: str,
    tensor: Tensor,
    explicit: bool = False,
    instead: str = "",
    avoidable: bool = True,
    waits: int = 1,
) -> HostRead:
    QUEUE.settle()
    return HostRead(call, family, tensor, explicit, instead, avoidable, waits)


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value if on_device(value) else None
        if isinstance(value, list | tuple) and value and isinstance(value[0], Tensor):
            return value[0] if on_device(value[0]) else None
    return None


def _device_scalars(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            if value.dim() == 0 and on_device(value):
                yield value
        elif isinstance(value, list | tuple):
            yield from _device_scalars(value[:64])


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str, default: Any = None) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


# Rows that need more than a phrase


def _numpy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
    forced = _argument(args, kwargs, 1, "force", False)
    return [_read(".numpy(force=True)", "copy", args[0], True)] if forced and on_device(args[0]) else []


def _clamp(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
    bounds = [_argument(args, kwargs, 1, "min"), _argument(args, kwargs, 2, "max")]
    given = [bound for bound in bounds if bound is not None]
    if all(isinstance(bound, Tensor) for bound in given):
        return []
    return [_read("clamp(tensor, number)", "number", tensor) for tensor in _device_scalars(given)]


def _fill_value(call: str, position: int, instead: str) -> Before:
    def classify(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
        value = _argument(args, kwargs, position, "value")
        if not on_device(args[0]) or not on_device(value):
            return []
        return [_read(call, "number", value, instead=instead)]

    return classify


def _tensor_of_tensors(call: str) -> Before:
    def classify(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
        data = transfers.data_of(args, kwargs)
        if not isinstance(data, list | tuple):
            return []
        return [_read(call, "number", item, instead="torch.stack(list)") for item in _device_scalars(data)]

    return classify


def _arrays(call: str) -> Before:
    """A list of NumPy arrays becomes a tensor element by element, on any device."""

    def classify(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
        data = transfers.data_of(args, kwargs)
        if not isinstance(data, list | tuple) or not data or type(data[0]).__module__ != "numpy":
            return []
        if getattr(data[0], "ndim", 0) == 0:
            return []
        return [ArraysConverted(call, len(data), sum(int(getattr(item, "nbytes", 0)) for item in data))]

    return classify


def _one_hot(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
    classes = _argument(args, kwargs, 1, "num_classes", -1)
    if on_device(classes):
        return [_read("F.one_hot(x, t)", "number", classes)]
    unknown = not isinstance(classes, Tensor) and classes == -1
    if not unknown or not args or not on_device(args[0]):
        return []
    return [_read("F.one_hot(x)", "shape", args[0], instead="F.one_hot(x, num_classes)")]


def _repeats(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if kwargs.get("output_size") is not None:
        return False
    return len(args) == 1 or any(isinstance(value, Tensor) for value in (*args[1:], kwargs.get("repeats")))


def _no_range(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(_argument(args, kwargs, 2, "min", 0) == _argument(args, kwargs, 3, "max", 0))


def _weighted_and_smoothed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return _argument(args, kwargs, 2, "weight") is not None and bool(kwargs.get("label_smoothing", 0.0))


def _other_storage(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    one, other = args[0], _argument(args, kwargs, 1, "other")
    return not (isinstance(other, Tensor) and other.data_ptr() == one.data_ptr() and other.shape == one.shape)


def _std_is_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return on_device(_argument(args, kwargs, 1, "std"))


def _only_condition(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return len(args) + len(kwargs) == 1


def _many_elements(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """The path of ``isin`` that sorts, by the threshold of its kernel."""
    elements, tests = args[0], _argument(args, kwargs, 1, "test_elements")
    if not isinstance(elements, Tensor) or not isinstance(tests, Tensor):
        return False
    return bool(tests.numel() >= 10.0 * elements.numel() ** 0.145)


def _long_slices(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """The path of ``mode`` that sorts each slice by itself."""
    tensor, dim = args[0], _argument(args, kwargs, 1, "dim", -1)
    return isinstance(tensor, Tensor) and tensor.dim() > 0 and tensor.shape[dim] > _LONGEST_FUSED_SLICE


def _uncoalesced(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    first = args[0]
    return isinstance(first, Tensor) and first.layout is torch.sparse_coo and not first.is_coalesced()


def _has_sorter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return kwargs.get("sorter") is not None


def _no_size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return _argument(args, kwargs, 2, "size") is None


def _named(owner: Any, *names: str) -> list[Any]:
    return [getattr(owner, name) for name in names if hasattr(owner, name)]


def _both(*names: str) -> list[Any]:
    return [*_named(torch, *names), *_named(Tensor, *names)]


_SIZES = "nonzero_static(size=...), or torch.where with a value for the rest"
_MASKED = "torch.where(mask, x, 0) and a sum over the mask, which keep the shape"


@functools.cache
def before() -> dict[Any, Before]:
    """The rows that are asked before the call, by function object."""
    table: dict[Any, Before] = {}

    def add(functions: Iterable[Any], row: Before) -> None:
        table.update(dict.fromkeys(functions, row))

    # Values
    add([Tensor.item], _reads(".item()", "scalar", explicit=True))
    add([Tensor.tolist], _reads(".tolist()", "scalar", explicit=True))
    add([Tensor.__float__], _reads("float()", "scalar", explicit=True))
    add([Tensor.__int__], _reads("int()", "scalar", explicit=True))
    add([Tensor.__complex__], _reads("complex()", "scalar", explicit=True))
    add([Tensor.numpy], _numpy)
    add([Tensor.__format__], _reads("format()", "format"))
    add([Tensor.__repr__], _reads("print()", "format", waits=_WAITS_OF_A_PRINT))
    # Conditions
    add([Tensor.__bool__], _reads("bool()", "branch"))
    add(_both("is_nonzero"), _reads(".is_nonzero()", "branch"))
    add([Tensor.__contains__], _reads("x in t", "branch", instead="keep (t == x).any() on the device"))
    equal = "keep (a == b).all() on the device"
    add(_both("equal"), _reads_if(_other_storage, "torch.equal()", "branch", instead=equal))
    add(_both("allclose"), _reads("torch.allclose()", "branch", instead="keep torch.isclose(a, b).all() on the device"))
    # Shapes that depend on data
    add(_both("nonzero", "argwhere"), _reads("nonzero()", "shape", instead=_SIZES))
    add(_both("masked_select"), _reads("masked_select()", "shape", instead=_MASKED))
    add(_both("where"), _reads_if(_only_condition, "torch.where(mask)", "shape", instead=_SIZES))
    unique = [torch.functional.unique, Tensor.unique]
    add([torch.unique, *unique], _reads("unique()", "shape", instead="do it in the loader, on the host"))
    consecutive = [torch.unique_consecutive, Tensor.unique_consecutive, torch.functional.unique_consecutive]
    add(consecutive, _reads("unique_consecutive()", "shape", instead="do it in the loader, on the host"))
    counts = "torch.zeros(n, device=...).scatter_add_(0, index, ones) with the known n"
    add(_both("bincount"), _reads("bincount()", "shape", instead=counts, waits=2))
    add(_both("histc"), _reads_if(_no_range, "histc()", "shape", instead="histc(x, bins, min=..., max=...)", waits=2))
    repeat = "repeat_interleave(repeats, output_size=...)"
    add(_both("repeat_interleave"), _reads_if(_repeats, "repeat_interleave()", "shape", instead=repeat, waits=2))
    add([F.one_hot], _one_hot)
    add(_both("isin"), _reads_if(_many_elements, "torch.isin()", "shape", instead="compare by broadcasting"))
    add(_both("mode"), _reads_if(_long_slices, "mode()", "shape", avoidable=False))
    add(_both("corrcoef", "cov"), _reads("cov()", "check", instead="centre and matmul by hand"))
    add([Tensor.coalesce], _reads_if(_uncoalesced, "coalesce()", "shape", avoidable=False))
    add(_named(torch.sparse, "mm", "sum", "softmax"), _reads_if(_uncoalesced, "torch.sparse", "shape", avoidable=False))
    add([Tensor.to_sparse, Tensor.to_sparse_csr], _reads("to_sparse()", "shape", instead="keep it dense"))
    add([torch.sparse_coo_tensor], _reads_if(_no_size, "sparse_coo_tensor()", "shape", instead="pass size="))
    if _VERSION < (2, 14):
        triangle = "torch.triu_indices on the host's numbers"
        add([torch.combinations], _reads("combinations()", "shape", instead=triangle))
        noise = "mean + std * torch.randn_like(mean)"
        add([torch.normal], _reads_if(_std_is_tensor, "torch.normal(mean, std)", "check", instead=noise))
        add(_both("istft"), _reads("istft()", "check", avoidable=False))
    # Indexing
    add([Tensor.__getitem__], indexing.read_by_index)
    add([Tensor.__setitem__], indexing.written_by_index)
    add(_both("index_put", "index_put_"), indexing.put_by_index)
    filled = "a Python number, or torch.where(mask, value, x)"
    add(_both("masked_fill", "masked_fill_"), _fill_value("masked_fill(mask, t)", 2, filled))
    add(_both("index_fill", "index_fill_"), _fill_value("index_fill(dim, index, t)", 3, "a Python number"))
    # Numbers
    _add_numbers(add)
    # Checks inside solvers and losses
    _add_checks(add)
    # Small uploads of PyTorch's own
    add([torch.unravel_index], _uploads("unravel_index()", "write", "divmod by Python ints"))
    add([torch.lu_unpack], _uploads("lu_unpack()", "write", "torch.linalg.lu"))
    add([torch.sparse_csr_tensor], _uploads("sparse_csr_tensor()", "write", ""))
    return table


def _add_numbers(add: Callable[[Iterable[Any], Before], None]) -> None:
    add([Tensor.__index__], _reads("int()", "number", instead="keep sizes and positions as Python ints"))
    scaled = (
        "add sub subtract rsub index_add addmm addmv addr addbmm baddbmm add_ sub_ subtract_ index_add_ addmm_ addmv_"
    )
    add(_both(*scaled.split()), _numbers("alpha=", 0, ("alpha", "beta", "value")))
    add(_both("addcmul", "addcdiv", "addcmul_", "addcdiv_"), _numbers("value=", 0, ("value",)))
    foreach = "_foreach_add _foreach_add_ _foreach_sub _foreach_sub_"
    add(_named(torch, *foreach.split()), _numbers("alpha=", 0, ("alpha",)))
    add(
        _both("full", "arange", "linspace", "logspace", "randint", "zeros", "ones", "empty", "rand", "randn"),
        _factory(),
    )
    add(_named(torch, "full_like"), _numbers("full_like(x, t)", 1))
    add([Tensor.new_full], _numbers("new_full(size, t)", 1))
    add(_both("roll", "narrow", "select"), _numbers("tensor as index", 1))
    add(_named(Tensor, "view", "reshape", "expand", "repeat", "unflatten"), _numbers("tensor as size", 1))
    add(_named(Tensor, "uniform_", "random_", "geometric_", "normal_"), _numbers("tensor as bound", 1))
    add([F.pad, F.interpolate], _numbers("tensor as size", 1))
    simple = "leaky_relu dropout threshold elu celu hardtanh softplus alpha_dropout feature_alpha_dropout"
    add(_named(F, *simple.split()), _numbers("tensor as number", 1))
    add(_both("clamp", "clamp_", "clip"), _clamp)
    add([torch.split, torch.functional.split, Tensor.split], _numbers("split(sizes)", 1))


def _factory() -> Before:
    return _numbers("tensor as number", 0)


def _add_checks(add: Callable[[Iterable[Any], Before], None]) -> None:
    for name in ("inv", "solve", "cholesky", "lu_factor", "ldl_factor"):
        row = _reads(f"linalg.{name}()", "check", instead=f"torch.linalg.{name}_ex, which checks nothing")
        add(_named(torch.linalg, name), row)
    solvers = "eigh eigvalsh eig eigvals svd svdvals lstsq pinv cond matrix_rank tensorinv matrix_exp"
    for name in solvers.split():
        add(_named(torch.linalg, name), _reads(f"linalg.{name}()", "check", avoidable=False))
    add(_both("inverse", "pca_lowrank", "lobpcg", "cholesky"), _reads("a linear solver", "check", avoidable=False))
    spectral = _reads_if(_is_spectral, "matrix_norm()", "check", avoidable=False)
    add(_named(torch.linalg, "matrix_norm"), spectral)
    add([F.gaussian_nll_loss], _reads("gaussian_nll_loss()", "check", instead="the formula without its check"))
    add([F.ctc_loss], _reads("ctc_loss()", "check", avoidable=False))
    smoothed = "weight or label_smoothing, not both"
    add([F.cross_entropy], _reads_if(_weighted_and_smoothed, "cross_entropy()", "check", instead=smoothed))
    add(_both("searchsorted"), _reads_if(_has_sorter, "searchsorted(sorter=)", "check", instead="sort first"))


def _is_spectral(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return _argument(args, kwargs, 1, "ord", "fro") in (2, -2, "nuc")


@functools.cache
def after() -> dict[Any, After]:
    """The rows that are asked after the call, by function object."""
    moves: dict[Any, str] = {
        Tensor.to: ".to()",
        Tensor.cuda: ".cuda()",
        Tensor.cpu: ".cpu()",
        Tensor.type: ".type()",
        Tensor.type_as: ".type_as()",
    }
    moves.update(dict.fromkeys(_named(Tensor, "xpu"), ".xpu()"))
    table: dict[Any, After] = {function: functools.partial(transfers.moved, call) for function, call in moves.items()}
    table[Tensor.copy_] = functools.partial(transfers.copied_into, ".copy_()")
    for function, call in _FACTORIES.items():
        table[function] = functools.partial(transfers.built, call, _instead(call))
    return table


_FACTORIES = {
    torch.tensor: "torch.tensor()",
    torch.as_tensor: "torch.as_tensor()",
    torch.asarray: "torch.asarray()",
    Tensor.new_tensor: ".new_tensor()",
}


def _instead(call: str) -> str:
    return "torch.full((), value, device=...)" if call == "torch.tensor()" else ""


@functools.cache
def conversions() -> dict[Any, Before]:
    """The rows about Python data that becomes a tensor, asked before the call."""
    return {function: _joined(_tensor_of_tensors(call), _arrays(call)) for function, call in _FACTORIES.items()}


def _joined(*rows: Before) -> Before:
    def classify(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Event]:
        return [event for row in rows for event in row(args, kwargs)]

    return classify
