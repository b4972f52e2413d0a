from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
net = nn.Linear(4, 1).to("cuda")
master = [p.detach().clone().requires_grad_() for p in net.parameters()]
optimizer = torch.optim.SGD(master, lr=0.1)
for _ in range(3):
    net.zero_grad()
    net(torch.ones(8, 4, device="cuda")).sum().backward()
    for m, p in zip(master, net.parameters()):
        m.grad = p.grad
    optimizer.step()
    with torch.no_grad():
        for m, p in zip(master, net.parameters()):
            p.copy_(m)
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "OPT001", severity="error", names=["net.weight", "optimizer"], line="optimizer.step()", fix="net.parameters()"
    )


def test_silent_on_an_optimizer_over_master_copies():
    assert_silent("OPT001", LEGITIMATE)
