"""Finds this node's driver: installed by a container, or on the host. The agent looks again while it runs.

The install folder wins while it holds NVML (a driver container that is up, or a simulated root). Otherwise it is the
host's own root, where a driver may still be installed. Drivers of other vendors than NVIDIA are the host's own modules,
unless the install folder is a simulated machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.formats.agent_config import AgentConfig
from kgpu.formats.names import NVIDIA
from kgpu.formats.simulated import state_file
from kgpu.hw import roots
from kgpu.hw.vendor import vendor_of

HOST: Final = "host"
CONTAINER: Final = "container"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverPlace:
    """The driver root: ``seen`` is its path in this process, ``host`` its path on the host.

    ``source`` is ``host`` or ``container``; ``found`` is False while no driver is there.
    """

    seen: Path
    host: str
    source: str
    found: bool = True


def find_driver(config: AgentConfig, host_root: Path, vendor: str = NVIDIA) -> DriverPlace:
    """Find the driver of this vendor. ``host_root`` is the path of the host's ``/`` in this process."""
    installed = config.driver_install_dir
    if vendor != NVIDIA:
        simulated = next((seen for seen in _places(installed, host_root) if state_file(str(seen))), None)
        seen, host = (simulated, installed) if simulated else (host_root, config.host_root or "/")
        return DriverPlace(seen=seen, host=host, source=HOST, found=not _missing(vendor, seen))
    if config.driver_root:
        driver_root = config.driver_root
        # The install folder is mounted at its own path; everything else is seen below the host's root.
        seen = Path(driver_root) if driver_root == installed else host_root / driver_root.lstrip("/")
        return DriverPlace(
            seen=seen,
            host=driver_root,
            source=CONTAINER if driver_root == installed else HOST,
            found=_has_driver(seen),
        )
    for seen in _places(installed, host_root):
        if _has_driver(seen):
            return DriverPlace(seen=seen, host=installed, source=CONTAINER)
    return DriverPlace(seen=host_root, host=config.host_root or "/", source=HOST, found=_has_driver(host_root))


def _places(installed: str, host_root: Path) -> tuple[Path, ...]:
    """The install folder mounted at its own path, and as seen below the host's root; none for what is no such path."""
    return (Path(installed), host_root / installed.lstrip("/")) if installed.startswith("/") else ()


def _missing(vendor: str, root: Path) -> list[str]:
    """The places without a driver; a vendor that this version does not know has none anywhere."""
    try:
        return vendor_of(vendor).missing(root)
    except KeyError:
        return [vendor]


def _has_driver(root: Path) -> bool:
    return roots.find_library(str(root)) is not None
