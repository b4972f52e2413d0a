"""The guard leaves every object it touches exactly as it found it, however the guarded block ends."""

from __future__ import annotations

import builtins
import copy
import pickle
import sys
import threading
import time
import warnings
from typing import Any

import pytest
import torch
import torch.distributed
import torch.optim.lr_scheduler
import torch.optim.swa_utils
import torch.utils.data
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import deviceguard
from deviceguard.hub import HUB
from deviceguard.simulate import streams
from deviceguard.sources.all import SOURCES
from deviceguard.sources.patching import Patches
from deviceguard.sources.source import Source

pytestmark = pytest.mark.filterwarnings("ignore::deviceguard.errors.DeviceGuardWarning")

OWNERS: dict[str, Any] = {
    "builtins": builtins,
    "copy": copy,
    "deviceguard.simulate.streams.Event": streams.Event,
    "deviceguard.simulate.streams.Stream": streams.Stream,
    "pickle": pickle,
    "threading": threading,
    "time": time,
    "torch": torch,
    "torch.Generator": torch.Generator,
    "torch.Tensor": torch.Tensor,
    "torch._C": torch._C,
    "torch._C.TensorBase": torch._C.TensorBase,
    "torch._dynamo.config": torch._dynamo.config if hasattr(torch, "_dynamo") else None,
    "torch.accelerator": torch.accelerator,
    "torch.amp.GradScaler": torch.amp.GradScaler,
    "torch.amp.autocast": torch.amp.autocast,
    "torch.autograd": torch.autograd,
    "torch.autograd.Function": torch.autograd.Function,
    "torch.autograd.graph": torch.autograd.graph,
    "torch.cuda": torch.cuda,
    "torch.cuda.amp": torch.cuda.amp,
    "torch.distributed": torch.distributed,
    "torch.jit": torch.jit,
    "torch.nn": nn,
    "torch.nn.Module": nn.Module,
    "torch.nn.ModuleDict": nn.ModuleDict,
    "torch.nn.ModuleList": nn.ModuleList,
    "torch.nn.Parameter": nn.Parameter,
    "torch.nn.functional": nn.functional,
    "torch.nn.init": nn.init,
    "torch.nn.modules.loss": nn.modules.loss,
    "torch.nn.modules.module": module_hooks,
    "torch._utils.ExceptionWrapper": torch._utils.ExceptionWrapper,
    "torch.nn.parallel.DataParallel": nn.parallel.DataParallel,
    "torch.nn.parallel.DistributedDataParallel": nn.parallel.DistributedDataParallel,
    "torch.nn.utils": nn.utils,
    "torch.nn.utils.clip_grad": nn.utils.clip_grad,
    "torch.optim.Optimizer": torch.optim.Optimizer,
    "torch.optim.optimizer": optimizer_hooks,
    "torch.optim.swa_utils.AveragedModel": torch.optim.swa_utils.AveragedModel,
    "torch.random": torch.random,
    "torch.serialization": torch.serialization,
    "torch.utils.data": torch.utils.data,
    "torch.utils.data.DataLoader": torch.utils.data.DataLoader,
    "torch.utils.data.dataloader": torch.utils.data.dataloader,
    "torch.utils.data.dataloader._BaseDataLoaderIter": torch.utils.data.dataloader._BaseDataLoaderIter,
    "warnings": warnings,
}
OWNERS |= {f"torch.optim.{c.__name__}": c for c in torch.optim.Optimizer.__subclasses__() if "optim" in c.__module__}
OWNERS |= {
    f"torch.optim.lr_scheduler.{name}": value
    for name, value in vars(torch.optim.lr_scheduler).items()
    if isinstance(value, type) and value.__module__ == "torch.optim.lr_scheduler"
}
SYSTEM = ("displayhook", "excepthook", "unraisablehook", "stdout", "stderr", "meta_path", "path_hooks")

