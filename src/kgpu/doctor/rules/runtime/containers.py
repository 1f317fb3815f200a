"""Rows RUN known by a message, or by the order in which a node's containers started."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, messages, remedies
from kgpu.doctor.kinds import Container, Pod
from kgpu.doctor.matching import CREATE_WORDS, DRIVER
from kgpu.doctor.messages import Hit
from kgpu.doctor.model import CERTAIN, LIKELY, Evidence, Finding, Level, Place
from kgpu.doctor.rule import rule
from kgpu.doctor.rules.runtime.files import old_spec, started, toolkits
from kgpu.doctor.signs import EVENT, KERNEL, LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot
from kgpu.formats import names

_BELOW: Final = ("RUN-01", "DPL-*", "SCH-02", "OPR-15")
_STUCK: Final = 10 * 60.0
_NEAR: Final = 5 * 60.0
_CAPABILITIES: Final = names.ENV_DRIVER_CAPABILITIES


@rule(
    "RUN-04",
    "Created and never started",
    Place.RUNTIME,
    rests_on=("NVIDIA/gpu-operator#991", "containerd/containerd#10437"),
)
def never_started(snapshot: Snapshot) -> Iterator[Finding]:
    """containerd was restarted while the kubelet was starting containers; such a container never starts."""
    for node, pods in snapshot.pods_by_node.items():
        restarts = [when for toolkit in snapshot.once(toolkits).get(node, []) if (when := started(toolkit)) is not None]
        for pod in pods if restarts else ():
            if pod.ready or pod.ended or matching.failing(pod):
                continue
            events = snapshot.events(pod)
            last = next(
                (event for event in events if event.reason in ("Created", "Started", "Killing", "Failed", "BackOff")),
                None,
            )
            if last is None or last.reason != "Created" or (snapshot.age(last.last) or 0) < _STUCK:
                continue
            if any(event.reason == "Started" and event.when >= last.when for event in events):
                continue
            if any(abs(last.when - when) < _NEAR for when in restarts):
                yield Finding(
                    subject=pod.subject,
                    cause=(
                        f"{pod} on node {node} has a container that was created and never started: the runtime was "
                        "restarted by the toolkit just then"
                    ),
                    evidence=(last.quote(), pod.cite("status.phase")),
                    remedy=(remedies.delete_pod(pod.namespace, pod.name),),
                    confidence=LIKELY,
                    since=last.last,
                    nodes=(node,),
                    pods=(pod.path,),
                )


@rule(
    "RUN-16",
    "CRI-O waits for the driver",
    Place.RUNTIME,
    explains=("OPR-15", "DPL-18"),
    rests_on=("cri-o/cri-o#9521",),
)
def before_driver(snapshot: Snapshot) -> Iterator[Finding]:
    """Right after an install or upgrade operands are at CreateContainerError until the driver is up."""
    # CRI-O creates no container of operands until the driver is up; that heals.
    for pod in matching.pods_of_part(snapshot, DRIVER, vendor=matching.NVIDIA):
        node = snapshot.nodes.get(pod.node)
        if node is None or node.runtime[0] != "cri-o" or pod.ready or matching.failing(pod):
            continue
        waits = [
            (waiting_pod, bad)
            for waiting_pod in snapshot.pods_by_node.get(pod.node, ())
            if waiting_pod.key != pod.key
            and matching.parts_of(waiting_pod)
            and (bad := matching.failing(waiting_pod))
            and bad.waiting in CREATE_WORDS
        ]
        if waits:
            yield Finding(
                subject=pod.subject,
                cause=(
                    f"{len(waits)} operands on node {pod.node} can't be created by CRI-O until {pod} has loaded the "
                    "driver; they go on by themselves"
                ),
                evidence=(waits[0][1].cite_status(), pod.cite("status.phase")),
                remedy=(
                    Remedy("kubectl -n {} wait --for=condition=Ready pod/{} --timeout=20m", pod.namespace, pod.name),
                ),
                confidence=LIKELY,
                level=Level.WAIT,
                expected="until the driver's pod is ready, 3 to 10 minutes",
                nodes=(pod.node,),
                pods=tuple(waiting_pod.path for waiting_pod, _ in waits),
            )


_SANDBOX: Final = re.compile(
    r"no runtime for \"|unresolvable CDI devices|nvidia-container-(?:runtime|cli).*(?:no such file|not found)"
)


@rule(
    "RUN-29",
    "Started before the toolkit after a boot",
    Place.RUNTIME,
    explains=("RUN-01", "RUN-18", "RUN-23", "DPL-11"),
)
def too_early(snapshot: Snapshot) -> Iterator[Finding]:
    """The kubelet starts pods before the toolkit has written the runtime's configuration."""
    # Refused before the toolkit was ready after a boot; now it is, and the pod was not tried again.
    for hit in messages.in_events(snapshot, _SANDBOX, ""):
        pod = hit.pod
        if pod is None or pod.ready or not pod.node or matching.parts_of(pod):
            continue
        last = max((event.when for event in snapshot.events(pod) if _SANDBOX.search(event.message)), default=0.0)
        for toolkit in snapshot.once(toolkits).get(pod.node, []):
            ready = started(toolkit)
            if not toolkit.ready or ready is None or not last or last >= ready or snapshot.taken - ready < _NEAR:
                continue
            yield Finding(
                subject=pod.subject,
                cause=(
                    f"{pod} was started on node {pod.node} before the toolkit was ready there, "
                    "and has not been tried since"
                ),
                evidence=(
                    hit.evidence,
                    Evidence(str(toolkit), "started after that", toolkit.text("status.startTime") or "later"),
                ),
                remedy=(
                    remedies.delete_pod(pod.namespace, pod.name).why("its controller makes a new one"),
                    Remedy(
                        "against the next time: a startup taint that is removed when the toolkit is ready, or a "
                        "systemd drop-in that lets the kubelet wait"
                    ),
                ),
                confidence=CERTAIN,
                nodes=(pod.node,),
                pods=(pod.path,),
            )


