"""Rows IMG: images that can't be pulled or run, pods that were evicted for their disk, and memory that ran out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, messages, remedies
from kgpu.doctor.kinds import Pod
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Place
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import EVENT, LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot

_BELOW: Final = ("DRV-02", "DRV-03", "DPL-*", "SCH-02", "RUN-01", "OPR-15")
_IMAGE: Final = (
    r"(?:[Ff]ailed to pull|[Bb]ack-off pulling|[Ee]rror pulling)[^\n]*?image \\?\"?(?P<image>[\w.:/@-]+)\\?\"?[^\n]*"
)
_SLOW: Final = r"(?:context deadline exceeded|DeadlineExceeded|no progress|pull[^\n]{0,40}timed? ?out)"


def of_gpu(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """() for pods that use accelerators or are part of a stack while they wait for an image, else None."""
    del snapshot
    pod = hit.pod
    if pod is None or not (matching.uses_accelerators(pod) or matching.parts_of(pod)):
        return None
    bad = matching.failing(pod)
    waits = bad is not None and bad.waiting in matching.IMAGE_WORDS
    return () if waits or any(container.waiting == "ContainerCreating" for container in pod.containers) else None


def machine(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """The node's architecture."""
    node = snapshot.nodes.get(hit.node)
    if hit.pod is None or not (matching.uses_accelerators(hit.pod) or matching.parts_of(hit.pod)):
        return None
    return (node.cite("status.nodeInfo.architecture"),) if node else ()


def evicted(snapshot: Snapshot) -> Iterator[Finding]:
    """IMG-02 by pods that the kubelet evicted because the node's disk was full, unless replacements run already."""
    for pod in snapshot.pods.values():
        if pod.reason != "Evicted" or "ephemeral-storage" not in pod.message or not matching.uses_accelerators(pod):
            continue
        others = snapshot.pods_by_owner.get((pod.namespace, pod.owner), []) if pod.owner else []
        if any(sibling.ready for sibling in others):
            continue
        node = snapshot.nodes.get(pod.node)
        pressure = node.condition("DiskPressure") if node else None
        yield Finding(
            subject=pod.subject,
            cause=(
                f"{pod} was evicted from node {pod.node or '?'}: its disk was full of images, "
                "models or what the pod wrote"
            ),
            evidence=(pod.cite("status.message"), *((pressure.cite(),) if pressure else ())),
            remedy=(
                Remedy("on node {}:", pod.node or "NODE"),
                Remedy("crictl rmi --prune; df -h /var/lib/containerd /var/lib/kubelet"),
                Remedy(
                    "put models on a volume, set requests and limits of ephemeral-storage, "
                    "or give the node a bigger disk"
                ),
            ),
            confidence=CERTAIN,
            nodes=(pod.node,) if pod.node else (),
            pods=(pod.path,),
        )


