import pytest

import deviceguard
from tests.rules.xla.loops import line, only, run

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
    ("work", "op"),
    [
        ("loss = y.masked_select(y > 0).sum()", "masked_select"),
        ("loss = y[y > 0].sum()", "nonzero"),
        ("loss = y.sum() * torch.unique((y > 0).long()).numel()", "unique"),
    ],
)
def test_shape_from_values(work, op):
    body = LOOP.format(work=work)
    found = only(run(body), "XLA006")

    assert found.severity is deviceguard.Severity.WARNING
    assert found.site.line == line(body, "loss = y")
    assert op in found.message


@pytest.mark.parametrize(
    "work",
    [
        "loss = (y * (y > 0)).sum()",
        "loss = torch.where(y > 0, y, 0).sum()",
        "loss = y.masked_fill(y > 0, 0).sum(); rows = torch.arange(8).masked_select(torch.arange(8) > 3)",
        "loss = y.sum()\n    if step == 3: print(torch.nonzero(y).shape)",
    ],
    ids=["product", "where", "on-the-host", "once"],
)
def test_fixed_shapes(work):
    assert not run(LOOP.format(work=work)).of("XLA006")
