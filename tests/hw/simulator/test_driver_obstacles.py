"""What of a simulated machine is in a driver's way, and in whose words its container ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kgpu.hw.simulator import build, container_driver, container_settings, driver_image, kernel_log
from kgpu.hw.simulator.driver_image import Installation, PhaseFailedError
from kgpu.hw.simulator.driver_obstacles import HEADERS, LOAD, SIGN, ImageDriver, obstacle

Roots = Callable[..., Path]
KERNEL = "6.8.0-45-generic"
VERSION = "570.133.20"
PACKAGES = "var/lib/apt/lists/archive_Packages"
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
PRECOMPILED = ImageDriver(version=VERSION, precompiled=True)


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A kernel, and a bus with one GPU, a T4, and what is no GPU."""
    write(tmp_path / "proc/sys/kernel/osrelease", f"{KERNEL}\n".encode())
    gpu(tmp_path, "1eb8")
    for name, content in (("vendor", b"0x10de"), ("device", b"0x1af1"), ("class", b"0x068000")):
        write(tmp_path / "sys/bus/pci/devices/0000:02:00.0" / name, content)
    return tmp_path


def gpu(machine: Path, device: str) -> None:
    for name, content in (("vendor", "0x10de"), ("device", f"0x{device}"), ("class", "0x030200")):
        write(machine / "sys/bus/pci/devices/0000:01:00.0" / name, content.encode())


def met(machine: Path, phase: str, wanted: ImageDriver | None = None) -> str:
    found = obstacle(machine, wanted or ImageDriver(version=VERSION), phase)
    return "" if found is None else "\n".join((found.words, *found.kernel))


def test_nothing_is_in_the_way_of_a_machine_of_which_nothing_is_known(tmp_path: Path, machine: Path) -> None:
    for phase in (HEADERS, "build", SIGN, LOAD, "no such phase"):
        assert met(machine, phase) == met(tmp_path / "nowhere", phase) == ""


def test_headers_that_no_list_has_and_that_are_not_there(machine: Path) -> None:
    write(machine / PACKAGES, f"Package: linux-headers-{KERNEL}-x\n".encode())
    assert f"Unable to locate package linux-headers-{KERNEL}" in met(machine, HEADERS)
    assert met(machine, HEADERS, PRECOMPILED) == "", "it builds nothing"
    write(machine / "var/lib/apt/lists/other_Packages", f"Package: a\n\nPackage: linux-headers-{KERNEL}\n".encode())
    assert met(machine, HEADERS) == ""
    write(machine / "var/lib/apt/lists/other_Packages", b"\xff\xfe")
    (machine / "lib/modules" / KERNEL / "build").mkdir(parents=True)
    assert met(machine, HEADERS) == ""


@pytest.mark.parametrize(
    ("release", "system", "fits"),
    [
        ('ID="rhel"\nVERSION_ID="9.4"\n', "rhel9", True),
        ("ID=ubuntu\nVERSION_ID=24.04\n", "ubuntu24.04", True),
        ('ID="rhel"\nVERSION_ID="9.4"\n', "ubuntu24.04", False),
        ("ID=ubuntu\nVERSION_ID=24.04\n", "ubuntu22.04", False),
        ("ID=ubuntu\nVERSION_ID=24.04\n", "", True),
        ("ID=ubuntu\n", "rhel9", True),
        ("", "rhel9", True),
    ],
)
def test_an_image_of_another_system_finds_no_headers_of_the_kernel(
    machine: Path, release: str, system: str, fits: bool
) -> None:
    if release:
        write(machine / "etc/os-release", release.encode())
    wanted = ImageDriver(version=VERSION, system=system)
    assert ("Could not resolve Linux kernel version" in met(machine, HEADERS, wanted)) is not fits
    assert met(machine, HEADERS, ImageDriver(version=VERSION, system=system, precompiled=True)) == ""


def test_secure_boot_takes_what_is_signed(machine: Path) -> None:
    write(machine / SECURE_BOOT, b"\x06\0\0\0\1")
    assert "Key was rejected by service" in met(machine, SIGN)
    assert met(machine, SIGN, PRECOMPILED) == ""
    for off in (b"\x06\0\0\0\0", b"\x06\0", b""):
        write(machine / SECURE_BOOT, off)
        assert met(machine, SIGN) == ""


@pytest.mark.parametrize(
    ("device", "version", "modules", "said"),
    [
        ("1eb8", VERSION, "open", ""),
        ("1db1", "580.65.06", "auto", ""),
        ("1db1", "595.91.07", "auto", "NVRM: NVIDIA 595.91.07 driver release."),
        ("2901", "550.54.15", "auto", "not supported by the"),
        ("1db1", VERSION, "open", "not supported by open nvidia.ko"),
        ("2901", VERSION, "proprietary", "requires use of the NVIDIA open kernel modules"),
        ("2901", VERSION, "auto", ""),
        ("ffff", "1.0", "open", ""),
        ("zz", "1.0", "open", ""),
        ("1db1", "", "open", ""),
    ],
)
def test_gpus_that_a_module_does_not_drive(machine: Path, device: str, version: str, modules: str, said: str) -> None:
    gpu(machine, device)
    found = met(machine, LOAD, ImageDriver(version=version, module_type=modules))
    assert said in found if said else not found
    assert not found or "could not insert 'nvidia': No such device" in found


def test_the_container_ends_so_and_the_kernel_has_said_why(sim_root: Roots) -> None:
    root = sim_root("l4", gpus=1)
    container_driver.remove_from_host(root)
    container_settings.change(root, takes=0)
    write(root / SECURE_BOOT, b"\x06\0\0\0\1")
    files = build.native_dir()
    with pytest.raises(PhaseFailedError, match="Key was rejected"):
        Installation(machine=root, files=files, version=VERSION).run()
    assert "unavailable key is rejected" in (root / kernel_log.PATH).read_text()
    Installation(machine=root, files=files, version=VERSION, precompiled=True).run()


def test_what_an_image_and_its_pod_say_of_the_driver_counts(
    sim_root: Roots, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_image, "_ENDS", ())  # this process keeps its own handlers
    root = sim_root("dgx-1-v100", gpus=1)
    container_driver.remove_from_host(root)
    container_settings.change(root, takes=0)
    env = {"KGPU_SIMULATED_MACHINE": str(root), "DRIVER_VERSION": VERSION, driver_image.MODULE_TYPE: "open"}
    assert driver_image.main(["init"], env) == 1
    assert "No such device" in capsys.readouterr().out
    assert "not supported by open nvidia.ko" in (root / kernel_log.PATH).read_text()
