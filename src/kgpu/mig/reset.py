"""Resets a GPU for a change of its MIG mode, with the driver's own nvidia-smi: NVML has no call for it.

Nothing but persistence mode may hold the GPU; that is switched off for the reset, and on again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kgpu.base.errors import HostError
from kgpu.formats.simulated import state_file
from kgpu.host.commands import CommandResult
from kgpu.host.smi import SMI, ask_smi, find_smi
from kgpu.hw import roots

ASK_SECONDS: Final = 60.0
RESET_SECONDS: Final = 300.0


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
        program = find_smi(self.root)
        if program is None:
            raise HostError(
                f"there is no {SMI} in {self.root}, and this change of the MIG mode needs a reset of the GPU",
                "the driver's own programs", "install them, or reboot the node to put the mode in force",
            )  # fmt: skip
        library, state = roots.find_library(self.root) or "", state_file(self.root) or ""
        return ask_smi(self.root, program, words, seconds=seconds, library=library, state=state)
