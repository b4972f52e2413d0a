from __future__ import annotations

from tests.rules.opt.expectations import HEAD, assert_page_example, assert_silent
from tests.scripts import run_script

LEGITIMATE = """
import copy
net = nn.Linear(4, 1).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.ones(8, 4, device="cuda")
best = copy.deepcopy(net.state_dict())
for epoch in range(3):
    optimizer.zero_grad()
    net(x).pow(2).mean().backward()
    optimizer.step()
    net.load_state_dict(best)
    with torch.no_grad():
        net(x)
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example("CPY005", severity="error", names=["net"], line="score = net(x)", fix="after the evaluation")


def test_silent_on_a_best_state_that_is_loaded_again():
    assert_silent("CPY005", LEGITIMATE)


PAST_AUTOGRAD = """
net = nn.Linear(4, 1).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.ones(8, 4, device="cuda")
ema = [p.detach().clone() for p in net.parameters()]
for epoch in range(4):
    for _ in range(3):
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        optimizer.step()
        for e, p in zip(ema, net.parameters()):
            e.lerp_(p.detach(), 0.1)
    raw = [p.detach().clone() for p in net.parameters()]
    for e, p in zip(ema, net.parameters()):
        p.data.copy_(e)
    with torch.no_grad():
        net(x)
    {after}
"""


def test_weights_written_past_autograd():
    report = run_script(HEAD + PAST_AUTOGRAD.format(after="pass"), "cuda", select=["CPY"])

    assert [(finding.rule, finding.subjects[0].name) for finding in report.findings] == [("CPY005", "net")]


def test_silent_where_they_are_put_back():
    back = "[p.data.copy_(r) for r, p in zip(raw, net.parameters())]"

    assert_silent("CPY005", PAST_AUTOGRAD.format(after=back))
