"""Facts from files: vGPU records in PCI configuration space, machine types, and roots other than this machine's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.discovery.model import LabelSettings, NodeFacts, RdmaFacts, VgpuFacts
from kgpu.discovery.node_facts import read_facts
from kgpu.discovery.vgpu import host_driver, is_vgpu, vendor_capability


def config_space(*capabilities: tuple[int, bytes], listed: bool = True) -> bytes:
    """256 bytes with a chain of (id, payload) capabilities; a payload begins with the length byte."""
    space = bytearray(256)
    space[0x06] = 0x10 if listed else 0
    at, link = 0x40, 0x34
    for kind, payload in capabilities:
        space[link] = at
        space[at] = kind
        space[at + 2 : at + 2 + len(payload)] = payload
        link, at = at + 1, at + 2 + len(payload) + 1
    return bytes(space)


def record(kind: int, payload: bytes) -> bytes:
    return bytes([kind, len(payload) + 2]) + payload


def vgpu_capability(*records: bytes) -> bytes:
    """The capability from its length byte on."""
    body = b"VF" + b"".join(records)
    return bytes([len(body) + 3]) + body


DRIVER = record(0, b"460.16".ljust(10, b"\0") + b"r460_00".ljust(10, b"\0"))
VGPU = config_space((0x01, b"\x08" + b"\0" * 5), (0x09, vgpu_capability(DRIVER)))
PASSTHROUGH = config_space((0x09, b"\x14" + b"P2" + b"\0" * 15))


def test_a_vgpu_and_its_host_driver() -> None:
    capability = vendor_capability(VGPU)
    assert capability is not None
    assert is_vgpu(capability)
    assert host_driver(capability) == VgpuFacts("460.16", "r460_00")


def test_records_before_the_driver_record_are_skipped() -> None:
    capability = vendor_capability(config_space((0x09, vgpu_capability(record(3, b"abc"), DRIVER))))
    assert capability is not None
    assert host_driver(capability) == VgpuFacts("460.16", "r460_00")


@pytest.mark.parametrize(
    "records",
    [(), (record(3, b"x"),), (b"\x05\x00",), (b"\x05\x01",), (b"\x05\xff",), (record(0, b"460.16"),), (DRIVER[:-1],)],
)
def test_broken_records_give_no_driver(records: tuple[bytes, ...]) -> None:
    capability = vendor_capability(config_space((0x09, vgpu_capability(*records))))
    assert capability is not None
    assert is_vgpu(capability)
    assert host_driver(capability) is None


def test_what_is_no_vgpu() -> None:
    capability = vendor_capability(PASSTHROUGH)
    assert capability is not None
    assert not is_vgpu(capability)
    assert vendor_capability(config_space((0x09, vgpu_capability(DRIVER)), listed=False)) is None
    assert vendor_capability(config_space((0x01, b"\x04\0\0"))) is None
    assert vendor_capability(config_space((0xFF, b"\x04\0\0"), (0x09, vgpu_capability(DRIVER)))) is None


def test_a_chain_that_bites_its_tail_ends() -> None:
    space = bytearray(VGPU)
    space[0x34] = 0x40
    space[0x40:0x43] = bytes([0x01, 0x40, 8])
    assert vendor_capability(bytes(space)) is None


def test_a_closed_configuration_space_is_an_error() -> None:
    with pytest.raises(ValueError, match="64 bytes"):
        vendor_capability(VGPU[:64])


@given(st.binary(min_size=256, max_size=256))
def test_any_configuration_space_is_survived(space: bytes) -> None:
    capability = vendor_capability(space[:6] + b"\x10" + space[7:])
    if capability is not None and is_vgpu(capability):
        found = host_driver(capability)
        assert found is None or len(found.host_driver_version) <= 10


def pci_device(root: Path, name: str, vendor: str, config: bytes) -> None:
    folder = root / "sys/bus/pci/devices" / name
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(vendor + "\n")
    (folder / "config").write_bytes(config)


def facts(root: Path, **settings: str) -> NodeFacts:
    return read_facts(LabelSettings(**settings), str(root))  # type: ignore[arg-type]


def test_facts_of_a_root(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:01:00.0", "0x10de", PASSTHROUGH)
    pci_device(tmp_path, "0000:02:00.0", "0x8086", VGPU)
    assert facts(tmp_path).vgpu_present is False
    pci_device(tmp_path, "0000:03:00.0", "0x10de", VGPU)
    product = tmp_path / "sys/class/dmi/id/product_name"
    product.parent.mkdir(parents=True)
    product.write_text("DGX H100\n")
    assert facts(tmp_path) == NodeFacts(machine="DGX H100", vgpu_present=True, vgpu=VgpuFacts("460.16", "r460_00"))


def test_closed_configuration_space_says_nothing(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:01:00.0", "0x10de", VGPU[:64])
    assert facts(tmp_path).vgpu_present is None


def test_machine_type_files(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    own = tmp_path / "machine"
    own.write_text("My Machine\n")
    assert facts(tmp_path, machine_type_file=str(own)).machine == "My Machine", "a path outside the root"
    assert facts(tmp_path, machine_type_file="").machine is None
    assert facts(tmp_path, machine_type_file=str(tmp_path / "none")).machine is None
    assert facts(tmp_path, machine_type_file=str(tmp_path)).machine is None
    own.write_bytes(b"\xff\xfe" + b"x" * 10_000)
    assert len(facts(tmp_path, machine_type_file=str(own)).machine or "") <= 4096


def port(root: Path, adapter: str, link: str, rate: str, state: str = "4: ACTIVE") -> None:
    folder = root / "sys/class/infiniband" / adapter / "ports/1"
    folder.mkdir(parents=True)
    for name, text in (("link_layer", link), ("rate", rate), ("state", state)):
        (folder / name).write_text(text + "\n")


def rdma(root: Path) -> RdmaFacts | None:
    return read_facts(LabelSettings(machine_type_file=""), str(root)).rdma


def test_the_fastest_active_rdma_ports_count(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    assert rdma(tmp_path) is None
    port(tmp_path, "mlx5_0", "InfiniBand", "800 Gb/sec (4X XDR)", state="1: DOWN")
    assert rdma(tmp_path) is None
    for at in (1, 2):
        port(tmp_path, f"mlx5_{at}", "InfiniBand", "200 Gb/sec (4X HDR)")
    port(tmp_path, "mlx5_3", "Ethernet", "200 Gb/sec (4X HDR)")
    port(tmp_path, "mlx5_4", "Ethernet", "100 Gb/sec (4X EDR)")
    assert rdma(tmp_path) == RdmaFacts("infiniband", 200, 2)
    port(tmp_path, "mlx5_5", "Ethernet", "400 Gb/sec (4X NDR)")
    assert rdma(tmp_path) == RdmaFacts("ethernet", 400, 1)


@pytest.mark.parametrize(
    ("link", "rate"), [("", "200 Gb/sec"), ("InfiniBand", "fast"), ("InfiniBand", "0 Gb/sec"), ("a\nb", "2.5 Gb/sec")]
)
def test_a_port_of_unknown_kind_or_rate_is_none(tmp_path: Path, link: str, rate: str) -> None:
    port(tmp_path, "hlib_0", link, rate)
    assert rdma(tmp_path) is None
    port(tmp_path, "mlx5_0", "InfiniBand", "2.5 Gb/sec (1X SDR)")
    assert rdma(tmp_path) == RdmaFacts("infiniband", 2, 1)
