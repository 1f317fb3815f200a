"""The root complex of a GPU from /sys as the kernel lays it out."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.dra.host_facts import pcie_roots, read_pcie_roots
from tests.dra.samples import h100


def link(root: Path, address: str, place: str) -> None:
    folder = root / "sys/bus/pci/devices"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / address).symlink_to(place)


def test_the_root_complex_is_the_first_part_of_the_place(tmp_path: Path) -> None:
    link(tmp_path, "0000:07:00.0", "../../../devices/pci0000:00/0000:00:01.0/0000:07:00.0")
    link(tmp_path, "0001:3b:00.0", "../../../devices/pci0001:3a/0001:3a:00.0/0001:3b:00.0")
    link(tmp_path, "0000:09:00.0", "../../../devices/platform/odd/0000:09:00.0")
    found = pcie_roots(tmp_path, ["0000:07:00.0", "0001:3b:00.0", "0000:09:00.0", "0000:0a:00.0", "", "../../etc"])
    assert found == {"0000:07:00.0": "pci0000:00", "0001:3b:00.0": "pci0001:3a"}
    assert read_pcie_roots(tmp_path, h100()) == {"0000:07:00.0": "pci0000:00"}


@pytest.mark.parametrize("address", ["0000:07:00.0", ""])
def test_without_sys_nothing_is_known(tmp_path: Path, address: str) -> None:
    assert pcie_roots(tmp_path, [address]) == {}
