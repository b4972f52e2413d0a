import pytest

import deviceguard
from tests.rules.xla.loops import line, only, run

pytestmark = pytest.mark.xla

READ = """
total = 0.0
for step in range({steps}):
    optimizer.zero_grad()
    loss = net(torch.randn(4, 8, device=device)).pow(2).mean()
    loss.backward()
    {before}
    optimizer.step()
    torch_xla.sync()
    {after}
"""


@pytest.mark.parametrize(
    "read", ["total += loss.item()", "total += float(loss)", "print(loss)", "assert loss < 1e9", "total += loss.cpu()"]
)
def test_read_before_the_marker(read):
    body = READ.format(steps=8, before=read, after="pass")
    found = only(run(body), "XLA003")

    assert found.severity is deviceguard.Severity.WARNING
    assert found.site.line == line(body, read)
    assert found.count >= 3
    assert "torch_xla.sync()" in found.message


def test_names_what_is_read():
    found = only(run(READ.format(steps=8, before="total += loss.item()", after="pass")), "XLA003")

    assert found.subjects[0].name == "loss"
    assert found.message.startswith("loss is read by .item() before")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("pass", "total += loss.item()"),
        ("total = total + loss.detach()", "pass"),
        ("if step % 6 == 5: total += loss.item()", "pass"),
        ("xm.add_step_closure(lambda value: print(value.item()), args=(loss.detach(),))", "pass"),
    ],
    ids=["after-the-marker", "kept-on-the-device", "now-and-then", "step-closure"],
)
def test_reads_in_their_place(before, after):
    assert not run(READ.format(steps=18, before=before, after=after)).of("XLA003")


def test_allowed_region():
    body = READ.format(steps=8, before="with deviceguard.allow('XLA003'): total += loss.item()", after="pass")

    assert not run("import deviceguard\n" + body).of("XLA003")
