"""The machine as the driver manager uses it; the kernel's is in ``machine.py``, a simulated one in ``simulated.py``."""

from __future__ import annotations

from typing import Protocol

from kgpu.drivermanager.model import MachineState
from kgpu.host.device_holders import DeviceHolder


class DriverMachine(Protocol):
    """One machine. All methods raise HostError."""

    def state(self) -> MachineState:
        """What it is like now."""
        ...

    def unload(self) -> None:
        """Unload NVIDIA's modules and forget which driver they were. Raises ModuleInUseError while one is in use."""
        ...

    def holders(self) -> tuple[DeviceHolder, ...]:
        """The processes that have a device node of the driver open."""
        ...

    def unmount(self) -> None:
        """Take the root of the former driver container away, and the mark that it runs."""
        ...

    def unload_nouveau(self) -> None:
        """Unload nouveau. Raises ModuleInUseError while it is in use."""
        ...

    def mofed_ready(self, *, on_host: bool) -> bool:
        """Whether the network cards' driver is there: the host's, or a container's."""
        ...
