from __future__ import annotations

import sys

from torch import nn

from deviceguard.naming.objects import path_of


def test_the_way_from_a_model_to_a_part():
    model = nn.Sequential(nn.Linear(1, 1), nn.ModuleDict({"inner": nn.ReLU()}))
    found = path_of(nn.ReLU(), sys._getframe())

    assert path_of(model[1]["inner"], sys._getframe()) == "model[1].inner"
    assert found is None


def test_a_model_that_holds_itself_ends():
    model = nn.Sequential(nn.Linear(1, 1))
    model._modules["again"] = model
    found = path_of(nn.ReLU(), sys._getframe())

    assert path_of(model[0], sys._getframe()) == "model[0]"
    assert found is None
