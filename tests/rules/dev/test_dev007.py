from __future__ import annotations

import pytest

from tests.rules.findings import line, names, one, silent

TABLE = """
betas = torch.linspace(1e-4, 2e-2, 100)
t = torch.randint(0, 100, (8,), device="cuda")
scale = betas[t].unsqueeze(1)
"""


def test_host_table_with_a_device_index():
    finding = one(TABLE, "DEV007")

    assert finding.site.line == line(TABLE, "scale = ")
    assert names(finding) == ["betas", "t"]
    assert "betas is on cpu, but it is looked up with t, which is on cuda:0" in finding.message
    assert f"line {line(TABLE, 'betas = ')}" in finding.message
    assert finding.fix == "move the table once, where it is made: betas = betas.to('cuda:0')"


def test_corrected_is_silent():
    silent(TABLE.replace("scale =", 'betas = betas.to("cuda")\nscale ='))


@pytest.mark.parametrize("lookup", ["betas.gather(0, t)", "torch.index_select(betas, 0, t)", "F.embedding(t, table)"])
def test_other_lookups(lookup):
    source = f"""
betas = torch.linspace(1e-4, 2e-2, 100)
table = torch.randn(100, 4)
t = torch.randint(0, 100, (8,), device="cuda")
found = {lookup}
"""
    assert names(one(source, "DEV007"))[0] in ("betas", "table")


def test_table_of_a_plain_object():
    source = """
class Diffusion:
    def __init__(self):
        self.betas = torch.linspace(1e-4, 2e-2, 100)

    def scale(self, t):
        return self.betas[t]

diffusion = Diffusion()
diffusion.scale(torch.randint(0, 100, (8,), device="cuda"))
"""
    finding = one(source, "DEV007")

    assert names(finding)[0] == "self.betas"
    assert finding.site.line == line(source, "return self.betas[t]")


def test_the_reverse_is_legal():
    silent("""
table = torch.linspace(0, 1, 10, device="cuda")
table[torch.tensor([1, 2])]
host = torch.linspace(0, 1, 10)
host[torch.tensor([1, 2])]
""")
