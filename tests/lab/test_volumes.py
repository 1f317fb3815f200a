"""Claims on the embedded lab: what pods write into them stays until the claim goes, and pods of any node have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.lab.common import VOLUMES_FOLDER
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.nodes import manage
from kgpu.lab.nodes.spec import CPU_PROFILE
from tests.lab import asking
from tests.lab.test_exec import Pods, pod, until

pytestmark = pytest.mark.timeout(600)


def claim(name: str, **spec: Any) -> dict[str, Any]:
    size = {"requests": {"storage": "1Gi"}}
    wanted = {"accessModes": ["ReadWriteMany"], "resources": size, **spec}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": wanted}


def user(name: str, script: str, *, of: str, node: str = "", read_only: bool = False) -> dict[str, Any]:
    container = {
        "name": "c", "image": "busybox:1", "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }  # fmt: skip
    source = {"persistentVolumeClaim": {"claimName": of, "readOnly": read_only}}
    where = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    return pod(name, container, volumes=[{"name": "data", **source}], **where)


def phase(lab: EmbeddedLab, name: str) -> str:
    return str(asking.get(lab.kubeconfig, "persistentvolumeclaim", name)["status"]["phase"])


@pytest.fixture
def pods(embedded: EmbeddedLab, kubectl: str) -> Iterator[Pods]:
    made = Pods(embedded, kubectl)
    yield made
    made.remove("writer", "reader", "taker")
    made.run("delete", "pvc", "kept", "block", "--wait=false", "--ignore-not-found")


def test_what_a_pod_has_written_the_next_one_reads_on_another_node_and_it_goes_with_the_claim(pods: Pods) -> None:
    lab = pods.lab
    (other,) = manage.add_to_running(lab.folder, CPU_PROFILE, name_prefix="volumes")
    try:
        pods.apply(claim("kept"))
        assert phase(lab, "kept") == "Pending"  # until its first consumer comes
        pods.apply(user("writer", "echo kept > /data/file", of="kept"))
        until(lambda: pods.status("writer").get("phase") == "Succeeded")
        found = asking.get(lab.kubeconfig, "persistentvolumeclaim", "kept")
        assert (found["status"]["phase"], found["spec"]["storageClassName"]) == ("Bound", "standard")
        pods.remove("writer")
        pods.apply(user("reader", "cat /data/file; echo no > /data/file", of="kept", node=other, read_only=True))
        until(lambda: pods.status("reader").get("phase") in ("Succeeded", "Failed"))
        assert pods.run("logs", "reader").stdout.splitlines()[0] == b"kept"
        folder = Path(lab.folder, VOLUMES_FOLDER, found["spec"]["volumeName"])
        assert folder.is_dir()
        pods.remove("reader")
        pods.run("delete", "pvc", "kept")
        until(lambda: not folder.exists())
        until(lambda: found["spec"]["volumeName"] not in pods.run("get", "pv", "-o", "name").stdout.decode())
    finally:
        manage.remove(lab.folder, [other])


def test_a_claim_for_a_block_device_is_told_that_there_are_none(pods: Pods) -> None:
    pods.apply(claim("block", volumeMode="Block"), user("taker", "true", of="block"))
    until(lambda: b"and no block devices" in pods.run("describe", "pvc", "block").stdout)
    assert phase(pods.lab, "block") == "Pending"
