"""Rows OPR that objects show: the operator's resources, their schema, releases that go together, and leftovers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.kinds import Pod
from kgpu.doctor.matching import AGENT, OPERATOR
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Level, Place
from kgpu.doctor.objects import CLUSTER_POLICIES, Obj
from kgpu.doctor.rule import rule
from kgpu.doctor.secrets import HIDDEN
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names
from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from kgpu.formats.releases import RELEASES, Support, release_of
from kgpu.formats.support import KUBERNETES, RUNTIMES, Version, dotted

_SCHEMA: Final = "spec.versions[0].schema.openAPIV3Schema.properties.spec.properties"
CRDS: Final = (
    remedies.helm_set("operator.upgradeCRD=true"),
    Remedy("or apply them by hand:"),
    Remedy("helm show crds nvidia/gpu-operator | kubectl apply --server-side --force-conflicts -f -"),
)
FIELDS: Final = frozenset(one.encode_name for one in msgspec.structs.fields(ClusterPolicySpec)) - {
    "nodeFeatureDiscovery"
}
"""What a ClusterPolicy of the replaced operator may have under ``spec``."""
REQUIRED: Final = (
    "operator",
    "daemonsets",
    "driver",
    "toolkit",
    "devicePlugin",
    "dcgm",
    "dcgmExporter",
    "gfd",
    "nodeStatusExporter",
)
_SINCE: Final[tuple[tuple[str, Version], ...]] = (
    ("gdrcopy", (24, 6)),
    ("hostPaths", (24, 9)),
    ("driver.kernelModuleType", (25, 3)),
    ("cdi.nriPluginEnabled", (26, 3)),
)
"""Fields of the ClusterPolicy, and a release from which on they are there for sure."""
_RELEASE: Final = re.compile(r"nvidia[^ ]*/gpu-operator:v(\d+)\.(\d+)")


def version_of(text: str) -> Version:
    """The numbers of ``v1.14.3-ubuntu20.04``: (1, 14, 3); () where the text does not begin with a version."""
    hit = re.match(r"v?(\d{1,4}(?:\.\d{1,4}){1,2})(?:[-+]|$)", text)
    return tuple(map(int, hit[1].split("."))) if hit else ()


def releases(snapshot: Snapshot) -> Iterator[tuple[Pod, Version, Evidence]]:
    """Pods of NVIDIA's GPU Operator with their release and its evidence."""
    for pod in matching.pods_of_part(snapshot, OPERATOR, vendor=matching.NVIDIA):
        for container in pod.containers:
            if hit := _RELEASE.search(container.image):
                yield pod, (int(hit[1]), int(hit[2])), container.cite("image")


def old_schema(snapshot: Snapshot) -> Iterator[Finding]:
    """OPR-01: the CRD is of an older release than the operator."""
    crd = snapshot.get("CustomResourceDefinition", CLUSTER_POLICIES)
    versions = [version for version in (crd.maps("spec.versions") if crd else ()) if version.get("served") is not False]
    if crd is None or not versions:
        return
    if not crd.map(_SCHEMA):
        return
    for _, release, evidence in releases(snapshot):
        lacks = [
            field
            for field, since in _SINCE
            if release >= since and crd.at(f"{_SCHEMA}.{field.replace('.', '.properties.')}") is None
        ]
        if lacks:
            yield Finding(
                subject=crd.subject,
                cause=(
                    f"{crd} is older than the operator {'.'.join(map(str, release))}: it lacks spec.{lacks[0]}, so "
                    "that the API server drops such fields without a word"
                ),
                evidence=(crd.cite(f"{_SCHEMA}.{lacks[0].partition('.')[0]}"), evidence),
                remedy=CRDS,
                confidence=CERTAIN,
            )
            return


@rule(
    "OPR-03",
    "A second ClusterPolicy",
    Place.CLUSTER,
    rests_on=("NVIDIA/gpu-operator v26.7.0, source",),
)
def ignored(snapshot: Snapshot) -> Iterator[Finding]:
    """There is one ClusterPolicy for a cluster; further ones are ignored."""
    for policy in snapshot.all("ClusterPolicy"):
        if policy.text("status.state") == "ignored":
            others = [rival.name for rival in snapshot.all("ClusterPolicy") if rival.text("status.state") != "ignored"]
            yield Finding(
                subject=policy.subject,
                cause=(
                    f"{policy} is ignored: there may be one ClusterPolicy, "
                    f"and {', '.join(others) or 'another one'} counts"
                ),
                evidence=(policy.cite("status.state"),),
                remedy=(Remedy("kubectl delete clusterpolicy {}", policy.name),),
                confidence=CERTAIN,
                since=policy.created,
            )


