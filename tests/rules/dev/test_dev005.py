from __future__ import annotations

from tests.rules.findings import line, names, one, silent

ALIAS = """
class Stats(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.refs = {"mean": self.mean}

    def forward(self, x):
        ref = self.refs["mean"]
        ref.mul_(0.9).add_(x.mean(0).to(ref.device), alpha=0.1)
        return x - self.mean

stats = Stats().to("cuda")
for _ in range(3):
    stats(torch.randn(8, 4, device="cuda"))
"""


def test_dictionary_of_former_buffers():
    finding = one(ALIAS, "DEV005")

    assert finding.site.line == line(ALIAS, "self.refs = ")
    assert names(finding) == ["stats.refs['mean']", "stats.mean", "stats"]
    assert "is on cpu, stats.mean is on cuda:0" in finding.message
    assert "self.mean" in finding.fix


def test_corrected_is_silent_though_the_dictionary_is_still_there():
    silent(ALIAS.replace('ref = self.refs["mean"]', "ref = self.mean"))


def test_module_that_is_used_through_its_methods():
    source = ALIAS.replace("def forward", "def update").replace("stats(torch", "stats.update(torch")

    assert names(one(source, "DEV005"))[0].endswith(".refs['mean']")


CACHE = """
class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.cache = {}

    def forward(self, x):
        if x.shape[0] not in self.cache:
            self.cache[x.shape[0]] = torch.ones(x.shape[0], 4, device=x.device)
        return self.fc(x) + self.cache[x.shape[0]]

net = Positions()
net(torch.randn(3, 4))
net.to("cuda")
net(torch.randn(3, 4, device="cuda"))
"""


def test_cache_of_the_former_device():
    finding = one(CACHE, "DEV005")

    assert names(finding)[0] == "net.cache[3]"
    assert "former device" in finding.message


def test_cache_keyed_by_device_is_silent():
    silent(
        CACHE.replace("x.shape[0] not in", "(x.shape[0], x.device) not in").replace(
            "self.cache[x.shape[0]]", "self.cache[x.shape[0], x.device]"
        )
    )


def test_copies_kept_on_purpose_are_silent():
    silent("""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.initial = {"mean": self.mean.clone()}

    def forward(self, x):
        self.mean.add_(x.mean(0))
        return self.fc(x)

net = Net().to("cuda")
net(torch.randn(8, 4, device="cuda"))
net.initial["mean"].add_(1)
""")
