from __future__ import annotations

import pytest

from tests.rules.findings import line, names, one, silent

WEIGHTS = """
net = nn.Linear(4, 3).to("cuda")
criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 0.3, 0.5]))
x, y = torch.randn(8, 4, device="cuda"), torch.randint(0, 3, (8,), device="cuda")
loss = criterion(net(x), y)
"""


def test_class_weights_left_on_the_host():
    finding = one(WEIGHTS, "DEV002")

    assert finding.site.line == line(WEIGHTS, "loss = criterion")
    assert names(finding) == ["criterion.weight"]
    assert finding.subjects[0].device == "cpu"
    assert finding.fix == "move the criterion once, where it is made: criterion.to('cuda:0')"


def test_corrected_is_silent():
    silent(WEIGHTS.replace("0.5]))", '0.5])).to("cuda")'))


TARGET = """
net = nn.Linear(4, 1).to("cuda")
for x, y in [(torch.randn(8, 4), torch.randn(8, 1))]:
    loss = F.mse_loss(net(x.to("cuda")), y)
"""


def test_target_left_on_the_host():
    finding = one(TARGET, "DEV002")

    assert names(finding) == ["y"]
    assert finding.site.line == line(TARGET, "F.mse_loss")
    assert "for x, y in" in finding.message
    assert finding.fix == "y = y.to('cuda:0') before the loss"


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        ("nn.CrossEntropyLoss()(net(x), torch.randint(0, 3, (8,)))", "torch.randint(0, 3, (8,))"),
        ("F.binary_cross_entropy_with_logits(net(x), t, pos_weight=w)", "w"),
        ("nn.BCEWithLogitsLoss(pos_weight=w)(net(x), t)", "pos_weight"),
        ("((net(x) - y) ** 2).mean()", "y"),
        ("F.smooth_l1_loss(net(x), target=y)", "y"),
        ("F.kl_div(net(x).log_softmax(1), y.softmax(1))", "y"),
    ],
)
def test_losses_of_all_kinds(loss, name):
    source = f"""
net = nn.Linear(4, 3).to("cuda")
x = torch.randn(8, 4, device="cuda")
t = torch.rand(8, 3, device="cuda")
w = torch.ones(3) + 1
data = [torch.randn(8, 3)]
y = data[0]
loss = {loss}
"""
    finding = one(source, "DEV002")

    assert finding.site.line == line(source, "loss = ")
    assert name in finding.subjects[0].name


def test_host_scalars_and_host_lengths_are_legal():
    silent("""
net = nn.Linear(4, 3).to("cuda")
x = torch.randn(8, 4, device="cuda")
loss = net(x).pow(2).mean() * torch.tensor(0.5)
log_probs = net(torch.randn(8, 2, 4, device="cuda")).log_softmax(2)
F.ctc_loss(log_probs, torch.tensor([[1, 2], [1, 1]]), torch.tensor([8, 8]), torch.tensor([2, 2]))
""")


def test_all_on_the_host_is_legal():
    silent("loss = F.cross_entropy(torch.randn(4, 3), torch.tensor([0, 1, 2, 0]), weight=torch.ones(3))\n")


def test_a_loss_in_a_partial():
    source = """
import functools

def weighted(pred, target, w):
    return ((pred - target) ** 2 * w).mean()

w = torch.tensor([1.0, 2.0])
loss_fn = functools.partial(weighted, w=w)
loss_fn(torch.randn(3, 2, device="cuda"), torch.zeros(3, 2, device="cuda"))
"""
    finding = one(source, "DEV002")

    assert names(finding) == ["w"]
    assert f"line {line(source, 'functools.partial')}" in finding.message


def test_a_target_given_to_a_loss_written_by_hand():
    source = """
def dice_loss(pred, target):
    return 1 - 2 * (pred * target).sum() / (pred.sum() + target.sum())

target = (torch.rand(8, 3) > 0.5).float()
dice_loss(torch.rand(8, 3, device="cuda"), target)
"""
    finding = one(source, "DEV002")

    assert names(finding) == ["target"]
    assert f"line {line(source, 'target = ')}" in finding.message
