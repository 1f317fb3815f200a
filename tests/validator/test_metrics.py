"""The replaced exporter's metrics, read back by Prometheus' own parser."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from kgpu.validator import plan
from kgpu.validator.checks.plugin import NodeResources, judge
from kgpu.validator.files import Folder
from kgpu.validator.metrics import METRICS, look, render
from kgpu.validator.model import Check, NodeValidation, Status
from tests.validator.made import cuda, device, passed

NAMES = {
    "gpu_operator_node_metrics_ready_ts_seconds", "gpu_operator_node_driver_ready", "gpu_operator_node_toolkit_ready",
    "gpu_operator_node_plugin_ready", "gpu_operator_node_cuda_ready", "gpu_operator_node_driver_validation",
    "gpu_operator_node_driver_validation_last_success_ts_seconds", "gpu_operator_node_device_plugin_devices_total",
    "gpu_operator_node_device_plugin_validation_last_success_ts_seconds", "gpu_operator_nvidia_pci_devices_total",
}  # fmt: skip
PLUGIN = judge(
    NodeResources(
        capacity={"nvidia.com/gpu": 8, "nvidia.com/mig-1g.10gb": 7, "nvidia.com/none": 0},
        allocatable={"nvidia.com/gpu": 6, "nvidia.com/mig-1g.10gb": 7, "nvidia.com/none": 3},
    ),
    usable=13,
)
REPORT = NodeValidation(
    results=(passed(Check.DRIVER), passed(Check.TOOLKIT), cuda(device("a", Status.FAILED)), PLUGIN),
    pci_devices=8,
    times=(("driver", 100.0), ("plugin", 200.0)),
)


def read(folder, node: str = "n") -> dict[str, float]:
    text = render(look(folder, since=5.0), node)
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert all(sample.labels == {"node": node} for sample in samples)
    return {sample.name: sample.value for sample in samples}


def test_values_follow_the_files(tmp_path) -> None:
    Folder(tmp_path / "v").apply(plan.files_of(REPORT))
    values = read(tmp_path / "v")
    assert set(values) == NAMES == {metric.name for metric in METRICS}
    assert [values[f"gpu_operator_node_{check}_ready"] for check in Check] == [1, 1, 0, 1]
    assert values["gpu_operator_node_device_plugin_devices_total"] == 13
    assert values["gpu_operator_nvidia_pci_devices_total"] == 8
    assert values["gpu_operator_node_driver_validation_last_success_ts_seconds"] == 100
    assert values["gpu_operator_node_metrics_ready_ts_seconds"] == 5


def test_the_devices_are_a_number_and_no_sentence(tmp_path) -> None:
    """A report of an older kgpu has none: unknown until the next check."""
    reworded = replace(PLUGIN, evidence=("6 and 7 of 15 can be had",))
    for name, result, devices in (("new", reworded, 13), ("old", replace(PLUGIN, allocatable=None), -1)):
        Folder(tmp_path / name).apply(plan.files_of(replace(REPORT, results=(result,))))
        assert read(tmp_path / name)["gpu_operator_node_device_plugin_devices_total"] == devices


def test_nothing_there_is_zero_or_unknown(tmp_path) -> None:
    values = read(tmp_path / "v", 'odd"\\node\n')
    assert values["gpu_operator_node_driver_ready"] == 0
    assert values["gpu_operator_node_device_plugin_devices_total"] == -1
    assert values["gpu_operator_nvidia_pci_devices_total"] == -1
