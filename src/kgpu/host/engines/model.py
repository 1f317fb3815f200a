"""What is known about a node's container engine, what it should offer, and the file changes for that.

Plain data. Every path is the host's, as the engine opens it; code that reads and writes files translates it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from kgpu.formats.names import CDI_DIR, CDI_STATIC_DIR

Version = tuple[int, int, int]
Files = Mapping[str, bytes | None]
"""The content of files by host path; None, or no entry, for a missing file."""

MAX_FILE_BYTES: Final = 1 << 20
"""Far more than any engine's config has; a larger file is refused before it is parsed."""
NVIDIA_HANDLERS: Final = ("nvidia", "nvidia-cdi", "nvidia-legacy")


class Engine(StrEnum):
    """The container engines whose config kgpu edits, by the names that ``--runtime`` takes."""

    CONTAINERD = "containerd"
    CRIO = "crio"
    DOCKER = "docker"


@dataclass(frozen=True, slots=True)
class RuntimeHandler:
    """One runtime handler: the name for RuntimeClasses, and the OCI runtime's binary on the host.

    An empty ``binary`` is the engine's own default runtime with its options.
    """

    name: str
    binary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOffer:
    """What an engine should offer.

    ``default`` is the handler for containers that name none; "" leaves the engine's own default. ``annotations`` are
    prefixes of container annotations that are passed to the handlers (containerd). ``options`` are further keys of each
    handler's table, which override the copied ones (``RUNTIME_CONFIG_OVERRIDE``). ``cdi_dirs`` are folders of CDI specs
    that the engine must read, in addition to those in its config.
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

    ``flavour`` is containerd, k3s, rke2, microk8s, k0s, crio or docker. ``config`` is the main file (for k3s and RKE2
    the one that they render). ``template`` is the template that is edited instead of ``config``, "" without one.
    ``drop_in`` is kgpu's own file beside the main one; "" means that the main file itself is edited. ``imported`` means
    that the engine reads the drop-in's folder anyway, so the main file needs no line for it. ``merges`` means that
    drop-ins are merged key by key whatever the engine's version (k0s does it itself). ``service`` is the systemd unit,
    "" if unknown. ``binary`` is the engine's program on the host, ``version`` its version, None if unknown. ``oci`` are
    the OCI runtime binaries that were found.
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
    """One file's content before and after, None if it does not exist, and why."""

    path: str
    before: bytes | None
    after: bytes | None
    why: str


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """Changes, in an order in which each one leaves a config that loads, and notes."""

    changes: tuple[FileChange, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """What an engine's config says now: handlers by name (with their binary, "" for the default), default and CDI."""

    handlers: Mapping[str, str]
    default: str
    cdi: bool
    cdi_dirs: tuple[str, ...]
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()
