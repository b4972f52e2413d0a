from __future__ import annotations

from tests.rules.findings import line, names, one, silent

LOADER = """
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(16, 4))
torch.set_default_device("cuda")
try:
    for (batch,) in DataLoader(data, batch_size=4, shuffle=True):
        batch.sum()
finally:
    torch.set_default_device(None)
"""


def test_sampler_under_a_default_device():
    finding = one(LOADER, "DEV009")

    assert finding.site.line == line(LOADER, "for (batch,)")
    assert names(finding) == ["the sampler's generator"]
    assert "draws on cuda, the default device, with a generator on cpu" in finding.message


def test_corrected_is_silent():
    silent(LOADER.replace('torch.set_default_device("cuda")\n', ""))


GENERATOR = """
generator = torch.Generator()
noise = torch.randn(3, device="cuda", generator=generator)
"""


def test_generator_of_the_users_own():
    finding = one(GENERATOR, "DEV009")

    assert finding.site.line == line(GENERATOR, "noise = ")
    assert names(finding) == ["generator"]


def test_generator_on_the_device_is_silent():
    silent(GENERATOR.replace("Generator()", 'Generator(device="cuda")'))
