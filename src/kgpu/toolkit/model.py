"""What the toolkit's decisions are made of and result in: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kgpu.formats.cdi import CdiDevice, CdiDeviceNode, ContainerEdits, Hook, Spec
from kgpu.host.driver.model import DriverReport
from kgpu.host.root import DriverRoot
from kgpu.hw.port import Inventory
from kgpu.toolkit.config import GenerateConfig
from kgpu.toolkit.hooks import Hooks


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What a GPU brings beside its own nodes: further nodes, hooks, annotations of its devices."""

    nodes: tuple[CdiDeviceNode, ...] = ()
    hooks: tuple[Hook, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeInput:
    """What a mode may look at. ``inventory`` is there only for modes that ask for it, and for csv where NVML answers.

    ``gids``: the engines read ``additionalGids``. ``machine`` is the containers' architecture, "" for this one's.
    """

    root: DriverRoot
    config: GenerateConfig
    inventory: Inventory | None = None
    hooks: Hooks = field(default_factory=Hooks)
    gids: bool = False
    machine: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeFinding:
    """What a mode found: devices, what every container gets with any of them, and what to tell.

    ``gaps`` are devices that could not be offered whole: an error unless the configuration allows them.
    """

    devices: tuple[CdiDevice, ...]
    common: ContainerEdits = field(default_factory=ContainerEdits)
    notes: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    driver: DriverReport = field(default_factory=DriverReport)


@dataclass(frozen=True, slots=True)
class Generated:
    """A spec, and what a person should know about it: what was left out, and why.

    ``mode`` is the one that was used, and ``why`` it was when nobody chose it. ``driver`` is what was looked for under
    the driver root. ``siblings``: further specs of the same devices, by what goes before their file's extension.
    """

    spec: Spec
    notes: tuple[str, ...] = ()
    mode: str = ""
    why: str = ""
    driver: DriverReport = field(default_factory=DriverReport)
    siblings: Mapping[str, Spec] = field(default_factory=dict)

    @property
    def specs(self) -> Mapping[str, Spec]:
        """Every spec, the main one under ""."""
        return {"": self.spec, **self.siblings}


@dataclass(frozen=True, slots=True)
class ListedSpec:
    """One spec file found on the node: its path, priority (later folders win) and qualified device names."""

    path: str
    priority: int
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeviceListing:
    """The names that a runtime can resolve, in order, and warnings about those that it can't."""

    names: tuple[str, ...]
    warnings: tuple[str, ...]
