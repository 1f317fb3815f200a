"""Which boot of a simulated machine it is, and which containers ran before it.

Until its first reboot a node has this machine's boot. From then on it has one of its own, kept in its folder, and every
container's id ends with it: so it is known for good, and without a clock, which containers the last reboot ended.
"""

from __future__ import annotations

import secrets
import uuid
from pathlib import Path
from typing import Final

from kgpu.base.files import write_atomic

FILE: Final = "boot"
_ID: Final = 64  # hexadecimal digits of a container's id, as containerd makes them
_MARK: Final = 12  # of these, the last ones are the boot's


def read(folder: Path) -> str:
    """The id of the boot of the node in that folder; "" before its first reboot."""
    try:
        return (folder / FILE).read_text(encoding="ascii").strip()[:64]
    except (OSError, ValueError):
        return ""


def begin(folder: Path) -> str:
    """Write the id of a new boot. Raises OSError."""
    boot = str(uuid.uuid4())
    write_atomic(folder / FILE, f"{boot}\n")
    return boot


def container_id(boot: str) -> str:
    """A new container's id on a node with that boot."""
    mark = _mark(boot)
    return secrets.token_hex(_ID // 2)[: _ID - len(mark)] + mark


def is_former(boot: str, container: str) -> bool:
    """Whether the container with that id was started before that boot, which ended it."""
    return bool(boot and container) and not container.endswith(_mark(boot))


def _mark(boot: str) -> str:
    return boot.replace("-", "")[-_MARK:] if boot else ""
