"""Files for rendering: where hosts have them, where containers look for them."""

from __future__ import annotations

import pytest

from kgpu.host.driver.edits import driver_edits
from kgpu.host.driver.find import find_driver_files
from kgpu.host.driver.graphics import CONFIGS
from kgpu.host.driver.model import Search
from kgpu.host.root import DriverRoot
from tests.host.tree import driver, link, touch

PLACE = "/usr/lib/x86_64-linux-gnu"
V = "550.54.15"


def targets(root, search: Search | None = None) -> dict[str, str]:
    at = DriverRoot.at(root)
    edits = driver_edits(at, find_driver_files(at, search=search), machine="x86_64")
    return {mount.container_path: mount.host_path.removeprefix(str(root)) for mount in edits.mounts}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
@pytest.mark.parametrize("folder", ["/etc", "/usr/share", "/usr/local/share"])
def test_each_configuration_goes_where_images_look(tmp_path, config, folder: str) -> None:
    driver(tmp_path)
    touch(tmp_path, f"{folder}/{config.name}")
    assert targets(tmp_path)[f"{config.into}/{config.name}"] == f"{folder}/{config.name}"
    assert config.into == ("/etc" if config.name.startswith(("vulkan", "OpenCL")) else "/usr/share")


def test_etc_comes_before_share_and_told_folders_replace_both(tmp_path) -> None:
    driver(tmp_path)
    name = "vulkan/icd.d/nvidia_icd.json"
    touch(tmp_path, f"/etc/{name}", f"/usr/share/{name}", f"/srv/{name}")
    assert targets(tmp_path)[f"/etc/{name}"] == f"/etc/{name}"
    assert targets(tmp_path, Search(config_dirs=("/srv",)))[f"/etc/{name}"] == f"/srv/{name}"


def test_vulkan_at_the_top_of_a_driver_root(tmp_path) -> None:
    driver(tmp_path)
    touch(tmp_path, "/vulkan/icd.d/nvidia_icd.json")
    assert targets(tmp_path)["/etc/vulkan/icd.d/nvidia_icd.json"] == "/vulkan/icd.d/nvidia_icd.json"


@pytest.mark.parametrize(
    "folder",
    [
        f"{PLACE}/nvidia/xorg",
        f"{PLACE}/xorg/modules/{{}}",
        f"{PLACE}/xorg/modules/updates/{{}}",
        "/usr/lib/xorg/modules/{}",
        "/usr/lib64/xorg/modules/{}",
        "/usr/X11R6/lib/modules/{}",
        "/usr/X11R6/lib64/modules/{}",
    ],
)
def test_xorg_modules_go_to_both_servers(tmp_path, folder: str) -> None:
    driver(tmp_path)
    drivers, extensions = folder.format("drivers"), folder.format("extensions")
    touch(tmp_path, f"{drivers}/nvidia_drv.so", f"{extensions}/libglxserver_nvidia.so.{V}")
    link(tmp_path, f"{extensions}/libglxserver_nvidia.so", f"libglxserver_nvidia.so.{V}")
    found = targets(tmp_path)
    for base in ("/usr/lib/xorg/modules", "/usr/lib64/xorg/modules"):
        assert found[f"{base}/drivers/nvidia_drv.so"] == f"{drivers}/nvidia_drv.so"
        for name in ("libglxserver_nvidia.so", f"libglxserver_nvidia.so.{V}"):
            assert found[f"{base}/extensions/{name}"] == f"{extensions}/libglxserver_nvidia.so.{V}"


def test_none_when_not_wanted_and_no_complaint_when_there_is_none(tmp_path) -> None:
    driver(tmp_path)
    touch(tmp_path, "/etc/vulkan/icd.d/nvidia_icd.json", "/usr/bin/nvidia-xconfig")
    files = find_driver_files(DriverRoot.at(tmp_path), search=Search(graphics=False))
    assert files.graphics == ()
    assert files.binaries == ("/usr/bin/nvidia-smi",)
    whole = find_driver_files(DriverRoot.at(tmp_path))
    assert "/usr/bin/nvidia-xconfig" in whole.binaries
    assert not any("egl" in note for note in whole.notes)
    assert any("egl" in item.name and not item.found for item in whole.report.items)


def test_a_link_out_of_the_root_is_no_configuration(tmp_path) -> None:
    touch(tmp_path, "/secret")
    root = driver(tmp_path / "root")
    link(root, "/etc/vulkan/icd.d/nvidia_icd.json", "../../../../../secret")
    assert "/etc/vulkan/icd.d/nvidia_icd.json" not in targets(root)
