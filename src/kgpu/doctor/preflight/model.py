"""What a preflight is asked and what it answers: each node's driver, predictions, and what nobody knows.

A check answers in the doctor's own terms: a ``Finding`` (it will fail), ``Missing`` (unknown, with how to look), or
None (nothing in its way). ``Prediction`` is a finding of several nodes, said once, as the record that all of kgpu uses.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from kgpu.base.advice import Advice, Severity
from kgpu.base.remedy import Remedy
from kgpu.doctor import cluster_policy, matching
from kgpu.doctor.host_facts import HostFacts
from kgpu.doctor.kinds import Node
from kgpu.doctor.matching import DRIVER
from kgpu.doctor.model import Finding, Level, Missing
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names

Answer: TypeAlias = Finding | Missing | None

PROBE: Final = "kgpu preflight --probe, or kgpu preflight --host on the node"
"""How a node's own facts are got."""
_TALOS: Final = "extensions.talos.dev/nvidia-"


class PreflightVerdict(enum.StrEnum):
    """What a check says of a node. ``NOTED``: it hurts nobody, and is good to know."""

    FAILS = "fails"
    NOTED = "noted"
    FINE = "fine"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverChoice:
    """The driver container that a node would get. ``owner`` is what asks for it, for people.

    ``image`` is the whole reference, "" where it can't be told; ``problem`` then says why. ``version`` is as it was
    asked for. ``module_type``: auto, open or proprietary.
    """

    owner: str = ""
    enabled: bool = True
    version: str = ""
    image: str = ""
    os_tag: str = ""
    precompiled: bool = False
    module_type: str = "auto"
    problem: Advice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What is to be installed. ``source`` says where that was read; ``drivers`` are by node.

    ``toolkit``: kgpu writes the container runtimes' configs. ``by_objects``: NVIDIADrivers choose the nodes' drivers.
    ``policy`` is the ClusterPolicy that there would be, {} where that is not told.
    """

    source: str
    namespace: str
    drivers: Mapping[str, DriverChoice] = field(default_factory=dict)
    cdi: bool = True
    nri: bool = False
    toolkit: bool = True
    by_objects: bool = True
    policy: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAnswer:
    """Whether a registry has an image; None for unknown, and ``why``."""

    exists: bool | None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightScene:
    """All that checks may ask. ``images`` are the registries' answers by reference; ``refused``: the API server's words
    where it has refused the probe's pod by Pod Security.
    """

    snapshot: Snapshot
    intent: Intent
    images: Mapping[str, RegistryAnswer] = field(default_factory=dict)
    refused: str = ""

    def change(self, helm: Remedy, spec: Mapping[str, Any]) -> Remedy:
        """How a setting is changed: in the ClusterPolicy that is there, else by a value for the chart."""
        return helm if cluster_policy.in_force(self.snapshot) is None else cluster_policy.change(self.snapshot, spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeScene:
    """One node with GPUs. ``host`` are its own facts, None where nobody has looked."""

    scene: PreflightScene
    node: Node
    host: HostFacts | None
    driver: DriverChoice

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def kernel(self) -> str:
        return (self.host.kernel if self.host else "") or self.node.kernel

    @property
    def has_driver(self) -> bool | None:
        """Whether it has a driver of its own, which kgpu finds and uses in any case; None for unknown."""
        snapshot, labels = self.scene.snapshot, self.node.labels
        if labels.get(names.LABEL_DEPLOY_PREFIX + "driver") == "pre-installed":
            return True
        if any(key.startswith(_TALOS) for key in labels):
            return True
        contained = bool(matching.pods_of_part(snapshot, DRIVER, node=self.name))
        if self.host is not None and self.host.driver_version and not contained:
            return True
        if self.host is not None and self.host.libraries is not None:
            return any(not path.startswith(names.DRIVER_INSTALL_DIR) for path in self.host.libraries)
        offers = any(
            matching.vendor_of(resource) == matching.NVIDIA and self.node.allocatable(resource)
            for resource in self.node.resources()
        )
        return True if offers and not contained else None

    @property
    def runs_it(self) -> bool:
        """Whether the wanted driver container is there and ready: whatever it needs it has found."""
        pods = matching.pods_of_part(self.scene.snapshot, DRIVER, vendor=matching.NVIDIA, node=self.name)
        wanted = self.driver.image
        return any(pod.ready and any(one.image == wanted for one in pod.containers) for pod in pods)

    @property
    def takes_driver(self) -> bool:
        """Whether a driver container would have to be started on it, as far as is known."""
        return self.driver.enabled and not self.has_driver and not self.runs_it

    @property
    def compiles(self) -> bool:
        """Whether that container builds the driver's modules itself."""
        return self.takes_driver and not self.driver.precompiled


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePreflight:
    """One row: what is checked, the doctor's id of what would be found then, and the function that looks."""

    name: str
    id: str
    look: Callable[[NodeScene], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPreflight:
    """As ``NodePreflight``, for what is no node's own."""

    name: str
    id: str
    look: Callable[[PreflightScene], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(Advice):
    """What will fail, on which nodes (none: of the cluster). ``id`` is the doctor's, ``steps`` its remedy."""

    id: str
    check: str
    nodes: tuple[str, ...] = ()
    steps: tuple[Remedy, ...] = ()
    sureness: str = ""
    severity: Severity = Severity.WARNING
    reason: str = "Predicted"

    @property
    def is_note(self) -> bool:
        """Whether it hurts nobody."""
        return self.severity is Severity.INFO

    def data(self) -> dict[str, Any]:
        """As JSON, in the order for reading."""
        return {
            "id": self.id, "check": self.check, "level": (Level.NOTE if self.is_note else Level.PROBLEM).value,
            "what": self.what, "nodes": list(self.nodes), "confidence": self.sureness,
            "evidence": list(self.evidence), "remedy": [str(step) for step in self.steps],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """What no one has looked at, said once for all of its nodes."""

    check: str
    id: str
    what: str
    why: str
    how: str
    nodes: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "check": self.check, "id": self.id, "what": self.what, "why": self.why, "how": self.how,
            "nodes": list(self.nodes),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightReport:
    """All answers. ``verdicts`` are by node ("" for the cluster's own), then by check."""

    source: str
    namespace: str
    nodes: tuple[str, ...]
    predictions: tuple[Prediction, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    verdicts: Mapping[str, Mapping[str, PreflightVerdict]] = field(default_factory=dict)
    images: Mapping[str, RegistryAnswer] = field(default_factory=dict)

    @property
    def failures(self) -> tuple[Prediction, ...]:
        """The predictions that somebody has to mind."""
        return tuple(one for one in self.predictions if not one.is_note)

    @property
    def exit_code(self) -> int:
        """0: nothing is predicted; 1: something is; 2: no node is known to have GPUs, so there is nothing to judge."""
        if self.failures:
            return 1
        return 0 if self.nodes else 2

    def data(self) -> dict[str, Any]:
        """The form of ``-o json``."""
        return {
            "predictions": [one.data() for one in self.predictions],
            "unknown": [one.data() for one in self.unknown],
            "nodes": list(self.nodes),
            "source": self.source,
            "namespace": self.namespace,
            "verdicts": {
                name: {check: str(one) for check, one in rows.items()} for name, rows in self.verdicts.items()
            },
            "images": {name: {"exists": one.exists, "why": one.why} for name, one in self.images.items()},
            "exit_code": self.exit_code,
        }
