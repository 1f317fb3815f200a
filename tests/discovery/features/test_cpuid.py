"""What the device of the instruction CPUID tells: a sparse file stands for it, in which a leaf is a place."""

from __future__ import annotations

import struct

import pytest

from kgpu.discovery.features.cpu_source import cpu_features
from kgpu.discovery.features.cpuid import DEVICE, HYPERVISORS
from kgpu.discovery.features.host_tree import HostTree
from kgpu.discovery.features.plan import plan
from kgpu.formats.names import NFD_PREFIX

ABOVE, FEATURES, AVX10 = 0x4000_0000, 7 | 1 << 32, 0x24
BIT = 1 << 19


def node(tmp_path, flags="fpu avx512f hypervisor", *, sysinfo="", **leaves):
    """A node whose processor answers so; without any answer there is no device."""
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "cpuinfo").write_text(f"processor : 0\nvendor_id : GenuineIntel\nflags : {flags}\n" if flags else "x: y\n")
    if sysinfo:
        (proc / "sysinfo").write_text(sysinfo)
    if leaves:
        device = tmp_path / DEVICE
        device.parent.mkdir(parents=True)
        with open(device, "wb") as file:
            for place, registers in (
                (ABOVE, leaves.get("above")),
                (FEATURES, leaves.get("features")),
                (AVX10, leaves.get("avx10")),
            ):
                file.seek(place)
                file.write(registers or bytes(16))
    return cpu_features(HostTree(tmp_path))


def calls_itself(name: bytes) -> bytes:
    return b"\1\0\0\x40" + name.ljust(12, b"\0")


@pytest.mark.parametrize(
    ("name", "label"),
    [(b"KVMKVMKVM", "kvm"), (b"Microsoft Hv", "msvm"), (b"bhyve bhyve ", "bhyve"), (b"TCGTCGTCGTCG", "qemu"),
     (b"Own Hv!", "Own_Hv"), (b"\xff\xfe", "unknown"), (b"", "unknown")],
)  # fmt: skip
def test_the_hypervisor_by_its_name(tmp_path, name, label):
    found = node(tmp_path, above=calls_itself(name))
    assert found.values("cpu.model")["hypervisor"] == label
    assert plan(found)[f"{NFD_PREFIX}cpu-model.hypervisor"] == label


def test_every_name_fits_into_its_registers():
    assert all(len(name) <= 12 for name in HYPERVISORS)


@pytest.mark.parametrize(
    ("flags", "sysinfo", "label"),
    [
        ("fpu sse", "", "none"),
        ("fpu hypervisor", "", None),  # there is one, and nobody can say which
        ("", "", None),
        ("", "VM00 Name: x\nVM00 Control Program: z/VM    7.3.0\n", "z_VM_7.3.0"),
    ],
)
def test_without_the_device(tmp_path, flags, sysinfo, label):
    assert node(tmp_path, flags, sysinfo=sysinfo).values("cpu.model").get("hypervisor") == label


def test_the_version_of_avx10(tmp_path):
    found = node(tmp_path, features=struct.pack("<4I", 0, 0, 0, BIT), avx10=struct.pack("<4I", 0, 0x102, 0, 0))
    assert found.values("cpu.cpuid") == {"AVX10_VERSION": "2"}
    assert "AVX10" in found.flags["cpu.cpuid"]
    labels = plan(found)
    assert labels[f"{NFD_PREFIX}cpu-cpuid.AVX10_VERSION"] == "2"
    assert f"{NFD_PREFIX}cpu-cpuid.AVX10" not in labels  # on the list of what is left out


def test_a_processor_without_avx10_has_no_version(tmp_path):
    found = node(tmp_path, avx10=struct.pack("<4I", 0, 2, 0, 0))
    assert "cpu.cpuid" not in found.attributes
    assert "AVX10" not in found.flags["cpu.cpuid"]


def test_a_device_that_ends_too_soon_tells_nothing(tmp_path):
    (tmp_path / DEVICE).parent.mkdir(parents=True)
    (tmp_path / DEVICE).write_bytes(b"x")
    found = node(tmp_path)
    assert "hypervisor" not in found.values("cpu.model")
    assert "cpu.cpuid" not in found.attributes
