import pytest

import deviceguard
from tests.rules.xla.loops import line, only, run

pytestmark = pytest.mark.xla

UNMARKED = """
for step in range(6):
    optimizer.zero_grad()
    net(torch.randn(4, 8, device=device)).sum().backward()
    optimizer.step()
"""
MARKED = {
    "sync": "    torch_xla.sync()\n",
    "mark_step": "    xm.mark_step()\n",
    "every-fourth": "    if step % 4 == 3: torch_xla.sync()\n",
}


def test_steps_without_a_marker():
    found = only(run(UNMARKED), "XLA001")

    assert found.severity is deviceguard.Severity.ADVICE
    assert found.site.line == line(UNMARKED, "optimizer.step()")
    assert found.subjects[0].name == "optimizer"
    assert "stepped 6 times" in found.message
    assert "torch_xla.sync()" in found.fix


def test_optimizer_step_without_barrier():
    body = UNMARKED.replace("optimizer.step()", "xm.optimizer_step(optimizer)")

    assert only(run(body), "XLA001").fix == "xm.optimizer_step(optimizer, barrier=True)"


def test_long_run_is_told_while_it_goes_on():
    body = UNMARKED.replace("range(6)", "range(66)") + "torch_xla.sync()\n"
    found = only(run(body), "XLA001")

    assert found.severity is deviceguard.Severity.ERROR
    assert found.last_step == 64


@pytest.mark.parametrize("marker", MARKED.values(), ids=MARKED)
def test_marked(marker):
    assert not run(UNMARKED.replace("range(6)", "range(24)") + marker).of("XLA001")


def test_marked_under_a_name_bound_before_the_guard():
    torch_xla = pytest.importorskip("torch_xla")

    head = "import torch, torch_xla, builtins\nfrom torch import nn\ndevice = torch.device('xla')\n"
    body = """
    net = nn.Linear(8, 4).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(6):
        net(torch.randn(4, 8, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        builtins.mark()
    """
    import builtins

    builtins.mark = torch_xla.sync
    try:
        assert not run(body, head).of("XLA001")
    finally:
        del builtins.mark


def test_optimizer_step_with_barrier():
    body = UNMARKED.replace("optimizer.step()", "xm.optimizer_step(optimizer, barrier=True)")

    assert not run(body).of("XLA001")


def test_step_context():
    body = """
    for step in range(6):
        with torch_xla.step():
            optimizer.zero_grad()
            net(torch.randn(4, 8, device=device)).sum().backward()
            optimizer.step()
    """
    assert not run(body).of("XLA001")


def test_compiled_function():
    body = """
    def train(x):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
    fast = torch_xla.compile(train)
    for step in range(6):
        fast(torch.randn(4, 8, device=device))
    """
    assert not run(body).of("XLA001")


@pytest.mark.parametrize("more", ["", ", batches_per_execution=3"])
def test_device_loader(more):
    body = f"""
    data = DataLoader(TensorDataset(torch.randn(48, 8)), batch_size=8)
    for (x,) in pl.MpDeviceLoader(data, device{more}):
        optimizer.zero_grad()
        net(x).sum().backward()
        xm.optimizer_step(optimizer)
    """
    assert not run(body).of("XLA001")


def test_optimizers_that_take_turns():
    body = """
    other = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(6):
        for each in (optimizer, other):
            each.zero_grad()
            net(torch.randn(4, 8, device=device)).sum().backward()
            each.step()
        torch_xla.sync()
    """
    assert not run(body).of("XLA001")


def test_host_training_beside_an_imported_torch_xla():
    assert not run(
        "net = nn.Linear(8, 4)\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)\ndevice = 'cpu'" + UNMARKED
    ).of("XLA001")
