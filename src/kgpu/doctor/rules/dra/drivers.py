"""Rows DRA that the drivers report in logs and events, or that show in what runs on the nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, messages, remedies
from kgpu.doctor.matching import DRA
from kgpu.doctor.model import CERTAIN, LIKELY, Finding, Level, Place
from kgpu.doctor.objects import Obj
from kgpu.doctor.rule import rule
from kgpu.doctor.rules.quota.refused import maker_of, refused
from kgpu.doctor.signs import EVENT, LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names

_SOON: Final = 300.0


@rule("DRA-11", "A claim of an old form", Place.CLUSTER)
def _old_field(snapshot: Snapshot) -> Iterator[Finding]:
    """Until 1.30 the names were below source:; now resourceClaimName and resourceClaimTemplateName are fields of the
    entry, one of them.
    """
    for event in refused(snapshot):
        if "must specify one of" in event.message and "resourceClaimTemplateName" in event.message:
            subject = maker_of(snapshot, event)
            yield Finding(
                subject=subject,
                cause=(
                    f"{subject} has no pods: an entry of its spec.resourceClaims names neither a claim nor a "
                    "template, or both"
                ),
                evidence=(event.quote(),),
                remedy=(
                    Remedy(
                        "write one flat field: resourceClaimName: NAME, or resourceClaimTemplateName: NAME (source: "
                        "was taken away in 1.31)"
                    ),
                ),
                confidence=CERTAIN,
                since=event.first,
            )


@rule(
    "DRA-19",
    "Two releases of the DRA driver",
    Place.PLUGIN,
    rests_on=("kubernetes-sigs/dra-driver-nvidia-gpu, documentation",),
)
def _two_releases(snapshot: Snapshot) -> Iterator[Finding]:
    """After a rename of the chart the old and the new release both publish slices."""
    by_node: dict[str, dict[str, Obj]] = {}
    for pod in matching.pods_of_part(snapshot, DRA):
        plugin = any("gpu-kubelet-plugin" in " ".join(container.words) for container in pod.containers)
        if plugin and pod.node and not pod.ended and not pod.deleting:
            by_node.setdefault(pod.node, {})[f"{pod.namespace}/{pod.owner}"] = pod
    nodes = sorted(node for node, owners in by_node.items() if len(owners) > 1)
    if nodes:
        pods = dict(sorted(by_node[nodes[0]].items()))
        yield Finding(
            subject=next(iter(pods.values())).subject,
            cause=(
                f"{len(nodes)} nodes run the DRA driver twice, of {' and '.join(sorted(pods))}: "
                "both publish the same devices"
            ),
            evidence=tuple(pod.cite("metadata.ownerReferences[0].name") for pod in pods.values()),
            remedy=(
                Remedy("helm list -A | grep dra"),
                Remedy("uninstall the older release; a renamed chart keeps its objects only with nameOverride"),
            ),
            confidence=CERTAIN,
            nodes=tuple(nodes),
        )


@rule(
    "DRA-15",
    "The ComputeDomain is not ready",
    Place.CLUSTER,
    rests_on=("kubernetes-sigs/dra-driver-nvidia-gpu, documentation",),
)
def _domain_waits(snapshot: Snapshot) -> Iterator[Finding]:
    """IMEX daemons on all nodes have to reach each other over one NVLink fabric; a daemon on the host takes their
    ports.
    """
    for domain in snapshot.all("ComputeDomain"):
        if domain.text("status.status") != "NotReady":
            continue
        nodes = [
            snapshot.nodes[name]
            for row in domain.maps("status.nodes")
            if (name := str(row.get("name"))) in snapshot.nodes
        ]
        imex = [host for host in snapshot.hosts.values() if "nvidia-imex.service" in (host.units or ())]
        bare = [node for node in nodes if names.LABEL_GPU_CLIQUE not in node.labels]
        age = snapshot.age(domain.created)
        proven = bool(imex or bare)
        early = not proven and age is not None and age < _SOON
        why = (
            f"nvidia-imex.service runs on the host {imex[0].node} and keeps the ports" if imex
            else f"node {bare[0].name} has no label nvidia.com/gpu.clique, so no NVLink fabric" if bare
            else "its IMEX daemons have not found each other"
        )  # fmt: skip
        steps = (
            (Remedy("on node {}:", imex[0].node), Remedy("systemctl disable --now nvidia-imex.service")) if imex else ()
        )
        yield Finding(
            subject=domain.subject,
            cause=f"{domain} is not ready: {why}",
            evidence=(
                domain.cite("status"),
                *(host.cite("units", "nvidia-imex.service") for host in imex[:1]),
                *(node.cite("metadata.labels[nvidia.com/gpu.clique]") for node in bare[:1]),
            ),
            remedy=(
                *steps,
                Remedy("kubectl get pods -A -o wide -l resource.nvidia.com/computeDomain"),
                Remedy("let TCP 50000 and 50005 through between the nodes, and see on each the state of the fabric:"),
                Remedy("nvidia-smi -q | grep -A 3 Fabric"),
            ),
            confidence=CERTAIN if proven else LIKELY,
            level=Level.WAIT if early else Level.PROBLEM,
            expected="a couple of minutes (DeadlineExceeded in its daemons' logs is normal until then)"
            if early
            else "",
            since=domain.created,
            nodes=tuple(node.name for node in nodes),
        )


_OVERRIDE: Final = (
    Remedy("take the device plugin off the nodes in question, then: --set gpuResourcesEnabledOverride=true"),
    Remedy("or leave GPUs to the device plugin: --set resources.gpus.enabled=false"),
)
_REFUSED: Final = re.compile(r"gpuResourcesEnabledOverride")


def _chart_refuses(snapshot: Snapshot) -> Iterator[Finding]:
    """DRA-12 as those say it who install charts: Flux, Argo CD, Rancher."""
    for obj, _, evidence in messages.in_conditions(
        snapshot, _REFUSED, kinds=("HelmRelease", "Application", "HelmChart")
    ):
        yield Finding(
            subject=obj.subject,
            cause=(
                f"{obj} does not install the DRA driver: resources.gpus.enabled wants "
                "gpuResourcesEnabledOverride=true beside it"
            ),
            evidence=(evidence,),
            remedy=_OVERRIDE,
            confidence=CERTAIN,
        )


RULES: Final = rules_of(
    Sign(
        id="DRA-05",
        title="A selector is not CEL",
        place=Place.CLUSTER,
        where=(EVENT,),
        pattern=r"(?:ResourceClaim|resourceclaim|selectors|cel).*ERROR: <input>:(?P<at>\d+:\d+): ?(?P<said>.{0,160})",
        words="ERROR: <input>:",
        cause="no claim can be made for {who}: a selector does not compile at {at}: {said}",
        remedy=(
            (
                "correct the expression; amounts are compared as "
                'device.capacity["DRIVER"].memory.compareTo(quantity("40Gi")) >= 0'
            ),
        ),
        explain="Selectors are checked when the claim is created: a quantity can't be compared with a text or by >=.",
        confidence=CERTAIN,
    ),
    Sign(
        id="DRA-08",
        title="The driver can't prepare the devices",
        place=Place.PLUGIN,
        where=(EVENT, STATUS),
        pattern=r"[Ff]ailed to prepare dynamic resources:? ?(?P<said>.+)",
        words="prepare dynamic resources",
        cause="{who} does not start, because its devices can't be prepared: {said}",
        remedy=(
            remedies.PODS_ON_WIDE + " | grep dra",
            remedies.ASK_DOCTOR,
        ),
        explain=(
            "The kubelet asks the DRA driver on the node to prepare what was allocated (NodePrepareResources). What "
            "follows in the event is the driver's own error."
        ),
        rests_on=("kubernetes-sigs/dra-driver-nvidia-gpu, documentation",),
    ),
    Sign(
        id="DRA-09",
        title="The DRA driver is not registered",
        place=Place.PLUGIN,
        where=(EVENT, STATUS),
        pattern=r"DRA driver (?P<driver>\S+) is not registered",
        words="is not registered",
        cause="{who} does not start: the DRA driver {driver} is not registered with the kubelet of node {node}",
        remedy=(
            remedies.PODS_ON_WIDE + " | grep dra",
            "delete the driver's pod on {node} so that it registers again",
        ),
        explain="The driver's pod on the node is down or starts again, or its registration socket is gone.",
        confidence=CERTAIN,
        explains=("DRA-08",),
        rests_on=("kubernetes-sigs/dra-driver-nvidia-gpu, documentation",),
    ),
    Sign(
        id="DRA-10",
        title="Kubelet and driver speak other versions",
        place=Place.PLUGIN,
        where=(EVENT, STATUS, LOG),
        pattern=r"failed to fetch ResourceClaim .*the server could not find the requested resource",
        words="could not find the requested resource",
        cause=(
            "{who}: the DRA driver or the kubelet asks for a version of resource.k8s.io "
            "that this API server does not serve"
        ),
        remedy=(
            "kubectl api-versions | grep resource.k8s.io",
            "install the release of the DRA driver that is made for this Kubernetes",
        ),
        explain="v1 came with Kubernetes 1.34; a driver or kubelet of another time asks for v1beta1 or v1.",
        confidence=CERTAIN,
        explains=("DRA-08",),
        rests_on=("kubernetes-sigs/dra-driver-nvidia-gpu#766",),
    ),
    Sign(
        id="DRA-12",
        title="The chart refuses GPUs without the override",
        place=Place.CLUSTER,
        where=(LOG, STATUS),
        pattern=(
            r"resources\.gpus\.enabled[^\n]*gpuResourcesEnabledOverride"
            r"|gpuResourcesEnabledOverride[^\n]*resources\.gpus\.enabled"
        ),
        words="gpuResourcesEnabledOverride",
        cause=(
            "{who}: the DRA driver's chart is not installed, since resources.gpus.enabled wants "
            "gpuResourcesEnabledOverride=true beside it"
        ),
        remedy=_OVERRIDE,
        explain=(
            "GPUs by DRA and by the device plugin on one node are counted twice: "
            "the chart wants to be told that this is meant."
        ),
        confidence=CERTAIN,
        besides=_chart_refuses,
        rests_on=("kubernetes-sigs/dra-driver-nvidia-gpu, documentation",),
    ),
    Sign(
        id="DRA-13",
        title="The DRA driver looks for the GPU driver in the wrong place",
        place=Place.DRIVER,
        where=(LOG,),
        pattern=r"Check failed\. Has the NVIDIA GPU driver been set up\?",
        words="Check failed. Has the NVIDIA GPU driver",
        cause="{who} finds no GPU driver under its nvidiaDriverRoot",
        remedy=(
            "set nvidiaDriverRoot to / for a driver on the host, to /run/nvidia/driver for the operator's",
            "on {node}:",
            "ls /usr/bin/nvidia-smi /run/nvidia/driver/usr/bin/nvidia-smi",
        ),
        explain=(
            "The chart's nvidiaDriverRoot says where the driver is installed: "
            "the host's / or the driver container's /run/nvidia/driver."
        ),
        explains=("DRA-07", "DRA-09"),
        rests_on=("kubernetes-sigs/dra-driver-nvidia-gpu 22407113, source",),
    ),
    Sign(
        id="DRA-14",
        title="The GPU driver is too old for ComputeDomains",
        place=Place.DRIVER,
        where=(LOG, STATUS),
        parts=(DRA,),
        always=True,
        pattern=r"requires GPU driver version >= (?P<wanted>[\d.]+), but found (?P<found>[\d.]+)",
        words="requires GPU driver version",
        cause="{who}: the GPU driver of node {node} is {found}, ComputeDomains want {wanted} or newer",
        remedy=("upgrade the driver to {wanted}, or turn the feature gate IMEXDaemonsWithDNSNames off in the chart",),
        explain="ComputeDomains need 570.158.01; claims for GPUs 565.",
        confidence=CERTAIN,
        explains=("DRA-07", "DRA-09", "DRA-15"),
        rests_on=("kubernetes-sigs/dra-driver-nvidia-gpu 22407113, source",),
    ),
    Sign(
        id="DRA-16",
        title="The DRA driver's checkpoint is out of step",
        place=Place.PLUGIN,
        where=(EVENT, STATUS, LOG),
        pattern=r"requested device (?P<device>\S+) is already allocated to different claim (?P<claim>\S+)",
        words="is already allocated to different claim",
        cause="{who}: the driver on node {node} has device {device} down for claim {claim}, which the cluster does not",
        remedy=(
            "kubectl get resourceclaims -A -o wide | grep {claim}",
            "upgrade the driver; if no claim has that uid, delete the driver's checkpoint on {node} and its pod",
        ),
        explain="After a crash or reboot the checkpoint of the kubelet plugin can name claims that are gone.",
        confidence=CERTAIN,
        explains=("DRA-08",),
        rests_on=("kubernetes-sigs/dra-driver-nvidia-gpu#951",),
    ),
    Sign(
        id="DRA-17",
        title="MPS with dynamic MIG",
        place=Place.PLUGIN,
        where=(LOG, EVENT, STATUS),
        always=True,
        pattern=r"MPS is not yet supported when using featureGates\.DynamicMIG",
        words="MPS is not yet supported",
        cause="{who} is told to use MPS with dynamic MIG, which the DRA driver can't do",
        remedy=("turn one of featureGates.DynamicMIG and featureGates.MPSSupport off in the chart's values",),
        explain="The driver refuses the two feature gates together.",
        confidence=CERTAIN,
        explains=("DRA-07", "DRA-09"),
        rests_on=("kubernetes-sigs/dra-driver-nvidia-gpu 22407113, source",),
    ),
    Sign(
        id="DRA-21",
        title="The parameters are refused",
        place=Place.CLUSTER,
        where=(EVENT,),
        pattern=r"denied (?:the )?request: .*(?:opaque|(?:Gpu|MigDevice|ComputeDomain\w*)Config|unknown field).*",
        words="request: ",
        cause="no claim can be made for {who}: the DRA driver's admission refuses its parameters",
        remedy=(
            "correct spec.devices.config[].opaque.parameters: unknown fields are refused",
            remedies.DESCRIBE_POD,
        ),
        explain="Opaque parameters are checked when they are written, by the driver's webhook or by kgpu's policy.",
        confidence=CERTAIN,
        rests_on=("kubernetes-sigs/dra-driver-nvidia-gpu 22407113, source",),
    ),
)
