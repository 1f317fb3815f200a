"""What the driver manager finds on a machine, and what it does to a simulated one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kgpu.base.errors import ConfigError, HostError
from kgpu.drivermanager.config import of_environment
from kgpu.drivermanager.machine import KernelMachine
from kgpu.drivermanager.preflight import report
from kgpu.drivermanager.simulated import SimulatedMachine
from kgpu.drivermanager.this_machine import machine_root, this_machine, write_last_words
from kgpu.formats.names import ENV_HOST_ROOT, ENV_LAB_CONTAINER, ENV_TERMINATION_LOG
from kgpu.host.kernel_modules import ModuleInUseError
from kgpu.hw.simulator import modules, processes

Roots = Callable[..., Path]


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def kernel_machine(folder: Path) -> KernelMachine:
    return KernelMachine(folder, sys=folder / "sys", nvidia_run=folder / "run/nvidia")


def test_an_empty_machine_has_nothing(tmp_path: Path) -> None:
    state = kernel_machine(tmp_path).state()
    assert (state.host_driver, state.loaded, state.digest, state.nouveau, state.mellanox) == (
        "",
        False,
        "",
        False,
        False,
    )


def test_modules_digest_and_network_cards_are_found(tmp_path: Path) -> None:
    for name in ("nvidia", "nouveau"):
        write(tmp_path / f"sys/module/{name}/refcnt", "0\n")
    write(tmp_path / "run/nvidia/nvidia-driver.state", "12345\n")
    write(tmp_path / "sys/bus/pci/devices/0000:01:00.0/vendor", "0x15b3\n")
    state = kernel_machine(tmp_path).state()
    assert (state.loaded, state.digest, state.nouveau, state.mellanox) == (True, "12345", True, True)


@pytest.mark.parametrize(
    ("script", "version"),
    [
        ("echo 550.54.15", "550.54.15"),
        ("echo 550.54.15; exit 1", ""),
        ("echo NVIDIA-SMI has failed; exit 9", ""),
        ("echo no driver here", ""),
    ],
)
def test_a_host_driver_is_one_whose_program_works(tmp_path: Path, script: str, version: str) -> None:
    program = write(tmp_path / "usr/bin/nvidia-smi", f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)

    class Here(KernelMachine):
        def _smi(self) -> str:
            return str(program)

    assert Here(Path("/"), sys=tmp_path, nvidia_run=tmp_path).host_driver() == version


def test_mofed_is_the_hosts_or_a_containers(tmp_path: Path) -> None:
    machine = kernel_machine(tmp_path)
    assert not machine.mofed_ready(on_host=False)
    assert not machine.mofed_ready(on_host=True)
    write(tmp_path / "run/mellanox/drivers/.driver-ready")
    assert machine.mofed_ready(on_host=False)
    write(tmp_path / "sys/module/mlx5_core/refcnt")
    assert machine.mofed_ready(on_host=True)


def test_a_simulated_machine_is_recognised_by_what_it_is(sim_root: Roots, tmp_path: Path) -> None:
    root = sim_root("l4", gpus=1)
    env = {ENV_HOST_ROOT: str(root)}
    machine = this_machine(env)
    assert isinstance(machine, SimulatedMachine)
    assert machine_root(env) == root
    assert machine.state().host_driver
    assert type(this_machine({ENV_HOST_ROOT: str(tmp_path)})) is KernelMachine


def test_in_a_lab_the_real_machine_is_never_touched(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="container of a lab"):
        this_machine({ENV_HOST_ROOT: str(tmp_path), ENV_LAB_CONTAINER: "abc"})
    with pytest.raises(HostError, match="is not there"):
        this_machine({ENV_HOST_ROOT: str(tmp_path / "none")})


def test_unloading_a_simulated_driver_forgets_it_and_names_who_keeps_it(sim_root: Roots, tmp_path: Path) -> None:
    root = sim_root("l4", gpus=1)
    machine = SimulatedMachine(root, nvidia_run=tmp_path)
    digest, pid = write(tmp_path / "nvidia-driver.state", "1"), write(tmp_path / "nvidia-driver.pid", "1")
    lib = write(tmp_path / "driver/usr/lib/libcuda.so")
    processes.add(root, 0, pid=4242)
    with pytest.raises(ModuleInUseError):
        machine.unload()
    assert digest.exists()
    processes.remove(root, 0, 4242)
    machine.unload()
    machine.unmount()
    assert not modules.loaded(root)
    assert not machine.state().loaded
    assert not any(path.exists() for path in (digest, pid, lib))
    assert (tmp_path / "driver").is_dir()


def test_a_simulated_nouveau_goes_unless_something_uses_it(tmp_path: Path) -> None:
    machine = SimulatedMachine(tmp_path, nvidia_run=tmp_path)
    users = write(tmp_path / "sys/module/nouveau/refcnt", "2\n")
    listed = write(tmp_path / "proc/modules", "ext4 1 1 - Live 0x0\nnouveau 2 2 - Live 0x0\n")
    with pytest.raises(ModuleInUseError):
        machine.unload_nouveau()
    assert users.exists()
    users.write_text("0\n")
    machine.unload_nouveau()
    assert not machine.state().nouveau
    assert listed.read_text() == "ext4 1 1 - Live 0x0\n"
    machine.unload_nouveau()


def test_last_words_go_where_the_container_has_a_place_for_them(tmp_path: Path) -> None:
    place = tmp_path / "log"
    write_last_words("it failed", {ENV_TERMINATION_LOG: str(place)})
    assert not place.exists()
    place.touch()
    write_last_words("it failed", {ENV_TERMINATION_LOG: str(place)})
    assert place.read_text() == "it failed\n"


def test_the_environment_is_read_as_the_replaced_manager_reads_it() -> None:
    settings = of_environment(
        {"NODE_NAME": "n", "ENABLE_AUTO_DRAIN": "false", "DRAIN_TIMEOUT_SECONDS": "1m30s", "DRIVER_CONFIG_DIGEST": "9"}
    )
    assert (settings.evict_gpu_pods, settings.auto_drain, settings.timeout, settings.digest) == (True, False, 90.0, "9")
    for env in ({}, {"NODE_NAME": "n", "DRAIN_TIMEOUT_SECONDS": "90"}, {"NODE_NAME": "n", "DRAIN_TIMEOUT_SECONDS": "-1s"},
                {"NODE_NAME": "n", "FORCE_REINSTALL": "maybe"}):  # fmt: skip
        with pytest.raises(ConfigError):
            of_environment(env)


def test_the_preflight_tells_what_is_there(tmp_path: Path) -> None:
    write(tmp_path / "sys/module/nouveau/refcnt", "1")
    write(tmp_path / "proc/sys/kernel/osrelease", "6.8.0-40-generic\n")
    efivar = tmp_path / "sys/firmware/efi/efivars/SecureBoot-8be4df61"
    efivar.parent.mkdir(parents=True)
    efivar.write_bytes(b"\6\0\0\0\1")
    lines = list(report(kernel_machine(tmp_path).state(), tmp_path))
    assert "driver on the host: none" in lines
    assert any(line.startswith("nouveau: loaded") for line in lines)
    assert any(line.startswith("Secure Boot: on") for line in lines)
    assert any("6.8.0-40-generic" in line and "none" in line for line in lines)