PATCHED = {
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "time.perf_counter_ns",
    "time.time",
    "time.time_ns",
    "torch.Tensor.backward",
    "torch._utils.ExceptionWrapper.__init__",
    "torch.amp.GradScaler.scale",
    "torch.amp.GradScaler.step",
    "torch.amp.GradScaler.unscale_",
    "torch.amp.GradScaler.update",
    "torch.amp.autocast.__enter__",
    "torch.autograd._engine_run_backward",
    "torch.autograd.backward",
    "torch.autograd.grad",
    "torch.clear_autocast_cache",
    "torch.jit.trace",
    "torch.load",
    "torch.nn.Module.__init__",
    "torch.nn.Module.__setstate__",
    "torch.distributed.destroy_process_group",
    "torch.nn.Module._apply",
    "torch.nn.Module._replicate_for_data_parallel",
    "torch.nn.Module.load_state_dict",
    "torch.nn.Module.state_dict",
    "torch.nn.Module.zero_grad",
    "torch.nn.Parameter.__deepcopy__",
    "torch.nn.modules.module._has_any_global_hook",
    "torch.nn.parallel.DataParallel.__init__",
    "torch.nn.parallel.DistributedDataParallel.__init__",
    "torch.nn.utils.clip_grad.clip_grad_norm_",
    "torch.nn.utils.clip_grad.clip_grad_value_",
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.clip_grad_value_",
    "torch.optim.Optimizer.__init__",
    "torch.optim.Optimizer.__setstate__",
    "torch.optim.Optimizer.add_param_group",
    "torch.optim.Optimizer.load_state_dict",
    "torch.optim.Optimizer.state_dict",
    "torch.optim.Optimizer.zero_grad",
    "torch.optim.lr_scheduler.ChainedScheduler.step",
    "torch.optim.lr_scheduler.CosineAnnealingWarmRestarts.step",
    "torch.optim.lr_scheduler.LRScheduler.step",
    "torch.optim.lr_scheduler.ReduceLROnPlateau.step",
    "torch.optim.lr_scheduler.SequentialLR.step",
    "torch.optim.swa_utils.AveragedModel.update_parameters",
    "torch.save",
    "torch.utils.data.DataLoader.__iter__",
    "torch.utils.data.dataloader._BaseDataLoaderIter.__next__",
}
"""Everything the sources replace. A new patch is added here by whoever writes it."""

PATCHED_BY_A_SESSION = {"warnings._showwarnmsg"}
"""What a session replaces itself, beside its sources: where warnings are shown."""

PATCHED_UNDER_SIMULATION = {
    "deviceguard.simulate.streams.Event.query",
    "deviceguard.simulate.streams.Event.synchronize",
    "deviceguard.simulate.streams.Stream.query",
    "deviceguard.simulate.streams.Stream.synchronize",
    "torch.accelerator.empty_cache",
    "torch.accelerator.synchronize",
    "torch.cuda.empty_cache",
    "torch.cuda.synchronize",
}
"""What they replace of a device that is there, shown by a simulated one."""

PATCHED_BY_EACH_THREAD = {"torch.autograd._engine_run_backward"}

HOOKED = {
    "torch.nn.modules.module._global_forward_hooks",
    "torch.nn.modules.module._global_forward_hooks_always_called",
    "torch.nn.modules.module._global_forward_hooks_with_kwargs",
    "torch.nn.modules.module._global_forward_pre_hooks",
    "torch.nn.modules.module._global_module_registration_hooks",
    "torch.nn.modules.module._global_parameter_registration_hooks",
    "torch.optim.optimizer._global_optimizer_post_hooks",
    "torch.optim.optimizer._global_optimizer_pre_hooks",
}
"""The global hook dictionaries it puts something into."""


class Snapshot:
    """The very objects that are reachable by name, and what global hook dictionaries hold."""

    def __init__(self) -> None:
        self.objects = {
            f"{label}.{name}": value
            for label, owner in OWNERS.items()
            if owner is not None
            for name, value in vars(owner).items()
        }
        self.objects |= {f"sys.{name}": getattr(sys, name) for name in SYSTEM}
        self.hooks = {
            f"{module.__name__}.{name}": dict(value)
            for module in (module_hooks, optimizer_hooks)
            for name, value in vars(module).items()
            if name.startswith("_global_") and isinstance(value, dict)
        }
        self.modes = (list(_get_current_function_mode_stack()), list(_get_current_dispatch_mode_stack()))
        self.traces = (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile())
        self.filters = list(warnings.filters)

    def differs_from(self, other: Snapshot) -> set[str]:
        names = self.objects.keys() | other.objects.keys()
        missing = object()
        return {n for n in names if self.objects.get(n, missing) is not other.objects.get(n, missing)}

    def hooked_since(self, other: Snapshot) -> set[str]:
        return {name for name in self.hooks if self.hooks[name] != other.hooks.get(name)}

    def assert_same(self, other: Snapshot) -> None:
        assert self.differs_from(other) == set()
        assert self.hooked_since(other) == set()
        assert self.modes == other.modes
        assert self.traces == other.traces
        assert self.filters == other.filters


@pytest.fixture(scope="module", autouse=True)
def warmed_up() -> None:
    """What torch itself imports and sets when it is first used is not the guard's doing."""
    with deviceguard.simulate("cuda"), deviceguard.watch():
        train()


