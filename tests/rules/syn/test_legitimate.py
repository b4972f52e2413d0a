"""Whole programs that look as if they stalled the device, or raced with it, and do not."""

from __future__ import annotations

import pytest

from tests.scripts import loud, run_script

SETUP = """
import collections
import torch
from torch import nn
from torch.nn import functional as F

net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
data = torch.utils.data.TensorDataset(torch.randn(160, 16), torch.randint(0, 4, (160,)))
loader = torch.utils.data.DataLoader(data, batch_size=16, pin_memory=True)


def learn(x, y):
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
"""

PROGRAMS = {
    "a prefetcher with a stream of its own": """
class Prefetcher:
    def __init__(self):
        self.batches, self.stream = iter(loader), torch.cuda.Stream()
        self.load()

    def load(self):
        self.batch = next(self.batches, None)
        if self.batch is not None:
            with torch.cuda.stream(self.stream):
                self.batch = [part.to("cuda", non_blocking=True) for part in self.batch]

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.batch
        if batch is not None:
            for part in batch:
                part.record_stream(torch.cuda.current_stream())
            self.load()
        return batch


prefetcher = Prefetcher()
while (batch := prefetcher.next()) is not None:
    learn(*batch)
""",
    "metrics copied without waiting and read a step later": """
host, copied, seen = torch.zeros(1).pin_memory(), torch.cuda.Event(), []
for step, (x, y) in enumerate(loader):
    loss = learn(x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True))
    if step:
        copied.synchronize()
        seen.append(float(host))
    host.copy_(loss.detach().reshape(1), non_blocking=True)
    copied.record()
""",
    "two staging buffers in turns, each behind its event": """
buffers = [torch.empty(16, 16).pin_memory() for _ in range(2)]
events = [torch.cuda.Event() for _ in range(2)]
labels = torch.zeros(16, dtype=torch.long, device="cuda")
for step in range(10):
    buffer, event = buffers[step % 2], events[step % 2]
    event.synchronize()
    buffer.normal_()
    x = buffer.to("cuda", non_blocking=True)
    event.record()
    learn(x, labels)
""",
    "meters on the device, read every fifth step": """
meter = torch.zeros((), device="cuda")
for epoch in range(3):
    for step, (x, y) in enumerate(loader):
        meter += learn(x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)).detach()
        if step % 5 == 4:
            print(meter.item() / 5)
            meter.zero_()
""",
    "evaluation, early stopping and a checkpoint after each epoch": """
best = float("inf")
for epoch in range(6):
    for x, y in loader:
        loss = learn(x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True))
    net.eval()
    with torch.no_grad():
        right = sum((net(x.to("cuda")).argmax(1) == y.to("cuda")).sum().item() for x, y in loader)
    net.train()
    if loss.item() < best:
        best = loss.item()
        kept = {name: value.cpu().clone() for name, value in net.state_dict().items()}
    print(f"epoch {epoch}: {loss:.3f}, {right} right, best {best:.3f}")
""",
    "an inner loop whose graph is meant to be kept": """
for step in range(8):
    x = torch.randn(16, 16, device="cuda")
    losses, fast = [], dict(net.named_parameters())
    for _ in range(3):
        loss = torch.func.functional_call(net, fast, (x,)).pow(2).mean()
        gradients = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        fast = {name: value - 0.1 * g for (name, value), g in zip(fast.items(), gradients)}
        losses.append(loss)
    optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    optimizer.step()
""",
    "a replay buffer on the host": """
memory = torch.zeros(500, 16)
labels = torch.zeros(16, dtype=torch.long, device="cuda")
for step in range(30):
    memory[step] = torch.randn(16)
    learn(memory[torch.randint(0, step + 1, (16,))].to("cuda"), labels)
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_is_left_alone(name, capsys):
    assert loud(run_script(SETUP + PROGRAMS[name], select=["SYN", "PIP"])) == []
