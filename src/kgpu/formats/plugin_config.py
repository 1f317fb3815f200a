"""The device plugin's config file, version v1: the types that its text is decoded into.

``kgpu.formats.plugin_config_parse`` reads the text. Values that the file does not give are absent here (None, or no
entry in ``flags``): the programs fill in their defaults, because a flag or an environment variable may come between.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kgpu.formats.names import NVIDIA_DOMAIN, SHARED_SUFFIX

MAX_RESOURCE_NAME = 63
"""Characters of a resource name including its domain; the replaced program's limit."""
VOLTA = (7, 0)
MPS_CLIENTS = 48
"""How many clients an MPS server takes on a GPU of Volta or later, by NVIDIA's documentation of MPS."""
MPS_CLIENTS_BEFORE = 16
"""The same on an older one."""


def most_mps_clients(capability: tuple[int, int] | None) -> int:
    """How many clients a server takes on a GPU of this compute capability. None: unknown, a new one is assumed."""
    return MPS_CLIENTS if capability is None or capability >= VOLTA else MPS_CLIENTS_BEFORE


_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")


class SharingKind(enum.StrEnum):
    """How one accelerator is given to several containers; the value is the config file's key."""

    TIME_SLICING = "timeSlicing"
    MPS = "mps"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePattern:
    """Devices whose model name (GPUs) or profile (MIG) matches ``pattern`` are offered as resource ``name``."""

    pattern: str
    name: str

    def matches(self, text: str) -> bool:
        """Whole-text match in which only ``*`` is special, for any run of characters."""
        # Each piece takes its first place for good (atomic group): many stars can't make the search explode.
        first, *rest = map(re.escape, self.pattern.split("*"))
        if not rest:
            return text == self.pattern
        *inner, last = rest
        glob = first + "".join(f"(?>.*?{piece})" for piece in inner) + f".*{last}"
        return re.fullmatch(glob, text, re.DOTALL) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSelection:
    """Which devices of a resource are shared: all of them, the first ``count``, or those that ``refs`` name.

    A ref is a GPU index ``0``, a MIG index ``0:1`` or a UUID.
    """

    count: int | None = None
    refs: tuple[str, ...] = ()

    @property
    def is_all(self) -> bool:
        """True when nothing narrows the selection."""
        return self.count is None and not self.refs

    def value(self) -> Any:
        """As the file spells it."""
        return list(self.refs) if self.refs else ("all" if self.count is None else self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedResource:
    """One entry of ``sharing.<kind>.resources``; ``where`` is its path in the file, for messages."""

    name: str
    replicas: int
    rename: str | None = None
    devices: DeviceSelection = DeviceSelection()
    where: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The sharing block in force. ``fail_requests_greater_than_one`` is None when the file does not say."""

    kind: SharingKind
    rename_by_default: bool = False
    fail_requests_greater_than_one: bool | None = None
    resources: tuple[SharedResource, ...] = ()

    @property
    def refuses_many(self) -> bool:
        """Whether requests for several shares are refused: with MPS unless told otherwise, else if told so."""
        configured = self.fail_requests_greater_than_one
        return self.kind is SharingKind.MPS if configured is None else configured

    def offered_name(self, entry: SharedResource) -> str:
        """The resource name under which the shares of ``entry`` are offered."""
        if entry.rename is not None:
            return entry.rename
        return entry.name + SHARED_SUFFIX if self.rename_by_default else entry.name


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConfig:
    """The whole file. ``flags`` holds what was given, by path, e.g. ``flags.plugin.passDeviceSpecs``."""

    version: str = "v1"
    flags: Mapping[str, Any] = field(default_factory=dict)
    gpus: tuple[NamePattern, ...] = ()
    mig: tuple[NamePattern, ...] = ()
    sharing: Sharing | None = None
    imex_channel_ids: tuple[int, ...] | None = None
    imex_required: bool | None = None


def full_resource_name(name: str) -> str:
    """``name`` with ``nvidia.com/`` before it when it has no domain."""
    return name if "/" in name else f"{NVIDIA_DOMAIN}/{name}"


def resource_name_problem(name: str) -> str:
    """Why ``name`` can't be an extended resource's name, "" when it can. ``name`` has its domain already."""
    if len(name) > MAX_RESOURCE_NAME:
        return f"fully-qualified resource name must be {MAX_RESOURCE_NAME} characters or less: {len(name)}"
    domain, _, rest = name.partition("/")
    reasons = [
        f"{part!r} is not made of lower case letters, digits, '-' and '.', beginning and ending with a letter or digit"
        for part in (domain, rest)
        if _SUBDOMAIN.fullmatch(part) is None
    ]
    if domain == "kubernetes.io" or domain.endswith(".kubernetes.io"):
        reasons.append("the domain kubernetes.io is reserved")
    return f"incorrect format for resource name '{name}': [{'; '.join(reasons)}]" if reasons else ""
