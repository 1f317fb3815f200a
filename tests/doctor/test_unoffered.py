"""A node that offers nothing is told whatever pods elsewhere wait for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doctor.small import GPU, node, plugin, report, waits

DAEMONS = {
    "kind": "DaemonSet", "metadata": {"name": "nvidia-device-plugin-daemonset", "namespace": "gpu-operator", "uid": "d"},
    "spec": {"template": {
        "metadata": {"labels": {"app": "nvidia-device-plugin-daemonset"}},
        "spec": {"containers": [{"name": "main", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.18.0"}]},
    }},
    "status": {"desiredNumberScheduled": 1},
}  # fmt: skip
BARE = node("gpu-2", have=None)


def more(**resources: str) -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": "i", "resources": {"limits": {GPU: "1", **resources}}}]}


@pytest.mark.parametrize(
    "pod",
    [waits(gpus=99), waits(spec=more(cpu="999")), waits(spec={"nodeSelector": {"no": "such"}}),
     waits(spec={"containers": [{"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}]})],
    ids=["99-gpus", "999-cpu", "no-such-node", "no-such-slice"],
)  # fmt: skip
def test_a_pod_that_never_fits_hides_no_node(pod: dict[str, Any]) -> None:
    found = report(node(), plugin(), BARE, DAEMONS, pod)
    assert ("DPL-00", ("gpu-2",)) in {(one.id, one.nodes) for one in found.findings}
    assert any(f"ml/{pod['metadata']['name']}" in one.pods for one in found.findings)


def test_a_slice_that_waits_for_its_volume_hides_no_node() -> None:
    slice_ = {"limits": {"nvidia.com/mig-1g.10gb": "1"}}
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "gone"}}
    spec = {"containers": [{"name": "main", "image": "i", "resources": slice_}], "volumes": [volume]}
    of_volumes = [
        {"kind": kind, "metadata": {"name": "other", "namespace": "ml"}}
        for kind in ("PersistentVolumeClaim", "PersistentVolume", "StorageClass")
    ]
    found = report(BARE, DAEMONS, *of_volumes, waits(spec=spec))
    assert ("DPL-00", ("gpu-2",)) in {(one.id, one.nodes) for one in found.findings}


def test_where_no_node_offers_any_it_is_told_once() -> None:
    found = report(BARE, DAEMONS, waits())
    every = [each.id for one in found.findings for each in one.all()]
    assert "SCH-02" in every
    assert "DPL-00" not in every