_CUDA_MEMORY: Final = re.compile(r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY")


@rule("IMG-06", "Killed for the machine's memory", Place.CLUSTER)
def out_of_memory(snapshot: Snapshot) -> Iterator[Finding]:
    """OOMKilled (137) is the container's memory limit; the GPU's memory has its own error in the log."""
    for pod in snapshot.pods.values():
        if pod.ready or not matching.uses_accelerators(pod) or matching.superseded(snapshot, pod):
            continue
        for container in pod.containers:
            if container.end_reason != "OOMKilled" or container.ready:
                continue
            yield Finding(
                subject=pod.subject,
                cause=(
                    f"container {container.name} of {pod} was killed for the machine's memory (limit "
                    f"{container.limits.get('memory', 'none')}), not for the GPU's"
                ),
                evidence=(
                    container.cite_status("state" if container.state == "terminated" else "lastState"),
                    container.cite("resources.limits"),
                ),
                remedy=(
                    Remedy("raise resources.limits.memory of container {}", container.name),
                    Remedy("memory of the GPU that runs out is said in the log (CUDA out of memory), and ends with 1"),
                ),
                confidence=LIKELY if _says_cuda(snapshot, pod) else CERTAIN,
                nodes=(pod.node,) if pod.node else (),
                pods=(pod.path,),
            )
            break


def _says_cuda(snapshot: Snapshot, pod: Pod) -> bool:
    return next(messages.in_logs(snapshot, _CUDA_MEMORY, "CUDA", pods=(pod,)), None) is not None


_NO_NAME: Final = re.compile(r"couldn't parse image name \\?\"[^\"]*\": (?P<why>.+)")


def no_name(snapshot: Snapshot) -> Iterator[Finding]:
    """IMG-07: an image name that is not valid."""
    for pod in snapshot.pods.values():
        for container in pod.containers if not pod.ready else ():
            if container.waiting != "InvalidImageName" or not (
                matching.uses_accelerators(pod) or matching.parts_of(pod)
            ):
                continue
            hit = _NO_NAME.search(container.message)
            yield Finding(
                subject=pod.subject,
                cause=f"{pod}: {container.image} is no image's name" + (f": {hit['why']}" if hit else ""),
                evidence=(container.cite_status(), container.cite("image")),
                remedy=(Remedy("correct the image in the manifest: HOST/PATH:TAG, in small letters but for the tag"),),
                confidence=CERTAIN,
                nodes=(pod.node,) if pod.node else (),
                pods=(pod.path,),
            )
            break


RULES: Final = rules_of(
    Sign(
        id="IMG-01",
        title="The image takes too long",
        place=Place.CLUSTER,
        pattern=_IMAGE + _SLOW,
        words="ull",
        where=(EVENT, STATUS),
        cause="{who}: pulling {image} was given up for its time; images with CUDA have 10 to 20 GB",
        remedy=(
            "crictl pull {image}  # on node {node}, once",
            "pull it beforehand with a DaemonSet, use a registry near by, or a smaller base",
        ),
        explain="The runtime gives up when a layer makes no progress; slow registries and full disks do that.",
        proof=of_gpu,
        explains=_BELOW,
    ),
    Sign(
        id="IMG-02",
        title="The node's disk is full",
        place=Place.CLUSTER,
        pattern=_IMAGE + r"no space left on device",
        words="no space left on device",
        where=(EVENT, STATUS),
        cause="{who}: {image} does not fit on the disk of node {node}",
        remedy=(
            "on node {node}:",
            "crictl rmi --prune; df -h /var/lib/containerd /var/lib/kubelet",
            "give the folder of the runtime's images a bigger disk",
        ),
        explain=(
            "Images that don't fit can't be unpacked, and the kubelet evicts pods when the node's disk is nearly full; "
            "large images and models fill it."
        ),
        confidence=CERTAIN,
        proof=of_gpu,
        besides=evicted,
    ),
    Sign(
        id="IMG-03",
        title="The registry wants a login",
        place=Place.CLUSTER,
        pattern=_IMAGE
        + (
            r"(?:401 Unauthorized|403 Forbidden|unauthorized|authentication required|no basic auth credentials"
            r"|authorization failed|access denied|denied: )"
        ),
        words="ull",
        where=(EVENT, STATUS),
        cause=(
            "{who}: the registry refuses {image} without a login: "
            "there is no pull secret for it in namespace {namespace}"
        ),
        remedy=(
            (
                "kubectl -n {namespace} create secret docker-registry ngc --docker-server=nvcr.io "
                "--docker-username='$oauthtoken' --docker-password=\"$NGC_API_KEY\""
            ),
            "name it in imagePullSecrets: of the pod, or of each component of the ClusterPolicy",
        ),
        explain="Images of NVIDIA AI Enterprise and of vGPU need a key; the user is literally $oauthtoken.",
        confidence=CERTAIN,
        proof=of_gpu,
        explains=_BELOW,
        rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
    ),
    Sign(
        id="IMG-04",
        title="The registry can't be reached",
        place=Place.CLUSTER,
        pattern=_IMAGE
        + (
            r"(?:x509: |proxyconnect|no such host|server misbehaving|Method Not Allowed|Proxy Authentication Required"
            r"|(?:Bad Gateway|Gateway Time-?out|Service Unavailable)"
            r"|(?:unexpected|invalid)[^\n]{0,20} status[^\n]{0,200}[: ](?:405|407|502|503|504)\b|TLS handshake timeout"
            r"|tls: |net/http: request canceled while waiting for connection"
            r"|dial tcp[^\n]*(?:i/o timeout|no route to host|connection refused|network is unreachable))"
        ),
        words="ull",
        where=(EVENT, STATUS),
        cause=(
            "{who}: node {node} can't reach the registry of {image}, or does not trust it: "
            "the container runtime lacks the proxy or the CA"
        ),
        remedy=(
            "on node {node}:",
            "systemctl edit containerd  # Environment=HTTPS_PROXY=... NO_PROXY=...",
            (
                "on node {node}: put the CA into /usr/local/share/ca-certificates, update-ca-certificates, "
                "systemctl restart containerd"
            ),
        ),
        explain="Images are pulled by the runtime on the node; a proxy in a pod's environment does not help.",
        confidence=CERTAIN,
        proof=of_gpu,
        explains=_BELOW,
        rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
    ),
    Sign(
        id="IMG-05",
        title="An image for another machine",
        place=Place.CLUSTER,
        pattern=r"exec format error",
        words="exec format error",
        where=(LOG, STATUS, EVENT),
        cause="{who}: the image is for another architecture than the node's",
        remedy=(
            remedies.filled(remedies.NODE_FIELD, field="status.nodeInfo.architecture"),
            "use an image that is built for it (Grace and Jetson: arm64), or select nodes by kubernetes.io/arch",
        ),
        explain="A tag with one architecture starts on no other.",
        confidence=CERTAIN,
        proof=machine,
        explains=_BELOW,
    ),
    Sign(
        id="IMG-07",
        title="There is no such image",
        place=Place.CLUSTER,
        pattern=_IMAGE + r"(?:manifest[^\n]*(?:unknown|not found)|: not found|name unknown|repository does not exist)",
        words="ull",
        where=(EVENT, STATUS),
        cause="{who}: {image} does not exist in its registry",
        remedy=(
            "see which tags there are, with HOST/PATH of the image in place of REPOSITORY, or on the registry's page:",
            "skopeo list-tags docker://REPOSITORY",
            (
                "tags of nvidia/cuda and pytorch carry the patch: nvidia/cuda:12.1.0-base-ubuntu22.04, "
                "pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime"
            ),
        ),
        explain="Guides shorten tags, and old tags are removed.",
        confidence=CERTAIN,
        proof=of_gpu,
        explains=_BELOW,
        besides=no_name,
    ),
)
