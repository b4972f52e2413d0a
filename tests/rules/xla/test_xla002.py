import pytest

import deviceguard
from tests.rules.xla.loops import line, only, run

pytestmark = pytest.mark.xla

LAST_BATCH = """
loader = DataLoader(TensorDataset(torch.randn(20, 8)), batch_size=8)
for epoch in range(2):
    for (x,) in loader:
        x = x.to(device)
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()
        torch_xla.sync()
"""
LENGTHS = """
for length in {lengths}:
    x = torch.randn(4, length, 8, device=device)
    optimizer.zero_grad()
    net(x).mean().backward()
    optimizer.step()
    torch_xla.sync()
"""
SLICES = """
features = torch.randn(4, 32, device=device)
for step in range(8):
    x = features[:, step : step + 8]
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
    torch_xla.sync()
"""
REPEATS = """
for step in range(8):
    x = torch.randn(4, 8, device=device)
    for _ in range(step + 1):
        x = torch.tanh(x)
    optimizer.zero_grad()
    net(x).sum().backward()
    optimizer.step()
    torch_xla.sync()
"""


def test_smaller_last_batch():
    found = only(run(LAST_BATCH), "XLA002")

    assert found.severity is deviceguard.Severity.WARNING
    assert found.site.line == line(LAST_BATCH, "net(x)")
    assert found.subjects[0].name == "x"
    assert found.subjects[0].shape == (4, 8)
    assert "(8, 8) before" in found.message
    assert "drop_last=True" in found.fix


def test_no_last_batch():
    assert not run(LAST_BATCH.replace("batch_size=8", "batch_size=8, drop_last=True")).of("XLA002")


def test_lengths_that_keep_coming():
    body = LENGTHS.format(lengths=[5, 9, 6, 11, 7, 10])
    found = only(run(body), "XLA002")

    assert found.site.line == line(body, "net(x)")
    assert "pad x" in found.fix


def test_buckets_and_a_new_phase():
    assert not run(LENGTHS.format(lengths=[16, 32, 64, 16, 64, 32, 16, 32])).of("XLA002")
    assert not run(LENGTHS.format(lengths=[5] * 6 + [9] * 6)).of("XLA002")


def test_number_in_a_slice():
    found = only(run(SLICES), "XLA002")

    assert found.site.line == line(SLICES, "x = features")
    assert found.subjects[0].name == "step"
    assert "torch.tensor(step).to(device)" in found.fix


def test_number_of_a_module():
    body = """
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.start = nn.Linear(8, 4), 0
        def forward(self, x):
            return self.linear(x[:, self.start : self.start + 8])
    net = Cut().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(8):
        net.start = step
        optimizer.zero_grad()
        net(torch.randn(4, 32, device=device)).sum().backward()
        optimizer.step()
        torch_xla.sync()
    """
    found = only(run(body), "XLA002")

    assert found.subjects[0].name == "self.start"
    assert found.site.line == line(body, "return self.linear")


def test_loop_count():
    found = only(run(REPEATS), "XLA002")

    assert found.site.line == line(REPEATS, "torch.tanh")
    assert "times" in found.message


def test_number_as_data():
    body = """
    features = torch.randn(4, 32, device=device)
    for step in range(8):
        columns = torch.arange(8, device=device) + torch.tensor(step).to(device)
        optimizer.zero_grad()
        net(features.index_select(1, columns)).sum().backward()
        optimizer.step()
        torch_xla.sync()
    """
    assert not run(body).of("XLA002")


def test_schedules_are_data_too():
    body = """
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    for step in range(10):
        optimizer.zero_grad()
        F.dropout(net(torch.randn(4, 8, device=device)), step / 20).mul(step).sum().backward()
        optimizer.step()
        schedule.step()
        torch_xla.sync()
    """
    assert not run(body).of("XLA002")


def test_evaluation_may_have_a_last_batch():
    body = """
    def validate():
        net.eval()
        with torch.no_grad():
            for (x,) in pl.MpDeviceLoader(DataLoader(TensorDataset(torch.randn(20, 8)), batch_size=8), device):
                net(x).sum()
        net.train()
    for step in range(8):
        optimizer.zero_grad()
        net(torch.randn(8, 8, device=device)).mean().backward()
        optimizer.step()
        torch_xla.sync()
        if step % 4 == 3:
            validate()
    """
    assert not run(body).of("XLA002")