@pytest.fixture
def before(warmed_up: None) -> Snapshot:
    return Snapshot()


def train() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(torch.randn(3, 4)), torch.randn(3, 2)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    copy.deepcopy(net).load_state_dict(net.state_dict())
    pickle.loads(pickle.dumps(optimizer))


@pytest.mark.parametrize("policy", ["watch", "strict", "migrate"])
def test_inside_only_known_things_are_replaced_and_afterwards_none(before, policy):
    with getattr(deviceguard, policy)():
        inside = Snapshot()
        train()

    assert inside.differs_from(before) <= PATCHED | PATCHED_BY_A_SESSION
    assert inside.hooked_since(before) <= HOOKED
    assert inside.modes[1] == []
    Snapshot().assert_same(before)


def test_snapshot_sees_a_replaced_attribute(before, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: 0.0)

    assert Snapshot().differs_from(before) == {"torch.Tensor.item"}


def test_policy_off_touches_nothing(before):
    with deviceguard.watch(policy="off"):
        Snapshot().assert_same(before)


def test_selection_limits_what_is_installed(before):
    with deviceguard.watch(select="DEV001"):
        inside = Snapshot()

    assert inside.differs_from(before) <= PATCHED | PATCHED_BY_A_SESSION
    Snapshot().assert_same(before)


def test_nested_guards_install_once_and_the_outer_one_restores(before):
    with deviceguard.watch():
        outer = Snapshot()
        with deviceguard.strict():
            inner = Snapshot()
            train()
        assert inner.differs_from(outer) == set()
        after_inner = Snapshot()
        assert after_inner.differs_from(outer) == set()
        assert after_inner.modes == outer.modes

    Snapshot().assert_same(before)


def test_guards_closed_in_the_order_they_were_opened(before):
    first, second = deviceguard.watch(), deviceguard.watch()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    train()
    second.__exit__(None, None, None)

    Snapshot().assert_same(before)


def test_decorator_restores_at_each_call(before):
    guarded = deviceguard.watch()(train)
    for _ in range(2):
        guarded()
        Snapshot().assert_same(before)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, RuntimeError])
def test_after_an_exception(before, error):
    with pytest.raises(error), deviceguard.watch():
        train()
        raise error

    Snapshot().assert_same(before)


def test_after_an_exception_inside_a_forward(before):
    class Failing(nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), deviceguard.watch():
        Failing()(torch.ones(1))

    Snapshot().assert_same(before)


def test_after_an_unknown_setting(before):
    with pytest.raises(deviceguard.SettingsError), deviceguard.watch(slect="DEV"):
        pass

    Snapshot().assert_same(before)


def test_after_strict_has_raised(before):
    net = nn.Linear(4, 2)
    with pytest.raises(deviceguard.DeviceGuardError), deviceguard.simulate("cuda"), deviceguard.strict():
        net.to("cuda")(torch.ones(1, 4))

    Snapshot().assert_same(before)


def test_inside_a_simulation(before):
    with deviceguard.simulate("cuda"):
        simulated = Snapshot()
        with deviceguard.watch():
            train()
        Snapshot().assert_same(simulated)

    Snapshot().assert_same(before)


def test_simulation_inside_a_guard(before):
    with deviceguard.watch():
        with deviceguard.simulate("cuda"):
            train()
        train()

    Snapshot().assert_same(before)


def test_simulation_that_outlives_the_guard(before):
    guard, simulation = deviceguard.watch(), deviceguard.simulate("cuda")
    guard.__enter__()
    simulation.__enter__()
    guard.__exit__(None, None, None)
    train()
    simulation.__exit__(None, None, None)

    Snapshot().assert_same(before)


def test_two_threads_share_what_is_installed(before):
    opened, other_may_end = threading.Event(), threading.Event()
    seen: dict[str, Any] = {}

    def other() -> None:
        with deviceguard.watch():
            seen["inside"] = Snapshot()
            opened.set()
            other_may_end.wait(30)
            train()
        seen["modes"] = Snapshot().modes

    thread = threading.Thread(target=other)
    with deviceguard.watch():
        here = Snapshot()
        thread.start()
        assert opened.wait(30)
        train()
    still = Snapshot()
    other_may_end.set()
    thread.join(30)

    assert seen["inside"].differs_from(here) <= PATCHED_BY_EACH_THREAD
    assert still.differs_from(before) == here.differs_from(before)
    assert seen["modes"] == ([], [])
    Snapshot().assert_same(before)


