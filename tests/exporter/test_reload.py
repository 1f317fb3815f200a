"""Counters that change while the exporter serves: a file, a ConfigMap, and everything that can be wrong with them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kgpu.exporter.config import resolve
from kgpu.exporter.reload import SHIPPED, CountersSource
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import CONFIG_MAPS
from tests.exporter.serving import serving

TEMPERATURE, POWER, CLOCK = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_SM_CLOCK"
CURRENT, PROBLEMS = "kgpu_exporter_counters_current", "kgpu_exporter_counters_problems"


def line(name: str) -> str:
    return f"{name}, gauge, Something.\n"


@pytest.fixture
def counters(tmp_path):
    path = tmp_path / "counters.csv"
    path.write_text(line(TEMPERATURE))
    return path


def flags(path) -> dict[str, str]:
    return {"collectors": str(path), "interval": "30000"}


async def test_a_changed_file_is_in_force_without_a_gap(counters):
    async with serving(flags=flags(counters)) as served:
        assert set(await served.values(TEMPERATURE)) == {"0", "1"}
        assert await served.values(POWER) == {}
        new = counters.with_name("new")
        new.write_text(line(TEMPERATURE) + line(POWER))
        os.replace(new, counters)
        seen = set()
        while POWER not in seen:
            seen = {name for name, _ in await served.samples()}
            assert TEMPERATURE in seen


async def test_a_configmap_volume_is_followed(tmp_path):
    for name, content in (("one", TEMPERATURE), ("two", POWER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "counters.csv").write_text(line(content))
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "counters.csv").symlink_to("..data/counters.csv")
    async with serving(flags=flags(tmp_path / "counters.csv")) as served:
        (tmp_path / "..tmp").symlink_to("two")
        os.replace(tmp_path / "..tmp", tmp_path / "..data")
        await served.until(POWER, {"0": 70, "1": 70})
        assert await served.values(TEMPERATURE) == {}


@pytest.mark.parametrize("broken", ["", "nonsense\n", None, b"\xff\xfe\x00", "dir", "NO_SUCH_FIELD, gauge, x\n"])
async def test_a_broken_file_leaves_the_last_good_one_in_force(counters, broken):
    async with serving(flags=flags(counters)) as served:
        source = f"file {counters}"
        assert await served.values(CURRENT, "source") == {source: 1}
        counters.unlink()
        if broken == "dir":
            counters.mkdir()
        elif broken is not None:
            counters.write_bytes(broken if isinstance(broken, bytes) else broken.encode())
        await served.until(CURRENT, {source: 0}, label="source")
        assert set(await served.values(TEMPERATURE)) == {"0", "1"}
        assert (await served.get("/health"))[0] == 200
        assert served.told("CountersRefused")[0].what == "the last good metrics stay"
        if broken == "dir":
            counters.rmdir()
        counters.write_text(line(TEMPERATURE))
        await served.until(CURRENT, {source: 1}, label="source")


async def test_a_bad_line_is_told_and_counted_and_the_rest_is_exported(counters):
    counters.write_text(line(TEMPERATURE) + "DCGM_FI_DEV_POWER_USAG, gauge, x\n")
    async with serving(flags=flags(counters)) as served:
        assert await served.values(PROBLEMS, "source") == {f"file {counters}": 1}
        assert set(await served.values(TEMPERATURE)) == {"0", "1"}
        assert "line 2" in served.told("CountersLine")[0].what


def config_map(api: FakeApi, **data: str) -> None:
    api.put(CONFIG_MAPS, {"metadata": {"name": "metrics", "namespace": "gpu"}, "data": data})


@pytest.mark.parametrize("key", ["metrics", "dcgm-metrics.csv"])
async def test_a_configmap_by_either_key_and_what_can_happen_to_it(counters, key):
    api = FakeApi()
    where = "ConfigMap gpu/metrics"
    async with serving(flags={**flags(counters), "config_map": "gpu:metrics"}, api=lambda: api) as served:
        await served.until(CURRENT, {where: 0, f"file {counters}": 1}, label="source")
        assert set(await served.values(TEMPERATURE)) == {"0", "1"}
        config_map(api, **{key: line(POWER)})
        await served.until(POWER, {"0": 70, "1": 70})
        assert await served.values(TEMPERATURE) == {}
        await api.delete(CONFIG_MAPS, "metrics", namespace="gpu")
        await served.until(CURRENT, {where: 0, f"file {counters}": 1}, label="source")
        assert set(await served.values(POWER)) == {"0", "1"}
        assert any("does not exist" in one.why for one in served.told("CountersRefused"))
        config_map(api, other=line(TEMPERATURE))
        await served.until(CURRENT, {where: 0, f"file {counters}": 1}, label="source")
        config_map(api, **{key: line(CLOCK) + line(TEMPERATURE)})
        await served.until(TEMPERATURE, {"0": 40, "1": 40})
        assert await served.values(POWER) == {}


async def test_a_configmap_without_an_api_server_is_told(counters):
    async with serving(flags={**flags(counters), "config_map": "gpu:metrics"}) as served:
        await served.until(CURRENT, {"ConfigMap gpu/metrics": 0, f"file {counters}": 1}, label="source")
        assert set(await served.values(TEMPERATURE)) == {"0", "1"}


def test_the_replaced_exporters_files_mean_the_usual_set_where_nobody_has_put_them():
    name = next(path for path in sorted(SHIPPED) if not Path(path).exists())
    told: list = []
    source = CountersSource(resolve({"collectors": name}, {}), told.append)
    usual = CountersSource(resolve({}, {}), told.append)
    assert source.rows == usual.rows
    assert source.followed()[0].current
    assert told == []


def test_a_file_that_is_missing_from_the_start_is_told_and_the_usual_set_is_exported(tmp_path):
    told: list = []
    source = CountersSource(resolve({"collectors": str(tmp_path / "none.csv")}, {}), told.append)
    assert source.file_error is not None
    assert TEMPERATURE in {row.name for row in source.rows}
    assert [one.what for one in told] == ["the usual metrics are exported"]
