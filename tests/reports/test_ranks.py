"""One report of all ranks of a job."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
import torch

from deviceguard.findings import Finding, Severity, Site
from deviceguard.reports.json_report import finding_dict
from deviceguard.reports.ranks import _FULL, _MOST, Ranks, finding_of
from deviceguard.reports.report import Report
from deviceguard.reports.text import ranks_text

JOB = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, mode = dist.get_rank(), sys.argv[1]
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
if mode == "all" or rank == 1:
    net.weight, net.bias = nn.Parameter(torch.ones(2, 4)), nn.Parameter(torch.ones(2))
for _ in range(4):
    optimizer.zero_grad()
    net(torch.ones(1, 4)).sum().backward()
    optimizer.step()
dist.barrier()
if mode == "slow" and rank == 2:
    time.sleep(3)
if mode == "kill" and rank == 1:
    time.sleep(2)
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "kill":
    time.sleep(6)
dist.destroy_process_group()
print("done", flush=True)
"""


class Counting:
    """A store that counts what one rank asks and sends.

    Args:
        store: the real one.
    """

    def __init__(self, store):
        self.store, self.calls, self.sent = store, 0, 0

    def __getattr__(self, name):
        def call(*args):
            self.calls += 1
            self.sent += sum(len(arg) for arg in args if isinstance(arg, str))
            return getattr(self.store, name)(*args)

        return call


def finding(line=1, message="m"):
    return Finding("DEV001", "input-device", Severity.ERROR, message, "f", site=Site("train.py", line))


def rank_with(findings, store, rank, world):
    report = Report()
    for one in findings:
        report.add(one)
    ranks = Ranks(report, lambda: None)
    counting = Counting(store)
    ranks.connect(counting, rank, world)
    return ranks, report, counting


def job(findings_of, world):
    """Rank 0's report, and the counting stores of the other ranks."""
    store = torch.distributed.HashStore()
    first, report, _ = rank_with(findings_of(0), store, 0, world)
    counts = []
    for rank in range(1, world):
        ranks, own, counting = rank_with(findings_of(rank), store, rank, world)
        ranks.close(own)
        counts.append(counting)
    first.close(report)
    return report, counts


class TestExchange:
    """Over a store in this process."""

    def test_findings_are_merged_with_the_ranks_that_had_them(self):
        report, _ = job(lambda rank: [finding(1)] if rank != 1 else [finding(1), finding(2)], 4)

        assert [(f.site.line, f.ranks) for f in report.findings] == [(1, (0, 1, 2, 3)), (2, (1,))]
        assert report.world == 4

    def test_what_only_others_had_is_not_published_again(self):
        store = torch.distributed.HashStore()
        other, own, _ = rank_with([finding(2)], store, 1, 2)
        other.close(own)
        first, report, _ = rank_with([], store, 0, 2)
        first.gather()
        first.close(report)

        assert [f.ranks for f in report.findings] == [(1,)]

    def test_a_rank_costs_the_same_in_a_job_of_any_size(self):
        small = job(lambda rank: [finding(1)], 8)[1][-1]
        start = time.process_time()
        report, counts = job(lambda rank: [finding(1)], 1024)
        seconds = time.process_time() - start

        assert [f.ranks for f in report.findings] == [tuple(range(1024))]
        assert counts[-1].calls == small.calls
        assert counts[-1].sent <= small.sent + 3
        assert seconds < 60

    def test_only_a_few_ranks_send_the_text(self):
        long = finding(1, "m" * 5000)
        _, counts = job(lambda rank: [long], 16)

        assert sum(counting.sent > 5000 for counting in counts) <= _FULL

    def test_a_rank_with_many_findings_sends_a_bounded_number(self):
        report, _ = job(lambda rank: [finding(line) for line in range(1, 1000)] if rank else [], 2)

        assert len(report) == _MOST

    def test_a_store_that_is_gone_is_asked_once(self):
        class Gone:
            calls = 0

            def __getattr__(self, name):
                def call(*args):
                    Gone.calls += 1
                    raise ConnectionResetError

                return call

        report = Report()
        report.add(finding())
        ranks = Ranks(report, lambda: None)
        ranks.connect(Gone(), 1, 2)
        ranks.new(finding())
        ranks.close(report)

        assert Gone.calls == 1
        assert not ranks.published

    def test_a_finding_survives_the_way_there_and_back(self):
        one = finding()

        assert finding_of(json.loads(json.dumps(finding_dict(one)))) == one


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((3,), "rank 3"), ((0, 1), "ranks 0, 1"), ((0, 1, 2), "ranks 0 to 2"), (range(0, 40, 2), "and 12 more")],
)
def test_ranks_in_words(ranks, text):
    assert ranks_text(tuple(ranks)).endswith(text)


@pytest.mark.production
class TestTorchrun:
    """Real jobs over gloo."""

    def run(self, folder, number, mode, *flags):
        (folder / "job.py").write_text(JOB)
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={number}",
            *flags,
            "job.py",
            mode,
        ]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "DEVICEGUARD": "warn",
            "DEVICEGUARD_JSON": "out.json",
            "DEVICEGUARD_SELECT": "OPT001",
        }
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        return done, json.loads((folder / "out.json").read_text())

    @pytest.mark.parametrize("number", [2, 4, 8])
    def test_all_ranks_have_it(self, number, tmp_path):
        done, report = self.run(tmp_path, number, "all")
        [found] = report["findings"]

        assert done.returncode == 0, done.stderr
        assert (found["rule"], found["ranks"], report["ranks"]) == ("OPT001", list(range(number)), number)
        assert done.stderr.count("deviceguard: 1 error") == 1
        assert sorted(path.name for path in pathlib.Path(tmp_path).iterdir()) == ["job.py", "out.json"]

    def test_a_slow_rank_does_not_hold_the_report(self, tmp_path):
        done, report = self.run(tmp_path, 4, "slow")

        assert done.returncode == 0, done.stderr
        assert [(found["rule"], found["ranks"]) for found in report["findings"]] == [("OPT001", [1])]

    def test_a_rank_that_is_killed_leaves_its_findings(self, tmp_path):
        done, report = self.run(tmp_path, 2, "kill")

        assert done.returncode != 0
        assert [(found["rule"], found["ranks"]) for found in report["findings"]] == [("OPT001", [1])]
