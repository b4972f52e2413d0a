from __future__ import annotations

import pytest

from tests.rules.findings import line, names, one, silent

CHECKPOINT = """
import io

rank_device = torch.device("cuda", 1)
buffer = io.BytesIO()
torch.save(nn.Linear(4, 4).to("cuda:0").state_dict(), buffer)
buffer.seek(0)
state = torch.load(buffer)
net = nn.Linear(4, 4).to(rank_device)
net.load_state_dict(state)
"""


def test_checkpoint_without_map_location():
    finding = one(CHECKPOINT, "DEV010", "cuda:2")

    assert finding.site.line == line(CHECKPOINT, "torch.load(")
    assert names(finding) == ["state"]
    assert "on cuda:0" in finding.message
    assert "cuda:1" in finding.message
    assert "map_location='cuda:1'" in finding.fix


def test_corrected_is_silent():
    silent(CHECKPOINT.replace("torch.load(buffer)", "torch.load(buffer, map_location=rank_device)"), "cuda:2")


def test_checkpoint_read_while_another_device_is_current():
    source = CHECKPOINT.replace("buffer.seek(0)", "buffer.seek(0)\ntorch.cuda.set_device(1)")

    assert one(source, "DEV010", "cuda:2").site.line == line(source, "torch.load(")


MODEL = """
torch.cuda.set_device(1)
net = nn.Linear(4, 4).to("cuda:0")
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    opt.zero_grad()
    net(torch.randn(2, 4, device="cuda:0")).sum().backward()
    opt.step()
"""


def test_model_on_another_index_than_the_current_device():
    finding = one(MODEL, "DEV010", "cuda:2")

    assert names(finding) == ["net.weight"]
    assert "index 1 is this process's current device" in finding.message


def test_index_chosen_by_name_is_silent():
    silent(MODEL.replace("torch.cuda.set_device(1)\n", "").replace("cuda:0", "cuda:1"), "cuda:2")


def test_weights_copied_between_live_models_are_silent():
    silent(
        """
learner, actor = nn.Linear(4, 4).to("cuda:0"), nn.Linear(4, 4).to("cuda:1")
actor.load_state_dict(learner.state_dict())
""",
        "cuda:2",
    )


def test_one_device_has_no_wrong_index():
    silent(CHECKPOINT.replace('"cuda", 1', '"cuda", 0'))


def test_input_on_another_index_than_the_model():
    source = """
net = nn.Linear(4, 2).to("cuda:1")
images = torch.randn(3, 4, device="cuda")
net(images)
"""
    finding = one(source, "DEV010", "cuda:2")

    assert names(finding) == ["images"]
    assert "set_device(1)" in finding.fix


ONLY_RUN = """
torch.cuda.set_device(1)
net = nn.Linear(4, 2).to("cuda:0").eval()
with torch.no_grad():
    for _ in range(3):
        net(torch.randn(3, 4, device="cuda:0"))
"""


def test_a_model_that_is_only_run():
    finding = one(ONLY_RUN, "DEV010", "cuda:2")

    assert names(finding) == ["net"]
    assert finding.site.line == line(ONLY_RUN, "net(torch.randn")
    assert finding.fix == "device = torch.device('cuda', 1), and move the model there"


@pytest.mark.parametrize(
    "source",
    [
        ONLY_RUN.replace("cuda:0", "cuda:1"),
        ONLY_RUN.replace("torch.cuda.set_device(1)\n", "").replace("cuda:0", "cuda:1"),
        ONLY_RUN + 'nn.Linear(4, 2).to("cuda:1")(torch.randn(3, 4, device="cuda:1"))\n',
    ],
    ids=["on the current device", "chosen by name", "one model on each"],
)
def test_models_that_are_only_run_where_they_should_be(source):
    silent(source, "cuda:2")
