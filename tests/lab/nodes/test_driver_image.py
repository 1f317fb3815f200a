"""Which images are the driver's, which of them there are, and what a container of one gets of its node."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.base.errors import LabError
from kgpu.formats.names import ENV_SIMULATED_MACHINE
from kgpu.hw.simulator import container_settings
from kgpu.hw.simulator.driver_image import PRECOMPILED, SYSTEM
from kgpu.lab import samples
from kgpu.lab.nodes import driver_image, machine
from kgpu.lab.nodes.oci import OciConfig
from kgpu.lab.nodes.runtime import NAMESPACES, PLAIN, Runtime
from kgpu.lab.nodes.spec import NodeSpec


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("nvcr.io/nvidia/driver:550.54.15-ubuntu24.04", "550.54.15"),
        ("nvcr.io/nvidia/driver:570.133-rhel9", "570.133"),
        ("registry:5000/a/driver:580.65.06-6.8.0-40-generic-ubuntu22.04", "580.65.06"),
        ("registry:5000/a/driver:580-6.8.0-40-generic-ubuntu22.04", "580.82.07"),
        ("driver:535.1.1-talosv1.12", "535.1.1"),
        ("nvcr.io/nvidia/driver:580-ubuntu22.04", ""),
        ("nvcr.io/nvidia/driver:550.54.15", ""),
        (f"nvcr.io/nvidia/driver@sha256:{driver_image.digest_of('570.133.20-rhel9')}", "570.133.20"),
        ("nvcr.io/nvidia/mydriver:550.54.15-ubuntu24.04", ""),
        ("nvidia/cuda:12.5.0-base-ubuntu22.04", ""),
    ],
)
def test_the_release_is_in_the_tag(image: str, version: str) -> None:
    assert driver_image.version_of(image) == version
    assert driver_image.is_one(image) is bool(version)


@pytest.mark.parametrize("digest", ["0" * 64, "f" * 64, driver_image.digest_of("570.133.20"), "ff" + "0" * 62])
def test_there_is_nothing_of_another_digest(tmp_path: Path, digest: str) -> None:
    image = f"nvcr.io/nvidia/driver@sha256:{digest}"
    assert driver_image.is_one(image)
    assert driver_image.version_of(image) == ""
    assert f"{image}: not found" in driver_image.missing(image, tmp_path)
    there = f"nvcr.io/nvidia/driver@sha256:{driver_image.digest_of('570.133.20-rhel9')}"
    assert driver_image.missing(there, tmp_path) == ""


def test_an_images_container_knows_the_system_that_it_is_made_for() -> None:
    image = f"driver@sha256:{driver_image.digest_of('570.133.20-rhel9')}"
    assert driver_image.on(OciConfig(env={}), Path("/hw"), image).env[SYSTEM] == "rhel9"
    assert driver_image.on(OciConfig(env={}), Path("/hw"), "driver:570.133.20-ubuntu24.04").env[SYSTEM] == "ubuntu24.04"


def test_an_image_is_there_for_every_branch_that_is_known(tmp_path: Path) -> None:
    known, unknown = "nvcr.io/nvidia/driver:550.54.15-ubuntu24.04", "nvcr.io/nvidia/driver:999.1-ubuntu24.04"
    assert driver_image.missing(known, tmp_path) == ""
    assert f"{unknown}: not found" in driver_image.missing(unknown, tmp_path)
    assert driver_image.missing("busybox", tmp_path) == ""
    (tmp_path / container_settings.SETTINGS).write_text('{"fail": "pull"}')
    assert "not found" in driver_image.missing(known, tmp_path)
    (tmp_path / container_settings.SETTINGS).write_text('{"fail": "build"}')
    assert driver_image.missing(known, tmp_path) == ""


@pytest.mark.parametrize(
    ("tag", "there"),
    [
        ("580.65.06-ubuntu24.04", True),
        ("580.65.06-rhel9", True),
        ("580.65.06-debian12", False),
        ("580.65.06-talosv1.12", False),
        ("580-6.8.0-45-generic-ubuntu24.04", True),
        ("580-6.8.0-1012-aws-ubuntu24.04", True),
        ("580-6.8.0-7-mycompany-ubuntu24.04", False),
        ("999-6.8.0-45-generic-ubuntu24.04", False),
    ],
)
def test_an_image_is_there_for_systems_and_kernels_that_drivers_are_built_for(
    tmp_path: Path, tag: str, there: bool
) -> None:
    said = driver_image.missing(f"nvcr.io/nvidia/driver:{tag}", tmp_path)
    assert (said == "") is there, said


def test_a_precompiled_drivers_container_knows_it() -> None:
    tag = "driver:580-6.8.0-45-generic-ubuntu24.04"
    assert driver_image.on(OciConfig(env={}), Path("/hw"), tag).env[PRECOMPILED] == "6.8.0-45-generic"
    assert driver_image.on(OciConfig(env={}), Path("/hw"), "driver:570.133.20-ubuntu24.04").env[PRECOMPILED] == ""


def test_its_container_has_the_machine_and_its_sys() -> None:
    config = driver_image.on(OciConfig(env={"A": "1"}), Path("/node/hw"), "driver:570.133.20-ubuntu24.04")
    assert config.env["DRIVER_VERSION"] == "570.133.20"
    assert {mount.container_path: mount.host_path for mount in config.mounts} == {
        "/sys": "/node/hw/sys", config.env[ENV_SIMULATED_MACHINE]: "/node/hw",
    }  # fmt: skip


def test_it_runs_only_with_a_file_system_of_its_own() -> None:
    sample = samples.by_name(samples.DRIVER)
    assert Runtime(NAMESPACES).runs(sample, ("nvidia-driver", "init"))
    assert not Runtime(PLAIN).runs(sample, ("nvidia-driver", "init"))


def test_the_node_has_no_driver_below_run_until_a_container_brings_one(tmp_path: Path) -> None:
    its = machine.of_node(tmp_path, tmp_path, gpus=True, container_driver=True)
    assert its.find("/run/nvidia/driver/usr/lib") == tmp_path / "hw/run/nvidia/driver/usr/lib"
    assert its.find("/run/nvidia/validations") == tmp_path / "hw/run/nvidia/validations"
    other = machine.of_node(tmp_path, tmp_path, gpus=True)
    assert other.find("/run/nvidia/driver/usr/lib") == tmp_path / "hw/usr/lib"


@pytest.mark.parametrize(
    "about",
    [
        {"profile": "l4", "driver": "contaner", "agent": False},
        {"profile": "l4", "driver": "container"},
        {"profile": "cpu", "driver": "container", "agent": False},
        {"profile": "l4", "driver": "container", "light": True},
        {"profile": "dgx-h100", "driver": "container", "agent": False, "mig": ("0:1g.10gb*7",)},
    ],
)
def test_where_no_driver_can_come_in_a_container_that_is_refused(about: dict[str, object]) -> None:
    with pytest.raises(LabError, match="driver"):
        NodeSpec(name="node", **about)  # type: ignore[arg-type]
