import os
import subprocess
import sys
import threading

import pytest
import torch
import torch.cuda.comm
import torch.nn.parallel.comm

import deviceguard
from deviceguard.simulate import enter_from_environment, simulate
from deviceguard.simulate.state import active, device_count, device_types

OWNERS = [
    torch, torch.Tensor, torch._C, torch.UntypedStorage, torch.nn.Module, torch.cuda, torch.cuda.memory,
    torch.cuda.random, torch.accelerator, torch.autograd, torch.autograd.graph, torch.autograd.function,
    torch.autograd.Function, torch.autograd.function.BackwardCFunction, torch.distributed,
    torch.distributed.distributed_c10d, torch.backends.cuda, torch.backends.cudnn, torch.version, threading.Thread,
    torch.serialization, torch.nn.parallel.comm, torch.cuda.nvtx, torch.cuda.comm,
]  # fmt: skip


def snapshot():
    return [{name: id(value) for name, value in vars(owner).items()} for owner in OWNERS]


def test_everything_is_put_back():
    """Afterwards every attribute that a simulation replaces is the very object it was."""
    with simulate("cuda"):  # imports what is imported lazily
        torch.zeros(2, device="cuda") + 1
    before = snapshot()
    registry = list(torch.serialization._package_registry)
    with simulate("cuda"):
        inside = snapshot()

    assert before == snapshot()
    assert before != inside
    assert registry == torch.serialization._package_registry
    assert "DEVICEGUARD_SIMULATE" not in os.environ
    assert torch._C._len_torch_function_stack() == 0
    assert not torch.cuda.is_available()


def test_put_back_after_an_error():
    """An exception leaves nothing behind."""
    with pytest.raises(ZeroDivisionError), simulate("cuda"):
        raise ZeroDivisionError

    assert not active()
    assert torch._C._len_torch_function_stack() == 0


def test_queries():
    """Others can ask what is simulated."""
    assert (False, frozenset(), 0) == (active(), device_types(), device_count("cuda"))
    with simulate("cuda:3"):
        assert (True, frozenset({"cuda"}), 3, 0) == (
            active(), device_types(), device_count("cuda"), device_count("xla"),
        )  # fmt: skip


def test_nested():
    """The same simulation inside itself is counted; another one is refused."""
    with simulate("cuda"):
        with simulate("cuda"):
            pass
        assert torch.zeros(1, device="cuda").is_cuda
        with pytest.raises(RuntimeError, match="one process simulates one kind of device"), simulate("cuda:2"):
            pass
    assert not active()


def test_decorator():
    """It decorates a function."""

    @simulate("cuda")
    def where():
        return torch.zeros(1, device="cuda").device

    assert torch.device("cuda:0") == where()
    assert not active()


def test_the_name_in_the_package_is_callable():
    """``deviceguard.simulate("cuda")`` works whatever was imported first."""
    with deviceguard.simulate("cuda"):
        assert active()
    with sys.modules["deviceguard.simulate"]("cuda"):
        assert active()


def test_threads_are_simulated_too():
    """A thread that starts inside sees the device, and leaves no mode behind."""
    seen = []
    with simulate("cuda"):
        thread = threading.Thread(target=lambda: seen.append(torch.ones(1, device="cuda").device))
        thread.start()
        thread.join()

    assert [torch.device("cuda:0")] == seen


def test_modes_above_see_the_device():
    """A function mode entered before or after the simulation sees labels."""
    seen = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.Tensor.add:
                seen.append(args[0].device.type)
            return func(*args, **(kwargs or {}))

    with Watch(), simulate("cuda"):
        torch.ones(1, device="cuda") + 1
    with simulate("cuda"), Watch():
        torch.ones(1, device="cuda") + 1

    assert ["cuda", "cuda"] == seen


def test_environment_variable():
    """A spawned process simulates what its parent simulated."""
    code = "import torch, deviceguard.simulate as s; print(s.enter_from_environment(), torch.cuda.device_count())"
    environment = dict(os.environ, DEVICEGUARD_SIMULATE="cuda:2")
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)

    assert "True 2" == done.stdout.strip()


@pytest.mark.parametrize("text", [None, "", "nonsense"])
def test_environment_variable_unusable(monkeypatch, text):
    """It never raises."""
    monkeypatch.delenv("DEVICEGUARD_SIMULATE", raising=False)
    if text is not None:
        monkeypatch.setenv("DEVICEGUARD_SIMULATE", text)

    assert enter_from_environment() is False


def test_importing_the_state_imports_no_torch():
    """Asking whether a simulation is on is free."""
    code = "import sys, deviceguard.simulate.state as s; assert not s.active(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "False" == done.stdout.strip()


def test_what_a_cuda_build_imports():
    """PyTorch's modules import names of a CUDA build where ``is_built()`` says so."""
    code = (
        "import torch, deviceguard\nwith deviceguard.simulate('cuda'):\n"
        "    import torch._inductor.cudagraph_trees; torch._dynamo.reset()\n"
        "print(hasattr(torch._C, '_cuda_CUDAAllocator_AllocatorState'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert str(torch.backends.cuda.is_built()) == done.stdout.strip()
