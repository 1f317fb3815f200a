"""Modes that are sets of device nodes: which nodes, which mounts beside them, and what is said when there are none."""

from __future__ import annotations

import pytest

from kgpu.base.errors import ConfigError, HostError
from tests.host.tree import touch
from tests.toolkit.generation import Never, edits, make, names, node_paths, targets

NODES = {
    "gds": ["/dev/nvidia-fs0", "/dev/nvidia-fs15"],
    "mofed": ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"],
    "gdrcopy": ["/dev/gdrdrv"],
    "nvswitch": ["/dev/nvidia-nvswitch0", "/dev/nvidia-nvswitch1", "/dev/nvidia-nvswitchctl"],
}


@pytest.fixture
def root(tmp_path):
    for paths in NODES.values():
        touch(tmp_path, *paths)
    touch(tmp_path, "/dev/nvidiactl", "/dev/nvidia0", "/dev/infiniband/umad0", "/dev/infiniband/by-path/x")
    return tmp_path


@pytest.mark.parametrize("mode", NODES)
def test_one_device_with_the_modes_nodes_and_nothing_else(root, mode: str) -> None:
    spec = make(root, mode=mode, read=Never()).spec
    assert spec.kind == f"nvidia.com/{mode}"
    assert names(spec) == ["all"]
    assert sorted(node_paths(edits(spec, "all"))) == NODES[mode]
    assert spec.container_edits.env == ("NVIDIA_VISIBLE_DEVICES=void",)
    assert spec.container_edits.mounts == ()


@pytest.mark.parametrize("mode", NODES)
def test_no_node_says_what_to_load(tmp_path, mode: str) -> None:
    touch(tmp_path, "/dev/nvidiactl")
    with pytest.raises(HostError) as caught:
        make(tmp_path, mode=mode, read=Never())
    assert f"mode {mode} found no device" in caught.value.what
    assert "load" in caught.value.remedy


def test_gds_brings_what_cufile_reads_where_it_is_there(root) -> None:
    touch(root, "/run/udev/data/x", "/etc/cufile.json")
    found = edits(make(root, mode="gds").spec, "all")
    assert targets(found) == {"/etc/cufile.json": f"{root}/etc/cufile.json", "/run/udev": f"{root}/run/udev"}
    assert all({"ro", "nosuid", "nodev", "rprivate"} <= set(mount.options) for mount in found.mounts)


@pytest.mark.parametrize(
    ("mode", "path"), [("mofed", "/dev/infiniband/rdma_cm"), ("nvswitch", "/dev/nvidia-nvswitchctl")]
)
def test_lack_of_an_optional_node_is_told_with_what_it_breaks(root, mode: str, path: str) -> None:
    (root / path.lstrip("/")).unlink()
    generated = make(root, mode=mode)
    assert path not in node_paths(edits(generated.spec, "all"))
    assert any(path in note and "can't" in note for note in generated.notes)
    assert [item.name for item in generated.driver.missing()] == [path]


def test_one_of_several_can_not_be_asked_for(root) -> None:
    with pytest.raises(ConfigError, match='mode gds has no device "0"'):
        make(root, mode="gds", device_ids=["0"])


def test_kind_can_be_given_in_halves(root) -> None:
    assert make(root, mode="gds", vendor="example.com").spec.kind == "example.com/gds"
    assert make(root, mode="gds", device_class="gpu").spec.kind == "nvidia.com/gpu"
