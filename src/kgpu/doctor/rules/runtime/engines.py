"""Rows RUN: containerd, CRI-O, CDI and NRI."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, remedies
from kgpu.doctor.matching import TOOLKIT
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, Evidence, Finding, Place, Subject
from kgpu.doctor.objects import Obj, plain
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import EVENT, LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats.nri_support import unsupported


def _toolkit(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...]:
    """How the toolkit is on that node."""
    pods = matching.pods_of_part(snapshot, TOOLKIT, node=hit.node)
    if not pods:
        return (Evidence(object=f"Node {hit.node}", field="container toolkit's pod", value="none"),) if hit.node else ()
    bad = matching.failing(pods[0]) or matching.initialising(pods[0])
    return (bad.cite_status() if bad else pods[0].cite("status.phase"),)


_NO_CLASS: Final = re.compile(r'RuntimeClass \\?"(?P<name>[\w.-]+)\\?" not found')


@rule("RUN-02", "The RuntimeClass does not exist", Place.RUNTIME)
def no_class(snapshot: Snapshot) -> Iterator[Finding]:
    """Without the operator nobody makes the RuntimeClass nvidia; the API server refuses pods that name it."""
    for event in snapshot.all_events():
        if event.reason != "FailedCreate" or "RuntimeClass" not in event.message or "not found" not in event.message:
            continue
        kind, namespace, name = event.about
        maker = snapshot.get(kind, name, namespace)
        missing = _NO_CLASS.search(event.message)
        if maker is None and (missing is None or snapshot.knows(kind)):
            continue  # its kind was read, so it is gone, and only the event is left of it
        named = maker.text("spec.template.spec.runtimeClassName") if maker else ""
        wanted = plain(named or (missing["name"] if missing else "nvidia"))
        if snapshot.get("RuntimeClass", wanted) is not None:
            continue
        subject = maker.subject if maker else Subject(kind, name, namespace)
        yield Finding(
            subject=subject,
            cause=f"{subject} has no pods: it names the RuntimeClass {wanted}, which does not exist",
            evidence=(event.quote(), *(_named(maker, snapshot) if maker else ())),
            remedy=(
                remedies.runtime_class(wanted),
                Remedy("or take runtimeClassName out of the manifest where nvidia is the node's default runtime"),
            ),
            confidence=CERTAIN,
            since=event.first,
        )


def _named(maker: Obj, snapshot: Snapshot) -> tuple[Evidence, ...]:
    """The class that a template names, and those that there are, where that is known."""
    classes = (matching.cite_classes(snapshot, "RuntimeClass"),) if snapshot.knows("RuntimeClass") else ()
    return (maker.cite("spec.template.spec.runtimeClassName"), *classes)


@rule(
    "RUN-15",
    "The runtime is too old for the NRI plugin",
    Place.RUNTIME,
    also=("RUN-13",),
    rests_on=(
        "NVIDIA GPU Operator documentation: troubleshooting, release notes",
        "rwlove/home-ops#14313",
        "NVIDIA/gpu-operator#2356",
        "NVIDIA/gpu-operator#2357",
    ),
)
def nri_too_old(snapshot: Snapshot) -> Iterator[Finding]:
    """Injection by NRI needs containerd 1.7.30, 2.1 or 2.2 or later; CRI-O does not deliver management devices."""
    # The NRI plugin is on, and the runtime does not support it.
    for policy in snapshot.all("ClusterPolicy"):
        if policy.at("spec.cdi.nriPluginEnabled") is not True:
            continue
        bad = [
            (node, why)
            for node in matching.gpu_nodes(snapshot, matching.NVIDIA)
            if all(node.runtime) and (why := unsupported(*node.runtime))
        ]
        if not bad:
            continue
        node, why = bad[0]
        yield Finding(
            subject=policy.subject,
            cause=f"the NRI plugin is on, and the runtime of {len(bad)} GPU nodes does not support it: {why}",
            evidence=(policy.cite("spec.cdi.nriPluginEnabled"), node.cite("status.nodeInfo.containerRuntimeVersion")),
            remedy=(
                remedies.patch_policy(policy.name, {"spec": {"cdi": {"nriPluginEnabled": False}}}),
                Remedy("or upgrade the runtime of these nodes"),
            ),
            confidence=CERTAIN,
            nodes=tuple(node.name for node, _ in bad),
        )


RULES: Final = rules_of(
    Sign(
        id="RUN-01",
        title="The runtime handler is not configured",
        place=Place.RUNTIME,
        pattern=r"no runtime for \"(?P<handler>[^\"]+)\" is configured",
        words="no runtime for",
        cause=(
            "{who}: the container runtime of the node has no handler {handler}: the toolkit has not configured it, "
            "or not where the runtime looks"
        ),
        remedy=(
            remedies.PODS_ON_WIDE + " | grep toolkit",
            "on node {node}:",
            "kgpu runtime status; containerd config dump | grep -A3 nvidia",
            (
                "correct CONTAINERD_CONFIG and CONTAINERD_SOCKET in toolkit.env where the distribution has its own "
                "files, then restart the runtime"
            ),
        ),
        explain=(
            "Normal for a short time while the toolkit starts. When it lasts: the toolkit failed, wrote another file "
            "than the runtime reads (k3s, RKE2, MicroK8s), or the runtime was not restarted."
        ),
        proof=_toolkit,
        explains=("DPL-*", "SCH-02", "OPR-15"),
        rests_on=(
            "NVIDIA/gpu-operator#730",
            "NVIDIA/gpu-operator#413",
            "NVIDIA/gpu-operator#549",
            "NVIDIA/gpu-operator#759",
            "NVIDIA/gpu-operator#349",
            "NVIDIA/gpu-operator#432",
            "NVIDIA GPU Operator documentation: troubleshooting, release notes",
        ),
    ),
    Sign(
        id="RUN-06",
        title="The toolkit is older than containerd 2",
        place=Place.RUNTIME,
        pattern=r"unsupported config version: (?P<version>\d+)",
        words="unsupported config version",
        where=(LOG, STATUS),
        parts=(TOOLKIT,),
        cause="{who} does not know containerd's configuration version {version}: the toolkit is older than the runtime",
        remedy=(
            (
                "take toolkit.version out of the values, so that the operator's own release is used, "
                "or set v1.18.0 or later"
            ),
        ),
        explain="Configuration version 3 came with containerd 2; toolkits before 1.17 do not know it.",
        confidence=CERTAIN,
        explains=("RUN-01", "DPL-*", "SCH-02"),
        rests_on=("NVIDIA/gpu-operator#2060",),
    ),
    Sign(
        id="RUN-17",
        title="A management device in a workload",
        place=Place.RUNTIME,
        pattern=r"unresolvable CDI devices (?P<device>management\.nvidia\.com/gpu=\S+)",
        words="unresolvable CDI devices management",
        where=(EVENT, STATUS),
        cause="{who} was given the CDI device {device}, which is for the operator's own pods alone",
        remedy=("take runtimeClassName: nvidia-cdi out of the manifest, or use nvidia",),
        explain="The class nvidia-cdi is for operands; its spec has no device for a single GPU.",
        confidence=CERTAIN,
        rests_on=("NVIDIA/nvidia-container-toolkit#1239", "NVIDIA/nvidia-container-toolkit#1895"),
    ),
    Sign(
        id="RUN-18",
        title="A device that the node does not know",
        place=Place.RUNTIME,
        pattern=(
            r"(?:unresolvable CDI devices (?!management\.)(?=[\w.-]+/[\w.-]+=)|device error: (?=\S+: unknown device)"
            r"|unknown device:? \\?[\"']?(?=\w+[-/=]))(?P<device>[^\s\"'\\,;]+?)(?=:?(?:[\s\"'\\,]|$))"
        ),
        words="device",
        where=(EVENT, STATUS),
        cause=(
            "{who}: no CDI spec or driver on the node knows the device {device}: it was taken away, or specs and "
            "plugin are older than a change of GPUs or slices"
        ),
        remedy=(
            "on node {node}:",
            "kgpu cdi list; nvidia-smi -L",
            "on node {node}:",
            (remedies.CDI_ANEW + "  # or restart the toolkit's and the device plugin's pod there"),
        ),
        explain=(
            "The runtime resolves names from the specs in /etc/cdi and /var/run/cdi, or asks the driver for the UUID."
        ),
        confidence=CERTAIN,
        rests_on=("NVIDIA/nvidia-container-toolkit#434", "NVIDIA/nvidia-container-toolkit#146"),
    ),
    Sign(
        id="RUN-23",
        title="The driver's library is not found",
        place=Place.RUNTIME,
        pattern=r"load library failed: (?P<library>libnvidia-ml\.so\.1)",
        words="load library failed",
        where=(EVENT, STATUS, LOG),
        cause="{who}: {library} is not found where the toolkit looks: no driver on the node, or its root is another",
        remedy=(
            "on node {node}:",
            "sh -c 'ls /run/nvidia/driver/usr/lib/*/libnvidia-ml.so.1 /usr/lib/*/libnvidia-ml.so.1'",
            (
                "set the driver root to where it is: hostPaths.driverInstallDir in the ClusterPolicy, "
                "or install the driver"
            ),
        ),
        explain=(
            "nvidia-container-cli.root in the toolkit's config.toml points to / or to /run/nvidia/driver; "
            "the library is in neither."
        ),
        rests_on=("NVIDIA Container Toolkit documentation",),
    ),
)
