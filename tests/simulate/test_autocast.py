"""Autocast of a simulated CUDA device: the dtypes that it gives there, and none of it for host tensors."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from deviceguard.simulate import simulate

LOW = {
    "linear": lambda x: nn.Linear(8, 8).cuda()(x),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "relu": F.relu,
    "mean": torch.mean,
    "pad": lambda x: F.pad(x[None], (1, 1), mode="reflect"),
    "lstm": lambda x: nn.LSTM(8, 8).cuda()(x)[0],
    "gru cell": lambda x: nn.GRUCell(8, 8).cuda()(x),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
}
FULL = {
    "softmax": lambda x: F.softmax(x, -1),
    "log softmax": lambda x: x.log_softmax(-1),
    "layer norm": lambda x: nn.LayerNorm(8).cuda()(x),
    "group norm": lambda x: nn.GroupNorm(2, 8).cuda()(x),
    "exp": torch.exp,
    "power": lambda x: x**2,
    "sum": torch.sum,
    "norm": torch.norm,
    "cumsum": lambda x: x.cumsum(0),
    "interpolate": lambda x: F.interpolate(x[None, None], scale_factor=2.0),
    "cross entropy": lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.long, device=x.device)),
    "widest": lambda x: torch.addcmul(x.float(), x, x),
}


@pytest.fixture
def low():
    with simulate("cuda"), torch.autocast("cuda"):
        yield torch.rand(4, 8, device="cuda", dtype=torch.float16)


@pytest.mark.parametrize("call", LOW.values(), ids=LOW)
def test_low_precision(low, call):
    """Products and recurrent networks are cast down; what no list names runs as it comes."""
    assert call(low).dtype is torch.float16


@pytest.mark.parametrize("call", FULL.values(), ids=FULL)
def test_full_precision(low, call):
    """What loses too much in low precision is cast up, or takes the widest of its operands."""
    result = call(low)

    assert result.dtype is torch.float32
    assert result.device == low.device


def test_binary_cross_entropy_is_refused(low):
    """In PyTorch's words; with logits it is safe."""
    target = torch.ones_like(low)

    with pytest.raises(RuntimeError, match="unsafe to autocast"):
        nn.BCELoss()(low, target)
    assert nn.BCEWithLogitsLoss()(low, target).dtype is torch.float32


def test_host_tensors_are_left_alone(low):
    """The host's own autocast keeps the host's lists."""
    host = torch.ones(2, 2, dtype=torch.bfloat16)
    with torch.autocast("cpu"):
        inside = F.softmax(host, 1)

    assert F.softmax(host, 1).dtype is inside.dtype is torch.bfloat16


def test_gradients_have_the_dtype_of_their_parameters():
    """Casts are part of the graph."""
    with simulate("cuda"):
        net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(
                net(torch.rand(4, 8, device="cuda")), torch.zeros(4, dtype=torch.long, device="cuda")
            )
        loss.backward()

        assert {parameter.grad.dtype for parameter in net.parameters()} == {torch.float32}


def test_lists_are_gone_afterwards():
    """The CPU's autocast is what it was."""
    with simulate("cuda"):
        pass
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.softmax(torch.ones(2, 2, dtype=torch.bfloat16), 1).dtype is torch.bfloat16
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::softmax.int", "AutocastCPU")
