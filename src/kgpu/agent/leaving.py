"""What an uninstall does on one node after the roles have ended: it removes kgpu's files, labels and condition only.

Every step can be repeated; the first failure is reported and everything is tried again later.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kgpu.agent.host import Role
from kgpu.agent.host_files import LEDGER, LOCK, HostFiles
from kgpu.agent.options import AgentOptions
from kgpu.agent.orders import MEMORY
from kgpu.agent.remembered_config import CONFIG_MEMORY
from kgpu.base.errors import HostError
from kgpu.base.threads import beside, calls_under_way
from kgpu.formats.names import CONFIG_FILE_PREFIX, HEALTH_HISTORY
from kgpu.kube.port import KubeApi

log = logging.getLogger(__name__)

DEVICES: Final = "devices.json"
"""``kgpu.deviceplugin.roster.FILE_NAME``, which is not imported to keep agents without a device plugin small."""
MPS_RECORD: Final = "mps.json"
"""``kgpu.mps.record.FILE_NAME``, not imported for the same reason; it stays where a GPU was not given back."""
MIG_MEMORY: Final = "mig-manager.json"
MODES_MEMORY: Final = "config-manager.json"
"""``kgpu.mig.manager.memory.FILE_NAME``, likewise; that of stopped services stays while one has to be started again."""
OURS: Final = (MEMORY, LEDGER, LOCK, CONFIG_MEMORY, DEVICES, MPS_RECORD, MIG_MEMORY, MODES_MEMORY)
"""Every file that kgpu keeps in its own folder, besides the health role's history, whose names share a prefix."""
STILL_WRITING: Final = 5.0
"""Seconds to wait for file operations that were under way when the roles ended."""


async def leave(api: KubeApi, options: AgentOptions, roles: Iterable[Role]) -> None:
    """Remove kgpu's files, then what the roles have published. Raises HostError or KubeError."""
    if not await calls_under_way(STILL_WRITING):
        log.warning("a file is still being written or read after %g s; it may stay behind", STILL_WRITING)
    await beside(HostFiles(options.state_dir).remove_all)
    for role in reversed(tuple(roles)):  # the first role goes last: everything else depends on node features
        if role.withdraw is not None:
            await role.withdraw(api, options)
    if options.node_state_dir is not None:
        await beside(remove_former, options.node_state_dir)
    # Last: it holds what the steps above need to be tried again.
    await beside(empty, options.state_dir)


def remove_former(folder: Path) -> None:
    """Remove what an agent for the whole node has left before it was replaced by operands in separate pods: the files
    that it has put on the host, then its own. Operands may do it at the same time. Raises HostError.
    """
    HostFiles(folder).remove_all()
    for path in filter(_is_ours, _entries(folder)):
        _remove(path)


def empty(folder: Path) -> None:
    """Remove kgpu's files from the folder, which is a mount and stays, and from its subfolders, which belong to
    operands in separate pods; a subfolder that is empty afterwards is removed. Links are not followed. Raises
    HostError.
    """
    for path in _entries(folder):
        if _is_ours(path):
            _remove(path)
        elif path.is_dir() and not path.is_symlink():
            inside = _entries(path)
            for entry in filter(_is_ours, inside):
                _remove(entry)
            if any(map(_is_ours, inside)):
                with contextlib.suppress(OSError):  # it has files that are not kgpu's
                    path.rmdir()


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _refused(folder, error) from error


def _is_ours(path: Path) -> bool:
    """Whether it is one of kgpu's files, or left from an interrupted write of one (``kgpu.base.files``)."""
    plain = path.is_symlink() or not path.is_dir()
    return plain and (
        path.name in OURS
        or path.name.startswith(
            (HEALTH_HISTORY, CONFIG_FILE_PREFIX, f".{CONFIG_FILE_PREFIX}", *(f".{name}." for name in OURS))
        )
    )


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _refused(path, error) from error


def _refused(path: Path, error: OSError) -> HostError:
    return HostError(
        f"{path} can't be emptied or removed: {error.strerror}",
        "a folder of kgpu's own that this process may write to",
        "remove it by hand",
    )
