"""Pods on a real kubelet: each container has the GPUs that the kubelet gave it, in images of every family, also after
a restart; a pod that asks for none sees none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.real.conftest import Cluster, until
from tests.toolkit.real import rootfs

GPU = "nvidia.com/gpu"
SLICE = "nvidia.com/mig-1g.10gb"
CONTROL = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}
LOOK = "find /dev -name 'nvidia*' -type c; nvidia-smi -L"
DEADLINE_S = 300
MIXED = """
apiVersion: v1
kind: ConfigMap
metadata: {name: device-plugin-config, namespace: gpu-operator}
data:
  default: |
    version: v1
  mixed: |
    version: v1
    flags:
      migStrategy: mixed
"""


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    cluster.clear()


def container(name: str, script: str, *, image: str = rootfs.DEBIAN, **limits: int) -> dict[str, Any]:
    resources = {key.replace("__", "/").replace("_", "-"): value for key, value in limits.items()}
    return {"name": name, "image": image, "command": ["sh", "-c", script], "resources": {"limits": resources}}


def start(cluster: Cluster, name: str, *containers: dict[str, Any], restart: str = "Never") -> None:
    spec = {"restartPolicy": restart, "terminationGracePeriodSeconds": 0, "containers": list(containers)}
    labels = {"test": "yes"}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
    cluster.lab.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))


def asks(container: dict[str, Any], **limits: int) -> dict[str, Any]:
    return {**container, "resources": {"limits": limits}}


def ended(cluster: Cluster, pod: str) -> None:
    """Wait for the pod to end; fails with what it said when it didn't end well."""
    phase = until(lambda: found if (found := cluster.phase(pod)) in {"Succeeded", "Failed"} else "", pod, DEADLINE_S)
    if phase == "Failed":
        pytest.fail(cluster.lab.kubectl("logs", pod, "--all-containers") + cluster.lab.kubectl("describe", "pod", pod))


def log(cluster: Cluster, pod: str, container: str) -> list[str]:
    return cluster.lab.kubectl("logs", pod, "-c", container).splitlines()


def nodes(lines: list[str]) -> set[str]:
    return {line for line in lines if line.startswith("/dev/")}


def gpus(lines: list[str]) -> list[str]:
    """The UUIDs of GPUs that nvidia-smi lists."""
    return [found[1] for line in lines if (found := re.match(r"GPU \d+: .*\(UUID: (GPU-[^)]*)\)", line))]


@pytest.mark.parametrize("image", [rootfs.DEBIAN, rootfs.OLD_DEBIAN, rootfs.RHEL, rootfs.PLAIN, rootfs.LINKED])
def test_a_pod_of_any_image_loads_the_driver(pods: Cluster, image: str) -> None:
    script = f"{rootfs.PROBE} libcuda.so.1 libnvidia-ml.so.1 && nvidia-smi -L"
    start(pods, "loads", {**container("c", script, image=image), "resources": {"limits": {GPU: 1}}})
    ended(pods, "loads")
    lines = log(pods, "loads", "c")
    assert [line.partition(":")[0] for line in lines[:2]] == ["libcuda.so.1", "libnvidia-ml.so.1"]
    assert len(gpus(lines)) == 1


def test_two_containers_have_what_each_was_given(pods: Cluster) -> None:
    one, two, none = (asks(container(name, LOOK), **limits) for name, limits in
                      (("one", {GPU: 1}), ("two", {GPU: 2}), ("none", {})))  # fmt: skip
    none["command"][-1] = "find /dev -name 'nvidia*'; which nvidia-smi; true"
    start(pods, "several", one, two, none)
    ended(pods, "several")
    first, second, third = (log(pods, "several", name) for name in ("one", "two", "none"))
    assert (len(gpus(first)), len(gpus(second)), third) == (1, 2, [])
    assert not set(gpus(first)) & set(gpus(second))
    assert (len(nodes(first) - CONTROL), len(nodes(second) - CONTROL)) == (1, 2)
    assert not nodes(first) & nodes(second) - CONTROL
    uid = pods.pods()["several"]["metadata"]["uid"]
    assert {*gpus(first), *gpus(second)} == pods.assignments()[uid]


