"""A simulated XLA device: what torch_xla 2.9 does with operands and parameters, its API, and its counters."""

import importlib.util
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from deviceguard.backends.devices import backend_of
from deviceguard.simulate import NotSimulatedError, simulate
from tests.scripts import line_of, loud, run_script

LOOP = """
import torch, torch_xla
import torch_xla.core.xla_model as xm
device = torch_xla.device()
net = torch.nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range({steps}):
    optimizer.zero_grad()
    loss = net(torch.ones(4, 8, device=device)).sum()
    loss.backward()
    {step}
"""


@pytest.fixture
def xla():
    if "torch_xla" in sys.modules:
        pytest.skip("the real torch_xla is in use")
    with simulate("xla"):
        import torch_xla

        yield torch_xla


def test_move_replaces_parameters(xla):
    """``Module.to`` makes new parameters between host and device, and keeps them on the device."""
    net = nn.Linear(2, 2)
    net(torch.ones(1, 2)).sum().backward()
    before, gradient = net.weight, net.weight.grad.clone()
    net.to("xla")
    on_device = net.weight

    assert on_device is not before
    assert on_device.device == on_device.grad.device == torch.device("xla:0")
    assert on_device.is_leaf
    assert on_device.requires_grad
    assert torch.equal(on_device.grad.cpu(), gradient)
    net.half()
    assert net.weight is on_device


def test_data_is_not_set_across_devices(xla):
    """``Tensor.data = ...`` refuses what ``Module.to`` avoids."""
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        nn.Parameter(torch.ones(2)).data = torch.ones(2, device="xla")


ACCEPTED = {
    "sum": lambda host, device: host + device,
    "product": lambda host, device: device * host,
    "host index": lambda host, device: device[torch.tensor([0])],
    "host mask of numbers": lambda host, device: torch.where(device > 0, device, device * torch.tensor(2.0)),
    "class weights": lambda host, device: nn.functional.cross_entropy(
        device, torch.tensor([0, 1, 2], device="xla"), weight=torch.ones(3)
    ),
    "in place": lambda host, device: device.add_(host),
}
REFUSED = {
    "matrix product": lambda host, device: host @ device,
    "linear": lambda host, device: nn.Linear(3, 3)(device),
    "join": lambda host, device: torch.cat([device, host]),
    "device index": lambda host, device: host[torch.tensor([0], device="xla")],
    "mse": lambda host, device: nn.functional.mse_loss(device, host),
    "comparison": lambda host, device: device == host,
    "mask": lambda host, device: device.masked_fill(host > 0, 0.0),
    "out": lambda host, device: torch.add(host, host, out=device),
}


@pytest.mark.parametrize("mix", ACCEPTED.values(), ids=ACCEPTED)
def test_host_operand_is_uploaded(xla, mix):
    """What torch_xla takes without a word, with the value of a CPU run."""
    host = torch.arange(9.0).view(3, 3)

    assert mix(host, host.to("xla")).device == torch.device("xla:0")


@pytest.mark.parametrize("mix", REFUSED.values(), ids=REFUSED)
def test_host_operand_is_refused(xla, mix):
    """What torch_xla has no word but a refusal for."""
    host = torch.arange(9.0).view(3, 3)

    with pytest.raises(RuntimeError, match="XLA"):
        mix(host, host.to("xla"))


def test_in_place_on_the_host_stays_there(xla):
    """The result of an in-place operation is where it was."""
    host = torch.zeros(2)
    host += torch.ones(2, device="xla")

    assert host.device.type == "cpu"
    assert host.tolist() == [1.0, 1.0]


def test_counters(xla):
    """A step marker runs what was collected; the same step again comes from the cache, another shape is compiled."""
    from torch_xla.debug import metrics

    def step(rows):
        torch.ones(rows, 2, device="xla").mul(2).sum()
        xla.sync()

    x = torch.ones(2, device="xla")
    xla.sync()
    metrics.clear_all()
    for rows in (1, 1, 2):
        step(rows)
    names = ("MarkStep", "UncachedCompile", "CachedCompile")
    assert [metrics.counter_value(name) for name in names] == [3, 2, 1]

    x.sum().item()
    assert metrics.counter_value("UncachedCompile") == 3
    assert x.cpu().tolist() == [1.0, 1.0]
    assert metrics.counter_value("UncachedCompile") == 3, "x was there already"
    x[x > 0]
    assert metrics.counter_value("aten::nonzero") == 1


