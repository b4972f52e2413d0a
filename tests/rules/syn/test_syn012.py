from __future__ import annotations

import gc
import weakref

import pytest

from tests.rules.loops import at, found, quiet, training

LIST = training("losses.append(loss)", before="losses = []")


def test_list_of_losses():
    finding = found(LIST, "SYN012")

    assert finding.severity.value == "error"
    assert finding.site.line == at(LIST, "losses.append(loss)")
    assert finding.subjects[0].name == "losses"
    assert finding.message.startswith("losses keeps the graphs of 4 earlier steps alive")
    assert finding.fix == "add loss.detach() instead of loss"


@pytest.mark.parametrize(
    ("before", "body", "name", "line"),
    [
        ("running = 0", "running = running + loss", "running", "running = running + loss"),
        ("running = 0", "running += loss", "running", "running += loss"),
        ('history = {"loss": []}', 'history["loss"].append(loss)', "history['loss']", ".append(loss)"),
        ("outputs = []", "outputs.append(output)", "outputs", "outputs.append(output)"),
        ("kept = {}", "kept[step] = loss", "kept", "kept[step] = loss"),
    ],
)
def test_other_holders(before, body, name, line):
    source = training(body, before=before)
    finding = found(source, "SYN012")

    assert finding.subjects[0].name == name
    assert finding.site.line == at(source, line)


def test_attribute_of_an_object():
    before = """
    class Meter:
        def __init__(self):
            self.values = []
        def update(self, value):
            self.values.append(value)
    meter = Meter()
    """
    source = training("meter.update(loss)", before=before)

    assert found(source, "SYN012").subjects[0].name == "meter.values"


@pytest.mark.parametrize(
    ("before", "body"),
    [
        ("losses = []", "losses.append(loss.detach())"),
        ("running = 0", "running = running + loss.detach()"),
        ("last = None", "last = loss"),
        ("losses = []", "losses = [loss]"),
        ("losses = []", "losses.append(loss)\nif len(losses) == 3: losses.clear()"),
    ],
)
def test_detached_or_replaced_is_silent(before, body):
    quiet(training(body, before=before), "SYN012")


def test_gathered_within_one_step_is_silent():
    source = """
    import torch
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for episode in range(6):
        kept = []
        for step in range(20):
            kept.append(net(torch.randn(2, 4)).mean())
        optimizer.zero_grad()
        torch.stack(kept).sum().backward()
        optimizer.step()
    """
    quiet(source, "SYN012", simulate=None)


def test_hidden_state_that_is_detached_is_silent():
    before = 'cell = nn.GRUCell(8, 4).to("cuda")\nhidden = torch.zeros(16, 4, device="cuda")'

    quiet(training("hidden = cell(x, hidden).detach()", before=before), "SYN012")


def test_hidden_state_that_is_not_detached():
    source = training("pass", before='cell = nn.GRUCell(8, 8).to("cuda")\nhidden = torch.zeros(16, 8, device="cuda")')
    source = source.replace("output = net(x)", "hidden = cell(x, hidden); output = net(hidden)")
    source = source.replace("loss.backward()", "loss.backward(retain_graph=True)")

    assert found(source, "SYN012").subjects[0].name == "hidden"


def test_marks_keep_nothing_alive():
    import torch

    from deviceguard.rules.syn.graph_marks import GraphMarks

    marks = GraphMarks()
    loss = torch.randn(3, requires_grad=True).sum()
    gone = weakref.ref(loss)
    marks.put(loss, 0)

    assert marks.steps_alive(1) == {0}
    del loss
    gc.collect()
    assert gone() is None
    assert marks.steps_alive(1) == set()
