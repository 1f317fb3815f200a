"""The label ``dcm.amd.com/gpu-config-profile`` in an embedded lab without an operator: from a word to devices in pods."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kgpu.formats.mig_request import read_report
from kgpu.formats.names import (
    AMD_GPU_RESOURCE,
    AMD_PROFILE_LABEL,
    AMD_PROFILE_STATE_LABEL,
    PARTITION_REPORT_ANNOTATION,
)
from kgpu.hw.simulator.amd import operate
from kgpu.lab.common import FIRST_NODE
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes import manage
from kgpu.lab.port import kubectl as run_kubectl
from kgpu.lab.progress import QuietProgress
from tests.lab.copied import until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def lab(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    del kubectl
    first = FirstNode(profile="mi300x")
    made = EmbeddedLab("parts", tmp_path_factory.mktemp("parts") / "lab", QuietProgress(), first=first)
    try:
        made.up()
        until(lambda: offered(made), "8")
        yield made
    finally:
        made.down()


def node(lab: EmbeddedLab) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_kubectl(lab, "get", "node", FIRST_NODE, "--output", "json"))
    return found


def offered(lab: EmbeddedLab) -> str:
    return str(node(lab)["status"]["allocatable"].get(AMD_GPU_RESOURCE, ""))


def ask(lab: EmbeddedLab, profile: str) -> None:
    run_kubectl(lab, "label", "node", FIRST_NODE, "--overwrite", f"{AMD_PROFILE_LABEL}={profile}")


def told(lab: EmbeddedLab) -> tuple[str, str, str]:
    """Profile, state label and reason of what the Node says."""
    metadata = node(lab)["metadata"]
    report = read_report(metadata.get("annotations") or {}, PARTITION_REPORT_ANNOTATION)
    state = metadata["labels"].get(AMD_PROFILE_STATE_LABEL, "")
    return (report.config, state, report.reason) if report is not None else ("", state, "")


def test_a_label_becomes_sixty_four_devices_and_eight_again(lab: EmbeddedLab) -> None:
    ask(lab, "cpx_nps4_all")
    until(lambda: told(lab), ("cpx_nps4_all", "success", "PartitionApplied"))
    until(lambda: offered(lab), "64")
    until(lambda: node(lab)["metadata"]["labels"].get("amd.com/gpu.compute-memory-partition"), "cpx_nps4")
    ask(lab, "cpx_nps4")
    until(lambda: told(lab), ("cpx_nps4", "failure", "PartitionConfigRefused"))
    assert offered(lab) == "64"
    ask(lab, "default")
    until(lambda: told(lab), ("default", "success", "PartitionApplied"))
    until(lambda: offered(lab), "8")


def test_a_gpu_in_use_is_waited_for(lab: EmbeddedLab) -> None:
    root = manage.hw_root(lab.folder, FIRST_NODE)
    operate.add_process(root, 3, pid=7, memory_mib=100)
    ask(lab, "qpx_nps1_all")
    until(lambda: told(lab), ("qpx_nps1_all", "failure", "PartitionGpusInUse"))
    assert offered(lab) == "8"
    operate.remove_process(root, 3, 7)
    until(lambda: told(lab), ("qpx_nps1_all", "success", "PartitionApplied"))
    until(lambda: offered(lab), "32")