def test_training_api(xla, tmp_path):
    """What scripts call, in the order in which they call it."""
    import torch_xla.core.xla_model as xm
    import torch_xla.distributed.parallel_loader as pl
    import torch_xla.runtime as xr
    from torch_xla.debug import metrics

    closed = []
    net = nn.Linear(2, 1).to(xla.device())
    optimizer = torch.optim.Adam(net.parameters())
    loader = DataLoader(TensorDataset(torch.randn(6, 2), torch.randn(6, 1)), batch_size=2)
    wrapped = pl.MpDeviceLoader(loader, xla.device())
    for x, y in wrapped:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        xm.add_step_closure(closed.append, args=(1,))
        xm.optimizer_step(optimizer)
    xm.optimizer_step(optimizer, barrier=True)
    xm.save(net.state_dict(), tmp_path / "net.pt")

    assert len(wrapped) == 3
    assert closed == [1, 1, 1]
    assert metrics.counter_value("MarkStep") == 4
    assert torch.load(tmp_path / "net.pt")["weight"].device.type == "cpu"
    assert (xr.world_size(), xm.is_master_ordinal(), xla.device_count()) == (1, True, 1)
    assert xm.get_memory_info()["bytes_used"] > 0
    assert xm.mesh_reduce("loss", torch.tensor(2.0, device="xla"), sum).device.type == "cpu"


def test_launch_and_compile(xla):
    """One replica, in this process."""
    seen = []
    xla.launch(lambda index, name: seen.append((index, name)), args=("a",))
    double = xla.compile(lambda x: x * 2)

    assert seen == [(0, "a")]
    assert double(torch.ones(1, device="xla")).item() == 2.0


def test_what_is_missing_says_so(xla):
    """Parts of torch_xla that are not simulated are refused by name."""
    import torch_xla.core.xla_model as xm

    with pytest.raises(NotSimulatedError, match="xla_model.all_to_all is not simulated"):
        xm.all_to_all  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match="fsdp is not simulated"):
        import torch_xla.distributed.fsdp  # noqa: F401
    assert not hasattr(xm, "of_no_version")


def test_everything_is_put_back():
    """Afterwards there is no torch_xla but an installed one."""
    if "torch_xla" in sys.modules:
        pytest.skip("the real torch_xla is in use")
    before, finders = importlib.util.find_spec("torch_xla"), list(sys.meta_path)
    with simulate("xla"):
        import torch_xla  # noqa: F401

        device = torch.device("xla")
        assert backend_of(device).traced
    assert "torch_xla" not in sys.modules
    assert importlib.util.find_spec("torch_xla") == before
    assert sys.meta_path == finders


def test_real_device_in_use(monkeypatch):
    """A program that has imported torch_xla has its real device: no simulation in its place."""
    monkeypatch.setitem(sys.modules, "torch_xla", object())
    with pytest.raises(RuntimeError, match="torch_xla is imported already"), simulate("xla"):
        pass


def test_cuda_is_not_there(xla):
    """A simulated XLA device does not bring a CUDA device with it."""
    assert not torch.cuda.is_available()
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(1, device="xla").cuda()


def test_missing_marker_is_found():
    """XLA001 under simulation: at 64 steps without a marker."""
    if "torch_xla" in sys.modules:
        pytest.skip("the real torch_xla is in use")
    script = LOOP.format(steps=66, step="xm.optimizer_step(optimizer)")
    [found] = run_script(script, "xla").of("XLA001")

    assert found.site.line == line_of(script, "xm.optimizer_step(optimizer)")
    assert "barrier=True" in found.fix
    assert loud(run_script(LOOP.format(steps=66, step="xm.optimizer_step(optimizer, barrier=True)"), "xla")) == []


def test_read_before_the_marker_is_found():
    """XLA003 under simulation, and silence for the same read after the marker."""
    if "torch_xla" in sys.modules:
        pytest.skip("the real torch_xla is in use")
    early = LOOP.format(steps=6, step="loss.item(); optimizer.step(); torch_xla.sync()")
    late = LOOP.format(steps=6, step="optimizer.step(); torch_xla.sync(); loss.item()")

    assert run_script(early, "xla").of("XLA003")
    assert not run_script(late, "xla").of("XLA003")
