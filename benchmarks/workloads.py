"""What is timed: the two reference networks of the speed budget, and a loop of operations too small to hide cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import nn

Step = Callable[[], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """Something that can be run step by step.

    Attributes:
        name: how it is called in the table.
        unit: what one step is.
        make: builds it on a device and returns its step.
    """

    name: str
    unit: str
    make: Callable[[str], Step]


def mlp(device: str) -> Step:
    """784-1024-1024-10 at batch 128, SGD with momentum."""
    net = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(
        device
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(128, 784).to(device)
    labels = torch.randint(0, 10, (128,)).to(device)
    return _training(net, optimizer, images, labels)


def transformer(device: str) -> Step:
    """Four encoder layers of width 128, 16 sequences of 32 tokens, AdamW."""
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    net = nn.Sequential(
        nn.Embedding(1000, 128), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(128, 10)
    ).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    tokens = torch.randint(0, 1000, (16, 32)).to(device)
    labels = torch.randint(0, 10, (16 * 32,)).to(device)
    return _training(net, optimizer, tokens, labels)


def tiny_ops(device: str) -> Step:
    """A thousand additions of eight elements: the cost of a single torch call."""
    values = torch.ones(8).to(device)

    def step() -> None:
        result = values
        for _ in range(1000):
            result = result + values

    return step


def _training(net: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, labels: torch.Tensor) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = nn.functional.cross_entropy(outputs.reshape(-1, 10), labels)
        loss.backward()
        optimizer.step()

    return step


WORKLOADS = (
    Workload("mlp", "a training step", mlp),
    Workload("transformer", "a training step", transformer),
    Workload("tiny ops", "1000 calls", tiny_ops),
)
