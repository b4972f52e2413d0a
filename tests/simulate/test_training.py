"""Whole training loops: bit-equal to the CPU run."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from deviceguard.simulate import simulate


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.BatchNorm1d(16), nn.Linear(16, 3))


def train(device, *, optimizer=torch.optim.AdamW, dtype=None, scale=False, steps=4, net=None):
    torch.manual_seed(0)
    net = (net or mlp()).to(device)
    made = optimizer(net.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device, enabled=scale)
    for _ in range(steps):
        x, y = torch.randn(6, 8, device=device), torch.randint(0, 3, (6,), device=device)
        made.zero_grad()
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(made)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(made)
        scaler.update()
    return [tensor.detach().cpu().clone() for tensor in net.state_dict().values()]


def assert_same(plain, other):
    assert all(torch.equal(one, two) for one, two in zip(plain, other, strict=True))


OPTIMIZERS = "SGD Adam AdamW Adagrad Adadelta Adamax NAdam RAdam RMSprop Rprop ASGD".split()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    """Every optimizer computes what it computes on the CPU."""
    optimizer = getattr(torch.optim, name)
    plain = train("cpu", optimizer=optimizer)
    with simulate("cuda"):
        assert_same(plain, train("cuda", optimizer=optimizer))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype):
    """Autocast for the device equals CPU autocast with that dtype."""
    plain = train("cpu", dtype=dtype, scale=True)
    with simulate("cuda"):
        assert_same(plain, train("cuda", dtype=dtype, scale=True))


def test_autocast_state():
    """The device's autocast is not the host's."""
    with simulate("cuda"):
        layer, host = nn.Linear(2, 2).cuda(), nn.Linear(2, 2)
        with torch.autocast("cuda"):
            assert (True, False) == (torch.is_autocast_enabled("cuda"), torch.is_autocast_enabled("cpu"))
            assert torch.float16 == layer(torch.ones(1, 2, device="cuda")).dtype
            assert torch.float32 == host(torch.ones(1, 2)).dtype
        with torch.autocast("cpu"):
            assert torch.float32 == layer(torch.ones(1, 2, device="cuda")).dtype
            assert torch.bfloat16 == host(torch.ones(1, 2)).dtype
    assert not torch.is_autocast_enabled("cuda")
    assert torch.bfloat16 == torch.get_autocast_dtype("cpu")


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant):
    """Recomputation runs on the device."""
    with simulate("cuda"):
        net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).cuda()
        x = torch.ones(2, 4, device="cuda", requires_grad=True)
        checkpoint(net, x, use_reentrant=reentrant).sum().backward()

        assert torch.device("cuda:0") == x.grad.device == net[0].weight.grad.device


def test_hook_and_function_see_the_device():
    """What the engine hands to Python is labelled."""
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            seen.extend([gradient.device, ctx.saved_tensors[0].device])
            return gradient * torch.full((2,), 2.0, device="cuda")

    with simulate("cuda"):
        x = torch.ones(2, device="cuda", requires_grad=True)
        y = Double.apply(x) * 3
        y.register_hook(lambda gradient: seen.append((gradient * torch.ones(2, device="cuda")).device))
        y.sum().backward()

        assert [torch.device("cuda:0")] * 3 == seen
        assert [6.0, 6.0] == x.grad.tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_loader(workers):
    """Batches come out of workers on the host, pinned where asked for."""
    data = TensorDataset(torch.arange(8.0))
    with simulate("cuda"):
        batches = [batch for (batch,) in DataLoader(data, 4, num_workers=workers, pin_memory=True)]

        assert [True, True] == [batch.is_pinned() for batch in batches]
        assert torch.device("cuda:0") == batches[0].to("cuda", non_blocking=True).device


class Forked(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.ones(2).to("cuda")


def test_device_in_a_forked_worker():
    """A forked worker cannot use a device that its parent used."""
    with simulate("cuda"):
        torch.ones(1, device="cuda")
        with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
            list(DataLoader(Forked(), num_workers=1))


def test_packed_sequence():
    """Lengths stay on the host."""
    with simulate("cuda"):
        packed = nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 2, device="cuda"), torch.tensor([3, 2]))
        output, _ = nn.LSTM(2, 2).cuda()(packed)
        padded, lengths = nn.utils.rnn.pad_packed_sequence(output)

        assert ["cuda", "cpu", "cuda", "cpu"] == [
            packed.data.device.type, packed.batch_sizes.device.type, padded.device.type, lengths.device.type,
        ]  # fmt: skip


def test_recurrent_module_where_cudnn_is_compiled_in(monkeypatch):
    """A CUDA build on a machine without a GPU: moving the module must not reach for cuDNN's kernels."""
    monkeypatch.setattr(torch.backends.cudnn, "is_acceptable", lambda tensor: True)
    monkeypatch.setattr(torch, "_use_cudnn_rnn_flatten_weight", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn.rnn, "get_cudnn_mode", lambda mode: 2)

    with simulate("cuda"):
        output, _ = nn.LSTM(3, 4).cuda()(torch.zeros(5, 2, 3, device="cuda"))

        assert output.is_cuda


def test_data_parallel_on_two_devices():
    """Replicas, threads and the gathered result."""
    with simulate("cuda:2"):
        net = nn.DataParallel(nn.Linear(2, 2).cuda(), device_ids=[0, 1])
        output = net(torch.ones(4, 2, device="cuda:0"))
        output.sum().backward()

        assert (torch.device("cuda:0"), (4, 2)) == (output.device, tuple(output.shape))
        assert [4.0, 4.0] == net.module.bias.grad.tolist()


def test_model_split_over_devices():
    """Gradients cross back."""
    with simulate("cuda:2"):
        first, second = nn.Linear(2, 2).to("cuda:0"), nn.Linear(2, 1).to("cuda:1")
        with pytest.raises(RuntimeError, match="is on cuda:0, different from other tensors on cuda:1"):
            second(first(torch.ones(1, 2, device="cuda:0")))
        second(first(torch.ones(1, 2, device="cuda:0")).to("cuda:1")).sum().backward()

        assert ["cuda:0", "cuda:1"] == [str(first.weight.grad.device), str(second.weight.grad.device)]


def test_distributed(tmp_path):
    """DDP over one process, asked for with NCCL."""
    import torch.distributed as dist

    with simulate("cuda"):
        dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        try:
            assert ("nccl", True) == (dist.get_backend(), dist.is_nccl_available())
            net = nn.parallel.DistributedDataParallel(nn.Linear(2, 2).cuda(), device_ids=[0])
            net(torch.ones(1, 2)).sum().backward()
            assert torch.device("cuda:0") == net.module.weight.grad.device
        finally:
            dist.destroy_process_group()