def test_a_pod_that_asks_for_nothing_sees_nothing(pods: Cluster) -> None:
    """Also when its image says NVIDIA_VISIBLE_DEVICES=all."""
    start(
        pods, "none", container("c", "echo $NVIDIA_VISIBLE_DEVICES; find /dev -name 'nvidia*'; which nvidia-smi; true")
    )
    ended(pods, "none")
    assert log(pods, "none", "c") == ["all"]


def test_a_restarted_container_has_its_gpu_and_nothing_twice(pods: Cluster) -> None:
    """The first start kills itself; the second must look the same."""
    look = f"{LOOK}; cut -d' ' -f5 /proc/self/mountinfo; find / -xdev -path /proc -prune -o -print | sort"
    script = (
        f"({look}) > /kept/look.$(ls /kept | wc -l); test -e /kept/look.1 || kill -9 1; test -e /kept/look.1 || exit 1"
    )
    script += "; cmp /kept/look.0 /kept/look.1 && cat /kept/look.1"
    spec = {
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 0,
        "volumes": [{"name": "kept", "emptyDir": {}}],
        "containers": [
            {
                **asks(container("c", script), **{GPU: 1}),
                "volumeMounts": [{"name": "kept", "mountPath": "/kept"}],
            }
        ],
    }
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "again", "labels": {"test": "yes"}},
        "spec": spec,
    }
    pods.lab.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    ended(pods, "again")
    status = pods.pods()["again"]["status"]["containerStatuses"][0]
    assert status["restartCount"] == 1
    lines = log(pods, "again", "c")
    assert len(gpus(lines)) == 1
    points = [line for line in lines if "libcuda" in line]
    assert points


@pytest.fixture
def mixed(pods: Cluster) -> Iterator[Cluster]:
    """GPU 0 in seven slices, offered under their own resource name."""
    pods.lab.kubectl("apply", "-f", "-", stdin=MIXED)
    pods.lab.kubectl("label", "node", "--all", "nvidia.com/device-plugin.config=mixed", "--overwrite")
    pods.hw("mig", "--gpu", "0", "--profiles", "1g.10gb:7")
    until(lambda: (pods.gpus()[1], pods.gpus(SLICE)[1]) == ("7", "7"), "seven GPUs and seven slices", DEADLINE_S)
    yield pods
    pods.clear()
    pods.lab.kubectl("label", "node", "--all", "nvidia.com/device-plugin.config-")
    pods.lab.kubectl("delete", "configmap", "-n", "gpu-operator", "device-plugin-config")
    until(lambda: pods.gpus()[1] == "8", "eight whole GPUs", DEADLINE_S)


def test_two_resources_in_one_pod(mixed: Cluster) -> None:
    """A slice and a whole GPU, each in its own container and both in one."""
    start(
        mixed,
        "both",
        asks(container("slice", LOOK), **{SLICE: 1}),
        asks(container("gpu", LOOK), **{GPU: 1}),
        asks(container("together", LOOK), **{GPU: 1, SLICE: 1}),
    )
    ended(mixed, "both")
    slice_, gpu, together = (log(mixed, "both", name) for name in ("slice", "gpu", "together"))
    caps = [{path for path in nodes(lines) if "/nvidia-caps/" in path} for lines in (slice_, gpu, together)]
    assert [len(found) for found in caps] == [2, 0, 2]
    assert not caps[0] & caps[2]
    assert nodes(slice_) - caps[0] == CONTROL | {"/dev/nvidia0"}
    assert len(nodes(gpu) - CONTROL) == 1
    whole = nodes(together) - caps[2] - CONTROL
    assert "/dev/nvidia0" in whole
    assert len(whole) == 2
    assert not nodes(gpu) & whole - CONTROL
    assert [sum("MIG 1g.10gb" in line for line in lines) for lines in (slice_, gpu, together)] == [1, 0, 1]
