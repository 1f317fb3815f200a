"""The manifest of agents without an operator, on nodes of AMD, Gaudi and Intel: as it stands in the how-to pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from kgpu.formats.names import AMD_GPU_RESOURCE, GAUDI_RESOURCE, GPUS_HEALTHY_CONDITION
from kgpu.lab.common import FIRST_NODE
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes import manage
from kgpu.lab.port import kubectl as run_kubectl
from kgpu.lab.progress import QuietProgress
from kgpu.operator.vendors import TOLERATIONS
from tests.lab.copied import until
from tests.lab.vendors_story import XE, MixedLab

pytestmark = pytest.mark.timeout(600)
MANIFEST: Final = Path(__file__).parents[2] / "docs" / "how-to" / "agent-daemonset.yaml"
OFFERED: Final = {FIRST_NODE: (AMD_GPU_RESOURCE, "8"), "gaudi3-1": (GAUDI_RESOURCE, "8"), "arc-1": (XE, "2")}


def objects() -> list[Any]:
    return list(yaml.safe_load_all(MANIFEST.read_text()))


def test_it_is_valid_and_bears_the_taints_that_the_operators_agents_bear() -> None:
    for obj in objects():
        kubernetes_validate.validate(obj, "1.33", strict=True)
    (agent,) = (obj for obj in objects() if obj["kind"] == "DaemonSet")
    assert agent["spec"]["template"]["spec"]["tolerations"] == list(TOLERATIONS)


@pytest.fixture(scope="module")
def lab(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedLab]:
    """Nodes of three vendors that nobody serves, and the manifest."""
    del kubectl
    folder = tmp_path_factory.mktemp("daemonset") / "lab"
    made = EmbeddedLab("daemonset", folder, QuietProgress(), first=FirstNode(profile="mi300x", agent=False))
    try:
        made.up()
        for profile in ("gaudi3", "arc"):
            manage.add_to_running(folder, profile, agent=False)
        run_kubectl(made, "apply", "--filename", str(MANIFEST))
        ready = MixedLab(made)
        for node, (resource, count) in OFFERED.items():
            until(lambda node=node, resource=resource: ready.allocatable(node, resource), count)  # type: ignore[misc]
        yield ready
    finally:
        made.down()


def test_pods_get_their_vendors_devices_and_nodes_are_labelled(lab: MixedLab) -> None:
    for node, (resource, _) in OFFERED.items():
        name = f"on-{node}"
        lab.run(name, resource)
        landed, devices = lab.seen(name)
        assert landed == node
        assert devices
    until(lambda: lab.labels(FIRST_NODE).get("amd.com/gpu.product-name"), "AMD_Instinct_MI300X_OAM")
    until(lambda: lab.labels("gaudi3-1").get("habana.ai/gaudi.product"), "Intel-Gaudi-3")
    until(lambda: lab.labels("arc-1").get("gpu.intel.com/device.count"), "2")


def healthy(lab: MixedLab, node: str) -> str:
    conditions = lab.get("node", node)["status"]["conditions"]
    return next((str(one["status"]) for one in conditions if one["type"] == GPUS_HEALTHY_CONDITION), "")


def test_their_health_and_their_metrics_are_there(lab: MixedLab) -> None:
    for node in OFFERED:
        until(lambda node=node: healthy(lab, node), "True")  # type: ignore[misc]
    for node, series in ((FIRST_NODE, "gpu_package_power{"), ("gaudi3-1", "habanalabs_power_mW{")):
        until(lambda node=node, series=series: lab.serves(node, series, namespace="kgpu"), True)  # type: ignore[misc]


def test_no_right_is_missing(lab: MixedLab) -> None:
    """Last, after all roles have worked."""
    for pod in lab.get("pods", "--namespace", "kgpu")["items"]:
        said = run_kubectl(lab.lab, "logs", "--namespace", "kgpu", pod["metadata"]["name"])
        assert "health" in said
        assert "forbidden" not in said
