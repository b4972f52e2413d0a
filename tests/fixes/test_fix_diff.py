"""``--fix-diff``: the edits apply, keep everything else as it was, and make their findings go away."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.scripts import plain, run_script

pytest.importorskip("libcst")

from deviceguard.fixes.diff import fixes_for
from deviceguard.fixes.edits import AddKeyword, Append, InsertFirst, MoveAfter, RegisterBuffer, Wrap
from deviceguard.fixes.rewriting import rewritten

HEAD = """\
import torch
from torch import nn
import torch.nn.functional as F

device = torch.device("cuda")  # where we train
"""

SCRIPTS = {
    "input made in one place": (
        "DEV001",
        """
net = nn.Linear(4, 1).to(device)
x = torch.randn(  # a comment
    8, 4
)
net(x)
""",
        ").to(device)",
    ),
    "target of a loop": (
        "DEV002",
        """
net = nn.Linear(4, 1).to(device)
for x, y in [(torch.randn(8, 4), torch.randn(8, 1))]:
    x = x.to(device)  # and y?

    F.mse_loss(net(x), y)
""",
        "    y = y.to(device)",
    ),
    "criterion": (
        "DEV002",
        """
net = nn.Linear(4, 3).to(device)
criterion = nn.CrossEntropyLoss(weight=torch.ones(3))
criterion(net(torch.ones(2, 4, device=device)), torch.zeros(2, dtype=torch.long, device=device))
""",
        "criterion = nn.CrossEntropyLoss(weight=torch.ones(3)).to(device)",
    ),
    "table": (
        "DEV007",
        """
table = torch.linspace(0, 1, 10)
print(table[torch.arange(3, device=device)].to(device))
""",
        "table = torch.linspace(0, 1, 10).to(device)",
    ),
    "factory": (
        "DEV008",
        """
def weighted(prediction):
    weight = torch.ones(3)
    return (prediction * weight).mean()

