"""A GPU's display nodes: from the PCI device to /dev/dri, and the by-path names with and without hooks."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.host.driver.drm import DrmNodes, drm_edits, drm_links, drm_nodes
from kgpu.host.root import DriverRoot
from tests.host.tree import simulated, touch

BUS = "0000:07:00.0"


def gpu(root: Path, *names: str, bus: str = BUS) -> DriverRoot:
    for name in names:
        touch(root, f"/sys/bus/pci/devices/{bus}/drm/{name}/dev", f"/dev/dri/{name}")
    return DriverRoot.at(root, dev=root, dev_host="/run/nvidia/driver")


def test_nodes_and_their_names_by_place(tmp_path) -> None:
    root = gpu(tmp_path, "card1", "renderD129")
    touch(tmp_path, "/dev/dri/card0", "/dev/dri/renderD128")
    found = drm_nodes(root, BUS.upper(), sys=tmp_path / "sys")
    assert found == DrmNodes(
        ("/dev/dri/card1", "/dev/dri/renderD129"),
        (
            (f"/dev/dri/by-path/pci-{BUS}-card", "/dev/dri/card1"),
            (f"/dev/dri/by-path/pci-{BUS}-render", "/dev/dri/renderD129"),
        ),
    )


def test_links_name_places_in_the_container_never_in_the_dev_root(tmp_path) -> None:
    """The replaced program puts the dev root into the link's path."""
    links = drm_links(drm_nodes(gpu(tmp_path, "card1", "renderD129"), BUS, sys=tmp_path / "sys"))
    assert links == (
        f"../card1::/dev/dri/by-path/pci-{BUS}-card",
        f"../renderD129::/dev/dri/by-path/pci-{BUS}-render",
    )


def test_without_hooks_each_name_is_a_node_of_its_own(tmp_path) -> None:
    root = gpu(tmp_path, "card1")
    nodes = drm_edits(root, drm_nodes(root, BUS, sys=tmp_path / "sys"))
    assert [(node.path, node.host_path) for node in nodes] == [
        ("/dev/dri/card1", "/run/nvidia/driver/dev/dri/card1"),
        (f"/dev/dri/by-path/pci-{BUS}-card", "/run/nvidia/driver/dev/dri/card1"),
    ]


def test_the_place_on_the_host_is_told_even_where_the_dev_root_is_the_hosts(tmp_path) -> None:
    gpu(tmp_path, "card1")
    root = DriverRoot.at(tmp_path, dev=tmp_path, dev_host="/")
    node, named = drm_edits(root, drm_nodes(root, BUS, sys=tmp_path / "sys"))
    assert (node.host_path, named.host_path) == ("", "/dev/dri/card1")


def test_a_node_that_is_not_there_is_left_out(tmp_path) -> None:
    root = gpu(tmp_path, "card1", "renderD129")
    (tmp_path / "dev/dri/card1").unlink()
    assert drm_nodes(root, BUS, sys=tmp_path / "sys").nodes == ("/dev/dri/renderD129",)


@pytest.mark.parametrize("bus", ["", "..", "0000:07:00.0/../0000:08:00.0", "0000:07:00.8", "/", "0000:09:00.0"])
def test_no_such_device_or_a_strange_name_gives_nothing(tmp_path, bus: str) -> None:
    assert drm_nodes(gpu(tmp_path, "card1"), bus, sys=tmp_path / "sys") == DrmNodes()


@pytest.mark.parametrize("name", ["card1-HDMI-A-1", "controlD64", "card", "renderD", "card123456", "..card1"])
def test_other_entries_of_the_folder_are_no_nodes(tmp_path, name: str) -> None:
    assert drm_nodes(gpu(tmp_path, name), BUS, sys=tmp_path / "sys") == DrmNodes()


def test_simulated_root_has_a_sys_of_its_own(tmp_path) -> None:
    simulated(tmp_path)
    assert drm_nodes(gpu(tmp_path, "renderD128"), BUS).nodes == ("/dev/dri/renderD128",)
