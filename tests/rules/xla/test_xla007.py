import pytest

import deviceguard
from tests.rules.xla.loops import line, run

pytestmark = pytest.mark.xla

LOOP = """
for step in range(8):
    y = net(torch.randn(8, 8, device=device))
    {work}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
"""


@pytest.mark.parametrize(
    ("work", "op"), [("loss = y.median()", "median"), ("loss = torch.linalg.qr(y)[1].sum()", "linalg_qr")]
)
def test_operation_without_lowering(work, op):
    body = LOOP.format(work=work)
    found = run(body).of("XLA007")

    at_the_call = [finding for finding in found if finding.site.line == line(body, work)]
    assert len(at_the_call) == 1
    assert at_the_call[0].severity is deviceguard.Severity.WARNING
    assert at_the_call[0].subjects[0].name == op


@pytest.mark.parametrize(
    "work",
    [
        "loss = y.flatten().sort().values[16]",
        "loss = y.sum()\n    if step == 4: print(y.detach().median())",
        "loss = y.sum() * torch.randn(8).median().item()",
    ],
    ids=["lowered", "once", "on-the-host"],
)
def test_nothing_to_say(work):
    assert not run(LOOP.format(work=work)).of("XLA007")


def test_fallbacks_of_initialisation():
    body = "nn.init.orthogonal_(net.weight)\n" + LOOP.format(work="loss = y.sum()")

    assert not run(body).of("XLA007")
