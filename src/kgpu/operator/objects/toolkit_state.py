"""How it is with OpenShift's driver toolkit under a policy: what is in its way, as metrics and as advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.advice import Advice, Severity
from kgpu.base.plain import mapping, strings
from kgpu.formats import names
from kgpu.operator.labels import opted_out
from kgpu.operator.model import ClusterNode, ObservedCluster, Policy
from kgpu.operator.objects.common import Scene
from kgpu.operator.objects.openshift import RHCOS_LABEL, live_image
from kgpu.operator.objects.pools import is_rhcos, takes_driver
from kgpu.operator.openshift import NAMESPACE, TOOLKIT_STREAM

UNAVAILABLE: Final = "DriverToolkitUnavailable"
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitState:
    """How it is with the driver toolkit. ``wanted``: drivers are to be built in it. ``stream``: its ImageStream is
    there. ``untold`` are nodes of RHCOS whose labels lack the version, ``missing`` the nodes by version for which there
    is no image, neither in the ImageStream nor in the pods that they have. ``used``: drivers are built in it.
    """

    wanted: bool = False
    stream: bool = False
    broken: bool = False
    untold: tuple[str, ...] = ()
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    used: bool = False


def toolkit_state(policy: Policy, observed: ObservedCluster) -> ToolkitState | None:
    """The state under a policy, None on other clusters than OpenShift."""
    cluster = observed.openshift
    if cluster is None:
        return None
    nodes = tuple(node for node in observed.nodes if _builds(policy, observed, node))
    if policy.spec.operator.use_ocp_driver_toolkit is False or not nodes:
        return ToolkitState(stream=cluster.toolkit is not None)
    images = frozenset(cluster.toolkit.images if cluster.toolkit else ()) | _kept(observed)
    versions: dict[str, list[str]] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        versions.setdefault(node.labels.get(names.NFD_OSTREE_VERSION, ""), []).append(node.name)
    untold = tuple(versions.pop("", ()))
    return ToolkitState(
        wanted=True,
        stream=cluster.toolkit is not None,
        broken=cluster.toolkit is not None and cluster.toolkit.broken,
        untold=untold,
        missing={version: tuple(on) for version, on in sorted(versions.items()) if version not in images},
        used=bool(versions) and (cluster.toolkit is not None or any(version in images for version in versions)),
    )


def _kept(observed: ObservedCluster) -> frozenset[str]:
    """The versions of RHCOS whose pods have an image of the toolkit, which they keep."""
    versions = {
        name: strings(mapping(mapping(live).get("metadata")).get("labels")).get(RHCOS_LABEL, "")
        for name, live in observed.daemon_sets.items()
    }
    return frozenset(
        version for name, version in versions.items() if version and live_image(observed.daemon_sets[name], version)
    )


def _builds(policy: Policy, observed: ObservedCluster, node: ClusterNode) -> bool:
    """Whether a driver is to be built on this node, of those with RHCOS."""
    driver = policy.spec.driver
    if driver.enabled is False or not is_rhcos(node) or not takes_driver(node) or opted_out(node):
        return False
    if not driver.use_nvidia_driver_crd:
        return not driver.use_precompiled
    owner = node.labels.get(names.LABEL_DRIVER_OWNER, "")
    return any(each.name == owner and not each.spec.use_precompiled for each in observed.drivers)


def figures(state: ToolkitState | None) -> dict[str, float]:
    """The metrics: 1 for used, 0 for not wanted, -1 for impossible, and what is in the way."""
    prefix = "gpu_operator_openshift_driver_toolkit_"
    if state is None:
        return {f"{prefix}enabled": -1.0}
    enabled = 1.0 if state.used else -1.0 if state.wanted else 0.0
    return {
        f"{prefix}enabled": enabled,
        f"{prefix}nfd_too_old": float(bool(state.untold)),
        f"{prefix}imagestream_missing": float(state.wanted and not state.stream),
        f"{prefix}rhcos_tags_missing": float(state.stream and bool(state.missing)),
        f"{prefix}imagestream_broken": float(state.broken),
    }


def advice(scene: Scene) -> Iterator[Advice]:
    """What is in the way of the driver toolkit."""
    state = toolkit_state(scene.policy, scene.observed)
    if state is None or not state.wanted:
        return
    by_packages = "drivers are built with packages instead, which need a subscription of the cluster"
    if not state.stream:
        lacking = tuple(node for nodes in state.missing.values() for node in nodes)
        so = f"on {_some(lacking)} {by_packages}" if lacking else "drivers that are there keep theirs"
        yield _told(
            scene,
            what=f"OpenShift's driver toolkit is not found: {so}",
            why=f"there is no ImageStream {TOOLKIT_STREAM} in namespace {NAMESPACE}, or it can't be read",
            remedy=f"oc get imagestream {TOOLKIT_STREAM} -n {NAMESPACE}: where it is missing, update OpenShift",
        )
    for version, nodes in state.missing.items() if state.stream else ():
        yield _told(
            scene,
            what=f"OpenShift's driver toolkit has no image for RHCOS {version} of {_some(nodes)}: {by_packages}",
            why=f"the ImageStream {TOOLKIT_STREAM} has no such tag",
            remedy="finish the update of OpenShift that these nodes are part of, or update to a release that has it",
        )
    if state.broken:
        yield _told(
            scene,
            what="images of OpenShift's driver toolkit may be missing",
            why=f"the ImageStream {TOOLKIT_STREAM} has tags without a name",
            remedy="update OpenShift to a release that writes their names",
        )
    if state.untold:
        yield _told(
            scene,
            what=f"no driver is installed on {_some(state.untold)} yet",
            why=f"these nodes have RHCOS and lack the label {names.NFD_OSTREE_VERSION}",
            remedy="set nfd.enabled: true, or update the node feature discovery to one of OpenShift 4.9 or later",
        )


def _some(nodes: tuple[str, ...]) -> str:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return f"{', '.join(nodes[:_SHOWN])}{more}"


def _told(scene: Scene, *, what: str, why: str, remedy: str) -> Advice:
    return Advice(
        subject=f"ClusterPolicy/{scene.policy.name}",
        what=what,
        why=why,
        severity=Severity.WARNING,
        remedy=remedy,
        reason=UNAVAILABLE,
    ).printable()
