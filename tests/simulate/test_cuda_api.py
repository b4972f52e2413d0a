import pytest
import torch

from deviceguard.simulate import NotSimulatedError, simulate


@pytest.fixture(autouse=True)
def simulated():
    with simulate("cuda:2"):
        yield


def test_answers():
    """What training scripts ask first."""
    assert torch.cuda.is_available()
    assert 2 == torch.cuda.device_count() == torch.accelerator.device_count()
    assert 0 == torch.cuda.current_device()
    assert "NVIDIA A100-SXM4-80GB (simulated)" == torch.cuda.get_device_name(1)
    assert (8, 0) == torch.cuda.get_device_capability()
    assert 80 << 30 == torch.cuda.get_device_properties(0).total_memory
    assert torch.device("cuda") == torch.accelerator.current_accelerator()
    assert torch.backends.cuda.is_built()
    assert torch.cuda.is_bf16_supported()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.manual_seed_all(0)


def test_not_simulated_says_so():
    """A call without an honest answer is refused by name."""
    with pytest.raises(NotSimulatedError, match=r"^torch\.cuda\.utilization is not simulated"):
        torch.cuda.utilization()
    with pytest.raises(NotSimulatedError, match=r"^torch\.cuda\.CUDAGraph is not simulated"):
        torch.cuda.CUDAGraph()


def test_visible_devices(monkeypatch):
    """``CUDA_VISIBLE_DEVICES`` hides devices until the device is first used."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert 1 == torch.cuda.device_count()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not torch.cuda.is_available()
    with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
        torch.zeros(1, device="cuda")


def test_streams_and_events():
    """The current stream is tracked; events measure time."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert side == torch.cuda.current_stream()
    assert torch.cuda.default_stream() == torch.cuda.current_stream()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    end.record()
    end.synchronize()

    assert start.elapsed_time(end) >= 0


def test_generator_streams():
    """A generator of the device draws what a host generator draws."""
    host = torch.randn(3, generator=torch.Generator().manual_seed(1))
    device = torch.randn(3, device="cuda", generator=torch.Generator("cuda").manual_seed(1))

    assert torch.equal(host, device.cpu())
    assert isinstance(torch.default_generator, torch.Generator)


def test_random_numbers_are_those_of_the_host():
    """Seeding the device leaves the host's stream alone."""
    torch.manual_seed(3)
    plain = torch.randn(4)
    torch.manual_seed(3)
    torch.cuda.manual_seed_all(9)

    assert torch.equal(plain, torch.randn(4, device="cuda").cpu())
    state = torch.cuda.get_rng_state()
    first = torch.rand(2, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(first.cpu(), torch.rand(2, device="cuda").cpu())


def test_kernels_compiled_at_run_time_are_refused():
    """There is no compiler for them; making one is no error, so that modules that do can be imported."""
    double = torch.cuda.jiterator._create_jit_fn("template <typename T> T twice(T x) { return 2 * x; }")

    with pytest.raises(NotSimulatedError, match=r"^torch\.cuda\.jiterator is not simulated"):
        double(torch.ones(2, device="cuda"))


def test_graphs_are_refused_but_can_be_named():
    """Libraries write ``torch.cuda.CUDAGraph | None`` at import."""
    assert (torch.cuda.CUDAGraph | None) is not None
    assert not isinstance(None, torch.cuda.CUDAGraph)
    for make in (torch.cuda.CUDAGraph, lambda: torch.cuda.graph(None)):
        with pytest.raises(NotSimulatedError, match="is not simulated"):
            make()
