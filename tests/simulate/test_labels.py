import copy
import gc
import io
import pickle

import pytest
import torch
from torch import nn

from deviceguard.simulate import simulate

ZERO, ONE = torch.device("cuda:0"), torch.device("cuda:1")


@pytest.fixture(autouse=True)
def simulated():
    with simulate("cuda:2"):
        yield


def model():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda()


def places(module):
    return {tensor.device for tensor in module.state_dict().values()}


KEEPING = {
    "deepcopy of a module": lambda: places(copy.deepcopy(model())),
    "deepcopy of a tensor": lambda: {copy.deepcopy(torch.ones(2, device="cuda")).device},
    "copy of a tensor": lambda: {copy.copy(torch.ones(2, device="cuda")).device},
    "pickle": lambda: places(pickle.loads(pickle.dumps(model()))),
    "parameter": lambda: {nn.Parameter(torch.ones(2, device="cuda")).device},
    "view": lambda: {torch.ones(4, device="cuda").view(2, 2)[0].device},
    "data": lambda: {torch.ones(4, device="cuda").data.device},
    "detach": lambda: {torch.ones(4, device="cuda").detach().device},
    "iteration": lambda: {row.device for row in torch.ones(4, 2, device="cuda")},
    "to_empty": lambda: places(nn.Linear(2, 2, device="meta").to_empty(device="cuda")),
    "half": lambda: places(model().half()),
    "tolist of split": lambda: {part.device for part in torch.ones(4, device="cuda").split(2)},
    "vmap": lambda: {torch.func.vmap(lambda x: x * 2)(torch.ones(3, 2, device="cuda")).device},
    "func.grad": lambda: {torch.func.grad(lambda x: (x * x).sum())(torch.ones(2, device="cuda")).device},
    "sparse": lambda: {torch.eye(2, device="cuda").to_sparse().device},
    "sparse values": lambda: {torch.eye(2, device="cuda").to_sparse().coalesce().values().device},
    "optimizer state": lambda: adam_state(),
    "new": lambda: {torch.ones(2, device="cuda").new_zeros(3).device},
    "like": lambda: {torch.zeros_like(torch.ones(2, device="cuda")).device},
    "compile": lambda: {torch.compile(model())(torch.ones(2, 4, device="cuda")).device},
}


def adam_state():
    net = nn.Linear(2, 2).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 2, device="cuda")).sum().backward()
    optimizer.step()
    return {state["exp_avg"].device for state in optimizer.state.values()}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("make", KEEPING.values(), ids=list(KEEPING))
def test_kept(make):
    """What is made out of a device tensor is on its device."""
    assert {ZERO} == make()


def test_data_follows_the_storage():
    """``.data =`` changes the device with the memory."""
    parameter = nn.Parameter(torch.zeros(2))
    parameter.data = torch.ones(2, device="cuda:1")

    assert ONE == parameter.device


def test_load_state_dict_assign():
    """``assign=True`` takes the tensors as they are."""
    net = model()
    net.load_state_dict({name: tensor.to("cuda:1") for name, tensor in net.state_dict().items()}, assign=True)

    assert {ONE} == places(net)


def test_module_to_keeps_parameters():
    """CUDA keeps the parameter objects on a move."""
    net = nn.Linear(2, 2)
    before = list(net.parameters())
    net.to("cuda")

    assert all(one is other for one, other in zip(before, net.parameters(), strict=True))
    assert {ZERO} == places(net)


def test_default_device():
    """``set_default_device`` and ``with torch.device``."""
    torch.set_default_device("cuda:1")
    try:
        assert [ONE, ONE, ONE] == [torch.zeros(1).device, nn.Linear(1, 1).weight.device, torch.tensor([1]).device]
        assert torch.device("cpu") == torch.zeros(1, device="cpu").device
    finally:
        torch.set_default_device(None)
    with torch.device("cuda:1"):
        assert ONE == torch.arange(3).device
    assert torch.device("cpu") == torch.zeros(1).device


def test_current_device():
    """``cuda`` means the current index."""
    with torch.cuda.device(1):
        assert ONE == torch.zeros(1, device="cuda").device
        assert ONE == torch.zeros(1).cuda().device
    assert ZERO == torch.zeros(1, device="cuda").device


def test_repr():
    """A tensor is printed with its device."""
    assert "tensor([0., 0.], device='cuda:0')" == repr(torch.zeros(2, device="cuda"))
    assert "1.0" == f"{torch.ones((), device='cuda')}"


def test_memory_is_freed():
    """Nothing is kept alive."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    held = torch.zeros(1 << 18, device="cuda")
    assert before + (1 << 20) == torch.cuda.memory_allocated()
    view = held[:2]
    del held
    assert before + (1 << 20) == torch.cuda.memory_allocated()
    del view

    assert before == torch.cuda.memory_allocated()


def saved():
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(2, device="cuda:0")}, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize(
    ("location", "device"),
    [
        (None, "cuda:0"), ("cpu", "cpu"), ("cuda:1", "cuda:1"), ({"cuda:0": "cuda:1"}, "cuda:1"),
        (torch.device("cuda"), "cuda:0"), (lambda storage, name: storage, "cpu"),
        (lambda storage, name: storage.cuda(1), "cuda:1"),
    ],
)  # fmt: skip
def test_load(location, device):
    """``map_location`` in all its forms."""
    assert torch.device(device) == torch.load(saved(), map_location=location)["w"].device


def test_load_outside():
    """A file saved on a simulated device asks for one when loaded without."""
    from deviceguard.simulate import session

    buffer = saved()
    session.leave()
    try:
        with pytest.raises(RuntimeError, match="Attempting to deserialize object on a CUDA device"):
            torch.load(buffer)
    finally:
        simulate("cuda:2").__enter__()