weighted(torch.ones(2, 3, device=device))
""",
        "    weight = torch.ones(3, device=prediction.device)",
    ),
    "unregistered tensor": (
        "DEV004",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 5)
        self.prior = torch.linspace(-1, 1, 5)  # log odds

    def forward(self, x):
        return self.fc(x) + self.prior

Net().to(device)(torch.ones(2, 4, device=device))
""",
        '        self.register_buffer("prior", torch.linspace(-1, 1, 5), persistent=False)  # log odds',
    ),
    "list of layers": (
        "DEV003",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(4, 4) for _ in range(3)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

Net().to(device)(torch.ones(2, 4, device=device))
""",
        "        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])",
    ),
    "stale parameters": (
        "OPT001",
        """
net = nn.Linear(4, 1).to(device)
# plain SGD
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net.load_state_dict({k: v.clone() for k, v in net.state_dict().items()}, assign=True)
for _ in range(3):
    optimizer.zero_grad()
    net(torch.ones(8, 4, device=device)).sum().backward()
    optimizer.step()
""",
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)",
    ),
    "dtype": (
        "DTY001",
        """
net = nn.Linear(4, 1).to(device)
x = torch.ones(8, 4, dtype=torch.float64, device=device)
net(x)
""",
        "x = torch.ones(8, 4, dtype=torch.float64, device=device).to(torch.float32)",
    ),
    "accumulated loss": (
        "SYN012",
        """
net = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
total = 0
for _ in range(12):
    optimizer.zero_grad()
    loss = net(torch.ones(8, 4, device=device)).pow(2).mean()
    loss.backward()
    optimizer.step()
    total += loss
""",
        "    total += loss.detach()",
    ),
}


def patched(folder: pathlib.Path, source: str, policy: str = "migrate") -> str:
    """The script after its edits were applied by ``patch``; the diff is in ``out.patch``."""
    (folder / "script.py").write_text(plain(source))
    run_script(source, policy=policy, fix_diff=str(folder / "out.patch"), keep_in=folder)
    subprocess.run(["patch", "-p0", "-i", "out.patch"], cwd=folder, check=True, capture_output=True)
    return (folder / "script.py").read_text()


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch")
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_edit_applies_and_the_finding_is_gone(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, body, line = SCRIPTS[name]

    after = patched(tmp_path, HEAD + body)

    assert line in after.splitlines()
    assert run_script(after).of(code) == []


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_applies_it_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = HEAD + SCRIPTS["criterion"][1]
    (tmp_path / "script.py").write_text(plain(source))
    run_script(source, policy="migrate", fix_diff="out.patch", keep_in=tmp_path)

    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "apply", "out.patch"], check=True)

    assert SCRIPTS["criterion"][2] in (tmp_path / "script.py").read_text()


def test_files_stay_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = plain(HEAD + SCRIPTS["criterion"][1])
    path = tmp_path / "script.py"
    path.write_text(source)

    options = ["--simulate", "cuda", "--policy", "migrate", "--fix-diff", "out.patch"]
    done = subprocess.run([sys.executable, "-m", "deviceguard", "run", *options, "script.py"], capture_output=True)

    assert (done.returncode, path.read_text()) == (0, source)
    assert b"patch -p0 < out.patch" in done.stderr
    assert (tmp_path / "out.patch").read_text().startswith("--- ./script.py\n+++ ./script.py\n")


class TestNoEditWhereItIsNotCertain:
    @pytest.mark.parametrize(
        "body",
        [
            "def call(net, x):\n    return net(x)\ncall(nn.Linear(4, 1).to(device), torch.ones(2, 4))\n",
            "other_device = device\nx = torch.ones(2, 4)\nnn.Linear(4, 1).to(device)(x.to(other_device) + x)\n",
        ],
    )
    def test_of_the_place(self, body, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "script.py").write_text(plain(HEAD + body))

        report = run_script(HEAD + body, policy="migrate", may_raise=RuntimeError, keep_in=tmp_path)

        assert report.findings
        assert fixes_for(report.findings).text == ""


class TestRewriting:
    def test_what_follows_a_sum_is_put_in_brackets(self):
        assert rewritten("x = a + b  # sum\n", [Append((1, 4, 1, 9), ".to(d)")]) == "x = (a + b).to(d)  # sum\n"

    def test_brackets_that_are_there_serve(self):
        assert rewritten("x = (a + b)\n", [Append((1, 5, 1, 10), ".to(d)")]) == "x = (a + b).to(d)\n"

    def test_an_argument_is_laid_out_as_the_others_are(self):
        source = "x = f(\n    a,\n    b=1,  # one\n)\n"

        assert rewritten(source, [AddKeyword((1, 4, 4, 1), "c", "2")]) == (
            "x = f(\n    a,\n    b=1,\n    c=2,  # one\n)\n"
        )

    def test_an_argument_of_a_call_without_any(self):
        assert rewritten("x = f()\n", [AddKeyword((1, 4, 1, 7), "c", "2")]) == "x = f(c=2)\n"

    def test_a_container_is_wrapped(self):
        assert rewritten("x = [1,  2]\n", [Wrap((1, 4, 1, 11), "nn.ModuleList")]) == "x = nn.ModuleList([1,  2])\n"

    def test_a_statement_comes_first_in_a_loop(self):
        source = "for y in z:\n\n    # go\n    f(y)\n"

        assert rewritten(source, [InsertFirst((1, 0), "y = g(y)")]).startswith("for y in z:\n    y = g(y)\n")

    def test_a_statement_moves_with_its_comment(self):
        source = "z = 0\n# one\na = 1\nb = 2  # two\nc = 3\n"

        assert rewritten(source, [MoveAfter((3, 0), (4, 0))]) == "z = 0\nb = 2  # two\n# one\na = 1\nc = 3\n"

    def test_an_assignment_on_the_line_of_an_else(self):
        source = "if a:\n    pass\nelse: self.x = y\n"

        assert rewritten(source, [RegisterBuffer((3, 6), "x")]) == (
            'if a:\n    pass\nelse: self.register_buffer("x", y, persistent=False)\n'
        )

    def test_columns_count_characters(self):
        from deviceguard.fixes.source import Source

        source = Source("é = f(é)\n")

        assert source.span(source.tree.body[0].value) == (1, 4, 1, 8)
