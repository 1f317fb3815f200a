"""An archive has the data of those ConfigMaps alone that a rule reads, and is judged like the cluster itself."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from kgpu.doctor import archive, config_maps
from kgpu.doctor.plan import diagnose
from kgpu.doctor.render import as_json
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources.files import read
from kgpu.formats import yaml
from tests.doctor.example import Example, all_examples

WITH_MAPS = [one for one in all_examples() if any(obj["kind"] == "ConfigMap" for obj in one.broken)]
PLAIN = "what tenants have: 4711-tenant"
SHARING = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"


def config_map(name: str, namespace: str, data: dict[str, str], **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def policy(**parts: str) -> dict[str, Any]:
    spec = {part: {"config": {"name": name}} for part, name in parts.items()}
    return {"kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}, "spec": spec}


def plugin(*mounted: str) -> dict[str, Any]:
    volumes = [{"name": name, "configMap": {"name": name}} for name in mounted]
    containers = [{"name": "c", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"}]
    return {
        "kind": "Pod", "metadata": {"name": "p", "namespace": "stack", "labels": {"app": "nvidia-device-plugin-daemonset"}},
        "spec": {"containers": containers, "volumes": volumes}, "status": {"phase": "Running"},
    }  # fmt: skip


def through(snapshot: Snapshot, folder: Path) -> Snapshot:
    """The same after ``kgpu collect`` and ``kgpu doctor --from``."""
    file = folder / "a.tar.gz"
    archive.write(snapshot, str(file))
    return read(str(file))


def data_of(objects: list[dict[str, Any]], folder: Path, name: str) -> dict[str, str]:
    (found,) = [one for one in through(Snapshot.of(objects), folder).all("ConfigMap") if one.name == name]
    return dict(found.map("data"))


def told(snapshot: Snapshot) -> list[tuple[str, str, str]]:
    report = diagnose(snapshot, strict=True)
    return [(one.id, str(one.subject), one.cause) for root in report.findings for one in root.all()]


@pytest.mark.parametrize("example", WITH_MAPS, ids=[one.name for one in WITH_MAPS])
def test_an_archive_is_judged_like_the_cluster(example: Example, tmp_path: Path) -> None:
    for objects in (example.broken, example.healthy):
        snapshot = example.snapshot(objects)
        assert told(through(snapshot, tmp_path)) == told(snapshot)


def test_of_a_tenants_config_map_only_the_keys_are_in_the_archive(tmp_path: Path) -> None:
    objects = [policy(devicePlugin="sharing"), plugin(), config_map("app", "ml", {"app.conf": PLAIN, "b": ""})]
    snapshot = Snapshot.of(objects)
    assert dict(through(snapshot, tmp_path).kinds["ConfigMap"]["ml", "app"].map("data")) == {
        "app.conf": config_maps.LEFT_OUT, "b": config_maps.LEFT_OUT,
    }  # fmt: skip
    packed = gzip.decompress((tmp_path / "a.tar.gz").read_bytes()).decode()
    assert "4711-tenant" not in packed
    assert '"data of ConfigMaps": 1' in packed, "how many were left out is told"
    assert "4711-tenant" not in as_json(diagnose(snapshot))


@pytest.mark.parametrize("part", ["devicePlugin", "migManager", "dcgmExporter"])
def test_what_the_policy_names_is_kept(part: str, tmp_path: Path) -> None:
    objects = [policy(**{part: "named"}), plugin(), config_map("named", "stack", {"config.yaml": PLAIN})]
    assert data_of(objects, tmp_path, "named") == {"config.yaml": PLAIN}


def test_what_the_plugin_mounts_is_kept_and_its_namesake_elsewhere_is_not(tmp_path: Path) -> None:
    objects = [plugin("mine"), config_map("mine", "stack", {"a": PLAIN})]
    assert data_of(objects, tmp_path, "mine") == {"a": PLAIN}
    objects = [plugin("mine"), config_map("mine", "ml", {"a": PLAIN})]
    assert data_of(objects, tmp_path, "mine") == {"a": config_maps.LEFT_OUT}


def test_beside_the_stack_a_configuration_is_kept_and_its_neighbour_key_is_not(tmp_path: Path) -> None:
    data = {"any": SHARING, "notes": PLAIN}
    assert data_of([plugin(), config_map("x", "stack", data)], tmp_path, "x") == {
        "any": SHARING, "notes": config_maps.LEFT_OUT,
    }  # fmt: skip
    assert set(data_of([plugin(), config_map("x", "ml", data)], tmp_path, "x").values()) == {config_maps.LEFT_OUT}


def test_of_scrape_jobs_those_of_gpus_are_kept_without_how_they_log_in(tmp_path: Path) -> None:
    jobs = [
        {"job_name": "dcgm", "scrape_interval": "1s", "params": {"x": [PLAIN]}, "basic_auth": {"username": PLAIN},
         "static_configs": [{"targets": ["dcgm:9400"]}]},
        {"job_name": "shop", "static_configs": [{"targets": [PLAIN]}]},
    ]  # fmt: skip
    found = data_of(
        [config_map("prometheus", "m", {"p.yml": yaml.dump({"scrape_configs": jobs})})], tmp_path, "prometheus"
    )
    assert yaml.load(found["p.yml"])["scrape_configs"] == [
        {"job_name": "dcgm", "scrape_interval": "1s", "static_configs": [{"targets": ["dcgm:9400"]}]}
    ]


def test_of_dashboards_the_names_of_fields_are_kept(tmp_path: Path) -> None:
    text = '{"title": "4711-tenant", "expr": "avg(DCGM_FI_DEV_GPU_UTIL)"}'
    data = {"d.json": text, "e.json": PLAIN}
    assert data_of([config_map("d", "m", data, grafana_dashboard="1")], tmp_path, "d") == {
        "d.json": "DCGM_FI_DEV_GPU_UTIL", "e.json": config_maps.LEFT_OUT,
    }  # fmt: skip


def test_an_archive_of_an_archive_is_the_same(tmp_path: Path) -> None:
    for example in WITH_MAPS:
        once = through(example.snapshot(example.broken), tmp_path)
        again = through(once, tmp_path)
        assert [one.data for one in again.all("ConfigMap")] == [one.data for one in once.all("ConfigMap")]


@pytest.mark.parametrize("kind", ["Application", "HelmRelease", "HelmChart"])
def test_of_who_installs_charts_the_archive_has_how_it_went(kind: str, tmp_path: Path) -> None:
    conditions = [{"type": "Ready", "status": "False", "message": "install retries exhausted"}]
    values = {"values": {"innocent": "hunter2x9Zq"}, "valuesContent": "innocent: hunter2x9Zq"}
    obj = {
        "kind": kind, "metadata": {"name": "r", "namespace": "ml"}, "spec": values,
        "status": {"conditions": conditions, "history": [values]},
    }  # fmt: skip
    archive.write(Snapshot.of([obj]), str(tmp_path / "a.tar.gz"))
    (found,) = read(str(tmp_path / "a.tar.gz")).all(kind)
    assert "hunter2x9Zq" not in repr(found.data)
    assert found.at("status.conditions") == conditions
