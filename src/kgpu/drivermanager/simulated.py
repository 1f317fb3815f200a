"""A simulated machine's driver: its modules are files and a state, and nothing of the real kernel is touched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError, HwError
from kgpu.drivermanager.config import PID_FILE, STATE_FILE
from kgpu.drivermanager.machine import SMI_SECONDS, KernelMachine
from kgpu.drivermanager.model import NOUVEAU
from kgpu.formats.names import ENV_HW_STATE
from kgpu.host.commands import run
from kgpu.host.device_holders import DeviceHolder, holders, key_of
from kgpu.host.kernel_modules import ModuleInUseError
from kgpu.host.root import read_some
from kgpu.hw import roots

_COUNT_BYTES: Final = 32


class SimulatedMachine(KernelMachine):
    """The machine whose ``/`` is the simulated root ``root``."""

    def __init__(self, root: Path, *, nvidia_run: Path) -> None:
        super().__init__(root, sys=root / "sys", nvidia_run=nvidia_run)

    def host_driver(self) -> str:
        """As a real one's; its nvidia-smi has no system around it, and runs outside of the root."""
        program, library = self._smi(), roots.find_library(str(self.root))
        if not program or library is None:
            return ""
        env = {ENV_HW_STATE: str(self.root / "state"), "LD_LIBRARY_PATH": os.path.dirname(library)}
        words = [f"{self.root}{program}", "--query-gpu=driver_version", "--format=csv,noheader"]
        call = run(words, seconds=SMI_SECONDS, env={"LC_ALL": "C", **env})
        return call.tail.split("\n")[0].strip() if call.code == 0 else ""

    def unload(self) -> None:
        """Unload the simulated modules."""
        from kgpu.hw.simulator import modules

        try:
            modules.unload(self.root)
        except HwError as error:
            raise ModuleInUseError("nvidia") from error
        self._forget(STATE_FILE)

    def holders(self) -> tuple[DeviceHolder, ...]:
        """The processes that have this machine's devices open."""
        return holders(self._nodes(), proc=self._proc, user_of=key_of(self.root / "state"))

    def unmount(self) -> None:
        """Empty the folder that is a mount point on a real machine: volumes of pods lie in it."""
        place = self.nvidia_run / "driver"
        try:
            for entry in list(os.scandir(place)) if place.is_dir() else ():
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
        except OSError as error:
            raise HostError(
                f"{place} can't be emptied: {error.strerror}", "a simulated machine of this user", "check its owner"
            ) from error
        self._forget(PID_FILE)

    def unload_nouveau(self) -> None:
        """Take nouveau's folder and its line in ``/proc/modules`` away. Raises ModuleInUseError while it is in use."""
        users = read_some(self.sys / "module/nouveau/refcnt", _COUNT_BYTES).strip()
        if users not in (b"", b"0"):
            raise ModuleInUseError(NOUVEAU)
        shutil.rmtree(self.sys / "module/nouveau", ignore_errors=True)
        listed = self.root / "proc/modules"
        if listed.is_file():
            rows = listed.read_text().splitlines(keepends=True)
            listed.write_text("".join(row for row in rows if row.split(" ")[0] != NOUVEAU))
