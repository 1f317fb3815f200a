"""From an exporter's text to GPUs: every generation of names, MIG, sharing, what is lost or unwell."""

from __future__ import annotations

import pytest

from kgpu.exporter.field_table import find
from kgpu.exporter.fields import spell
from kgpu.exporter.labels import Style, device_labels
from kgpu.exporter.model import Generation
from kgpu.hw.port import Accelerator
from kgpu.top import tables
from kgpu.top.model import GpuHealth, GpuUser
from kgpu.top.parse import LabelSets
from kgpu.top.read import read
from tests.top.exporting import gpu_text, labels, node_text
from tests.top.screen import ROOT


def gpus(text: str):
    return read(text, "n1", LabelSets()).gpus


@pytest.mark.parametrize("metric", sorted(tables.VALUES))
def test_metrics_and_units_are_the_exporters(metric) -> None:
    attr, factor = tables.VALUES[metric]
    spelled = find(metric)
    assert spelled is not None
    usual = spell(spelled.field, Generation.B)
    same = {name: one for name, (attr_of, one) in tables.VALUES.items() if attr_of == attr}
    # The same reading under both names comes to the same value.
    assert same[usual.name] == pytest.approx(factor * spelled.factor / usual.factor)


@pytest.mark.parametrize("style", [Style(hostname="h"), Style(generation=Generation.A, hostname="h"),
                                   Style(old_namespace=True, hostname="h")])  # fmt: skip
def test_labels_are_the_exporters(style) -> None:
    gpu = Accelerator(vendor="nvidia", index=3, uuid="GPU-1", name="NVIDIA L4", pci_bus_id="0000:07:00.0", minor=3)
    pairs = (*device_labels(style, gpu, "1g.10gb", 7), *style.pod("ns", "p", "c"))
    inside = ",".join(f'{key}="{value}"' for key, value in pairs)
    node = read(f"DCGM_FI_DEV_FB_USED{{{inside}}} 5\n", "n1", LabelSets())
    (found,) = node.gpus
    (part,) = found.parts
    assert (node.hostname, found.index, found.uuid, found.name) == ("h", 3, "GPU-1", "NVIDIA L4")
    assert (part.gpu_instance, part.profile, part.values) == (7, "1g.10gb", {"memory_used_mib": 5.0})
    assert part.users == (GpuUser(namespace="ns", pod="p", container="c"),)


def test_a_usual_node() -> None:
    found = gpus(node_text("n1", 2))
    assert [one.index for one in found] == [0, 1]
    assert found[0].values["memory_total_mib"] == 80_500
    assert found[0].values["sm_percent"] == pytest.approx(40)
    assert (found[0].users, found[1].users) == ((GpuUser(namespace="ml", pod="train-0", container="main"),), ())
    assert {one.health for one in found} == {GpuHealth.OK}


def test_with_mig_memory_is_the_instances_and_power_the_gpus() -> None:
    text = gpu_text("n1", 0, {"DCGM_FI_DEV_POWER_USAGE": 99, "kgpu_gpu_up": 1})
    for instance in ("1", "2"):
        values = {"DCGM_FI_DEV_FB_USED": 10, "DCGM_FI_DEV_FB_FREE": 30, "DCGM_FI_PROF_SM_ACTIVE": 0.5}
        text += gpu_text("n1", 0, values, GPU_I_ID=instance, GPU_I_PROFILE="3g.40gb")
    (found,) = gpus(text)
    assert [part.values for part in found.parts] == [
        {"memory_used_mib": 10, "memory_free_mib": 30, "sm_percent": 50, "memory_total_mib": 40}
    ] * 2
    assert found.values == {"power_w": 99, "memory_used_mib": 20, "memory_total_mib": 80}


def test_copies_of_the_gpus_values_on_its_instances_are_the_gpus() -> None:
    """As dcgm-exporter has it: every instance has the whole GPU's power."""
    text = "".join(
        gpu_text("n1", 0, {"DCGM_FI_DEV_POWER_USAGE": 99, "DCGM_FI_DEV_FB_USED": 5}, GPU_I_ID=one) for one in "12"
    )
    (found,) = gpus(text)
    assert found.values == {"power_w": 99, "memory_used_mib": 10}


