"""What the NRI plugin's decisions are made of and result in: plain data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kgpu.base.errors import UserError
from kgpu.formats.image_env import ImageEnv, Visible
from kgpu.formats.requirements import GpuFacts
from kgpu.kubelet.nri.model import ContainerAdjustment, NriContainer, NriPod
from kgpu.kubelet.pod_resources import Holding
from kgpu.toolkit.nri.devices import DeviceIndex

Wanted: TypeAlias = Callable[[str, Collection[str]], bool]
"""Whether a container that asks for these driver capabilities gets the driver file at this path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A container that may concern the plugin: it asks for devices, or has some already.

    ``source`` is what asks, for people: the annotation's key or the variable's name; "" when nothing asks.
    ``annotated``: it was written for this pod on purpose, and names CDI devices. ``problem`` is why the words can't be
    understood. ``extra`` are more CDI devices, which only some may have.
    """

    pod: NriPod
    container: NriContainer
    env: ImageEnv
    source: str = ""
    annotated: bool = False
    visible: Visible = field(default_factory=Visible)
    extra: tuple[str, ...] = ()
    problem: UserError | None = None

    @property
    def named(self) -> str:
        """The container, for people."""
        return f"container {self.container.name} of pod {self.pod.namespace}/{self.pod.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is true on this node while a container is being created.

    ``account`` is the pod's service account, "" when it was not asked for. ``holdings`` is who has which devices, or
    why that is not known; None when it was not asked. ``gpus`` are by the number in their device node; ``node`` has
    what is the same for all of them.
    """

    index: DeviceIndex
    account: str = ""
    holdings: tuple[Holding, ...] | UserError | None = None
    gpus: Mapping[int, GpuFacts] = field(default_factory=dict)
    node: GpuFacts = field(default_factory=GpuFacts)


@dataclass(frozen=True, slots=True)
class Nothing:
    """The container is left as it is; ``why`` is "" when it never asked."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class ContainerRefusal:
    """The container is not created, and its pod's Event says why."""

    problem: UserError


@dataclass(frozen=True, slots=True)
class Adjust:
    """The container is changed; ``why`` is for the log."""

    adjustment: ContainerAdjustment
    why: str = ""


Outcome: TypeAlias = Nothing | ContainerRefusal | Adjust
