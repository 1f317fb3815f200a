"""What the driver's own ``nvidia-smi`` reads and sets of a GPU: its compute mode and its time slice.

Each call is a child with a deadline: a driver that hangs does not hang this process. Calls block.
"""

from __future__ import annotations

from typing import Final

from kgpu.base.errors import HostError
from kgpu.host.commands import run
from kgpu.mps.programs import SMI, DriverPrograms

MODES: Final = ("DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS")
SMI_SECONDS: Final = 30.0
NOT_SUPPORTED: Final = 3
GONE: Final = frozenset({6, 15})
"""NVML's codes, which nvidia-smi ends with: there is no such GPU, and it is lost."""


class SmiError(HostError):
    """nvidia-smi has failed with ``code``, an error of NVML; None if it has not ended in time."""

    def __init__(self, what: str, expected: str, remedy: str, *, code: int | None = None) -> None:
        super().__init__(what, expected, remedy)
        self.code = code


class SmiSettings:
    """Over the programs of one driver. Every call raises SmiError."""

    def __init__(self, programs: DriverPrograms) -> None:
        self._programs = programs

    def mode(self, uuid: str) -> str:
        """A GPU's compute mode, of ``MODES``."""
        said = self._run("-i", uuid, "--query-gpu=compute_mode", "--format=csv,noheader").strip().upper()
        if said not in MODES:
            raise SmiError(
                f"{SMI} says that the compute mode of {uuid} is {said[:80]!r}",
                f"one of {', '.join(MODES)}",
                "look at the GPU with `nvidia-smi -q -d COMPUTE`",
            )
        return said

    def set_mode(self, uuid: str, mode: str) -> None:
        """Set a GPU's compute mode."""
        self._run("-i", uuid, "-c", mode)

    def set_timeslice(self, uuid: str, interval: int) -> None:
        """Set how long a process has its turn: 0 as the driver has it, 1 short, 2 medium, 3 long."""
        self._run("compute-policy", "-i", uuid, f"--set-timeslice={interval}")

    def _run(self, *words: str) -> str:
        command = self._programs.plain(SMI, *words)
        done = run(command, seconds=SMI_SECONDS, env=self._programs.environment())
        if done.code is None:
            raise SmiError(f"{SMI} {' '.join(words)} does not return", "an answer of the driver", "reboot the node")
        if done.code:
            raise SmiError(
                f"{SMI} {' '.join(words)} has failed with {done.code}: {done.last_lines or 'it printed nothing'}",
                "a driver that answers, and root to change a GPU's settings",
                "run this as root; look at the GPU with `kgpu health`",
                code=done.code,
            )
        return done.tail
