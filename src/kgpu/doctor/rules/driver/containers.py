"""Rows DRV: the driver in user space, and the driver that the operator brings."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from kgpu.base.errors import DriverFault
from kgpu.base.plain import text
from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, messages, remedies
from kgpu.doctor.agent_reports import unread
from kgpu.doctor.matching import DRIVER, DRIVER_MANAGER
from kgpu.doctor.model import CERTAIN, LIKELY, Finding, Level, Place, Subject
from kgpu.doctor.objects import at
from kgpu.doctor.progress import last_line
from kgpu.doctor.rule import rule
from kgpu.doctor.signs import LOG, STATUS, Sign, rules_of
from kgpu.doctor.snapshot import Snapshot

_HOLD: Final = (
    Remedy("keep the packages from being upgraded by themselves:"),
    Remedy("apt-mark hold 'nvidia-*' 'libnvidia-*'"),
)
_REBUILD: Final = Remedy("apt install linux-headers-$(uname -r) && dkms autoinstall && modprobe nvidia")
_BUDGET: Final = 20 * 60
_BELOW: Final = ("DRV-02", "DRV-03", "DPL-*", "SCH-02", "RUN-01", "OPR-15")


_REFUSED: Final = re.compile(
    r"API mismatch: the client (?:'[^']{0,64}' \(pid \d+\) )?has (?:the )?version (?P<client>\d[\d.-]*),? but this "
    r"kernel module has (?:the )?version (?P<module>\d[\d.-]*\d)"
)
"""As older drivers say it, and newer ones, which name the program."""


def _refused_clients(snapshot: Snapshot, looked: Collection[str]) -> Iterator[Finding]:
    """DRV-06 by the module's own words, where nobody has ``looked`` which versions there are."""
    for hit in messages.in_kernel_logs(snapshot, _REFUSED, "API mismatch"):
        host = snapshot.hosts[hit.node]
        if hit.node in looked or host.loaded_after(hit.evidence.line - 1) >= 0:
            continue
        yield Finding(
            subject=Subject("Node", hit.node),
            cause=(
                f"the loaded kernel module of node {hit.node} is of driver {hit.match['module']} and has refused a "
                f"program with libraries of {hit.match['client']}: NVML and CUDA calls fail"
            ),
            evidence=(hit.evidence,),
            remedy=(*remedies.reboot(hit.node), *_HOLD),
            nodes=(hit.node,),
        )


def mismatch(snapshot: Snapshot) -> Iterator[Finding]:
    """DRV-06: the loaded module and the libraries are of two versions."""
    for host in snapshot.hosts.values():
        if host.driver_version and host.library_version and host.driver_version != host.library_version:
            yield Finding(
                subject=Subject("Node", host.node),
                cause=(
                    f"on node {host.node} the loaded kernel module is of driver {host.driver_version} and the "
                    f"libraries are of {host.library_version}: every NVML and CUDA call fails"
                ),
                evidence=(host.cite("driver_version"), host.cite("library_version")),
                remedy=(
                    *remedies.reboot(host.node),
                    *_HOLD,
                ),
                confidence=CERTAIN,
                nodes=(host.node,),
            )

    looked = {host.node for host in snapshot.hosts.values() if host.driver_version and host.library_version}
    yield from _refused_clients(snapshot, looked)
    for unreadable in unread(snapshot).values():
        if unreadable.node not in looked and unreadable.fault is DriverFault.VERSION_MISMATCH:
            yield Finding(
                subject=Subject("Node", unreadable.node),
                cause=(
                    f"on node {unreadable.node} the loaded kernel module and the driver's libraries are of two "
                    "versions: every NVML and CUDA call fails"
                ),
                evidence=unreadable.evidence,
                remedy=(
                    *remedies.reboot(unreadable.node),
                    *_HOLD,
                ),
                confidence=CERTAIN if unreadable.now else LIKELY,
                since=unreadable.since,
                nodes=(unreadable.node,),
            )


