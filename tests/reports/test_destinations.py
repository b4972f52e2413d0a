"""Where findings go while a run goes on: log records, JSON lines, Prometheus' text format, OpenTelemetry."""

from __future__ import annotations

import json
import logging
import sys

import pytest

import deviceguard
from deviceguard.findings import Finding, Severity, Site
from deviceguard.reports.prometheus import exposition
from tests.guarding import only_pings, ping

pytestmark = pytest.mark.filterwarnings("ignore::deviceguard.errors.DeviceGuardWarning")


@pytest.fixture(autouse=True)
def _pings(monkeypatch):
    only_pings(monkeypatch)


def repeat(times):
    for _ in range(times):
        ping()


class TestLogRecords:
    def test_a_record_has_the_finding_as_extra(self, caplog):
        with deviceguard.watch(logger="my.job"):
            ping(7)
        [record] = [record for record in caplog.records if record.name == "my.job"]

        assert record.levelno == logging.ERROR
        assert record.deviceguard_rule == record.deviceguard["rule"]
        assert record.deviceguard["message"] == "ping 7"

    def test_a_finding_that_repeats_is_a_line_for_each_power_of_ten(self, caplog):
        with deviceguard.watch(logger="my.job"):
            repeat(1234)
        counts = [record.deviceguard_count for record in caplog.records if record.name == "my.job"]

        assert counts == [1, 10, 100, 1000]


class TestJsonLines:
    def test_the_file_can_be_followed(self, tmp_path):
        path = tmp_path / "findings.jsonl"
        with deviceguard.watch(json_lines=path):
            ping(1)
            first = path.read_text()
            repeat(9)
            ping(2)
        lines = [json.loads(line) for line in path.read_text().splitlines()]

        assert json.loads(first)["message"] == "ping 1"
        assert [(line["message"], line["count"]) for line in lines] == [("ping 1", 1), ("ping 1", 10), ("ping 2", 1)]

    @pytest.mark.parametrize("setting", ["json_lines", "prometheus"])
    def test_what_cannot_be_written_is_told_once(self, setting, caplog, tmp_path):
        (tmp_path / "no folder").write_text("")
        with deviceguard.watch(**{setting: tmp_path / "no folder" / "file"}) as report:
            ping(1)
            ping(2)

        assert len(report) == 2
        assert caplog.text.count("sends nothing more") == 1


class TestPrometheus:
    def test_the_counts_of_the_end(self, tmp_path):
        path = tmp_path / "job.prom"
        with deviceguard.watch(prometheus=path):
            repeat(12)
        [sample] = [line for line in path.read_text().splitlines() if not line.startswith("#")]

        assert sample.startswith("deviceguard_findings_total{rule=")
        assert sample.endswith("} 12")
        assert list(tmp_path.iterdir()) == [path]

    def test_labels_are_escaped(self):
        finding = Finding("DEV001", "n", Severity.ERROR, "m", "f", site=Site('a"b\\c\nd', 3))

        assert r'file="a\"b\\c\nd",line="3"' in exposition([finding])


class TestTelemetry:
    def test_a_collector_gets_counts_and_events(self, monkeypatch):
        pytest.importorskip("opentelemetry.sdk")
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        reader, spans, tracing = InMemoryMetricReader(), InMemorySpanExporter(), TracerProvider()
        meters = MeterProvider([reader])
        monkeypatch.setattr(metrics, "get_meter", meters.get_meter)
        tracing.add_span_processor(SimpleSpanProcessor(spans))
        with tracing.get_tracer("job").start_as_current_span("training"):
            with deviceguard.watch(telemetry="my.job"):
                repeat(12)
        [scope] = reader.get_metrics_data().resource_metrics[0].scope_metrics
        [point] = scope.metrics[0].data.data_points
        [event] = spans.get_finished_spans()[0].events

        assert (scope.scope.name, scope.metrics[0].name, point.value) == ("my.job", "deviceguard.findings", 12)
        assert event.attributes["deviceguard.message"] == "ping 1"

    def test_without_opentelemetry_the_run_goes_on(self, monkeypatch, caplog):
        monkeypatch.setitem(sys.modules, "opentelemetry", None)
        with deviceguard.watch(telemetry="my.job") as report:
            ping()

        assert len(report) == 1
        assert "leaves telemetry out" in caplog.text