@rule(
    "RUN-20",
    "Docker leaves claims' devices out",
    Place.RUNTIME,
    rests_on=("Mirantis/cri-dockerd#558",),
)
def no_cdi(snapshot: Snapshot) -> Iterator[Finding]:
    """DRA gives devices by CDI, which cri-dockerd does not hand on."""
    for node in snapshot.nodes.values():
        if node.runtime[0] != "docker":
            continue
        pods = [
            pod for pod in snapshot.pods_by_node.get(node.name, ()) if pod.list("spec.resourceClaims") and not pod.ended
        ]
        if pods:
            yield Finding(
                subject=node.subject,
                cause=(
                    f"node {node.name} runs Docker, which leaves out the devices of claims: "
                    f"{pods[0]} runs without its device"
                ),
                evidence=(node.cite("status.nodeInfo.containerRuntimeVersion"), pods[0].cite("spec.resourceClaims")),
                remedy=(Remedy("bring the node to containerd or CRI-O; cri-dockerd does not hand CDI devices on"),),
                confidence=CERTAIN,
                nodes=(node.name,),
                pods=tuple(pod.path for pod in pods),
            )


def by_toolkit(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """Only on a node where a toolkit works on the runtime's files."""
    pods = snapshot.once(toolkits).get(hit.node, []) if hit.node else []
    return (pods[0].cite("status.phase"),) if pods else None


def links(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...]:
    """The host's links below /dev/char, which keep devices allowed after a daemon-reload."""
    host = snapshot.hosts.get(hit.node)
    if host is None or host.devices is None:
        return ()
    device_links = [name for name in host.devices if name.startswith("char/195:")]
    return (host.cite("devices", ", ".join(device_links) or "no links /dev/char/195:*"),)


def _main(pod: Pod) -> list[Container]:
    return [container for container in pod.containers if not container.init]


def without_video(snapshot: Snapshot, hit: Hit) -> tuple[Evidence, ...] | None:
    """The capabilities variable; None where it has all of them, so that the library is missing for another reason."""
    del snapshot
    if hit.pod is None or any("all" in container.env.get(_CAPABILITIES, "") for container in _main(hit.pod)):
        return None
    return tuple(matching.cite_env(hit.pod, container, _CAPABILITIES) for container in _main(hit.pod)[:1])


RULES: Final = rules_of(
    Sign(
        id="RUN-09",
        title="The network's plugin is not found any more",
        place=Place.RUNTIME,
        pattern=r"failed to find plugin \"(?P<plugin>[^\"]+)\" in path",
        words="failed to find plugin",
        where=(EVENT, STATUS),
        cause=(
            "{who}: containerd does not find the network plugin {plugin}: "
            "the path was lost when the toolkit wrote its configuration"
        ),
        remedy=(
            "on node {node}:",
            "containerd config dump | grep -n bin_dir",
            "use a newer toolkit, or set bin_dir of the CNI in containerd's own file again, and restart containerd",
        ),
        explain=(
            "Older toolkits rewrote the whole table of the CRI plugin; settings such as the CNI's bin_dir went with it."
        ),
        explains=_BELOW,
        proof=by_toolkit,
        rests_on=("NVIDIA/nvidia-container-toolkit#1222",),
    ),
    Sign(
        id="RUN-12",
        title="CRI-O's folder of hooks is missing",
        place=Place.RUNTIME,
        pattern=(
            r"oci/hooks\.d\S*[^\n]*(?:no such file|not found|permission denied|does not exist)"
            r"|(?:no such file|not found)[^\n]*oci/hooks\.d"
        ),
        words="hooks.d",
        where=(LOG, STATUS, EVENT),
        cause="{who}: the folder of OCI hooks is not there, so that CRI-O starts containers without GPUs",
        remedy=(
            "on node {node}:",
            "mkdir -p /usr/share/containers/oci/hooks.d && systemctl restart crio",
            "or inject devices by CDI: cdi.enabled=true in the ClusterPolicy",
        ),
        explain="In the mode of hooks the toolkit puts a file in that folder, and CRI-O must look there (hooks_dir).",
        explains=_BELOW,
        rests_on=("NVIDIA/gpu-operator#448", "NVIDIA/gpu-operator#280"),
    ),
    Sign(
        id="RUN-19",
        title="The CDI spec names files that are gone",
        place=Place.RUNTIME,
        pattern=(
            r"(?:stat|lstat|open|mount\w*) \S*lib(?:cuda|nvidia)[\w.-]*\.so\."
            r"(?P<version>\d+\.\d+(?:\.\d+)?)\S*: no such file"
        ),
        words="no such file",
        where=(EVENT, STATUS),
        cause="{who}: the CDI spec of the node names files of driver {version}, which is not there any more",
        remedy=(
            "on node {node}:",
            remedies.CDI_ANEW,
            "or restart the toolkit's pod there, which makes it anew",
        ),
        explain="Specs name files with the driver's version; after an upgrade they must be made anew.",
        confidence=CERTAIN,
        besides=old_spec,
        rests_on=("NVIDIA Container Toolkit documentation",),
    ),
    Sign(
        id="RUN-21",
        title="A running pod lost its GPU",
        place=Place.RUNTIME,
        pattern=r"Failed to initialize NVML: Unknown Error",
        words="Unknown Error",
        where=(LOG,),
        always=True,
        cause=(
            "{who} has lost its GPU while it ran: systemd has rebuilt the container's device rules (systemctl "
            "daemon-reload) without it"
        ),
        remedy=(
            remedies.DELETE_POD + "  # a new one gets its GPU",
            "for good: inject by CDI (cdi.enabled=true), or on node {node}:",
            remedies.DEVICE_LINKS,
        ),
        explain="With the systemd cgroup driver a reload restores only devices that have links below /dev/char.",
        proof=links,
        rests_on=(
            "NVIDIA/nvidia-container-toolkit#48",
            "NVIDIA/nvidia-container-toolkit#251",
            "NVIDIA/nvidia-container-toolkit#1227",
            "NVIDIA/nvidia-docker#1730",
        ),
    ),
    Sign(
        id="RUN-22",
        title="The driver answers too slowly",
        place=Place.RUNTIME,
        pattern=r"nvidia-container-cli: initialization error: driver rpc error: timed out",
        words="driver rpc error",
        where=(EVENT, STATUS, LOG),
        cause="{who}: the driver of the node took too long to answer when the container was made",
        remedy=("on node {node}: time nvidia-smi; dmesg | grep -i xid", "systemctl enable --now nvidia-persistenced"),
        explain="Without persistence mode the driver starts every GPU anew; one that is ill takes longest.",
        rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
    ),
    Sign(
        id="RUN-25",
        title="Libraries for video or graphics are not injected",
        place=Place.RUNTIME,
        pattern=(
            r"(?P<library>lib(?:nvcuvid|nvidia-encode|nvidia-opticalflow|EGL_nvidia|GLX_nvidia"
            r"|nvoptix)\.so[\w.]*)[^\n]*(?:cannot open shared object|not found|no such file)"
            r"|(?:Cannot|Failed to|Could not) load (?P<other>lib(?:nvcuvid|nvidia-encode|EGL_nvidia)\S*)"
        ),
        words="lib",
        where=(LOG, STATUS),
        cause="{who} does not find {library}{other}: the container has the capabilities compute and utility alone",
        remedy=("set NVIDIA_DRIVER_CAPABILITIES=all (or compute,utility,video,graphics) in the container's env",),
        explain="The toolkit injects libraries by capability; the default is compute,utility.",
        proof=without_video,
    ),
    Sign(
        id="RUN-28",
        title="SELinux forbids the device",
        place=Place.RUNTIME,
        pattern=r"avc:\s+denied\s+\{[^}]*\}[^\n]*(?:nvidia|device-plugins|kubelet\.sock)",
        words="avc:",
        where=(KERNEL, LOG),
        cause="{who}: SELinux refuses a container the GPU's device files or the kubelet's socket",
        remedy=(
            "on node {node}:",
            "setsebool -P container_use_devices on",
            (
                "and give the plugin's pod a security context (or an SCC) that may: privileged, "
                "or seLinuxOptions.type spc_t"
            ),
        ),
        explain="The audit lines name the process and the file.",
        explains=("DPL-*", "SCH-02"),
        rests_on=("OpenShift documentation",),
    ),
)