def not_loaded(snapshot: Snapshot) -> Iterator[Finding]:
    """DRV-01 as the agent or the node itself reports it: NVML finds no driver. Where a driver pod of the node fails or
    is still at work, that pod is reported instead.
    """
    by_pod = {node for finding in (*held_up(snapshot), *compiling(snapshot)) for node in finding.nodes}
    for unreadable in unread(snapshot).values():
        if unreadable.node in by_pod or unreadable.fault is not DriverFault.NOT_LOADED:
            continue
        pods = matching.pods_of_part(snapshot, DRIVER, node=unreadable.node)
        yield Finding(
            subject=Subject("Node", unreadable.node),
            cause=(
                f"the NVIDIA kernel module is not loaded on node {unreadable.node}, or its device files are not there: "
                "none of its GPUs can be used"
            ),
            evidence=unreadable.evidence,
            remedy=(
                Remedy("on node {}:", unreadable.node),
                Remedy("lsmod | grep nvidia; ls -l /dev/nvidiactl; dkms status; uname -r"),
                *(
                    remedies.delete_pod(pod.namespace, pod.name).why("the driver's pod: it loads the module anew")
                    for pod in pods
                ),
                *(
                    ()
                    if pods
                    else (
                        Remedy("modprobe nvidia"),
                        Remedy("where it was not built for this kernel:"),
                        _REBUILD,
                    )
                ),
            ),
            confidence=CERTAIN if unreadable.now else LIKELY,
            since=unreadable.since,
            nodes=(unreadable.node,),
        )


@rule(
    "DRV-03",
    "The driver is being built",
    Place.KERNEL,
    explains=("DPL-18", "SCH-02", "SCH-03", "OPR-15", "RUN-01", "DPL-01", "RUN-16"),
    rests_on=("NVIDIA/gpu-operator v26.7.0, source",),
)
def compiling(snapshot: Snapshot) -> Iterator[Finding]:
    """The driver's container compiles for 3 to 10 minutes; its startup probe gives it about 20."""
    for pod in matching.pods_of_part(snapshot, DRIVER):
        main = next((container for container in pod.containers if not container.init and not container.ready), None)
        if main is None or main.state != "running" or main.restarts or pod.ended:
            continue
        began = text(at(main.status, "state.running.startedAt"))
        age = snapshot.age(began)
        if age is None:
            continue
        late = age > _BUDGET
        yield Finding(
            subject=pod.subject,
            cause=(
                f"{pod} on node {pod.node} builds and loads the driver since {int(age // 60)} minutes"
                + (", longer than its startup probe allows" if late else "; everything else there waits for it")
            ),
            evidence=(main.cite_status("state.running.startedAt"), main.cite_status("ready")),
            remedy=(remedies.logs(pod.namespace, pod.name, "-c", main.name, "--tail=50"),),
            confidence=LIKELY,
            level=Level.PROBLEM if late else Level.WAIT,
            expected="" if late else "3 to 10 minutes for a build, 20 at most",
            since=began,
            nodes=(pod.node,),
            pods=(pod.path,),
        )


@rule(
    "DRV-02",
    "The driver's pod fails and all wait for it",
    Place.KERNEL,
    explains=("DPL-18", "SCH-02", "SCH-03", "OPR-15", "RUN-01", "DPL-01"),
    rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
)
def held_up(snapshot: Snapshot) -> Iterator[Finding]:
    """Everything on the node waits for the file driver-ready; the driver's pod is the one to fix."""
    for pod in matching.pods_of_part(snapshot, DRIVER):
        bad = matching.failing(pod)
        if bad is None or not pod.node:
            continue
        waits = [
            held
            for held in snapshot.pods_by_node.get(pod.node, ())
            if held.key != pod.key and not held.ready and matching.initialising(held) and matching.parts_of(held)
        ]
        more = f"; {len(waits)} pods there wait for it" if waits else ""
        line = last_line(snapshot, pod, bad)
        quoted = f'; it said last: "{line.value}"' if line is not None else ""
        yield Finding(
            subject=pod.subject,
            cause=(
                f"{pod} on node {pod.node} fails: container {bad.name} is at "
                f"{bad.waiting or bad.end_reason or 'Error'}{quoted}{more}"
            ),
            evidence=(
                bad.cite_status(),
                *((line,) if line is not None else ()),
                *(held.cite("status.phase") for held in waits[:3]),
            ),
            remedy=(
                remedies.logs(pod.namespace, pod.name, "-c", bad.name, "--previous", "--tail=50"),
                remedies.describe(pod.namespace, "pod", pod.name),
            ),
            confidence=LIKELY,
            since=pod.created,
            nodes=(pod.node,),
            pods=(pod.path, *(held.path for held in waits)),
        )