def test_guard_closed_in_another_thread_than_it_was_opened_in(before):
    guard = deviceguard.watch()
    guard.__enter__()
    thread = threading.Thread(target=guard.__exit__, args=(None, None, None))
    thread.start()
    thread.join(30)
    train()

    Snapshot().assert_same(before)


def test_many_threads_opening_and_closing_at_random(before):
    def work() -> None:
        for _ in range(20):
            with deviceguard.watch(select="DEV001"):
                nn.Linear(2, 2)(torch.ones(1, 2))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    Snapshot().assert_same(before)


def test_patch_that_the_user_wrapped_stays_usable(before):
    original = nn.Module.zero_grad
    guard = deviceguard.watch()
    guard.__enter__()
    inside = nn.Module.zero_grad

    def wrapped(module: nn.Module, *args: Any) -> None:
        inside(module, *args)

    nn.Module.zero_grad = wrapped
    try:
        guard.__exit__(None, None, None)
        assert nn.Module.zero_grad is wrapped
        nn.Linear(2, 2).zero_grad()
    finally:
        nn.Module.zero_grad = original
    Snapshot().assert_same(before)


def test_hooks_of_the_user_survive(before):
    handle = module_hooks.register_module_forward_pre_hook(lambda module, args: None)
    with deviceguard.watch():
        train()
    after = Snapshot()
    handle.remove()

    assert after.hooked_since(before) == {"torch.nn.modules.module._global_forward_pre_hooks"}
    Snapshot().assert_same(before)


def test_subclasses_of_the_user_keep_their_overrides(before):
    class Mine(nn.Module):
        def zero_grad(self, set_to_none: bool = True) -> None:
            super().zero_grad(set_to_none)

    own = Mine.__dict__["zero_grad"]
    with deviceguard.watch():
        Mine().zero_grad()

    assert Mine.__dict__["zero_grad"] is own
    Snapshot().assert_same(before)


def test_patches_look_like_the_originals():
    names = ("__init__", "_apply", "load_state_dict", "state_dict", "zero_grad")
    before = {name: (f.__name__, f.__doc__) for name in names for f in (vars(nn.Module)[name],)}
    with deviceguard.watch():
        inside = {name: (f.__name__, f.__doc__) for name in names for f in (vars(nn.Module)[name],)}

    assert inside == before


@pytest.mark.parametrize("cls", SOURCES)
def test_each_source_restores_what_it_replaced(before, cls):
    source = installed(cls)
    train()
    source.uninstall()

    Snapshot().assert_same(before)


def test_all_sources_together_replace_exactly_the_known_things(before):
    sources = [installed(cls) for cls in SOURCES]
    inside = Snapshot()
    for source in sources:
        source.uninstall()

    assert inside.differs_from(before) == PATCHED
    assert inside.hooked_since(before) == HOOKED
    Snapshot().assert_same(before)


def test_under_simulation_they_replace_the_waits_of_the_device_as_well(before):
    with deviceguard.simulate("cuda"):
        simulated = Snapshot()
        sources = [installed(cls) for cls in SOURCES]
        inside = Snapshot()
        for source in sources:
            source.uninstall()
        Snapshot().assert_same(simulated)

    assert inside.differs_from(simulated) == PATCHED | PATCHED_UNDER_SIMULATION
    Snapshot().assert_same(before)


def test_every_object_a_source_touches_is_compared(monkeypatch):
    touched = []
    replace = Patches.replace

    def recorded(patches: Patches, owner: Any, name: str, make: Any) -> None:
        touched.append(owner)
        replace(patches, owner, name, make)

    monkeypatch.setattr(Patches, "replace", recorded)
    with deviceguard.simulate("cuda"):
        for source in [installed(cls) for cls in SOURCES]:
            source.uninstall()
    compared = {id(owner) for owner in OWNERS.values()}

    assert [owner for owner in touched if id(owner) not in compared] == []


def test_patches_of_two_threads_may_end_in_any_order(before):
    first, second = installed_patch("first"), installed_patch("second")
    first.restore()
    assert nn.Module.zero_grad.__name__ == "second"
    second.restore()

    Snapshot().assert_same(before)


def installed_patch(name: str) -> Patches:
    def make(original: Any) -> Any:
        def patched(*args: Any) -> Any:
            return original(*args)

        return patched

    patches = Patches()
    patches.replace(nn.Module, "zero_grad", make)
    nn.Module.zero_grad.__name__ = name
    return patches


def installed(cls: type[Source]) -> Source:
    source = cls(lambda event: None)
    source.wanted = cls.provides
    source.install()
    return source


def test_nothing_stays_installed_in_the_hub():
    with deviceguard.watch():
        pass

    assert HUB.sessions == ()
    assert HUB._installed == {}
