"""Mode csv: a Jetson's lists made into devices and mounts, links, several GPUs, and lists that name nothing here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kgpu.base.errors import ConfigError, HostError, HwError
from kgpu.hw.fake_reader import sample_inventory
from kgpu.toolkit.config import csv_config, hook_config
from tests.host.tree import elf, link, touch, write
from tests.toolkit.generation import edits, hooks, make, names, node_paths, targets

FOLDER = "/etc/nvidia-container-runtime/host-files-for-container.d"
PLACE = "/usr/lib/aarch64-linux-gnu"
TEGRA = f"{PLACE}/tegra"
NODES = ("/dev/nvhost-gpu", "/dev/nvmap", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl")


def no_nvml():
    raise HwError("no NVML here", "NVML", "nothing")


@pytest.fixture
def root(tmp_path) -> Path:
    touch(tmp_path, *NODES, "/etc/nv_tegra_release", "/etc/vulkan/icd.d/nvidia.json", "/usr/bin/nvidia-cdi-hook")
    write(tmp_path, f"{TEGRA}/libcuda.so.1.1", elf(soname="libcuda.so.1"))
    link(tmp_path, f"{TEGRA}/libcuda.so", "libcuda.so.1.1")
    link(tmp_path, f"{PLACE}/libcuda.so", f"{TEGRA}/libcuda.so")  # absolute: the driver root's own
    write(tmp_path, f"{FOLDER}/devices.csv", "".join(f"dev, {path}\n" for path in (*NODES, "/dev/fb0")))
    write(
        tmp_path,
        f"{FOLDER}/drivers.csv",
        f"lib, {TEGRA}/libcuda.so.1.1\nsym, {PLACE}/libcuda.so\ndir, /etc/vulkan\nlib, {TEGRA}/libabsent.so\nnonsense\n",
    )
    return tmp_path


def generate(root: Path, **options):
    return make(root, **{"mode": "csv", "read": no_nvml, **options})


def test_without_nvml_there_is_one_device_with_the_listed_nodes(root) -> None:
    generated = generate(root)
    spec = generated.spec
    assert spec.kind == "nvidia.com/gpu"
    assert names(spec) == ["0", "all"]
    assert sorted(node_paths(edits(spec, "0"))) == sorted(NODES)
    assert any("l4t.csv is left out: there is no such file" in note for note in generated.notes)
    assert any("line 5 is left out" in note for note in generated.notes)
    assert {"/dev/fb0", f"{TEGRA}/libabsent.so"} == {item.name for item in generated.driver.missing()}


def test_libraries_have_every_name_where_loaders_look(root) -> None:
    common = generate(root).spec.container_edits
    real = f"{root}{TEGRA}/libcuda.so.1.1"
    found = targets(common)
    wanted = {f"{TEGRA}/libcuda.so.1.1", f"{PLACE}/libcuda.so"}
    from kgpu.host.driver.edits import library_dirs

    wanted |= {f"{folder}/{name}" for folder in library_dirs() for name in ("libcuda.so.1", "libcuda.so.1.1")}
    assert wanted == {target for target, host in found.items() if host == real}
    assert found["/etc/vulkan"] == f"{root}/etc/vulkan"
    assert found["/etc/nv_tegra_release"] == f"{root}/etc/nv_tegra_release"
    assert common.hooks == ()
    assert common.env[-1] == "NVIDIA_VISIBLE_DEVICES=void"
    assert all("ro" in mount.options for mount in common.mounts)


def test_with_hooks_links_stay_links(root) -> None:
    common = generate(root, hooks=hook_config(), strategies=["index"]).spec.container_edits
    assert [path for path in targets(common) if "libcuda" in path] == [f"{TEGRA}/libcuda.so.1.1"]
    found = {arguments[0]: arguments[1:] for arguments in hooks(common)}
    assert found == {
        "create-symlinks": ["--link", f"{TEGRA}/libcuda.so::{PLACE}/libcuda.so",
                            "--link", f"libcuda.so.1.1::{TEGRA}/libcuda.so"],
        "update-ldcache": ["--folder", TEGRA],
    }  # fmt: skip


@pytest.mark.parametrize(("model", "arguments"), [
    ("NVIDIA Jetson AGX Orin Developer Kit", ["--host-cuda-version=12.4", "--cuda-compat-container-root=/usr/local/cuda/compat_orin"]),
    ("NVIDIA Jetson AGX Thor Developer Kit", ["--host-cuda-version=12.4"]),
])  # fmt: skip
def test_compatibility_libraries_by_cuda_version_and_board(root, model: str, arguments: list[str]) -> None:
    write(root, "/sys/firmware/devicetree/base/model", model + "\0")
    inventory = sample_inventory(1, name="Orin (nvgpu)", cuda_version=(12, 4))
    spec = generate(root, read=lambda: inventory, hooks=hook_config()).spec
    found = {words[0]: words[1:] for words in hooks(spec.container_edits)}
    assert found["enable-cuda-compat"] == arguments


def test_one_gpu_of_nvml_gives_the_listed_nodes_its_names(root) -> None:
    inventory = sample_inventory(1, name="NVIDIA Thor")
    spec = generate(root, read=lambda: inventory, strategies=["uuid", "type-index"]).spec
    assert set(names(spec)) == {inventory.accelerators[0].uuid, "gpu0", "all"}
    assert sorted(node_paths(edits(spec, "gpu0"))) == sorted(NODES)


def test_beside_a_discrete_gpu_the_integrated_one_has_the_third_node(root) -> None:
    touch(root, "/dev/nvidia2", "/dev/nvidia-uvm")
    inventory = sample_inventory(2)
    integrated, discrete = inventory.accelerators
    both = replace(inventory, accelerators=(replace(integrated, name="NVIDIA Thor"), discrete))
    spec = generate(root, read=lambda: both).spec
    own = set(node_paths(edits(spec, "0")))
    assert "/dev/nvidia1" not in own
    assert {"/dev/nvidia2", "/dev/nvhost-gpu"} <= own
    assert set(node_paths(edits(spec, "1"))) == {"/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"}
    one = generate(root, read=lambda: both, features=["disable-multiple-csv-devices"]).spec
    assert names(one) == ["0", "all"]
    assert sorted(node_paths(edits(one, "0"))) == sorted(NODES)


def test_links_can_be_ignored(root) -> None:
    spec = generate(root, csv=csv_config(ignore=["**/libcuda.so"])).spec
    assert f"{PLACE}/libcuda.so" not in targets(spec.container_edits)


def test_links_in_circles_are_left_out(root) -> None:
    link(root, "/etc/a", "b")
    link(root, "/etc/b", "a")
    write(root, f"{FOLDER}/l4t.csv", "sym, /etc/a\nlib, /etc/b\n")
    assert not {"/etc/a", "/etc/b"} & set(targets(generate(root).spec.container_edits))
    generate(root, hooks=hook_config())


def test_uuids_need_nvml(root) -> None:
    with pytest.raises(ConfigError, match="no UUIDs"):
        generate(root, strategies=["uuid"])
    assert names(generate(root, strategies=["uuid", "index"]).spec) == ["0", "all"]


def test_no_list_and_lists_of_nothing_are_errors(root, tmp_path_factory) -> None:
    with pytest.raises(HostError, match="can be read"):
        generate(tmp_path_factory.mktemp("empty"))
    bare = tmp_path_factory.mktemp("bare")
    write(bare, f"{FOLDER}/devices.csv", "dev, /dev/nvmap\nlib, /usr/lib/x.so\n")
    with pytest.raises(HostError, match="nothing of what"):
        generate(bare)