RULES: Final = rules_of(
    Sign(
        id="DRV-01",
        title="The driver does not answer",
        place=Place.KERNEL,
        pattern=(
            r"couldn't communicate with the NVIDIA driver|(?:nvml error|initialize NVML): [Dd]river [Nn]ot [Ll]oaded"
        ),
        words="river",
        cause="{who}: the NVIDIA kernel module is not loaded on the node, or was not built for its kernel",
        remedy=(
            "on node {node}:",
            "lsmod | grep nvidia; dkms status; uname -r",
            "install the headers of that kernel, rebuild and load:",
            _REBUILD,
        ),
        explain=(
            "nvidia-smi, NVML, or the runtime's hook that starts a container, finds no driver: "
            "no /proc/driver/nvidia/version."
        ),
        explains=(*_BELOW, "SCH-03", "HW-09"),
        besides=not_loaded,
        rests_on=("NVIDIA GPU Operator documentation: troubleshooting, release notes",),
    ),
    Sign(
        id="DRV-04",
        title="The old driver is in use",
        place=Place.KERNEL,
        pattern=r"[Cc]ould not unload NVIDIA driver kernel modules, driver is in use|driver is in use",
        words="driver is in use",
        where=(LOG, STATUS),
        parts=(DRIVER, DRIVER_MANAGER),
        cause="{who} can't unload the old driver: something on the node still uses it",
        remedy=(
            "on node {node}:",
            "sh -c 'fuser -v /dev/nvidia*; cat /sys/module/nvidia/refcnt'",
            "end what is shown (GPU pods, nvidia-persistenced, a host's DCGM, Xorg):",
            remedies.DRAIN,
        ),
        explain="Pods with GPUs, or services of the host, hold the module while it is to be replaced.",
        confidence=CERTAIN,
        explains=_BELOW,
        rests_on=(
            "NVIDIA/gpu-operator#2166",
            "NVIDIA/gpu-operator#416",
            "NVIDIA/gpu-operator#367",
            "NVIDIA/gpu-operator#2509",
        ),
    ),
    Sign(
        id="DRV-06",
        title="Driver and libraries are of two versions",
        place=Place.DRIVER,
        pattern=r"[Dd]river/library version mismatch",
        words="version mismatch",
        cause=(
            "{who}: the loaded kernel module and the driver's libraries are of two versions; the packages were "
            "upgraded under the running driver"
        ),
        remedy=(
            *remedies.REBOOT,
            *_HOLD,
        ),
        explain=(
            "A package upgrade (unattended-upgrades) replaced the libraries while the old module stays loaded. Proof: "
            "/proc/driver/nvidia/version differs from the version in the name of libnvidia-ml.so."
        ),
        confidence=CERTAIN,
        explains=_BELOW,
        besides=mismatch,
        rests_on=(
            "NVIDIA/k8s-device-plugin#1431",
            "NVIDIA/gpu-operator#898",
            "NVIDIA/nvidia-container-toolkit#394",
            "NVIDIA/open-gpu-kernel-modules 154199c6, osapi.c: RmPerformVersionCheck",
        ),
    ),
    Sign(
        id="DRV-24",
        title="The driver can't be built: packages are missing",
        place=Place.KERNEL,
        pattern=(
            r"E: Failed to fetch .*|Cannot find a valid baseurl for repo.*|Could(?: not|n't) resolve host.*"
            r"|Temporary failure resolving .*|Failed to download metadata for repo .*|Cannot download repomd\.xml.*"
            r"|Cannot find vmlinux|Could not locate Linux kernel version string"
        ),
        words="",
        where=(LOG,),
        parts=(DRIVER,),
        cause="{who} can't get the packages that its build needs",
        remedy=(
            (
                "let it reach the repositories: driver.repoConfig (mirror), driver.certConfig (CA), "
                "proxy variables in driver.env"
            ),
            "or use precompiled drivers: driver.usePrecompiled=true",
        ),
        explain=(
            "The driver's container installs kernel packages before it builds; "
            "without a way to the repositories it fails."
        ),
        explains=_BELOW,
        rests_on=("NVIDIA/gpu-operator#302", "NVIDIA GPU Operator documentation: troubleshooting, release notes"),
    ),
    Sign(
        id="DRV-11",
        title="CUDA is newer than the driver",
        place=Place.DRIVER,
        pattern=r"CUDA driver version is insufficient for CUDA runtime version",
        words="driver version is insufficient",
        where=(LOG, STATUS),
        cause="{who}: the image's CUDA is newer than what the driver of the node supports",
        remedy=(
            remedies.CUDA_OF_NODE,
            (
                "use an image with an older CUDA, upgrade the driver, or select nodes by "
                "nvidia.com/cuda.runtime-version.major"
            ),
        ),
        explain="CUDA error 35: the runtime in the image asks for a newer driver.",
        confidence=CERTAIN,
        rests_on=("NVIDIA/k8s-device-plugin#167",),
    ),
)
