"""The driver of a machine: found by files below ``/sys`` and the host's root, unloaded by the kernel's own calls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from kgpu.base.errors import HostError
from kgpu.drivermanager.config import NVIDIA_RUN, PID_FILE, STATE_FILE
from kgpu.drivermanager.model import MODULES, NOUVEAU, MachineState
from kgpu.host import kernel_modules, mounts, pci
from kgpu.host.chroot import in_root
from kgpu.host.commands import run
from kgpu.host.device_holders import PROC, DeviceHolder, NodeKey, holders, key_of
from kgpu.host.driver.layouts import BINARY_DIRS
from kgpu.host.root import Tree, read_some

SMI: Final = "nvidia-smi"
SMI_SECONDS: Final = 60.0
MELLANOX: Final = "15b3"
_MOFED_READY: Final = "run/mellanox/drivers/.driver-ready"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_VERSION: Final = re.compile(r"^\s*(\d{3,4}\.\d{1,4}(?:\.\d{1,4})?)\s*$", re.MULTILINE | re.ASCII)
_FILE_BYTES: Final = 4096
_NODES: Final = ("nvidia*", "nvidia-caps/*")


class KernelMachine:
    """The machine whose root is mounted at ``root``; ``sys`` is its ``/sys`` and ``nvidia_run`` its ``/run/nvidia``."""

    def __init__(self, root: Path, *, sys: Path = Path("/sys"), nvidia_run: Path = Path(NVIDIA_RUN),
                 proc: Path = PROC) -> None:  # fmt: skip
        self.root = root
        self.sys = sys
        self.nvidia_run = nvidia_run
        self._proc = proc

    def state(self) -> MachineState:
        """What it is like now. A file that can't be read counts as missing."""
        modules = kernel_modules.loaded(self.sys, (*MODULES, NOUVEAU))
        return MachineState(
            host_driver=self.host_driver(),
            loaded="nvidia" in modules,
            digest=read_some(self.nvidia_run / STATE_FILE, _FILE_BYTES).decode("utf-8", "replace").strip(),
            nouveau=NOUVEAU in modules,
            mellanox=self._has_mellanox(),
        )

    def host_driver(self) -> str:
        """The release that the host's own nvidia-smi tells, "" if there is none, or none that works."""
        program = self._smi()
        if not program:
            return ""
        call = run(
            in_root(self.root, [program, "--query-gpu=driver_version", "--format=csv,noheader"]),
            seconds=SMI_SECONDS, env={"PATH": _PATH, "LC_ALL": "C"},
        )  # fmt: skip
        match = _VERSION.search(call.tail) if call.code == 0 else None
        return match[1] if match else ""

    def _smi(self) -> str:
        tree = Tree.at(self.root)
        found = (tree.resolve(f"{folder}/{SMI}") for folder in BINARY_DIRS)
        return next((path for path in found if path is not None and tree.is_file(path)), "")

    def _has_mellanox(self) -> bool:
        try:
            return any(function.vendor == MELLANOX for function in pci.functions(self.sys / "bus/pci/devices"))
        except OSError:
            return False

    def unload(self) -> None:
        """Unload NVIDIA's modules, each after those that need it, and forget which driver they were."""
        modules = kernel_modules.loaded(self.sys, MODULES)
        for name in kernel_modules.unload_order(modules, MODULES):
            kernel_modules.remove(name)
        self._forget(STATE_FILE)

    def holders(self) -> tuple[DeviceHolder, ...]:
        """The processes that have a device node of the driver open."""
        return holders(self._nodes(), proc=self._proc)

    def _nodes(self) -> dict[NodeKey, str]:
        paths = (path for pattern in _NODES for path in sorted((self.root / "dev").glob(pattern)))
        keys = ((key_of(path), path.name) for path in paths if not path.is_dir())
        return {key: name for key, name in keys if key is not None}

    def unmount(self) -> None:
        """Unmount the root of the former driver container, and remove the mark that it runs."""
        mounts.unmount_below(str(self.nvidia_run / "driver"))
        self._forget(PID_FILE)

    def _forget(self, name: str) -> None:
        try:
            (self.nvidia_run / name).unlink(missing_ok=True)
        except OSError as error:
            raise HostError(
                f"{self.nvidia_run / name} can't be removed: {error.strerror}", "a folder that root may write",
                "look at the volume run-nvidia of the driver's pod",
            ) from error  # fmt: skip

    def unload_nouveau(self) -> None:
        """Unload nouveau."""
        kernel_modules.remove(NOUVEAU)

    def mofed_ready(self, *, on_host: bool) -> bool:
        """Whether the network cards' driver is there."""
        if on_host:
            return (self.sys / "module/mlx5_core").is_dir()
        return (self.root / _MOFED_READY).exists()
