from __future__ import annotations

import pytest

from deviceguard.ledger import values
from deviceguard.rules.page import page_of
from deviceguard.rules.registry import rule_class
from tests.rules.opt.expectations import assert_silent
from tests.scripts import run_script

WRITTEN_BY_HAND = """
net, head = nn.Linear(4, 4).to("cuda"), nn.Linear(4, 1).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    head.zero_grad()
    head(net(torch.ones(8, 4, device="cuda"))).sum().backward()
    optimizer.step()
    with torch.no_grad():
        for p in head.parameters():
            p -= 0.1 * p.grad
"""


@pytest.fixture
def unreadable(monkeypatch):
    """No element of any tensor can be read, as on a device that would have to run its graph for that."""
    monkeypatch.setattr(values, "readable", lambda tensor: False)


@pytest.mark.usefixtures("unreadable")
@pytest.mark.parametrize("code", ["CPY004", "CPY005", "OPT005", "OPT016"])
def test_what_cannot_be_read_is_not_known_to_have_changed_or_not(code):
    report = run_script(page_of(rule_class(code)).example, "cuda", select=[code])

    assert report.findings == []
    assert report.internal_errors == 0


@pytest.mark.usefixtures("unreadable")
def test_an_update_by_hand_shows_in_the_version_where_elements_cannot_be_read():
    assert_silent("OPT002", WRITTEN_BY_HAND)
