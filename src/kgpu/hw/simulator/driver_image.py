"""The program of a simulated driver's image: ``nvidia-driver init``, as NVIDIA's images have it.

It runs in the driver container of a lab's node, takes its time, and can fail in each phase: as told, or as the machine
is (``driver_obstacles``), with the words that the real one prints, for those who look for them. As there, the modules
stay loaded when it ends: the next driver manager unloads them. ``python -m kgpu.hw.simulator.driver_image init``. The
containers beside it run this, too: they load one module each (``SIDES``).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.base.errors import UserError
from kgpu.formats import names
from kgpu.hw.simulator import (
    container_driver,
    container_settings,
    driver_obstacles,
    kernel_log,
    modules,
    side_modules,
)
from kgpu.hw.simulator.container_settings import ContainerDriver
from kgpu.hw.simulator.driver_obstacles import ImageDriver

FILES: Final = "/usr/share/kgpu/driver"
"""Where the image has the driver as it is built."""
RUN: Final = "run/nvidia"
PRECOMPILED, MODULE_TYPE = "KERNEL_VERSION", "KERNEL_MODULE_TYPE"
"""Variables: the kernel that an image's modules are built for, which the image has, and which modules are wanted."""
SYSTEM: Final = "DRIVER_SYSTEM"
"""Variable of a lab's image: the operating system that it is made for, as tags name it."""
STATE, PID, DAEMONS = "nvidia-driver.state", "nvidia-driver.pid", "validations/.driver-daemons-status"
CRASH_SECONDS: Final = 3.0
_ENDS: Final = (signal.SIGTERM, signal.SIGINT)
_LOOK_SECONDS: Final = 1.0
WORDS: Final[Mapping[str, str]] = {
    "headers": "Could not resolve Linux kernel version",
    "build": "modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol 'rcu_read_unlock_strict'",
    "sign": "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
    "load": "modprobe: ERROR: could not insert 'nvidia': No such device",
    "in use": "Could not unload NVIDIA driver kernel modules, driver is in use",
    "crash": "nvidia-persistenced failed to start",
    "side": "Could not find the headers of the running kernel, its module can't be built",
}
SIDES: Final[Mapping[tuple[str, ...], str]] = {
    ("reload_nvidia_peermem",): "nvidia_peermem",
    ("nvidia-gds-driver", "install"): "nvidia_fs",
    ("nvidia-gdrcopy-driver", "install"): "gdrdrv",
}
"""What loads a module beside the driver's own, by the first words of its command."""
PROBE: Final = "probe_nvidia_peermem"
_KNOWN: Final = ("init", PROBE, *(" ".join(words) for words in SIDES))


