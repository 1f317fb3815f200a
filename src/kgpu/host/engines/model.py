"""What is known about a node's container engine, what kgpu wants of it, and the file changes that bring it there.

Plain data. Every path in it is the host's own, as the engine opens it; turning it into a path that this process can
open is the business of whoever reads and writes files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from kgpu.formats.names import CDI_DIR, CDI_STATIC_DIR

Version = tuple[int, int, int]
Files = Mapping[str, bytes | None]
"""The content of files by host path; None, or no entry, for a file that is not there."""

MAX_FILE_BYTES: Final = 1 << 20
"""No engine's config comes near it; a larger file is refused before it is parsed."""
NVIDIA_HANDLERS: Final = ("nvidia", "nvidia-cdi", "nvidia-legacy")


class Engine(StrEnum):
    """The container engines whose config kgpu edits, by the names that ``--runtime`` takes."""

    CONTAINERD = "containerd"
    CRIO = "crio"
    DOCKER = "docker"


@dataclass(frozen=True, slots=True)
class RuntimeHandler:
    """One runtime handler: the name that a RuntimeClass gives, and the OCI runtime's binary on the host.

    An empty ``binary`` is the engine's own default runtime with its options.
    """

    name: str
    binary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOffer:
    """What an engine shall offer.

    ``default``: the handler that containers get when nobody names one; "" leaves the engine's own default alone.
    ``annotations``: prefixes of container annotations that are handed through to the handlers (containerd).
    ``options``: further keys of each handler's table, which win over the copied ones (``RUNTIME_CONFIG_OVERRIDE``).
    ``cdi_dirs``: folders of CDI specs that the engine must read; added to those that its config names.
    """

    handlers: tuple[RuntimeHandler, ...] = tuple(RuntimeHandler(name) for name in NVIDIA_HANDLERS)
    default: str = ""
    cdi: bool = True
    cdi_dirs: tuple[str, ...] = (CDI_STATIC_DIR, CDI_DIR)
    annotations: tuple[str, ...] = ()
    runtime_type: str = "io.containerd.runc.v2"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlace:
    """Where one engine of a node has its files.

    ``flavour``: containerd, k3s, rke2, microk8s, k0s, crio or docker. ``config``: the main file (of k3s and RKE2 the
    one that they render). ``template``: the template that is edited instead of ``config``, "" where there is none.
    ``drop_in``: kgpu's own file beside the main one; "" means the main file itself is edited. ``imported``: the engine
    reads the drop-in's folder anyway, so the main file needs no line for it. ``merges``: drop-ins are merged key by key
    whatever the engine's version (k0s does it itself). ``service``: the systemd unit; "" when unknown. ``binary``:
    the engine's program on the host; ``version``: what it is known to be. ``oci``: OCI runtime binaries found.
    """

    engine: Engine
    flavour: str
    config: str
    drop_in: str = ""
    template: str = ""
    imported: bool = False
    merges: bool = False
    socket: str = ""
    service: str = ""
    binary: str = ""
    version: Version | None = None
    oci: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file's content before and after, None where it does not exist, and why."""

    path: str
    before: bytes | None
    after: bytes | None
    why: str


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """Changes in the order in which they may be written one by one, each leaving a config that loads; and notes."""

    changes: tuple[FileChange, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """What an engine's config says now: handlers by name (with their binary, "" for the default), CDI, the default."""

    handlers: Mapping[str, str]
    default: str
    cdi: bool
    cdi_dirs: tuple[str, ...]
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()
