"""MIG: nothing is counted twice, users are found on their slice, and the replaced exporter's copies are to be had."""

from __future__ import annotations

import pytest

from kgpu.exporter.counters import parse_counters
from kgpu.exporter.devices import parse_selector
from kgpu.exporter.labels import Style
from kgpu.exporter.model import Unit
from kgpu.exporter.plan import plan
from kgpu.exporter.settings import ExporterSettings
from tests.exporter.made import gpu, holding, look, mig_uuid, partition, series, uuid

POWER, USED, XID = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_XID_ERRORS"
ROWS = parse_counters(f"{POWER}, gauge, P\n{USED}, gauge, U\n{XID}, gauge, X").rows
SPLIT = gpu(0, partition(0, 7), partition(0, 9), partition(0, 2, "1c.3g.40gb", 0), partition(0, 2, "2c.3g.40gb", 1))
WHOLE = gpu(1)


def planned(asked, **more):
    return plan(asked, ExporterSettings(counters=ROWS, style=Style(hostname="n"), **more))


def test_what_the_gpu_has_is_told_once_and_what_an_instance_has_once_per_instance():
    done = planned(look(SPLIT, WHOLE))
    assert [(labels["gpu"], labels.get("GPU_I_ID"), value) for labels, value in series(done, POWER)] == [
        ("0", None, 1.0), ("1", None, 101.0),
    ]  # fmt: skip
    assert [(labels["gpu"], labels.get("GPU_I_ID"), value) for labels, value in series(done, USED)] == [
        ("0", "2", 20.0), ("0", "7", 70.0), ("0", "9", 90.0), ("1", None, 5.0),
    ]  # fmt: skip


def test_an_instances_labels_have_the_parents_uuid_and_the_whole_instances_profile():
    labels = series(planned(look(SPLIT)), USED)[0][0]
    assert (labels["UUID"], labels["GPU_I_PROFILE"], labels["GPU_I_ID"]) == (uuid(0), "3g.40gb", "2")


def test_a_gpu_with_mig_on_and_no_instance_is_a_gpu():
    empty = gpu(0, mig_enabled=True)
    values = {Unit(uuid(0)): {"power_w": 1.0, "memory_used_mib": 2.0}}
    done = planned(look(empty, values=values))
    assert len(series(done, POWER)) == len(series(done, USED)) == 1


def test_copies_are_as_the_replaced_exporter_makes_them():
    rows = series(planned(look(SPLIT), mig_copies=True), POWER)
    assert [(labels["GPU_I_ID"], value) for labels, value in rows] == [("2", 1.0), ("7", 1.0), ("9", 1.0)]


@pytest.mark.parametrize(
    ("device", "instance"),
    [
        (mig_uuid(0, 7), "7"),
        (f"{mig_uuid(0, 7)}::3", "7"),
        (mig_uuid(0, 2, 1), "2"),
        (f"MIG-{uuid(0)}/9/0", "9"),
        ("nvidia0/gi7", "7"),
        ("nvidia0/gi7/vgpu1", "7"),
    ],
)
def test_every_form_of_a_device_id_finds_its_instance(device, instance):
    done = planned(look(SPLIT, holdings=(holding("p", device, resource="nvidia.com/mig-1g.10gb"),)))
    assert [labels["GPU_I_ID"] for labels, _ in series(done, USED) if labels.get("pod") == "p"] == [instance]
    assert all("pod" not in labels for labels, _ in series(done, POWER))


@pytest.mark.parametrize("device", ["nvidia1", "nvidia1/vgpu0", uuid(1), f"{uuid(1)}::0"])
def test_every_form_of_a_whole_gpus_id_finds_it(device):
    done = planned(look(SPLIT, WHOLE, holdings=(holding("p", device),)))
    assert [labels["gpu"] for labels, _ in series(done, POWER) if labels.get("pod") == "p"] == ["1"]


@pytest.mark.parametrize(
    ("device", "resource"),
    [
        ("GPU-unknown", "nvidia.com/gpu"), ("nvidia1", "example.com/nic"), ("nvidia7", "nvidia.com/gpu"),
        (f"{uuid(1)}::x", "nvidia.com/gpu"), (f"{uuid(1)}::", "example.com/nic"), ("", "nvidia.com/gpu"),
        ("nvidia\u0661", "nvidia.com/gpu"), (f"MIG-{uuid(3)}/1/0", "nvidia.com/gpu"),
    ],
)  # fmt: skip
def test_what_is_no_device_of_this_node_is_passed_over(device, resource):
    done = planned(look(WHOLE, holdings=(holding("p", device, resource=resource),)))
    shown = [labels.get("pod") for labels, _ in series(done, POWER)]
    assert shown == (["p"] if device == f"{uuid(1)}::" else [None])


def test_a_resource_that_is_named_counts():
    held = (holding("p", "nvidia1", resource="example.com/gpu"),)
    done = planned(look(WHOLE, holdings=held), resources=frozenset({"example.com/gpu"}))
    assert [labels.get("pod") for labels, _ in series(done, POWER)] == ["p"]


def test_an_xid_is_told_where_it_happened():
    values = {Unit(uuid(0)): {"last_xid": 79}, Unit(uuid(0), 9): {"last_xid": 43}}
    rows = series(planned(look(SPLIT, values=values)), XID)
    assert [(labels.get("GPU_I_ID"), value) for labels, value in rows] == [(None, 79), ("9", 43)]


@pytest.mark.parametrize(
    ("selector", "power", "used"),
    [
        ("f", ["0", "1"], ["0/2", "0/7", "0/9", "1"]),
        ("g", ["0", "1"], ["0", "1"]),
        ("g:1", ["1"], ["1"]),
        ("i", [], ["0/2", "0/7", "0/9"]),
        ("i:1", [], ["0/7"]),
        ("g:1+i:0", ["1"], ["0/2", "1"]),
        ("g:0+i:0", ["0"], ["0/2"]),
    ],
)
def test_devices_can_be_chosen(selector, power, used):
    values = {Unit(uuid(n)): {"power_w": 1.0, "memory_used_mib": 1.0} for n in (0, 1)}
    values |= {Unit(uuid(0), gi): {"memory_used_mib": 1.0} for gi in (2, 7, 9)}
    done = planned(look(SPLIT, WHOLE, values=values), devices=parse_selector(selector))
    for name, expected in ((POWER, power), (USED, used)):
        rows = [
            labels["gpu"] + (f"/{labels['GPU_I_ID']}" if "GPU_I_ID" in labels else "")
            for labels, _ in series(done, name)
        ]
        assert rows == expected
