"""Finds this node's driver: installed by a container, or on the host. The agent looks again while it runs.

The install folder wins while it holds NVML (a driver container that is up, or a simulated root). Otherwise it is the
host's own root, where a driver may still be installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.formats.agent_config import AgentConfig
from kgpu.hw import roots

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


def find_driver(config: AgentConfig, host_root: Path) -> DriverPlace:
    """Find the driver. ``host_root`` is the path of the host's ``/`` in this process."""
    installed = config.driver_install_dir
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
    if installed.startswith("/"):
        # Mounted at its own path, or seen below the host's root.
        for seen in (Path(installed), host_root / installed.lstrip("/")):
            if _has_driver(seen):
                return DriverPlace(seen=seen, host=installed, source=CONTAINER)
    return DriverPlace(seen=host_root, host=config.host_root or "/", source=HOST, found=_has_driver(host_root))


def _has_driver(root: Path) -> bool:
    return roots.find_library(str(root)) is not None