@rule(
    "OPR-04",
    "ClusterPolicy and GPUCluster",
    Place.CLUSTER,
    explains=("OPR-15", "SCH-02"),
    rests_on=("NVIDIA/gpu-operator v26.7.0, source",),
)
def both_kinds(snapshot: Snapshot) -> Iterator[Finding]:
    """The two kinds exclude each other."""
    policies, clusters = list(snapshot.all("ClusterPolicy")), list(snapshot.all("GPUCluster"))
    if policies and clusters:
        yield Finding(
            subject=policies[0].subject,
            cause=f"{policies[0]} and {clusters[0]} are both there; the operator works on neither",
            evidence=(policies[0].cite("status.state"), clusters[0].cite("metadata.name")),
            remedy=(Remedy("kubectl delete gpucluster {}  # or the ClusterPolicy: keep one", clusters[0].name),),
            confidence=CERTAIN,
        )


@rule(
    "OPR-06",
    "Versions outside of the matrix",
    Place.CLUSTER,
    facts={
        "kubernetes": KUBERNETES.listed,
        "runtimes": ", ".join(f"{row.what} {row.listed}" for row in RUNTIMES.values()),
    },
    rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
)
def outside_matrix(snapshot: Snapshot) -> Iterator[Finding]:
    """The documents' matrix: Kubernetes {kubernetes}, {runtimes}. It may work; nobody tests it."""
    # The operator's own condition comes first, then the versions in the documents.
    for policy in snapshot.all("ClusterPolicy"):
        condition = policy.condition("SupportedVersions")
        if condition is not None and condition.status == "False":
            yield _outside(policy, condition.message or condition.reason, condition.cite())
            continue
        for node in matching.gpu_nodes(snapshot, matching.NVIDIA):
            runtime, running = node.runtime
            if not KUBERNETES.has(version_of(node.kubelet)[:2]):
                yield _outside(
                    policy,
                    f"Kubernetes {node.kubelet} of node {node.name} ({KUBERNETES.listed})",
                    node.cite("status.nodeInfo.kubeletVersion"),
                )
                break
            row = RUNTIMES.get(runtime)
            if row is not None and not row.has(version_of(running)[:2]):
                yield _outside(
                    policy,
                    f"{row.what} {running} of node {node.name} ({row.listed})",
                    node.cite("status.nodeInfo.containerRuntimeVersion"),
                )
                break


def _outside(policy: Obj, what: str, evidence: Evidence) -> Finding:
    return Finding(
        subject=policy.subject,
        cause=f"outside of what the operator supports: {what}",
        evidence=(evidence,),
        remedy=(
            Remedy("bring it to a supported version: docs/reference has the matrix"),
            Remedy("or use the operator's release that supports it"),
        ),
        confidence=CERTAIN,
        level=Level.NOTE,
    )


