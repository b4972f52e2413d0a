"""The placement table, row by row, against what PyTorch's CUDA build does.

``cuda_truth.json`` was recorded from the CUDA build: for each call its result or the class and text of its error.
"""

import pytest

from deviceguard.simulate import simulate
from tests.simulate.two_devices import DIFFERENCES, ROWS, expected_of, outcome


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_row(row):
    """Each recorded call has the recorded result, or the recorded error word by word."""
    with simulate("cuda:2"):
        found = outcome(row["call"])

    if row["name"] in DIFFERENCES:
        assert found != expected_of(row), "this row agrees now: take it out of DIFFERENCES"
    else:
        assert expected_of(row) == found
