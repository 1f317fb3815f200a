"""Resets a GPU for a change of its MIG mode, with the driver's own nvidia-smi: NVML has no call for it.

Nothing but persistence mode may hold the GPU; that is switched off for the reset, and on again. A simulated driver root
has no system around it: its nvidia-smi runs outside of it.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from kgpu.base.errors import HostError
from kgpu.formats.names import ENV_HW_STATE
from kgpu.formats.simulated import state_file
from kgpu.host.chroot import in_root
from kgpu.host.commands import CommandResult, run
from kgpu.host.driver.layouts import BINARY_DIRS
from kgpu.host.root import Tree
from kgpu.hw import roots

SMI: Final = "nvidia-smi"
ASK_SECONDS: Final = 60.0
RESET_SECONDS: Final = 300.0
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class SmiReset:
    """Resets GPUs of the driver under ``root``."""

    def __init__(self, root: str) -> None:
        self.root = root or "/"

    async def __call__(self, uuid: str) -> None:
        """Reset the GPU. Raises HostError."""
        await asyncio.to_thread(self.reset, uuid)

    def reset(self, uuid: str) -> None:
        """Reset the GPU, with its persistence mode off meanwhile. Raises HostError."""
        said = self._told("--query-gpu=persistence_mode", "--format=csv,noheader", "-i", uuid)
        persistent = said.strip() == "Enabled"
        if persistent:
            self._told("-pm", "0", "-i", uuid)
        try:
            self._told("--gpu-reset", "-i", uuid, seconds=RESET_SECONDS)
        finally:
            if persistent:
                self._told("-pm", "1", "-i", uuid)

    def _told(self, *words: str, seconds: float = ASK_SECONDS) -> str:
        call = self._ask(words, seconds)
        if call.code is None:
            raise HostError(f"{SMI} {words[0]} does not return", "an answer of the driver", "reboot the node")
        if call.code:
            raise HostError(
                f"{SMI} {words[0]} has failed with {call.code}: {call.last_lines or 'it printed nothing'}",
                "a GPU that no process has open",
                "stop what has it open, such as monitoring and nvidia-persistenced, or reboot the node",
            )
        return call.tail

    def _ask(self, words: tuple[str, ...], seconds: float) -> CommandResult:
        state = state_file(self.root) or ""
        library = roots.find_library(self.root) or ""
        if state:
            command = [f"{self.root}{self._program()}", *words]
            environment = {ENV_HW_STATE: state, "LD_LIBRARY_PATH": os.path.dirname(library)}
        else:
            command = in_root(self.root, [self._program(), *words])
            environment = {"LD_LIBRARY_PATH": os.path.dirname(library[len(self.root.rstrip("/")) :])}
        return run(command, seconds=seconds, env={"PATH": _PATH, "LC_ALL": "C", **environment})

    def _program(self) -> str:
        tree = Tree.at(self.root)
        for folder in BINARY_DIRS:
            program = tree.resolve(f"{folder}/{SMI}")
            if program is not None and tree.is_file(program):
                return program
        raise HostError(
            f"there is no {SMI} in {self.root}, and this change of the MIG mode needs a reset of the GPU",
            "the driver's own programs", "install them, or reboot the node to put the mode in force",
        )  # fmt: skip