def test_everybody_on_a_shared_gpu_is_there_with_their_own_memory() -> None:
    text = gpu_text("n1", 0, {"DCGM_FI_DEV_GPU_UTIL": 70}, pod="a", namespace="x", container="c")
    text += gpu_text("n1", 0, {"DCGM_FI_DEV_GPU_UTIL": 70}, pod="b", namespace="x", container="c", shared_copy="1")
    text += gpu_text("n1", 0, {"kgpu_pod_gpu_memory_used_bytes": 2 << 30}, pod="b", namespace="x", container="c")
    text += gpu_text("n1", 0, {"kgpu_gpu_pod_info": 1}, pod="d", namespace="y", container="c")
    (found,) = gpus(text)
    assert [(user.name, user.memory_mib) for user in found.users] == [("x/a", None), ("x/b", 2048), ("y/d", None)]
    assert found.values["utilization_percent"] == 70


def test_a_lost_gpu_and_an_unwell_one() -> None:
    text = gpu_text("n1", 0, {"kgpu_gpu_up": 0, "kgpu_gpu_healthy": 0})
    text += gpu_text("n1", 1, {"kgpu_gpu_up": 1, "kgpu_gpu_healthy": 0})
    text += gpu_text("n1", 1, {"kgpu_gpu_verdict": 1}, action="reset-gpu", reason="Xid 109")
    text += gpu_text("n1", 2, {"DCGM_FI_DEV_GPU_TEMP": 40})
    lost, bad, plain = gpus(text)
    assert (lost.health, bad.health, plain.health) == (GpuHealth.LOST, GpuHealth.BAD, GpuHealth.UNKNOWN)
    assert (bad.action, bad.reason) == ("reset-gpu", "Xid 109")


@pytest.mark.parametrize(("healthy", "action", "reason", "found"), [
    (1, "ignore", "GPUHealthy", (GpuHealth.WARN, "", "NoReadings")),  # slow, or hangs since a moment ago
    (0, "reboot", "GPUNeedsReboot", (GpuHealth.LOST, "reboot", "GPUNeedsReboot")),
    (1, "ignore", "GPUMuted", (GpuHealth.LOST, "", "GPUMuted")),
    (None, "", "", (GpuHealth.LOST, "", "NoReadings")),
])  # fmt: skip
def test_a_gpu_without_readings_is_lost_unless_health_finds_it_well(healthy, action, reason, found) -> None:
    text = gpu_text("n1", 0, {"kgpu_gpu_up": 0})
    if healthy is not None:
        text += gpu_text("n1", 0, {"kgpu_gpu_healthy": healthy})
        text += gpu_text("n1", 0, {"kgpu_gpu_verdict": 1}, action=action, reason=reason)
    text += gpu_text("n1", 0, {"kgpu_gpu_pod_info": 1}, pod="p", namespace="ml", container="c")
    (gpu,) = gpus(text)
    assert (gpu.health, gpu.action, gpu.reason) == found
    assert gpu.users == (GpuUser(namespace="ml", pod="p", container="c"),)


def test_nonsense_in_labels_breaks_nothing() -> None:
    odd = labels("n1", 0).replace('gpu="0"', 'gpu="٣"')
    (found,) = gpus(f'kgpu_gpu_up{{{odd}}} 1\nkgpu_gpu_up{{UUID=""}} 1\nkgpu_gpu_up 1\n')
    assert found.index == -1


def test_a_body_without_metrics_is_a_node_without_gpus() -> None:
    assert gpus("") == ()


def test_what_the_exporter_says_of_its_node() -> None:
    text = node_text("n1", 1) + "kgpu_exporter_last_reading_timestamp_seconds 1700000000.5\n"
    node = read(text + "kgpu_exporter_driver_up 1\nkgpu_exporter_pods_known 1\n", "n1", LabelSets())
    assert (node.read_at, node.trouble, node.remark) == (1700000000.5, None, None)
    silent = read("kgpu_exporter_driver_up 0\n", "n1", LabelSets())
    assert silent.trouble is not None
    vague = read(f'{text}kgpu_exporter_pods_known{{hostname="n1"}} 0\n', "n1", LabelSets())
    assert vague.remark is not None
    assert (vague.trouble, len(vague.gpus)) == (None, 1)


def test_the_exporters_own_metrics_have_the_names_that_are_read() -> None:
    names = (ROOT / "src/kgpu/exporter/self_metrics.py").read_text()
    told = tables.WANTED - set(tables.VALUES)
    assert [name for name in told if f'"{name}"' not in names] == []


@pytest.mark.parametrize(("action", "health"), [("ignore", GpuHealth.OK), ("restart-app", GpuHealth.WARN)])
def test_a_gpu_that_may_have_work_and_wants_a_look(action, health) -> None:
    text = gpu_text("n1", 0, {"kgpu_gpu_up": 1, "kgpu_gpu_healthy": 1})
    text += gpu_text("n1", 0, {"kgpu_gpu_verdict": 1}, action=action, reason="Xid31")
    assert [gpu.health for gpu in gpus(text)] == [health]
