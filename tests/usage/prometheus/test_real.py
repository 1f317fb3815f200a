"""A real Prometheus: blocks made of a fleet's day by promtool, and live scrapes; ``kgpu usage`` reads both."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.times import stamp_of
from kgpu.cli.main import main
from kgpu.usage.prometheus.asking import PrometheusApi
from kgpu.usage.prometheus.reading import recorded_by
from tests.monitoring import programs
from tests.monitoring.world import Pages, Prometheus, closing, until
from tests.usage.prometheus.conftest import FleetDay
from tests.usage.prometheus.fleet import reported, seconds

YEARS = "--storage.tsdb.retention.time=50y"


@pytest.fixture(scope="session")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.unpacked(tmp_path_factory.mktemp("prometheus-of-usage"))


@pytest.fixture(scope="module")
def filled(bin_folder: Path, fleet_day: FleetDay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has the fleet's day, as if it had scraped it."""
    folder = tmp_path_factory.mktemp("filled")
    (folder / "day.om").write_text(fleet_day.scrapes.open_metrics())
    words = [bin_folder / "promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "day.om", folder / "data"]
    subprocess.run(words, check=True, capture_output=True, timeout=300)
    prometheus = Prometheus(
        bin_folder / "prometheus", folder, {"scrape_configs": []}, more=[YEARS, "--query.max-samples=600"]
    )
    with closing(prometheus):
        until("it answers", prometheus.ready)
        yield prometheus


def usage(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    code = main(["kgpu", "usage", *words, "-o", "json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    data: dict[str, Any] = json.loads(out)
    return data, err


@pytest.mark.parametrize("by", ["owner", "label:app.kubernetes.io/name", "pool"])
async def test_kgpu_usage_says_of_prometheus_what_the_samples_say(
    filled: Prometheus, fleet_day: FleetDay, by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes 600 samples at once at most, and says so: the command asks for less and less."""
    when = ["--since", stamp_of(fleet_day.begin), "--until", stamp_of(fleet_day.end)]
    data, err = await_in_thread(usage, capsys, "--prometheus", f"http://{filled.address}", *when, "--by", by)
    day = {"start": str(fleet_day.begin), "end": str(fleet_day.end), "step": "60"}
    with pytest.raises(AssertionError, match="too many samples"):
        filled.get("query_range", query="last_over_time(kgpu_usage_state_seconds_total[60s])", **day)
    wanted = await recorded_by(fleet_day.scrapes, begin=fleet_day.begin, end=fleet_day.end, newest=2**40)
    rows = seconds(reported(wanted, by.replace(".", "_").replace("/", "_"), fleet_day.begin, fleet_day.end))
    assert {row["name"]: row["gpu_hours"] for row in data["rows"]} == pytest.approx(
        {name: row["gpu_us"] / 3600 for name, row in rows.items()}, abs=1e-3
    )
    assert [line for line in err.splitlines() if "a price is assumed" not in line] == []


def test_the_page_s_join_says_whose_teams_held_gpus(filled: Prometheus, fleet_day: FleetDay) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "usage.md").read_text()
    (query,) = re.findall(r"`(sum by \(label_team\).*?)`", page)
    asked = query.replace("{", "").replace("seconds_total[1h]", 'seconds_total{instance="n2:9410"}[1h]')
    asked = asked.replace("kgpu_usage_holder_info", 'kgpu_usage_holder_info{instance="n2:9410"}')
    found = filled.get("query", query=asked, time=str(fleet_day.end))["result"]
    held = {one["metric"].get("label_team", ""): float(one["value"][1]) for one in found}
    assert held["vision"] > 0


def await_in_thread(work: Any, *words: Any) -> Any:
    """The command has a loop of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work, *words).result()


@pytest.mark.parametrize("honor", [True, False])
def test_live_scrapes_are_read_whatever_becomes_of_labels(bin_folder: Path, tmp_path: Path, honor: bool) -> None:
    """A page that moves with the clock, as an agent's; targets with labels of the same names."""
    begun = time.time() - 7200
    who = 'namespace="team",pod="p",container="main",uid="u1"'

    def page() -> str:
        now = time.time()
        passed = now - begun
        unit = 'UUID="GPU-1",partition=""'
        return (
            f'kgpu_usage_device_info{{UUID="GPU-1",node="n1",boot="b",product="NVIDIA-L4",memory_mib="1"}} 1\n'
            f'kgpu_usage_uptime_seconds{{node="n1",boot="b"}} {passed:.6f}\n'
            f'kgpu_usage_looked_timestamp_seconds{{node="n1",boot="b"}} {now:.6f}\n'
            f'kgpu_usage_state_seconds_total{{{unit},state="busy"}} {passed:.6f}\n'
            f'kgpu_usage_holder_info{{{unit},{who},boot="b",owner="Job/x",sharing="whole",label_team="a\\\\\\"b"}} 1\n'
            f"kgpu_usage_held_seconds_total{{{unit},{who}}} {passed:.6f}\n"
        )

    pages = Pages()
    pages.texts["/metrics"] = page
    labels = {"namespace": "gpu-operator", "pod": "agent-x", "container": "agent", "node": "n1"}
    config = {
        "scrape_configs": [{
            "job_name": "usage", "scrape_interval": "1s", "scrape_timeout": "1s", "honor_labels": honor,
            "static_configs": [{"targets": [f"127.0.0.1:{pages.port}"], "labels": labels}],
        }]
    }  # fmt: skip
    prometheus = Prometheus(bin_folder / "prometheus", tmp_path, config)
    with closing(pages, prometheus):
        until("it answers", prometheus.ready)
        until("it has samples for three seconds", lambda: _age(prometheus) > 3)

        async def read() -> Any:
            api = PrometheusApi(f"http://{prometheus.address}", headers={}, context=ssl.create_default_context())
            try:
                now = int(time.time())
                return await recorded_by(api, begin=now - 60, end=now, newest=now)
            finally:
                await api.close()

        found = asyncio.run(read())
    assert found.devices
    line = found.devices[-1]
    assert (line.node, line.product, line.holders[0].pod, line.holders[0].owner) == ("n1", "NVIDIA-L4", "p", "Job/x")
    assert line.holders[0].labels == {"team": 'a\\"b'}
    assert line.holders[0].held_us == line.uptime_us


def _age(prometheus: Prometheus) -> float:
    found = prometheus.query("time() - min_over_time(timestamp(kgpu_usage_uptime_seconds)[1m:1s])")
    return float(found[0]["value"][1]) if found else 0.0
