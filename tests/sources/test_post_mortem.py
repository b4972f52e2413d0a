from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from deviceguard.errors import DeviceGuardError
from deviceguard.sources.post_mortem import examine
from deviceguard.sources.refusals import problem_of


def failed(call, *args):
    """What ``examine`` makes of the exception a call ends with."""
    with pytest.raises(Exception) as caught:
        call(*args)
    return examine(caught.value)


def test_module_that_refused():
    net, x = nn.Linear(4, 2), torch.ones(3, 4).double()

    def call():
        net(x)

    event = failed(call)

    assert (event.problem, event.kind, event.callee) == ("dtype", "module", "nn.Linear")
    assert event.module is net
    assert [(operand.role, operand.expression) for operand in event.operands] == [("input", "x")]
    assert event.frame.f_code.co_name == "call"


def test_argument_that_a_forward_only_passes_on():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            x = x.flatten(1)
            return self.fc(x)

    net, images = Net(), torch.ones(3, 4).double()

    def evaluate():
        net(images)

    event = failed(evaluate)

    assert event.frame.f_code.co_name == "evaluate"
    assert event.operands[0].expression == "images"


def test_argument_that_a_forward_makes_stays_there():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            y = torch.ones(3, 4).double()
            return self.fc(y)

    event = failed(Net(), torch.ones(3, 4))

    assert event.frame.f_code.co_name == "forward"
    assert event.operands[0].expression == "y"


def test_operator():
    a, b = torch.ones(2, 2), torch.ones(2, 2).double()
    event = failed(lambda: a @ b)

    assert (event.kind, [operand.expression for operand in event.operands]) == ("operator", ["a", "b"])


def test_function_of_torch():
    a, weight = torch.ones(2, 2), torch.ones(2, 2).double()
    event = failed(lambda: F.linear(a, weight=weight))

    assert event.callee == "F.linear"
    assert [(operand.role, operand.expression) for operand in event.operands] == [
        ("argument 1", "a"),
        ("weight", "weight"),
    ]


def test_loss():
    logits, target = torch.rand(3), torch.rand(3).double()
    event = failed(lambda: F.binary_cross_entropy(logits, target))

    assert event.kind == "loss"
    assert {operand.role: operand.expression for operand in event.operands} == {"input": "logits", "target": "target"}


def test_cause_of_a_chain_and_context():
    net, x = nn.Linear(4, 2), torch.ones(3, 4).double()

    def wrapped():
        try:
            net(x)
        except RuntimeError as problem:
            raise RuntimeError(f"step failed: {problem}") from problem

    def lost():
        try:
            net(x)
        except RuntimeError:
            raise KeyError("step")

    assert failed(wrapped).module is net
    assert failed(lost).module is net


def test_what_is_no_refusal():
    assert failed(lambda: 1 / 0) is None
    assert failed(lambda: torch.ones(2, 3) @ torch.ones(2, 3)) is None
    assert examine(RuntimeError("Expected all tensors to be on the same device")) is None
    assert examine(DeviceGuardError("same device", None)) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!", "device"),
        ("Input and hidden tensors are not at the same device, found input tensor at cuda:0", "device"),
        ("indices should be either on cpu or on the same device as the indexed tensor (cpu)", "index-device"),
        ("Expected a 'cuda' device type for generator but found 'cpu'", "generator-device"),
        ("Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same", "device"),
        ("Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same", "dtype"),
        ("Input type (float) and bias type (c10::Half) should be the same", "dtype"),
        ("mat1 and mat2 must have the same dtype, but got Double and Float", "dtype"),
        ("expected scalar type Long but found Float", "dtype"),
        ("result type Float can't be cast to the desired output type Long", "truncation"),
        ("module must have its parameters and buffers on device cuda:0 (device_ids[0])", "device"),
        ("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()", "host-only"),
        ("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)", "other"),
    ],
)
def test_texts_of_refusals(text, problem):
    assert problem_of(RuntimeError(text)) == problem


def test_other_exceptions_are_no_refusals():
    assert problem_of(KeyError("same device")) == "other"
