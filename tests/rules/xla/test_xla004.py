import pytest

import deviceguard
from tests.rules.xla.loops import line, only, run

pytestmark = pytest.mark.xla

PLAIN = """
loader = DataLoader(TensorDataset(torch.randn(48, 8)), batch_size=8)
for (x,) in loader:
    optimizer.zero_grad()
    net(x.to(device)).sum().backward()
    optimizer.step()
    torch_xla.sync()
"""


def test_plain_loader():
    found = only(run(PLAIN), "XLA004")

    assert found.severity is deviceguard.Severity.ADVICE
    assert found.subjects[0].name == "loader"
    assert found.site.line == line(PLAIN, "in loader")
    assert "MpDeviceLoader(loader, device)" in found.fix


def test_wrapped_loader():
    body = PLAIN.replace("in loader", "in pl.MpDeviceLoader(loader, device)").replace("    torch_xla.sync()\n", "")

    assert not run(body).of("XLA004")


def test_loader_of_another_loop():
    body = """
    loader = DataLoader(TensorDataset(torch.randn(48, 8)), batch_size=8)
    mean = sum(x.sum() for (x,) in loader) / 48
    for step in range(6):
        optimizer.zero_grad()
        net(torch.randn(4, 8, device=device)).sum().backward()
        optimizer.step()
        torch_xla.sync()
    """
    assert not run(body).of("XLA004")


def test_host_training():
    assert not run("net = net.cpu()\noptimizer = torch.optim.SGD(net.parameters(), lr=.1)\ndevice = 'cpu'" + PLAIN).of(
        "XLA004"
    )
