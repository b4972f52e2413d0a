import pytest

import deviceguard
from tests.rules.xla.loops import line, only, run

pytestmark = pytest.mark.xla

TIED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.tie()
    def tie(self):
        self.head.weight = self.embed.weight
    def forward(self, tokens):
        return self.head(self.embed(tokens))
model = Model().to(device)
{again}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    tokens = torch.randint(0, 20, (4, 6)).to(device)
    optimizer.zero_grad()
    F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    torch_xla.sync()
"""


def test_tie_lost_in_the_move():
    body = TIED.format(again="pass")
    found = only(run(body), "XLA005")

    assert found.severity is deviceguard.Severity.ERROR
    assert [subject.name for subject in found.subjects] == ["model.embed.weight", "model.head.weight"]
    assert found.site.line == line(body, "model = Model()")
    assert found.fix.endswith("model.head.weight = model.embed.weight")


def test_tied_again():
    assert not run(TIED.format(again="model.tie()")).of("XLA005")


def test_model_without_ties():
    assert not run(TIED.format(again="pass").replace("self.tie()", "pass")).of("XLA005")


def test_model_that_is_not_trained():
    body = TIED.format(again="pass").split("optimizer =")[0] + "model(torch.tensor([1, 2], device=device))\n"

    assert not run(body).of("XLA005")
