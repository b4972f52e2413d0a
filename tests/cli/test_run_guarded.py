"""``deviceguard run`` over programs that use torch: what is reported, and that it is reported however they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.cli.comparing import assert_same, guarded, python

pytest.importorskip("torch")

STALE = """
import copy, os, signal, sys, threading, time, torch
model = torch.nn.Linear(3, 3)
opt = torch.optim.SGD(copy.deepcopy(model).parameters(), lr=0.1)
def train(steps=3):
    for step in range(steps):
        opt.zero_grad()
        model(torch.randn(2, 3)).sum().backward()
        opt.step()
"""
REFUSED = """
import torch
model = torch.nn.Linear(3, 3).cuda()
images = torch.randn(2, 3)
def train():
    return model(images)
train()
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def write(folder, text, name="train.py"):
    (folder / name).write_text(textwrap.dedent(text).lstrip("\n"))


def report(folder):
    return json.loads((folder / "out.json").read_text())


def rules(folder):
    return [finding["rule"] for finding in report(folder)["findings"]]


JSON = ("--json", "out.json")


class TestReport:
    def test_has_what_the_schema_promises(self, folder):
        write(folder, STALE + "train()\n")
        here = guarded(folder, "train.py", flags=JSON)
        assert here.status == 0
        found = report(folder)
        import deviceguard

        assert (found["schema"], found["deviceguard"]) == (1, deviceguard.__version__)
        assert found["torch"].startswith("2.")
        (finding,) = found["findings"]
        assert (finding["rule"], finding["severity"], finding["line"]) == ("OPT001", "error", 8)
        assert finding["file"] == str(folder / "train.py")
        assert finding["source"] == "opt.step()"
        assert (finding["count"], finding["first_step"], finding["last_step"]) == (3, 0, 2)
        assert {"name", "message", "subjects", "fix"} <= finding.keys()

    @pytest.mark.parametrize(
        ("ending", "status"),
        [
            ("1/0", 1),
            ("sys.exit(3)", 3),
            ("raise KeyboardInterrupt", -signal.SIGINT),
            ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", -signal.SIGTERM),
            ("os.chdir('/')", 0),
        ],
    )
    def test_is_written_however_the_program_ends(self, folder, ending, status):
        write(folder, STALE + f"train()\n{ending}\n")
        here = guarded(folder, "train.py", flags=JSON)
        assert here.status == status, here.stderr
        assert rules(folder) == ["OPT001"]
        assert "OPT001 stale-parameters" in here.stderr.partition("deviceguard: 1 error")[2]

    @pytest.mark.parametrize("ending", ["os._exit(4)", "os.kill(os.getpid(), signal.SIGKILL)"])
    def test_has_what_was_found_before_a_process_is_killed(self, folder, ending):
        write(folder, STALE + f"train()\n{ending}\n")
        guarded(folder, "train.py", flags=JSON)
        assert rules(folder) == ["OPT001"]

    @pytest.mark.slow
    def test_is_written_when_a_signal_comes_during_a_step(self, folder):
        write(folder, STALE + "print('running', flush=True)\ntrain(10**9)\n")
        command = [sys.executable, "-m", "deviceguard", "run", *JSON, "train.py"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout.readline() == b"running\n"
            import time

            time.sleep(1)
            process.terminate()
            assert process.wait(60) == -signal.SIGTERM
        assert rules(folder) == ["OPT001"]

    def test_has_what_a_thread_did_after_the_last_line(self, folder):
        write(folder, STALE + "threading.Timer(0.5, train).start()\n")
        assert guarded(folder, "train.py", flags=JSON).status == 0
        assert rules(folder) == ["OPT001"]

    def test_is_empty_for_a_program_without_torch(self, folder):
        write(folder, "print(1)")
        here = guarded(folder, "train.py", flags=JSON)
        assert (report(folder)["torch"], report(folder)["findings"]) == (None, [])
        assert here.stderr == "deviceguard: nothing found\n"

    def test_a_file_that_cannot_be_written_is_told_at_once(self, folder):
        write(folder, "print('ran')")
        (folder / "file").write_text("")
        here = guarded(folder, "train.py", flags=("--json", "file/out.json"))
        assert (here.status, here.stdout) == (2, "")
        assert len(here.stderr.splitlines()) == 1


class TestSimulation:
    def test_a_refused_call_is_explained_after_the_traceback(self, folder):
        write(folder, REFUSED)
        here = guarded(folder, "train.py", flags=("--simulate", "cuda", *JSON))
        assert here.status == 1
        traceback, summary = here.stderr.split("\ndeviceguard: 1 error")
        assert traceback.startswith('Traceback (most recent call last):\n  File "')
        assert "Expected all tensors to be on the same device" in traceback.splitlines()[-1]
        assert "deviceguard" not in traceback.replace(str(folder), "")
        assert "handle_torch_function" not in traceback
        assert "DEV001 input-device  train.py:5 in train" in summary
        assert "fix: " in summary
        assert rules(folder) == ["DEV001"]

    def test_strict_raises_its_own_error_from_it(self, folder):
        write(folder, REFUSED)
        here = guarded(folder, "train.py", flags=("--simulate", "cuda", "--policy", "strict"))
        assert here.status == 1
        assert "The above exception was the direct cause of the following exception:" in here.stderr
        assert "deviceguard.DeviceGuardError: DEV001 input-device: images is on cpu" in here.stderr
        assert "deviceguard/" not in here.stderr.replace(str(folder), "")
        assert here.stderr.splitlines()[-1] == "deviceguard: 1 error (told above)"

    def test_lasts_for_exit_handlers(self, folder):
        write(folder, "import atexit, torch\nx = torch.ones(1).cuda()\natexit.register(lambda: print(x.device))")
        assert guarded(folder, "train.py", flags=("--simulate", "cuda")).stdout == "cuda:0\n"

    def test_reaches_spawned_processes(self, folder):
        write(
            folder,
            """
            import torch
            def work(rank):
                print(torch.ones(1, device="cuda").device, flush=True)
            if __name__ == "__main__":
                torch.multiprocessing.spawn(work, nprocs=1)
            """,
        )
        here = guarded(folder, "train.py", flags=("--simulate", "cuda"))
        assert (here.status, here.stdout) == (0, "cuda:0\n"), here.stderr


class TestStrict:
    def test_an_error_raised_in_the_middle_can_be_caught_by_the_program(self, folder):
        write(
            folder,
            STALE + "try:\n    train()\nexcept RuntimeError as e:\n    print(type(e).__name__, e.finding.rule)\n",
        )
        here = guarded(folder, "train.py", flags=("--policy", "strict"))
        assert (here.status, here.stdout) == (0, "DeviceGuardError OPT001\n")

    def test_a_traceback_ends_at_the_programs_line(self, folder):
        write(folder, STALE + "train()\n")
        here = guarded(folder, "train.py", flags=("--policy", "strict"))
        lines = here.stderr.splitlines()
        assert here.status == 1
        assert "opt.step()" in lines[lines.index(f'  File "{folder / "train.py"}", line 8, in train') + 1]
        assert f'"{os.path.dirname(__file__)}' not in here.stderr
        assert "deviceguard.DeviceGuardError: OPT001" in here.stderr

    def test_the_settings_of_the_environment_count(self, folder):
        write(folder, STALE + "train()\n")
        assert guarded(folder, "train.py", DEVICEGUARD="strict").status == 1
        assert guarded(folder, "train.py", DEVICEGUARD="strict", flags=("--policy", "warn")).status == 0
        assert guarded(folder, "train.py", DEVICEGUARD="strict", DEVICEGUARD_IGNORE="OPT").status == 0


class TestUnchanged:
    def test_torch_is_imported_when_the_program_does_and_looks_as_always(self, folder):
        write(
            folder,
            """
            import os, sys
            assert "torch" not in sys.modules
            os.environ["OMP_NUM_THREADS"] = "3"
            import torch
            print(torch.get_num_threads(), type(torch.__loader__).__name__, type(torch.__spec__.loader).__name__)
            finders = [name for finder in sys.meta_path if (name := type(finder).__name__) != "ImportHookFinder"]
            print(torch.__spec__.loader is torch.__loader__, finders, sys.excepthook)  # wrapt leaves its finder
            """,
        )
        plain, here = python(folder, "train.py"), guarded(folder, "train.py")
        assert here.stdout.replace(str(id), "") == plain.stdout
        assert here == plain

    WORKERS = """
    import torch, os, sys
    from torch.utils.data import DataLoader, Dataset
    class Squares(Dataset):
        def __len__(self): return 4
        def __getitem__(self, index): return torch.tensor(index ** 2)
    def work(rank, shared):
        shared += rank + 1
    if __name__ == "__main__":
        for context in ("spawn", "fork"):
            for batch in DataLoader(Squares(), batch_size=2, num_workers=1, multiprocessing_context=context):
                print(batch, flush=True)
        shared = torch.zeros(1).share_memory_()
        torch.multiprocessing.spawn(work, args=(shared,), nprocs=2)
        print(shared, sys.argv[1:], flush=True)
    """

    @pytest.mark.slow
    @pytest.mark.parametrize("arguments", [["train.py", "x"], ["-m", "train", "x"]], ids=" ".join)
    def test_workers_and_children_find_the_program(self, folder, arguments):
        write(folder, self.WORKERS)
        assert assert_same(folder, *arguments).status == 0

    def test_a_child_that_fails_fails_the_program_as_always(self, folder):
        write(
            folder,
            """
            import torch, re
            def work(rank):
                raise ValueError("in the child")
            if __name__ == "__main__":
                try:
                    torch.multiprocessing.spawn(work, nprocs=1)
                except Exception as error:
                    print(type(error).__name__, re.sub("0x.*", "", str(error)))
            """,
        )
        assert "in the child" in assert_same(folder, "train.py").stdout

    def test_code_without_source_is_watched(self, folder):
        write(folder, STALE.replace("def train", "code = '''\ndef train") + "'''\nexec(code)\ntrain()\n")
        here = guarded(folder, "train.py", flags=JSON)
        assert here.status == 0, here.stderr
        (finding,) = report(folder)["findings"]
        assert (finding["rule"], finding["file"], finding["line"], finding["source"]) == ("OPT001", "<string>", 6, None)
        assert "OPT001 stale-parameters  <string>:6 in train" in here.stderr


def test_warnings_as_errors_stop_the_program_at_its_line(folder):
    write(folder, STALE + "train()\n")
    command = ["-W", "error::deviceguard.DeviceGuardWarning", "-m", "deviceguard", "run", "train.py"]
    here = python(folder, *command)
    assert here.status == 1
    assert "deviceguard.DeviceGuardWarning: OPT001" in here.stderr
    assert python(folder, *command, DEVICEGUARD_IGNORE="OPT001").status == 0
