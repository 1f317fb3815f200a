"""The generated messages are current, carry no version check, and have the published wire shape."""

from __future__ import annotations

from pathlib import Path

from kgpu.kubelet.pb import deviceplugin_v1beta1_pb2 as dp
from kgpu.kubelet.pb import podresources_v1_pb2 as podresources
from kgpu.kubelet.protos.generate import PB, generate

# Message -> field -> (number, repeated); from the published API, written down here a second time on purpose.
WIRE = {
    "Device": {"ID": 1, "health": 2, "topology": 3},
    "TopologyInfo": {"nodes": 1},
    "NUMANode": {"ID": 1},
    "ContainerAllocateResponse": {"envs": 1, "mounts": 2, "devices": 3, "annotations": 4, "cdi_devices": 5},
    "Mount": {"container_path": 1, "host_path": 2, "read_only": 3},
    "DeviceSpec": {"container_path": 1, "host_path": 2, "permissions": 3},
    "ContainerPreferredAllocationRequest": {
        "available_deviceIDs": 1,
        "must_include_deviceIDs": 2,
        "allocation_size": 3,
    },
    "DevicePluginOptions": {"pre_start_required": 1, "get_preferred_allocation_available": 2},
    "RegisterRequest": {"version": 1, "endpoint": 2, "resource_name": 3, "options": 4},
    "CDIDevice": {"name": 1},
}


def test_generated_files_are_current(tmp_path: Path) -> None:
    fresh = generate(tmp_path)
    assert sorted(path.name for path in PB.glob("*_pb2.py*")) == [path.name for path in fresh]
    for path in fresh:
        assert (PB / path.name).read_text() == path.read_text(), (
            f"run python -m kgpu.kubelet.protos.generate: {path.name}"
        )


def test_no_file_asks_for_a_newer_protobuf() -> None:
    files = list(PB.glob("*_pb2.py"))
    assert files
    for path in files:
        assert "ValidateProtobufRuntimeVersion" not in path.read_text()


def test_field_numbers() -> None:
    messages = dp.DESCRIPTOR.message_types_by_name
    found = {name: {field.name: field.number for field in messages[name].fields} for name in WIRE}
    assert found == WIRE
    assert dp.DESCRIPTOR.package == "v1beta1"
    assert podresources.DESCRIPTOR.package == "v1"


def test_bytes_on_the_wire() -> None:
    device = dp.Device(ID="a", health="Healthy")
    device.topology.nodes.add(ID=1)
    assert device.SerializeToString() == b"\x0a\x01a\x12\x07Healthy\x1a\x04\x0a\x02\x08\x01"
