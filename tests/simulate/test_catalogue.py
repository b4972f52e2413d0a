"""PyTorch's own catalogue of operations, under simulation and on the CPU: same bits, right labels.

``DIFFERENCES`` is the whole list of operations for which that does not hold.
"""

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from deviceguard.simulate import simulate
from tests.simulate import two_devices

pytest.importorskip("expecttest")
op_db = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db
module_db = pytest.importorskip("torch.testing._internal.common_modules").module_db
optim_db = pytest.importorskip("torch.testing._internal.common_optimizers").optim_db

pytestmark = [pytest.mark.catalogue, pytest.mark.filterwarnings("ignore")]

#: Operations that differ, and why.
DIFFERENCES = {
    "histogram": "has no CUDA kernel: refused as there",
    "histogramdd": "has no CUDA kernel: refused as there",
    "tensor_split": "wants host indices, which this test moves to the device: refused as there",
    "linalg.lstsq": "the CPU kernel itself gives other bits when called twice",
}
#: Operations whose result is uninitialised memory.
UNINITIALISED = {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted"}


#: Operations that take operands on several devices, of which none is 0-dim, and why.
TAKES_TWO_DEVICES = {
    "__getitem__": "host index tensors",
    "as_strided_scatter": "copies the source",
    "broadcast_tensors": "looks at shapes",
    "diagonal_scatter": "copies the source",
    "diff": "of order 0 it looks at the first operand only",
    "expand_as": "looks at the shape",
    "index_put": "host index tensors",
    "nn.functional.ctc_loss": "targets and lengths may be on the host",
    "reshape_as": "looks at the shape",
    "resize_as_": "looks at the shape",
    "select_scatter": "copies the source",
    "slice_scatter": "copies the source",
    "tensor_split": "host indices",
    "to": "crosses",
    "view_as": "looks at the shape",
}


def name_of(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def tensors(value):
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def bits(tensor):
    """The values in a form that compares NaNs too."""
    dense = tensor.detach()
    if dense.layout is not torch.strided:
        dense = dense.to_dense()
    return dense.to(torch.complex128) if dense.is_complex() else dense.to(torch.float64)


def same(one, two):
    return len(one) == len(two) and all(
        left.dtype == right.dtype and torch.allclose(bits(left), bits(right), rtol=0, atol=0, equal_nan=True)
        for left, right in zip(one, two, strict=True)
    )


def run(op, sample, device):
    def moved(value):
        if isinstance(value, torch.Tensor):
            return value.detach().clone().to(device).requires_grad_(value.requires_grad)
        return device if value == "cpu" else value

    given, args, kwargs = tree_map(moved, (sample.input, sample.args, sample.kwargs))
    torch.manual_seed(0)
    results = tensors(op(given, *args, **kwargs))
    leaves = [leaf for leaf in tensors((given, args, kwargs)) if leaf.requires_grad]
    roots = [result for result in results if result.requires_grad and result.layout is torch.strided]
    gradients = []
    if leaves and roots:
        sums = [(root.abs() if root.is_complex() else root).sum() for root in roots]
        gradients = [grad for grad in torch.autograd.grad(sums, leaves, allow_unused=True) if grad is not None]
    return results + gradients


def samples_of(op):
    dtype = next((kind for kind in (torch.float32, torch.int64) if kind in op.dtypes), None)
    if dtype is None:
        return []
    wants = op.supports_autograd and dtype.is_floating_point
    return list(op.sample_inputs("cpu", dtype, requires_grad=wants))[:3]


@pytest.mark.parametrize("op", op_db, ids=name_of)
def test_operation(op):
    """Bit-equal results and gradients: all on the device for a call on the device, none for a call on the host."""
    if op.name in UNINITIALISED or name_of(op) in DIFFERENCES:
        pytest.skip(DIFFERENCES.get(name_of(op), "uninitialised"))
    for sample in samples_of(op):
        try:
            plain = run(op, sample, "cpu")
        except Exception:  # noqa: S112 - a sample for another build
            continue
        with simulate("cuda"):
            found = run(op, sample, "cuda")
            assert all(tensor.is_cuda for tensor in found)
            host = [tensor.cpu() for tensor in found]
            beside = run(op, sample, "cpu")
            assert not any(tensor.is_cuda for tensor in beside)
        assert same(plain, host)
        assert same(plain, beside)


@pytest.mark.parametrize("op", op_db, ids=name_of)
def test_operands_on_two_devices(op):
    """Refused, unless the table says that the operation takes what it is given; 0-dim tensors are another row."""
    with simulate("cuda:2"):
        for number, sample in enumerate(two_devices.samples(op)):
            leaves = tensors((sample.input, sample.args, sample.kwargs))
            if any(leaf.dim() == 0 for leaf in leaves):
                continue
            for call, found in two_devices.placements(op, number, sample):
                if "rest on" in call and not two_devices.refused(found):
                    assert name_of(op) in TAKES_TWO_DEVICES, f"{call}: {found}"


@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_module(info):
    """Modules and the gradients of their parameters."""

    def run_module(given, device):
        def moved(value):
            return value.detach().clone().to(device) if isinstance(value, torch.Tensor) else value

        torch.manual_seed(0)
        module = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs).to(device)
        args, kwargs = tree_map(moved, (given.forward_input.args, given.forward_input.kwargs))
        results = tensors(module(*args, **kwargs))
        roots = [result.sum() for result in results if result.requires_grad]
        parameters = list(module.parameters())
        if roots and parameters:
            sum(roots).backward()
        return results + [parameter.grad for parameter in parameters if parameter.grad is not None]

    for given in info.module_inputs_func(info, "cpu", torch.float32, False, True)[:3]:
        if given.forward_input is None:
            continue
        try:
            plain = run_module(given, "cpu")
        except Exception:  # noqa: S112 - an input that the module itself refuses
            continue
        with simulate("cuda"):
            found = run_module(given, "cuda")
            assert all(tensor.is_cuda for tensor in found)
            host = [tensor.cpu() for tensor in found]
        assert same(plain, host)


@pytest.mark.parametrize("info", optim_db, ids=lambda info: info.optim_cls.__name__)
def test_optimizer(info):
    """Three steps of every configuration."""

    def run_optimizer(given, device):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to(device)
        matrices = info.optim_cls.__name__ == "Muon"
        chosen = [parameter for parameter in net.parameters() if parameter.dim() == 2 or not matrices]
        optimizer = info.optim_cls(chosen, **given.kwargs)
        x = torch.randn(5, 4, device=device)

        def closure():
            optimizer.zero_grad()
            loss = net(x).square().sum()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        return [parameter.detach().cpu() for parameter in net.parameters()]

    for given in info.optim_inputs_func("cpu"):
        try:
            plain = run_optimizer(given, "cpu")
        except Exception:  # noqa: S112 - a configuration that the CPU refuses
            continue
        with simulate("cuda"):
            assert same(plain, run_optimizer(given, "cuda"))
