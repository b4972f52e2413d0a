from __future__ import annotations

from tests.rules.opt.expectations import assert_page_example, assert_silent

LEGITIMATE = """
import copy
net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to("cuda")
teacher = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(6):
    x = torch.randn(16, 4, device="cuda") + 5
    optimizer.zero_grad()
    F.mse_loss(net(x), teacher(x) + 1).backward()
    optimizer.step()
    with torch.no_grad():
        for t, p in zip(teacher.parameters(), net.parameters()):
            t.lerp_(p, 0.5)
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example("CPY004", severity="warning", names=["ema", "net"], line="ema = ", fix="copy the buffers")


def test_silent_on_a_teacher_in_training_mode():
    assert_silent("CPY004", LEGITIMATE)
