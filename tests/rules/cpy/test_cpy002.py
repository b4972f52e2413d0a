from __future__ import annotations

import pytest

from tests.rules.opt.expectations import HEAD, assert_page_example, assert_silent
from tests.scripts import run_script

LEGITIMATE = """
import io
net = nn.Linear(4, 1).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
best = net.state_dict()
torch.save(best, io.BytesIO())
for _ in range(3):
    optimizer.zero_grad()
    net(torch.ones(8, 4, device="cuda")).sum().backward()
    optimizer.step()
"""


FEDERATED = """
import copy
torch.manual_seed(0)
server = nn.Linear(4, 1).to("cuda")
clients = [copy.deepcopy(server) for _ in range(3)]
def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 4, device="cuda")).sum().backward()
        optimizer.step()
for _ in range(2):
    for client in clients:
        {refresh}
        train(client)
    states = [client.state_dict() for client in clients]
    average = {start}
    for key in average:
        for state in states[1:]:
            average[key] += state[key]
        average[key] = average[key] / len(states)
    server.load_state_dict(average)
"""


def test_example_names_the_objects_the_line_and_the_edit():
    assert_page_example(
        "CPY002",
        severity="error",
        names=["net"],
        line="net.load_state_dict(best)",
        fix="copy.deepcopy(net.state_dict())",
    )


def test_silent_on_a_state_that_is_saved_at_once():
    assert_silent("CPY002", LEGITIMATE)


def test_an_average_accumulated_in_a_participant():
    source = HEAD + FEDERATED.format(refresh="pass", start="states[0]")

    report = run_script(source, "cuda", select=["CPY"])

    (finding,) = report.findings
    assert finding.rule == "CPY002"
    assert "loaded into server" in finding.message
    assert "copy.deepcopy(" in finding.fix
    assert "client.state_dict()" in source.splitlines()[finding.site.line - 1]


@pytest.mark.parametrize(
    ("refresh", "start"),
    [("pass", "copy.deepcopy(states[0])"), ("client.load_state_dict(server.state_dict())", "states[0]")],
)
def test_silent_on_a_copied_sum_and_on_participants_that_are_loaded_afresh(refresh, start):
    assert_silent("CPY002", FEDERATED.format(refresh=refresh, start=start))
