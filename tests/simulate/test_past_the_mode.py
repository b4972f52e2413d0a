"""Ways in which PyTorch makes or runs tensors where no function mode sees it: the label has to be there."""

import io
import warnings

import numpy
import pytest
import torch
from torch import nn

from deviceguard.simulate import NotSimulatedError, simulate

CUDA = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def cuda():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript
        with simulate("cuda:2"):
            yield


def test_scripted_and_traced_modules():
    """Results are on the device, gradients too, and a host operand is refused."""
    net, x = nn.Linear(3, 2).cuda(), torch.randn(2, 3, device="cuda")
    for compiled in (torch.jit.script(net), torch.jit.trace(net, x)):
        result = compiled(x)
        result.sum().backward()

        assert result.device == net.weight.grad.device == CUDA
        assert torch.equal(result, net(x))
        with pytest.raises(RuntimeError, match="mat1 is on cpu, different from other tensors on cuda:0"):
            compiled(x.cpu())


def test_traced_factory():
    """Tracing records the host where a tensor was made on the device; a script's own host tensor is refused."""

    def shifted(x):
        return x + torch.arange(3, device=x.device).view(1, 3)

    @torch.jit.script
    def on_host(x):
        return x + torch.ones([3])

    x = torch.zeros(2, 3, device="cuda")
    assert torch.jit.trace(shifted, x)(x).device == CUDA
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu"):
        on_host(x)


def test_scripted_module_saved_and_loaded():
    """``map_location`` names the simulated device."""
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Linear(3, 2)), file)
    file.seek(0)

    assert torch.jit.load(file, map_location="cuda:1").weight.device == torch.device("cuda:1")


def test_scripted_code_that_names_a_device():
    """A device written into the script is the simulated one; where the interpreter asks PyTorch for it, we say so."""

    @torch.jit.script
    def made():
        return torch.zeros([2], device=torch.device("cuda:1"))

    @torch.jit.script
    def moved(x):
        return x.to(torch.device("cuda:1"))

    @torch.jit.script
    def mixed(x):
        return torch.zeros([2], device=torch.device("cuda:1")) + x

    x = torch.ones(2, device="cuda")
    assert made().device == torch.device("cuda:1")
    with pytest.raises(NotSimulatedError, match="moves a tensor to a device it names"):
        moved(x)
    with pytest.raises(RuntimeError, match="at least two devices, cuda:1 and cuda:0"):
        mixed(x)


def test_export():
    """Fake tensors are made of host tensors; the exported program runs on the device."""
    net, x = nn.Linear(3, 2).cuda(), torch.randn(2, 3, device="cuda")
    exported = torch.export.export(net, (x,)).module()

    assert exported(x).device == CUDA


def test_nested_tensors():
    """Strided and jagged ones, their parts, and gradients through them."""
    host = [torch.randn(2, 3), torch.randn(1, 3)]
    net = nn.Linear(3, 2).cuda()
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor(host, device="cuda", layout=layout)
        result = net(nested)
        torch.nested.to_padded_tensor(result, 0.0).sum().backward()

        assert nested.device == result.device == result.unbind()[0].device == net.weight.grad.device == CUDA
    assert torch.nested.nested_tensor(host).device.type == "cpu"


def test_dlpack():
    """Between PyTorch and itself the label stays; NumPy refuses device memory."""
    x = torch.ones(2, device="cuda:1")

    assert torch.from_dlpack(x).device == x.device
    assert torch.from_dlpack(torch.ones(2)).device.type == "cpu"
    assert torch.from_dlpack(x).data_ptr() == x.data_ptr()
    with pytest.raises(RuntimeError, match="Unsupported device"):
        numpy.from_dlpack(x)


def test_numbers_are_devices():
    """``torch.device(1)`` is the accelerator's."""
    with torch.device(1):
        made = torch.zeros(1)

    assert made.device == torch.device(1) == torch.device("cuda:1")
    assert torch.device("cpu").type == "cpu"


def test_neutral_streams():
    """``torch.Stream`` and ``torch.Event`` are the simulated device's."""
    stream = torch.Stream(device="cuda:1")

    assert isinstance(stream, torch.cuda.Stream)
    assert isinstance(torch.cuda.current_stream(), torch.Stream)
    assert isinstance(torch.Event("cuda"), torch.cuda.Event)
    with stream:
        assert torch.cuda.current_stream() == stream
        assert torch.cuda.current_device() == 1


def test_profiler(capfd):
    """Device activity is left out, so that nothing complains at each operation."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    x = torch.ones(2, device="cuda")
    with torch.profiler.profile(activities=activities) as profile:
        x + 1

    assert any(event.key == "aten::add" for event in profile.key_averages())
    assert "CUDA" not in capfd.readouterr().err


def test_fully_sharded():
    """Parameters that are sharded tensors are on the device, gathered and not, and train."""
    distributed = pytest.importorskip("torch.distributed")
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        net = nn.Linear(4, 2).cuda()
        fully_shard(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loss = net(torch.ones(1, 4, device="cuda")).sum()
        loss.backward()
        optimizer.step()

        assert loss.device == net.weight.device == net.weight.grad.device == CUDA
    finally:
        distributed.destroy_process_group()


def test_default_tensor_type_and_back():
    """The legacy setter moves the default device, and takes it back."""
    torch.set_default_tensor_type(torch.cuda.FloatTensor)
    try:
        assert torch.zeros(1).device == CUDA
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert torch.zeros(1).device.type == "cpu"


def test_custom_operator_that_keeps_what_it_returns():
    """What an operator saves for its backward pass is on the device before it returns."""

    @torch.library.custom_op("deviceguard_tests::scaled", mutates_args=())
    def scaled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sum() * 2, torch.full_like(x, 2.0)

    def keep(ctx, inputs, output):
        ctx.gradient = output[1]

    def backward(ctx, gradient, _):
        return ctx.gradient * gradient

    scaled.register_autograd(backward, setup_context=keep)
    x = torch.ones(3, device="cuda", requires_grad=True)
    scaled(x)[0].backward()

    assert x.grad.device == CUDA
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
