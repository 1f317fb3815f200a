"""What is decided on an OpenShift cluster: the driver toolkit of each pool, the proxy, trusted certificates, and which
SecurityContextConstraints pods need. The names are OpenShift's and the replaced operator's.

An image of the toolkit that a live DaemonSet has stays where the ImageStream does not tell of it any more: whatever
becomes of the ImageStream, no driver is installed anew for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.plain import items, mapping, strings, text
from kgpu.kube.kinds import SECURITY_CONTEXT_CONSTRAINTS
from kgpu.operator.model import Object
from kgpu.operator.objects.common import Scene, has_kind
from kgpu.operator.objects.pools import Pool

MONITORING_LABEL: Final = "openshift.io/cluster-monitoring"
TRUSTED_CA: Final = "gpu-operator-trusted-ca"
"""The ConfigMap, and the volume with it."""
CA_KEY: Final = "ca-bundle.crt"
"""The key under which OpenShift writes the certificates."""
_INJECT: Final = "config.openshift.io/inject-trusted-cabundle"

TOOLKIT: Final = "openshift-driver-toolkit-ctr"
TOOLKIT_LABEL: Final = "openshift.driver-toolkit"
RHCOS_LABEL: Final = "openshift.driver-toolkit.rhcos"
MISSING_LABEL: Final = "openshift.driver-toolkit.rhcos-image-missing"

FOR_AGENTS: Final = "kgpu-agent"
FOR_DRIVERS: Final = "kgpu-driver"
FOR_FINDER: Final = "kgpu-node-features"
"""The chart's SecurityContextConstraints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildToolkit:
    """The driver toolkit of a pool. ``image`` is "" where there is none for ``rhcos``, its version of the system: the
    driver's container is told so and gets kernel headers by the subscription of the cluster.
    """

    rhcos: str
    image: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenShiftParts:
    """What a driver's pod has only on OpenShift."""

    toolkit: BuildToolkit | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    trusted_ca: bool = False


NO_PARTS: Final = OpenShiftParts()


def parts_of(scene: Scene, pool: Pool, live: Object | None) -> OpenShiftParts:
    """The parts of a pool's pods; ``live`` is its DaemonSet as it is, None without one."""
    cluster = scene.observed.openshift
    if cluster is None:
        return NO_PARTS
    version = {"OPENSHIFT_VERSION": cluster.version} if cluster.version else {}
    return OpenShiftParts(
        toolkit=_toolkit(scene, pool, live), env={**version, **cluster.proxy}, trusted_ca=cluster.trusted_ca
    )


def _toolkit(scene: Scene, pool: Pool, live: Object | None) -> BuildToolkit | None:
    cluster = scene.observed.openshift
    if cluster is None or not pool.rhcos or scene.policy.spec.operator.use_ocp_driver_toolkit is False:
        return None
    known = cluster.toolkit.images if cluster.toolkit else {}
    image = known.get(pool.rhcos) or live_image(live, pool.rhcos)
    if not image and cluster.toolkit is None:
        return None
    return BuildToolkit(rhcos=pool.rhcos, image=image)


def live_image(live: Object | None, rhcos: str) -> str:
    """The toolkit's image that a live DaemonSet of this RHCOS version has; "" if it has none, or only the driver's."""
    labels = strings(mapping(mapping(live).get("metadata")).get("labels"))
    if labels.get(RHCOS_LABEL) != rhcos or MISSING_LABEL in labels:
        return ""
    spec = mapping(mapping(mapping(mapping(live).get("spec")).get("template")).get("spec"))
    containers = map(mapping, items(spec.get("containers")))
    return next((text(container.get("image")) for container in containers if container.get("name") == TOOLKIT), "")


def toolkit_labels(toolkit: BuildToolkit | None) -> dict[str, str]:
    """Labels of a DaemonSet and its pods that say whether they build in a toolkit."""
    if toolkit is None:
        return {}
    return {TOOLKIT_LABEL: "true"} | ({} if toolkit.image else {MISSING_LABEL: "true"})


def trusted_ca(scene: Scene, state: str) -> list[Object]:
    """The ConfigMap that OpenShift fills with the certificates: its ``data`` is OpenShift's to write."""
    cluster = scene.observed.openshift
    if cluster is None or not cluster.trusted_ca:
        return []
    return [scene.new_object("ConfigMap", TRUSTED_CA, state=state, labels={_INJECT: "true"})]


def admits(scene: Scene, constraints: str) -> tuple[Object, ...]:
    """The right of an account that its pods are admitted by these SecurityContextConstraints of the chart; none on
    clusters without the kind.
    """
    if not has_kind(scene.observed, SECURITY_CONTEXT_CONSTRAINTS):
        return ()
    kind = SECURITY_CONTEXT_CONSTRAINTS
    return ({"apiGroups": [kind.group], "resources": [kind.plural], "resourceNames": [constraints], "verbs": ["use"]},)
