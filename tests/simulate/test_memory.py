import pytest
import torch

from deviceguard.simulate import simulate
from deviceguard.simulate.memory import readable


def test_out_of_memory():
    """The limit raises the real device's error."""
    with simulate("cuda", memory=1 << 20):
        kept = torch.zeros(1 << 17, device="cuda")
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.zeros(1 << 18, device="cuda")
        assert str(caught.value).startswith(
            "CUDA out of memory. Tried to allocate 1024.00 KiB. GPU 0 has a total capacity of 1024.00 KiB of which "
            "512.00 KiB is free. "
        )
        del kept
        torch.zeros(1 << 18, device="cuda")
        assert 1 << 20 == torch.cuda.max_memory_allocated()


@pytest.mark.parametrize(
    ("size", "text"), [(20, "20 bytes"), (1536, "1.50 KiB"), (20 << 20, "20.00 MiB"), (3 << 30, "3.00 GiB")]
)
def test_readable(size, text):
    """Sizes are written as the allocator writes them."""
    assert text == readable(size)
