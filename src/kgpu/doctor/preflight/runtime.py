"""The check of a node's container runtime and kubelet: whether pods get the devices that CDI names, and NRI works.

Versions are the cluster's word. Whether CDI is switched off is in containerd's config, which the node's own files have;
with the toolkit (``toolkit.enabled``) that hurts nobody, as kgpu switches it on.
"""

from __future__ import annotations

from typing import Final

from kgpu.base.errors import UserError
from kgpu.base.remedy import Remedy
from kgpu.doctor import remedies
from kgpu.doctor.host_facts import HostFacts
from kgpu.doctor.model import CERTAIN, Finding, Level, Missing, Subject
from kgpu.doctor.preflight.model import Answer, NodePreflight, NodeScene
from kgpu.formats.support import CDI_DEVICES, CDI_RUNTIMES, NRI, RUNTIMES, Supported, dotted, parse
from kgpu.host.engines import containerd
from kgpu.host.engines.model import Engine, EnginePlace

_RUNTIME: Final = "status.nodeInfo.containerRuntimeVersion"
_CONTAINERD: Final = "containerd"
_CONFIG: Final = "/etc/containerd/config.toml"
_SOCKET: Final = "/run/containerd/containerd.sock"
"""Where containerd listens that reads that file; those of Kubernetes' distributions have others."""
_BY_TOOLKIT: Final = Remedy("give the chart --set toolkit.enabled=true")


def _runtime(scene: NodeScene) -> Answer:
    """OPR-06, RUN-30 and RUN-24: CDI and NRI need a runtime and a kubelet that have them, and that have them on."""
    runtime, version = scene.node.runtime
    if not version:
        return _switched_off(scene) or Missing(
            "the versions of the container runtime and the kubelet", "only the cluster's Node says them",
            "kgpu preflight, with a kubeconfig",
        )  # fmt: skip
    if (found := _too_old(scene) or _switched_off(scene)) is not None:
        return found
    row = RUNTIMES.get(runtime)
    if row is None or row.has(parse(version)):
        return None
    return _version(scene, f"{row.what} {version} is tested by nobody: {row.words}", row, _RUNTIME, note=True)


def _too_old(scene: NodeScene) -> Finding | None:
    """What the versions can't do of what is asked for."""
    intent, kubelet = scene.scene.intent, scene.node.kubelet
    runtime, version = scene.node.runtime
    nri = NRI.get(runtime) if intent.nri else None
    if nri is not None and (not nri.ranges or not nri.has(parse(version))):
        return _version(scene, f"{nri.what}, {version}: {nri.words}", nri, _RUNTIME)
    if not intent.cdi:
        return None
    if not CDI_DEVICES.has(parse(kubelet)):
        cause = f"pods will start without a GPU: the kubelet {kubelet} passes no CDI devices ({CDI_DEVICES.lowest})"
        return _version(scene, cause, CDI_DEVICES, "status.nodeInfo.kubeletVersion", rule="RUN-30")
    row = RUNTIMES.get(runtime)
    if row is None or parse(version) >= CDI_RUNTIMES.get(runtime, ()):
        return None
    first = dotted(CDI_RUNTIMES[runtime])
    cause = f"pods will start without a GPU: {row.what} {version} knows no CDI devices ({row.what} {first} does)"
    return _version(scene, cause, row, _RUNTIME)


def _version(
    scene: NodeScene, cause: str, row: Supported, field: str, *, rule: str = "OPR-06", note: bool = False
) -> Finding:
    return Finding(
        id=rule,
        subject=Subject("Node", scene.name),
        cause=cause,
        evidence=(scene.node.cite(field),),
        remedy=(Remedy(row.remedy),),
        confidence=CERTAIN,
        level=Level.NOTE if note else Level.PROBLEM,
    )


def _switched_off(scene: NodeScene) -> Finding | None:
    """RUN-24: containerd leaves CDI devices out without a word where its config does not have CDI on."""
    host, intent = scene.host, scene.scene.intent
    if host is None or not intent.cdi or intent.toolkit or _has_cdi(scene, host) is not False:
        return None
    said = "with what it imports, enable_cdi is not true"
    return Finding(
        id="RUN-24",
        subject=Subject("Node", scene.name),
        cause=(
            "pods will start without a GPU: containerd's config has CDI off, and with toolkit.enabled=false nobody "
            "switches it on"
        ),
        evidence=(host.cite_file(_CONFIG, value=f"{_CONFIG}: {said}"),),
        remedy=(
            scene.scene.change(_BY_TOOLKIT, {"toolkit": {"enabled": True}}),
            Remedy("or set enable_cdi = true in the CRI plugin's table of {}, then on node {}:", _CONFIG, scene.name),
            remedies.restart_service(_CONTAINERD),
        ),
        confidence=CERTAIN,
    )


def _has_cdi(scene: NodeScene, host: HostFacts) -> bool | None:
    """Whether containerd gives pods CDI devices by its files; None where these do not tell."""
    name, version = scene.node.runtime
    file = host.files.get(_CONFIG)
    if name not in ("", _CONTAINERD) or file is None or file.problem or not host.present.get(_SOCKET):
        return None
    major, minor, patch, *_ = (*parse(version), 0, 0, 0)
    numbers = (major, minor, patch) if version else None
    place = EnginePlace(engine=Engine.CONTAINERD, flavour=_CONTAINERD, config=_CONFIG, version=numbers)
    files = {path: one.text.encode() for path, one in host.files.items() if not one.problem}
    try:
        return containerd.state(place, files).cdi
    except UserError:
        return None


CHECKS: Final = (NodePreflight(name="container runtime", id="OPR-06", look=_runtime),)
