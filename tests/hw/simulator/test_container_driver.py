"""A simulated machine whose driver comes in a container: without one, with one installed, and each phase that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kgpu.base.errors import ConfigError, HwError
from kgpu.formats.names import ENV_SIMULATED_MACHINE
from kgpu.formats.simulated import state_file
from kgpu.hw import roots
from kgpu.hw.simulator import (
    build,
    container_driver,
    container_settings,
    create,
    driver_image,
    modules,
    operate,
    processes,
    side_modules,
)
from kgpu.hw.simulator.container_settings import PHASES, ContainerDriver
from kgpu.hw.simulator.driver_image import WORDS, Installation, PhaseFailedError
from kgpu.hw.simulator.reboot import reboot

Roots = Callable[..., Path]
OLD, NEW = "550.54.15", "570.133.20"


@pytest.fixture
def machine(sim_root: Roots) -> Path:
    root = sim_root("l4", gpus=2)
    container_driver.remove_from_host(root)
    container_settings.change(root, takes=0)
    return root


def installation(machine: Path, version: str = OLD, digest: str = "1") -> Installation:
    return Installation(machine=machine, files=build.native_dir(), version=version, digest=digest)


def smi(machine: Path) -> subprocess.CompletedProcess[str]:
    place = machine / container_driver.ROOT
    return subprocess.run(
        [place / "usr/bin/nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        env={**os.environ, **create.environment(place)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_such_a_machine_has_gpus_and_nothing_of_a_driver(machine: Path) -> None:
    assert not modules.loaded(machine)
    assert roots.find_library(str(machine)) is None
    assert not list((machine / "dev").glob("nvidia*"))
    assert not (machine / "proc/driver/nvidia").exists()
    assert len(list((machine / "sys/bus/pci/devices").iterdir())) == 2
    assert state_file(str(machine)) is not None
    assert (machine / "sys/module/firmware_class/parameters/path").is_file()


def test_the_container_installs_loads_and_shows_the_driver(machine: Path) -> None:
    installation(machine).run()
    place = machine / container_driver.ROOT
    assert modules.loaded(machine)
    assert state_file(str(place)) is not None
    assert smi(machine).stdout.split() == [OLD, OLD]
    assert roots.find_library(str(machine)) is None
    assert (machine / "run/nvidia/nvidia-driver.state").read_text() == "1\n"
    assert OLD in (place / "proc/driver/nvidia/version").read_text()
    assert (place / "dev/nvidia0").exists()
    operate.set_values(place, {"temperature": 70}, gpu=0)
    assert operate.snapshot(machine)["gpus"][0]["temperature_c"] == 70


def test_another_release_takes_the_place_of_one_that_is_loaded(machine: Path) -> None:
    installation(machine).run()
    installation(machine, NEW, "2").run()
    assert smi(machine).stdout.split() == [NEW, NEW]
    assert operate.snapshot(machine)["cuda_version"] == "12.8"
    assert (machine / "run/nvidia/nvidia-driver.state").read_text() == "2\n"


def test_the_wanted_driver_is_not_loaded_again(machine: Path) -> None:
    installation(machine).run()
    processes.add(machine, 0, pid=4242)
    installation(machine).run()
    with pytest.raises(PhaseFailedError, match=WORDS["in use"]):
        installation(machine, NEW, "2").run()


@pytest.mark.parametrize("phase", ["headers", "build", "sign", "load"])
def test_a_phase_that_fails_leaves_no_driver(machine: Path, phase: str) -> None:
    container_settings.change(machine, fail=phase)
    with pytest.raises(PhaseFailedError, match=WORDS[phase].replace("(", r"\(")):
        installation(machine).run()
    assert not modules.loaded(machine)
    container_settings.change(machine, fail="")
    installation(machine).run()
    assert modules.loaded(machine)


def test_a_daemon_that_is_not_ready_is_told_to_the_probe(machine: Path) -> None:
    daemons = machine / "run/nvidia" / driver_image.DAEMONS
    container_settings.change(machine, fail="probe")
    installation(machine).run()
    assert daemons.read_text() != "Ready\n"
    container_settings.change(machine, fail="")
    installation(machine).run()
    assert daemons.read_text() == "Ready\n"


def test_modules_that_are_to_be_kept_are_kept_but_not_over_a_reboot(machine: Path) -> None:
    installation(machine).run()
    container_settings.change(machine, fail="manager")
    with pytest.raises(HwError, match="the module nvidia is in use"):
        modules.unload(machine)
    reboot(machine)
    assert not modules.loaded(machine)
    assert container_settings.settings(machine) == ContainerDriver(takes=0, fail="manager")


def test_after_a_reboot_nothing_of_the_driver_is_loaded(machine: Path) -> None:
    installation(machine).run()
    for _ in range(2):
        reboot(machine)
        assert not modules.loaded(machine)
        assert not list((machine / "dev").glob("nvidia*"))
    installation(machine).run()
    assert smi(machine).stdout.split() == [OLD, OLD]


def test_nouveau_keeps_the_driver_from_the_gpus(machine: Path) -> None:
    (machine / "sys/module/nouveau").mkdir(parents=True)
    with pytest.raises(HwError, match="nouveau has the GPUs"):
        installation(machine).run()


def test_settings_that_are_wrong_are_refused(machine: Path, sim_root: Roots) -> None:
    with pytest.raises(ConfigError, match='did you mean "build"'):
        container_settings.change(machine, fail="biuld")
    for seconds in (-1.0, float("nan"), 1e9):
        with pytest.raises(ConfigError):
            container_settings.change(machine, takes=seconds)
    with pytest.raises(ConfigError, match="driver on the host"):
        container_settings.change(sim_root("l4", gpus=1), fail="build")
    for text in ("{", "[]", '{"fail": 1}', '{"other": 1}'):
        (machine / container_settings.SETTINGS).write_text(text)
        with pytest.raises(HwError, match="kgpu lab hw driver fail none"):
            container_settings.settings(machine)
        container_settings.change(machine, fail="")
        assert container_settings.settings(machine) == ContainerDriver()


def test_every_phase_has_words_or_is_the_nodes() -> None:
    assert set(PHASES) - set(WORDS) == {"pull", "manager", "probe"}


COMMANDS = [
    (("reload_nvidia_peermem",), "nvidia_peermem"),
    (("nvidia-gds-driver", "install", "--flag"), "nvidia_fs"),
    (("nvidia-gdrcopy-driver", "install"), "gdrdrv"),
]


def start(machine: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kgpu.hw.simulator.driver_image", *words], stdout=subprocess.PIPE, text=True,
        env={**os.environ, ENV_SIMULATED_MACHINE: str(machine)},
    )  # fmt: skip


@pytest.mark.parametrize(("words", "module"), COMMANDS)
def test_a_container_beside_the_drivers_loads_its_module_and_stays(
    machine: Path, words: tuple[str, ...], module: str
) -> None:
    probe = [sys.executable, "-m", "kgpu.hw.simulator.driver_image", driver_image.PROBE]
    with start(machine, *words) as beside:
        assert beside.stdout is not None
        try:
            assert "waiting for the driver's module" in beside.stdout.readline()
            assert not side_modules.is_loaded(machine, module)
            installation(machine).run()
            said = next(line for line in beside.stdout if "waiting" not in line)
            assert said == f"{module} is loaded\n"
        finally:
            beside.terminate()
    assert beside.returncode == 0
    assert {name for name in side_modules.NAMES if side_modules.is_loaded(machine, name)} == {module}
    assert (machine / container_driver.ROOT / "sys/module" / module / "refcnt").is_file()
    done = subprocess.run(probe, env={**os.environ, ENV_SIMULATED_MACHINE: str(machine)}, timeout=60, check=False)
    assert done.returncode == (0 if module == "nvidia_peermem" else 1)
    installation(machine, NEW, "2").run()
    assert not any(side_modules.is_loaded(machine, name) for name in side_modules.NAMES)


@pytest.mark.parametrize(("words", "_module"), COMMANDS)
def test_a_container_beside_the_drivers_can_fail(machine: Path, words: tuple[str, ...], _module: str) -> None:
    installation(machine).run()
    container_settings.change(machine, fail="side")
    with start(machine, *words) as beside:
        assert beside.communicate(timeout=60)[0] == f"{WORDS['side']}\n"
    assert beside.returncode == 1


def test_a_module_beside_the_drivers_needs_it(machine: Path) -> None:
    with pytest.raises(HwError, match="Unknown symbol"):
        side_modules.load(machine, "gdrdrv")


def test_what_the_image_does_not_know_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_image, "_ENDS", ())  # this process keeps its own handlers
    for words in ((), ("reload",), ("nvidia-gds-driver", "remove")):
        assert driver_image.main(words, {}) == 1
    assert "nvidia-gds-driver install" in capsys.readouterr().out
