"""Mode nvml: what GPUs bring beside their nodes, with hooks and without, and what every container gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kgpu.hw.fake_reader import sample_inventory, sample_partitions
from kgpu.toolkit.config import hook_config
from tests.host.tree import driver, touch
from tests.toolkit.generation import edits, hooks, make, names, node_paths, targets

VERSION = "550.54.15"
BUS = "0000:07:00.0"


@pytest.fixture
def root(tmp_path):
    driver(tmp_path)
    touch(tmp_path, "/usr/bin/nvidia-cdi-hook")
    return tmp_path


def display(root: Path) -> None:
    """The first GPU can draw."""
    touch(root, "/dev/dri/card1", "/dev/dri/renderD128")
    for name in ("card1", "renderD128"):
        (root / f"sys/bus/pci/devices/{BUS}/drm/{name}").mkdir(parents=True)


def test_every_container_gets_the_driver_and_is_void(root) -> None:
    spec = make(root).spec
    assert spec.kind == "nvidia.com/gpu"
    common = spec.container_edits
    assert common.env[-1] == "NVIDIA_VISIBLE_DEVICES=void"
    assert common.env[0].startswith("NVIDIA_CTK_LIBCUDA_DIR=/usr/lib")
    assert common.hooks == ()
    folders = common.env[0].partition("=")[2].split(":")
    assert {f"{folder}/libcuda.so.1" for folder in folders} <= set(targets(common))


def test_with_hooks_each_library_is_mounted_once_and_hooks_come_in_order(root) -> None:
    spec = make(root, hooks=hook_config()).spec
    found = hooks(spec.container_edits)
    assert [arguments[0] for arguments in found] == [
        "create-symlinks", "enable-cuda-compat", "update-ldcache", "disable-device-node-modification",
        "update-application-profile",
    ]  # fmt: skip
    place = "/usr/lib/x86_64-linux-gnu"
    assert found[1][1:] == [f"--host-driver-version={VERSION}"]
    assert found[2][1:] == ["--folder", place]
    assert f"libcuda.so.1::{place}/libcuda.so" in found[0]
    assert [path for path in targets(spec.container_edits) if "libcuda" in path] == [f"{place}/libcuda.so.{VERSION}"]
    assert spec.container_edits.env[0] == f"NVIDIA_CTK_LIBCUDA_DIR={place}"


def test_display_nodes_and_their_names_by_place(root) -> None:
    display(root)
    touch(root, "/dev/nvidia1")
    inventory = sample_inventory(2)
    spec = make(root, inventory=inventory).spec
    first = node_paths(edits(spec, "0"))
    assert {"/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD128"} <= set(first)
    assert f"/dev/dri/by-path/pci-{BUS}-card" in first
    assert node_paths(edits(spec, "1")) == ["/dev/nvidia1"]
    with_hooks = edits(make(root, inventory=inventory, hooks=hook_config()).spec, "0")
    assert hooks(with_hooks) == [
        ["create-symlinks", "--link", f"../card1::/dev/dri/by-path/pci-{BUS}-card",
         "--link", f"../renderD128::/dev/dri/by-path/pci-{BUS}-render"],
    ]  # fmt: skip
    assert set(node_paths(with_hooks)) == {"/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD128"}


@pytest.mark.parametrize(("profile", "draws"), [("1g.10gb", False), ("1g.10gb+gfx", True)])
def test_a_slice_draws_only_when_its_profile_can(root, profile: str, draws: bool) -> None:
    display(root)
    touch(root, *(f"/dev/nvidia-caps/nvidia-cap{number}" for number in range(60, 160)))
    gpu = sample_inventory(1).accelerators[0]
    gpu = replace(gpu, mig_enabled=True, partitions=sample_partitions(gpu, profile, count=1))
    spec = make(root, inventory=replace(sample_inventory(1), accelerators=(gpu,))).spec
    assert ("/dev/dri/card1" in node_paths(edits(spec, "0:0"))) is draws


def test_chmod_only_when_it_is_enabled(root) -> None:
    display(root)
    spec = make(root, hooks=hook_config(enabled=["chmod"], disabled=["all"])).spec
    assert hooks(edits(spec, "0")) == [["chmod", "--mode", "755", "--path", "/dev/dri"]]
    assert hooks(spec.container_edits) == []


def test_coherent_gpus_get_specs_of_their_own(root) -> None:
    inventory = sample_inventory(2)
    first, second = inventory.accelerators
    touch(root, "/dev/nvidia1")
    mixed = replace(inventory, accelerators=(replace(first, coherent=True), second))
    generated = make(root, inventory=mixed, features=["enable-coherent-annotations"])
    assert names(generated.spec) == ["0", "1", "all"]
    assert {label: (spec.kind, names(spec)) for label, spec in generated.siblings.items()} == {
        "coherent": ("nvidia.com/gpu.coherent", ["0", "all"]),
        "noncoherent": ("nvidia.com/gpu.noncoherent", ["1", "all"]),
    }
    for spec in generated.specs.values():
        assert all(not device.annotations for device in spec.devices)
    assert generated.siblings["coherent"].cdi_version == "0.6.0"
    assert make(root, inventory=mixed).siblings == {}


def test_switched_off_sockets_are_not_mounted(root) -> None:
    touch(root, "/run/nvidia-persistenced/socket")
    (root / "run/nvidia-persistenced/socket").unlink()
    import socket

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "run/nvidia-persistenced/socket"))
        there = targets(make(root).spec.container_edits)
        off = targets(make(root, features=["disable-ipc-discoverer"]).spec.container_edits)
    assert "/run/nvidia-persistenced/socket" in there
    assert "/run/nvidia-persistenced/socket" not in off
