"""A whole exporter over AMD GPUs: both families, the configuration followed, its port, and nothing of it elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kgpu.base.advice import Advice
from kgpu.exporter.config import resolve
from kgpu.exporter.reload import asks_pods, vendor_page
from kgpu.exporter.vendors.amd import follow
from kgpu.exporter.vendors.amd.follow import RocmConfigFile
from kgpu.hw.fake_reader import FakeReader
from kgpu.hw.port import Inventory, Reading
from kgpu.hw.simulator.amd import operate as amd
from tests.exporter.serving import serving
from tests.exporter.test_promtool import KEPT, check
from tests.exporter.vendors.amd.made import gpu, series
from tests.monitoring.conftest import prometheus_bin  # noqa: F401 - a fixture
from tests.ports import free_port

POWER = "gpu_power_usage"


def reader_of() -> FakeReader:
    gpus = (gpu(0), gpu(1))
    reader = FakeReader(Inventory(vendor="amd", driver_version="6.14", accelerators=gpus))
    reader.set_readings(Reading(uuid=one.uuid, values={"power_w": 70.0}) for one in gpus)
    return reader


async def test_both_names_are_served_and_the_file_is_followed(tmp_path) -> None:
    file = tmp_path / "config.json"
    async with serving(reader_of(), flags={"amd_config": str(file)}) as served:
        await served.until(POWER, {"0": 70, "1": 70}, label="gpu_id")
        await served.until("DCGM_FI_DEV_POWER_USAGE", {"0": 70, "1": 70})
        file.write_text(json.dumps({"CommonConfig": {"MetricsFieldPrefix": "amd_"}}))
        await served.until(f"amd_{POWER}", {"0": 70, "1": 70}, label="gpu_id")
        file.write_text("{")
        await served.until("kgpu_exporter_counters_current", {f"file {file}": 0}, label="source")
        assert await served.values(f"amd_{POWER}", "gpu_id") == {"0": 70, "1": 70}
        assert [one.reason for one in served.told("RocmConfigRefused")] == ["RocmConfigRefused"]
        file.write_text(json.dumps({"ServerPort": 5000}))
        await served.until(POWER, {"0": 70, "1": 70}, label="gpu_id")
        assert served.told("RocmConfigLater")[0].what == "ServerPort stays as it was"


async def test_a_file_that_was_named_and_is_not_there_is_told_once_and_followed(tmp_path) -> None:
    file = tmp_path / "nope.json"
    told: list[Advice] = []
    config = RocmConfigFile(str(file), told.append)
    config.look()
    assert [one.reason for one in told] == ["RocmConfigMissing"]
    assert str(file) in told[0].one_line()
    file.write_text("{}")
    config.look()
    file.unlink()
    config.look()
    assert [one.reason for one in told] == ["RocmConfigMissing"] * 2


def test_the_usual_file_need_not_be_there(monkeypatch, tmp_path) -> None:
    told: list[Advice] = []
    monkeypatch.setattr(follow, "ROCM_METRICS_CONFIG", str(tmp_path / "config.json"))
    RocmConfigFile(str(tmp_path / "config.json"), told.append)
    assert told == []


async def test_without_an_address_of_its_own_it_listens_where_the_file_says(tmp_path) -> None:
    port = free_port()
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"ServerPort": port}))
    async with serving(reader_of(), flags={"amd_config": str(file), "address": None}) as served:
        assert served.address.port == port


async def test_an_address_that_is_given_beats_the_file(tmp_path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"ServerPort": 1}))
    async with serving(reader_of(), flags={"amd_config": str(file)}) as served:
        assert served.address.port != 1


def test_other_vendors_have_nothing_of_it(tmp_path) -> None:
    options = resolve({"amd_config": str(tmp_path / "none")}, {})
    assert vendor_page("nvidia", options, lambda advice: None) is None
    assert not asks_pods(options)
    (tmp_path / "none").write_text(json.dumps({"GPUConfig": {"Labels": ["POD_UUID"]}}))
    assert asks_pods(options)


def once(root) -> str:
    command = [sys.executable, "-m", "kgpu", "exporter", "--root", str(root), "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("model", ["mi210", "mi300x", "mi325x"])
def test_simulated_nodes_have_power_energy_memory_and_errors(sim_root, model: str) -> None:
    text = once(sim_root(model))
    assert set(series(text, "gpu_energy_consumed", "gpu_partition_id").values()) == {1000013824}
    for name in (POWER, "gpu_junction_temperature", "gpu_used_vram", "gpu_ecc_uncorrect_umc", "gpu_ecc_correct_total"):
        assert series(text, name, "gpu_id"), name


async def test_a_parted_node_passes_promtool_and_no_series_is_there_twice(sim_root, prometheus_bin) -> None:  # noqa: F811
    root = sim_root("mi300x", gpus=2)
    amd.set_partition(root, [0], "cpx", "nps4")
    text = once(root)
    assert len(series(text, POWER, "gpu_id")) == 2
    assert series(text, "gpu_nodes_total", "hostname").popitem()[1] == 9
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    names = [line.rpartition(" ")[0] for line in lines]
    assert len(set(names)) == len(names)
    code, said = await check(prometheus_bin, text)
    assert code in {0, 3}, said
    assert [line for line in said if not any(word in line for word in (*KEPT, "gpu_", "pcie_"))] == []


@pytest.mark.parametrize(("model", "loaded"), [("l4", False), ("mi210", True)])
def test_it_is_loaded_on_amd_nodes_alone(sim_root, model: str, loaded: bool) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "kgpu", "exporter", "--root", str(sim_root(model)), "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert ("kgpu.exporter.vendors.amd" in done.stderr) is loaded
    assert ("\ngpu_power_usage{" in done.stdout) is loaded