@rule(
    "OPR-08",
    "Left over from an uninstall",
    Place.CLUSTER,
    rests_on=("NVIDIA/gpu-operator#342",),
)
def left_over(snapshot: Snapshot) -> Iterator[Finding]:
    """The operator was removed before its ClusterPolicy, so that nobody takes the finalizer away."""
    works = any(pod.ready for pod in matching.pods_of_part(snapshot, OPERATOR, vendor=matching.NVIDIA))
    for deployment in snapshot.all("Deployment"):
        if (
            works
            or deployment.at("spec.replicas") != 0
            or not any(
                part.name == OPERATOR and part.vendor == matching.NVIDIA
                for part in matching.believed(snapshot, deployment)
            )
        ):
            continue
        for policy in snapshot.all("ClusterPolicy"):
            yield Finding(
                subject=policy.subject,
                cause=(
                    f"nobody works on {policy}: {deployment}, the operator, is scaled to nothing, so that no change "
                    "is taken over and nothing is repaired"
                ),
                evidence=(deployment.cite("spec.replicas"), policy.cite("status.state")),
                remedy=(remedies.scale(deployment.namespace, "deployment", deployment.name, 1),),
                confidence=CERTAIN,
            )
    if matching.pods_of_part(snapshot, OPERATOR, vendor=matching.NVIDIA) or matching.pods_of_part(snapshot, AGENT):
        return
    for policy in snapshot.all("ClusterPolicy"):
        if policy.deleting and policy.list("metadata.finalizers"):
            yield Finding(
                subject=policy.subject,
                cause=f"{policy} can't be deleted: the operator that would take its finalizer away is gone already",
                evidence=(policy.cite("metadata.deletionTimestamp"), policy.cite("metadata.finalizers")),
                remedy=(
                    remedies.patch_policy(policy.name, {"metadata": {"finalizers": None}}),
                    Remedy("kubectl delete crd {} nvidiadrivers.nvidia.com", CLUSTER_POLICIES),
                    Remedy("the modules stay loaded until a reboot; labels:"),
                    remedies.unlabel_all(names.LABEL_GPU_PRESENT),
                ),
                confidence=CERTAIN,
                since=policy.text("metadata.deletionTimestamp"),
            )


_ENV: Final = (
    ("DRIVER_IMAGE", "driver"),
    ("CONTAINER_TOOLKIT_IMAGE", "toolkit"),
    ("DEVICE_PLUGIN_IMAGE", "devicePlugin"),
    ("GFD_IMAGE", "gfd"),
    ("DCGM_IMAGE", "dcgm"),
    ("DCGM_EXPORTER_IMAGE", "dcgmExporter"),
    ("VALIDATOR_IMAGE", "validator"),
    ("MIG_MANAGER_IMAGE", "migManager"),
)


@rule(
    "OPR-10",
    "A variable without effect",
    Place.CLUSTER,
    rests_on=("NVIDIA/gpu-operator v26.7.0, source",),
)
def env_unused(snapshot: Snapshot) -> Iterator[Finding]:
    """The operator's *_IMAGE variables count only where the ClusterPolicy names nothing."""
    policy = next(iter(snapshot.all("ClusterPolicy")), None)
    for pod in matching.pods_of_part(snapshot, OPERATOR) if policy else ():
        for container in pod.containers:
            for variable, part in _ENV:
                from_env = container.env.get(variable, "")
                base = policy.map(f"spec.{part}") if policy else {}
                image, version = base.get("image"), base.get("version")
                if (
                    from_env in ("", HIDDEN)
                    or not policy
                    or not isinstance(image, str)
                    or not isinstance(version, str)
                    or not image
                    or not version
                ):
                    continue
                repository = base.get("repository")
                folder = f"{repository}/" if isinstance(repository, str) and repository else ""
                wanted = f"{folder}{image}{'@' if version.startswith('sha256:') else ':'}{version}"
                if from_env != wanted:
                    yield Finding(
                        subject=policy.subject,
                        cause=f"{variable}={from_env} of the operator has no effect: {policy} names {wanted}",
                        evidence=(matching.cite_env(pod, container, variable), policy.cite(f"spec.{part}.version")),
                        remedy=(
                            Remedy(
                                "set spec.{}.repository, image and version in the ClusterPolicy, "
                                "or empty all three so that the variable counts",
                                part,
                            ),
                        ),
                        confidence=CERTAIN,
                        level=Level.NOTE,
                    )


def by_hand(snapshot: Snapshot) -> Iterator[Finding]:
    """OPR-14: a ClusterPolicy from a blog: fields that there are not, or sections left out."""
    crd = snapshot.get("CustomResourceDefinition", CLUSTER_POLICIES)
    served = frozenset(map(str, crd.map(_SCHEMA))) if crd else frozenset()
    for policy in snapshot.all("ClusterPolicy"):
        spec = policy.map("spec")
        # An API server accepts no unknown field unless its schema allows it.
        new = not policy.uid and policy.at("status") is None
        known = served or FIELDS
        strange = sorted(str(key) for key in spec if key not in known) if new or served else []
        lacks = [name for name in REQUIRED if name not in spec] if new else []
        if not strange and not lacks:
            continue
        what = f"has the unknown field spec.{strange[0]}" if strange else f"lacks spec.{', spec.'.join(lacks[:3])}"
        yield Finding(
            subject=policy.subject,
            cause=f"{policy} {what}: the API server refuses it, or drops the field",
            evidence=(policy.cite(f"spec.{strange[0] if strange else lacks[0]}"),),
            remedy=(
                Remedy("take the chart's instead:"),
                Remedy("helm install gpu-operator nvidia/gpu-operator -n gpu-operator --create-namespace"),
                Remedy("kubectl explain clusterpolicy.spec"),
            ),
            confidence=CERTAIN,
        )


