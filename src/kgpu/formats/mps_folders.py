"""Where MPS control daemons and their clients meet: folders and files below an MPS root, by resource.

The names are the replaced programs': its device plugin, its MPS control daemon and this project's agree by them alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MPS_CONTAINER_ROOT: Final = "/mps"
"""The MPS root as containers see it, those of clients and those of the replaced programs."""


def resource_folder(root: str, resource: str) -> str:
    """All that a resource's daemon has below an MPS root."""
    return f"{root.rstrip('/')}/{resource}"


def pipe_folder(root: str, resource: str) -> str:
    """``CUDA_MPS_PIPE_DIRECTORY`` of a resource's daemon and clients."""
    return f"{resource_folder(root, resource)}/pipe"


def log_folder(root: str, resource: str) -> str:
    """``CUDA_MPS_LOG_DIRECTORY`` of a resource's daemon."""
    return f"{resource_folder(root, resource)}/log"


def mps_control(root: str, resource: str) -> str:
    """The path on which the MPS control daemon of a resource listens."""
    return f"{pipe_folder(root, resource)}/control"


def started_file(root: str, resource: str) -> str:
    """It is there while the resource's daemon serves, with its limits set; ``served_text`` is what it says."""
    return f"{resource_folder(root, resource)}/.started"


def ready_file(root: str) -> str:
    """It is there while every daemon of the node serves."""
    return f"{root.rstrip('/')}/.ready"


def shm_folder(root: str) -> str:
    """``/dev/shm`` of daemons and clients."""
    return f"{root.rstrip('/')}/shm"


def served_text(replicas: Mapping[str, int]) -> str:
    """What a daemon's ``started_file`` says: how many clients of each GPU it has limits for, by UUID."""
    return "".join(f"{uuid} {count}\n" for uuid, count in replicas.items())


def read_served(text: str) -> dict[str, int] | None:
    """The same read again; None where it says nothing, as the replaced program's file, or nothing sensible."""
    served: dict[str, int] = {}
    for line in text.splitlines():
        uuid, _, count = line.partition(" ")
        if not (uuid and count.isascii() and count.isdigit() and len(count) < 6):
            return None
        served[uuid] = int(count)
    return served or None
