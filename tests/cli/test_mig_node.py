"""``kgpu mig plan --node`` over the API in memory: pods, budgets, resources, and where the config comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kgpu.cli.main import main
from kgpu.kube.kinds import CLUSTER_POLICIES, DISRUPTION_BUDGETS
from kgpu.kube.port import CONFIG_MAPS, NODES, KubeRefusedError, Object, Resource
from tests.operations.sim_mig import layout
from tests.operations.sim_mig import spec as cut
from tests.operations.test_mig_foresight import H100
from tests.operations.world import Cluster

Said = pytest.CaptureFixture[str]
CONFIG = """\
version: v1
mig-configs:
  halves:
  - {devices: all, mig-enabled: true, mig-devices: {3g.40gb: 2}}
"""
GPU_POD = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}


class Refusing(Cluster):
    refuses: Resource | None = None

    async def list(self, resource: Resource, **where: Any) -> Any:
        if resource == self.refuses:
            raise KubeRefusedError("forbidden", "", "", code=403)
        return await super().list(resource, **where)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Refusing:
    cluster = Refusing()
    cluster.node("n1", labels=H100)
    cluster.pod("train", "n1", spec=GPU_POD, metadata={"labels": {"app": "train"}})
    cluster.pod("bare", "n1", owner=None, spec=GPU_POD)
    cluster.pod("web", "n1")
    spec, status = {"selector": {"matchLabels": {"app": "train"}}}, {"disruptionsAllowed": 0}
    cluster.put(DISRUPTION_BUDGETS, {"metadata": {"namespace": "default", "name": "b"}, "spec": spec, "status": status})

    async def close() -> None:
        pass

    monkeypatch.setattr(cluster, "close", close)
    monkeypatch.setattr("kgpu.kube.client.connect", lambda *_args, **_kwargs: cluster)
    return cluster


def config_map(cluster: Cluster, name: str, namespace: str = "gpu-operator", key: str = "config.yaml") -> Object:
    return cluster.put(CONFIG_MAPS, {"metadata": {"name": name, "namespace": namespace}, "data": {key: CONFIG}})


def data(capsys: Said, *words: str) -> Any:
    assert main(["kgpu", "mig", "plan", "--node", "n1", *words, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_says_what_comes_and_who_would_go(cluster: Refusing, capsys: Said) -> None:
    assert main(["kgpu", "mig", "plan", "--node", "n1", "--config", "all-1g.10gb"]) == 0
    said = capsys.readouterr().out
    assert "n1: all-1g.10gb (mig-parted's default configs, which kgpu has built in) is about GPU 0, 1, 2" in said
    assert "nvidia.com/gpu: 8 -> 0" in said
    assert "nvidia.com/mig-1g.10gb: 0 -> 56" in said
    assert "would be evicted default/train: its PodDisruptionBudget b allows no disruption now" in " ".join(
        said.split()
    )
    assert "MAY NOT GO default/bare: no controller would recreate it" in " ".join(said.split())
    assert "web" not in said
    assert cluster.writes == 0


def test_as_json(cluster: Refusing, capsys: Said) -> None:
    found = data(capsys, "-c", "all-disabled")
    assert (found["before"], found["after"]) == ({"nvidia.com/gpu": 8}, {"nvidia.com/gpu": 8})
    assert [(row["name"], row["fate"]) for row in found["pods"]] == [("bare", "refuse"), ("train", "evict")]


@pytest.mark.parametrize("key", ["config.yaml", "config-default.yaml"])
@pytest.mark.parametrize("name", ["n1-mig-config", "default-mig-parted-config"])
def test_the_configs_of_the_cluster_count(cluster: Refusing, capsys: Said, name: str, key: str) -> None:
    config_map(cluster, name, key=key)
    found = data(capsys)
    assert (found["config"], found["source"]) == ("halves", f"ConfigMap gpu-operator/{name}")
    assert found["after"] == {"nvidia.com/mig-3g.40gb": 16}


def test_the_policys_comes_first(cluster: Refusing, capsys: Said) -> None:
    config_map(cluster, "default-mig-parted-config", "elsewhere")
    config_map(cluster, "mine")
    cluster.put(CLUSTER_POLICIES, {"metadata": {"name": "p"}, "spec": {"migManager": {"config": {"name": "mine"}}}})
    assert data(capsys)["source"] == "ConfigMap gpu-operator/mine"


def test_a_file_counts_before_all(cluster: Refusing, capsys: Said, tmp_path: Path) -> None:
    config_map(cluster, "default-mig-parted-config")
    (tmp_path / "c.yaml").write_text(CONFIG)
    assert data(capsys, "-f", str(tmp_path / "c.yaml"))["source"] == "the file"


def test_what_can_not_be_read_is_told(cluster: Refusing, capsys: Said) -> None:
    cluster.refuses = CONFIG_MAPS
    assert main(["kgpu", "mig", "plan", "--node", "n1", "-c", "all-disabled"]) == 0
    assert "ConfigMaps can't be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--node", "n9", "-c", "all-disabled"], "the cluster has no node n9"),
        (["--node", "n1", "-c", "all-9g.10gb"], "selected mig-config not present: all-9g.10gb"),
        (["--node", "n1", "-c", "all-1g.18gb"], "has no profile 1g.18gb"),
        (["--node", "n1"], "missing required flag 'selected-config'"),
    ],
)
def test_what_can_not_be_is_refused(cluster: Refusing, capsys: Said, words: list[str], why: str) -> None:
    assert main(["kgpu", "mig", "plan", *words]) == 2
    assert why in capsys.readouterr().err


def test_a_node_without_labels_is_told(cluster: Refusing, capsys: Said) -> None:
    known = cluster.object(NODES, "n1")
    cluster.put(NODES, {**known, "metadata": {**known["metadata"], "labels": {}}})
    assert main(["kgpu", "mig", "plan", "--node", "n1", "-c", "all-disabled"]) == 2
    assert "don't say which GPUs it has" in capsys.readouterr().err


def test_a_change_is_listed_shown_and_planned_as_others_are(cluster: Refusing, capsys: Said) -> None:
    cluster.operation("mig-n1", "n1", **cut("r1", layout("GPU-1"), layout("GPU-2", {})))
    assert main(["kgpu", "operations", "list"]) == 0
    assert "mig-n1  n1    MigChange  Pending         all-1g.10gb" in capsys.readouterr().out
    assert main(["kgpu", "operations", "show", "mig-n1"]) == 0
    shown = capsys.readouterr().out
    assert "MIG        all-1g.10gb (drain: gpu): GPU-1 7 of 1g.10gb; GPU-2 no slices" in shown
    assert main(["kgpu", "operations", "plan", "mig-n1"]) == 0
    planned = capsys.readouterr().out
    assert "n1: stays schedulable; of its pods with GPUs, those that hold one of these:" in planned
    assert "web" not in planned


def test_one_that_empties_its_node_is_planned_so(cluster: Refusing, capsys: Said) -> None:
    cluster.operation("mig-n1", "n1", **cut(drain="node"))
    assert main(["kgpu", "operations", "plan", "mig-n1"]) == 3, "a bare pod may not go"
    planned = capsys.readouterr().out
    assert "n1: would be cordoned" in planned
    assert "default/web" in planned


def test_it_can_be_cancelled_and_not_resumed(cluster: Refusing, capsys: Said) -> None:
    cluster.operation("mig-n1", "n1", **cut())
    assert main(["kgpu", "operations", "resume", "mig-n1"]) == 2
    assert "mig-n1 is a MigChange, which ends by itself" in capsys.readouterr().err
    assert main(["kgpu", "operations", "cancel", "mig-n1"]) == 0