_TOOLKIT_FOR_2: Final[Version] = (1, 17)


@rule("OPR-26", "Versions pinned by an older guide", Place.RUNTIME, explains=("RUN-06", "RUN-01", "DPL-*", "SCH-02"))
def pinned(snapshot: Snapshot) -> Iterator[Finding]:
    """Toolkits before 1.17 do not know containerd 2."""
    for policy in snapshot.all("ClusterPolicy"):
        version = policy.text("spec.toolkit.version")
        if not version_of(version) or version_of(version) >= _TOOLKIT_FOR_2:
            continue
        newer = [
            node
            for node in matching.gpu_nodes(snapshot, matching.NVIDIA)
            if node.runtime[0] == "containerd" and version_of(node.runtime[1]) >= (2, 0)
        ]
        if newer:
            yield Finding(
                subject=policy.subject,
                cause=(
                    f"{policy} pins the toolkit to {version}, which does not know the configuration of containerd "
                    f"{newer[0].runtime[1]} on {len(newer)} nodes"
                ),
                evidence=(
                    policy.cite("spec.toolkit.version"),
                    newer[0].cite("status.nodeInfo.containerRuntimeVersion"),
                ),
                remedy=(
                    Remedy(
                        "take toolkit.version, devicePlugin.version and the like out of the values: each release of "
                        "the operator brings versions that go together"
                    ),
                ),
                confidence=CERTAIN,
                nodes=tuple(node.name for node in newer),
            )


@rule(
    "OPR-27",
    "A release without support",
    Place.CLUSTER,
    facts={"releases": "; ".join(f"{dotted(row.line)} is {row.support}" for row in RELEASES[::-1])},
)
def unsupported(snapshot: Snapshot) -> Iterator[Finding]:
    """{releases}, as is what is older."""
    for pod, release, evidence in releases(snapshot):
        row = release_of(dotted(release))
        if row is not None and row.support is Support.ENDED:
            yield Finding(
                subject=pod.subject,
                cause=f"{pod} is the operator's release {'.'.join(map(str, release))}, whose support has ended",
                evidence=(evidence,),
                remedy=(
                    Remedy(
                        "helm upgrade gpu-operator nvidia/gpu-operator -n gpu-operator --version v26.3.3  # CRDs first"
                    ),
                ),
                confidence=CERTAIN,
                level=Level.NOTE,
            )


@rule(
    "OPR-19",
    "Changes of operands do not last",
    Place.CLUSTER,
    rests_on=("NVIDIA/gpu-operator v26.7.0, source",),
)
def applied_by_hand(snapshot: Snapshot) -> Iterator[Finding]:
    """The operator compares nvidia.com/last-applied-hash and writes its DaemonSets anew: only the ClusterPolicy changes
    them for good.
    """
    for obj in snapshot.all("DaemonSet"):
        notes = obj.annotations
        if names.OPERATOR_LAST_APPLIED_HASH not in notes or names.LAST_APPLIED not in notes:
            continue
        if obj.namespace not in snapshot.once(matching.trusted) and not matching.believed(snapshot, obj):
            continue  # anybody may write such annotations on a DaemonSet of their own
        yield Finding(
            subject=obj.subject,
            cause=(
                f"{obj} is made by the operator, and a manifest was applied to it by hand: "
                "the operator puts back what was changed"
            ),
            evidence=(
                obj.cite(f"metadata.annotations[{names.OPERATOR_LAST_APPLIED_HASH}]"),
                obj.cite(f"metadata.annotations[{names.LAST_APPLIED}]"),
            ),
            remedy=(
                Remedy("make the change where it lasts:"),
                Remedy("kubectl edit clusterpolicy"),
                Remedy("kubectl -n {} annotate daemonset {} {}-", obj.namespace, obj.name, names.LAST_APPLIED),
            ),
            confidence=LIKELY,
            level=Level.NOTE,
        )