class PhaseFailedError(Exception):
    """The container ends with code 1 after these words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """One start of the container. ``machine`` is the machine's root, ``files`` the image's own of the driver.

    ``precompiled``: the image has its modules built and signed. ``module_type``: auto, open or proprietary. ``system``
    is the one that the image is made for, such as ``rhel9``, "" where that is not known.
    """

    machine: Path
    files: Path
    version: str
    digest: str = ""
    precompiled: bool = False
    module_type: str = "auto"
    system: str = ""

    def run(self) -> ContainerDriver:
        """Install, load and show the driver. Returns the machine's settings. Raises PhaseFailedError, UserError."""
        wanted = container_settings.settings(self.machine) or ContainerDriver()
        if self._is_loaded():
            _say("the wanted driver is loaded already")
        else:
            self._unload_other()
            self._install(wanted)
        container_driver.install(self.machine, self.files, self.version)
        container_driver.mount(self.machine)
        (self._run / STATE).write_text(f"{self.digest}\n")
        (self._run / PID).write_text(f"{os.getpid()}\n")
        daemons = self._run / DAEMONS
        daemons.parent.mkdir(parents=True, exist_ok=True)
        daemons.write_text("nvidia-persistenced is not running\n" if wanted.fail == "probe" else "Ready\n")
        return wanted

    @property
    def _run(self) -> Path:
        return self.machine / RUN

    def _is_loaded(self) -> bool:
        try:
            stored = (self._run / STATE).read_text().strip()
        except OSError:
            return False
        return bool(self.digest) and stored == self.digest and modules.loaded(self.machine)

    def _unload_other(self) -> None:
        if not modules.loaded(self.machine):
            return
        try:
            modules.unload(self.machine)
        except UserError as error:
            raise PhaseFailedError(WORDS["in use"]) from error

    def _install(self, wanted: ContainerDriver) -> None:
        for phase, what in (
            ("headers", "looking for the kernel's headers"), ("build", "compiling the modules"),
            ("sign", "signing the modules"), ("load", f"loading driver {self.version}"),
        ):  # fmt: skip
            _say(what)
            if phase == "build":
                time.sleep(wanted.takes)
            if wanted.fail == phase:
                raise PhaseFailedError(WORDS[phase])
            self._meet(phase)
        modules.load(self.machine, self.version)

    def _meet(self, phase: str) -> None:
        """End where the machine is in the way of a phase. Raises PhaseFailedError."""
        wanted = ImageDriver(
            version=self.version, precompiled=self.precompiled, module_type=self.module_type, system=self.system
        )
        found = driver_obstacles.obstacle(self.machine, wanted, phase)
        if found is not None:
            kernel_log.say(self.machine, *found.kernel)
            raise PhaseFailedError(found.words)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a container's log


def main(arguments: Sequence[str], env: Mapping[str, str]) -> int:
    """The container's first process: its exit code. It waits for SIGTERM once the driver is up."""
    machine = Path(env.get(names.ENV_SIMULATED_MACHINE) or names.SIMULATED_MACHINE)
    for number in _ENDS:
        signal.signal(number, _end)
    if tuple(arguments[:1]) == (PROBE,):
        return 0 if side_modules.is_loaded(machine, SIDES["reload_nvidia_peermem",]) else 1
    for words, module in SIDES.items():
        if tuple(arguments[: len(words)]) == words:
            return _load_beside(machine, module)
    if tuple(arguments[:1]) != ("init",):
        _say(f"the lab's driver image knows {', '.join(_KNOWN)}, not {' '.join(arguments) or 'nothing'!r:.80}")
        return 1
    return _drive(machine, env)


def _load_beside(machine: Path, module: str) -> int:
    """Load a module once the driver's is there, and wait for SIGTERM."""
    while not side_modules.is_loaded(machine, "nvidia"):
        _say("waiting for the driver's module to be loaded")
        time.sleep(_LOOK_SECONDS)
    try:
        wanted = container_settings.settings(machine)
        if wanted is not None and wanted.fail == "side":
            _say(WORDS["side"])
            return 1
        side_modules.load(machine, module)
    except UserError as error:
        _say(error.one_line())
        return 1
    _say(f"{module} is loaded")
    return _until_told()


def _drive(machine: Path, env: Mapping[str, str]) -> int:
    """Install and load the driver, and wait for SIGTERM."""
    installation = Installation(
        machine=machine, files=Path(FILES), version=env.get("DRIVER_VERSION", ""),
        digest=env.get(names.ENV_DRIVER_CONFIG_DIGEST, ""), precompiled=bool(env.get(PRECOMPILED)),
        module_type=env.get(MODULE_TYPE) or "auto", system=env.get(SYSTEM, ""),
    )  # fmt: skip
    try:
        wanted = installation.run()
    except (PhaseFailedError, UserError) as error:
        _say(error.one_line() if isinstance(error, UserError) else str(error))
        return 1
    _say(f"driver {installation.version} is up")
    if wanted.fail == "crash":
        time.sleep(CRASH_SECONDS)
        _say(WORDS["crash"])
        return 1
    return _until_told()


def _until_told() -> int:
    """The exit code, once a signal says so. ``signal.pause`` would wait for another where one comes just before it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    signal.sigwait(_ENDS)
    return 0


def _end(number: int, frame: object) -> None:
    del number, frame
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
