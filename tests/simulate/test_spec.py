import pytest

from deviceguard.simulate.spec import Spec, parse_spec


@pytest.mark.parametrize(
    ("text", "spec"),
    [("cuda", Spec("cuda")), ("cuda:4", Spec("cuda", 4)), ("xla", Spec("xla")), ("cuda:1", Spec("cuda"))],
)
def test_parse(text, spec):
    """The number after the colon is a count."""
    assert spec == parse_spec(text)


@pytest.mark.parametrize("text", ["", "tpu", "cuda:0", "cuda:x", "cuda:"])
def test_refused(text):
    """What cannot be simulated is a clear error."""
    with pytest.raises(ValueError, match="cannot simulate"):
        parse_spec(text)


def test_str():
    """A specification reads back."""
    assert ["cuda", "cuda:2"] == [str(Spec("cuda")), str(Spec("cuda", 2))]
