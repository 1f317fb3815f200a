"""``kgpu collect --node``: what it asks for, what is in it, how it is made to fit, and that the doctor reads it."""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kgpu.base.errors import ConfigError
from kgpu.doctor.archive import pack
from kgpu.doctor.kinds import Log
from kgpu.doctor.plan import diagnose
from kgpu.doctor.snapshot import Snapshot
from kgpu.doctor.sources.files import read
from kgpu.doctor.sources.of_node import collect_of_node
from kgpu.kube.fake import FakeApi
from kgpu.kube.kinds import NODE_OPERATIONS
from kgpu.kube.port import EVENTS, NODES, PODS, KubeRefusedError, Listing, Resource
from tests.doctor.test_live import FakeLogs

SPACE = "gpu-operator"


def event(name: str, kind: str, about: str, namespace: str) -> dict[str, Any]:
    where = {} if kind == "Node" else {"namespace": namespace}
    involved = {"kind": kind, "name": about, **where}
    metadata = {"name": name, "namespace": namespace}
    return {"kind": "Event", "apiVersion": "v1", "metadata": metadata, "involvedObject": involved, "message": name}


def pod(namespace: str, name: str, node: str) -> dict[str, Any]:
    container = {"name": "main", "image": "i", "env": [{"name": "TOKEN", "value": "hunter2"}]}
    spec = {"nodeName": node, "containers": [{**container, "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    state = {"name": "main", "ready": False, "restartCount": 0, "state": {"running": {}}}
    status = {"phase": "Running", "containerStatuses": [state]}
    metadata = {"namespace": namespace, "name": name, "uid": name}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec, "status": status}


class Asked(FakeApi):
    """Remembers what was listed, as (kind, namespace)."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[tuple[str, str]] = []
        self.refused: set[tuple[str, str]] = set()

    async def list(self, resource: Resource, *, namespace: str = "", **more: Any) -> Listing:
        self.listed.append((resource.kind, namespace))
        if (resource.kind, namespace) in self.refused:
            raise KubeRefusedError("forbidden", "the right to it", "ask for it", code=403)
        return await super().list(resource, namespace=namespace, **more)


@pytest.fixture
def api() -> Asked:
    api = Asked()
    for name in ("n1", "n2"):
        api.put(NODES, {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name}, "status": {}})
        api.put(PODS, pod("ml", f"train-{name}", name))
        api.put(PODS, pod(SPACE, f"agent-{name}", name))
        api.put(EVENTS, event(f"of-{name}", "Node", name, "default"))
        api.put(EVENTS, event(f"of-train-{name}", "Pod", f"train-{name}", "ml"))
        api.put(EVENTS, event(f"of-agent-{name}", "Pod", f"agent-{name}", SPACE))
        spec = {"nodeName": name, "type": "Replace"}
        head = {"kind": "NodeOperation", "apiVersion": "kgpu.dev/v1alpha1"}
        api.put(NODE_OPERATIONS, {**head, "metadata": {"name": f"r-{name}"}, "spec": spec})
    return api


LOGS = FakeLogs({"ml/train-n1": ["CUDA error"], f"{SPACE}/agent-n1": ["Xid 79"]})


async def test_it_has_what_is_about_the_node_and_nothing_else(api: Asked) -> None:
    found = await collect_of_node(api, "n1", logs=LOGS, now=1e9)
    assert list(found.nodes) == ["n1"]
    assert sorted(found.pods) == [(SPACE, "agent-n1"), ("ml", "train-n1")]
    assert {each.name for each in found.all_events()} == {"of-n1", "of-train-n1", "of-agent-n1"}
    assert [each.name for each in found.all("NodeOperation")] == ["r-n1"]
    assert {log.lines for logs in found.logs.values() for log in logs} == {("CUDA error",), ("Xid 79",)}
    assert "hunter2" not in repr([each.data for each in found.pods.values()])


async def test_with_a_namespace_nothing_is_asked_for_in_others(api: Asked) -> None:
    """What the operator may not read it does not ask for."""
    logs = FakeLogs(LOGS.said)
    found = await collect_of_node(api, "n1", namespaces=frozenset({SPACE}), logs=logs, now=1e9)
    assert [where.split("/")[0] for where in logs.asked] == [SPACE]
    assert {namespace for kind, namespace in api.listed if kind == "Event"} == {"default", SPACE}
    assert sorted(found.pods) == [(SPACE, "agent-n1"), ("ml", "train-n1")]
    assert f"logs of 1 container on n1 (only those in {SPACE} are read)" in [
        f"{gap.what} ({gap.why})" for gap in found.missing
    ]


async def test_what_may_not_be_read_is_told_and_everything_else_counts(api: Asked) -> None:
    api.refused = {("Event", "ml"), ("NodeOperation", "")}
    found = await collect_of_node(api, "n1", logs=LOGS, now=1e9)
    told = {gap.what for gap in found.missing}
    assert {"events in ml", "nodeoperations of the cluster"} <= told
    assert {each.name for each in found.all_events()} == {"of-n1", "of-agent-n1"}


async def test_a_node_that_is_not_there_is_an_error(api: Asked) -> None:
    with pytest.raises(ConfigError, match="the cluster has no node n9"):
        await collect_of_node(api, "n9", logs=LOGS)


async def test_the_doctor_reads_the_archive(api: Asked, tmp_path: Path) -> None:
    data, left_out = pack(await collect_of_node(api, "n1", logs=LOGS, now=1e9), 100_000)
    assert not left_out
    (tmp_path / "a.tar.gz").write_bytes(data)
    found = read(str(tmp_path / "a.tar.gz"))
    assert list(found.nodes) == ["n1"]
    assert sorted(found.pods) == [(SPACE, "agent-n1"), ("ml", "train-n1")]
    assert not [each for each in diagnose(found).findings if "n2" in each.cause]


def large(lines: int = 20_000) -> Snapshot:
    """A node with much of everything; its logs hardly compress."""
    snapshot = Snapshot.of([{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}}], taken=1e9)
    for number in range(300):
        snapshot.add(pod("ml", f"train-{number}", "n1"))
    for name in ("kgpu-agent-x", "train-1"):
        said = tuple(f"{(line * 2654435761) % 2**32:x} of {name} line {line}" for line in range(lines))
        snapshot.add_log(Log(namespace="ml", pod=name, container="main", lines=said))
    return snapshot


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        files = {row.name.removeprefix("kgpu-collect/"): archive.extractfile(row) for row in archive}
        return {name: file.read() for name, file in files.items() if file is not None}


@pytest.mark.parametrize("most", [16 * 1024, 40 * 1024, 100 * 1024, 512 * 1024])
def test_an_archive_is_never_larger_and_tells_what_it_lacks(most: int) -> None:
    snapshot = large()
    data, left_out = pack(snapshot, most)
    assert len(data) <= most
    files = members(data)
    told = [gap["what"] for gap in json.loads(files["kgpu-collect.json"])["missing"]]
    assert set(left_out) <= set(told)
    assert "objects/Node.json" in files
    assert left_out or most == 512 * 1024
    whole = members(pack(snapshot)[0])
    shortened = {name.rpartition(" of ")[2] for name in left_out}
    assert {name for name in whole if name not in files} <= shortened


def test_logs_keep_their_last_lines_and_the_agents_comes_first() -> None:
    files = members(pack(large(), 100 * 1024)[0])
    agent = files["logs/ml/kgpu-agent-x/main.log"]
    assert agent.endswith(b"line 19999\n")
    assert len(agent) > 3 * len(files.get("logs/ml/train-1/main.log", b""))


def test_what_can_not_fit_is_an_error() -> None:
    snapshot = large(0)
    noise = random.Random(0).randbytes(30_000).hex()
    snapshot.nodes["n1"].data["metadata"]["annotations"] = {"noise": noise}
    with pytest.raises(ConfigError, match="--max-bytes 16384 is too little"):
        pack(snapshot, 16 * 1024)
