"""Rows RUN that configuration files, versions and times show: who wrote what, where, and what the runtime reads."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kgpu.base.plain import mapping, text
from kgpu.base.remedy import Remedy
from kgpu.doctor import matching, messages, remedies
from kgpu.doctor.host_facts import HostFacts
from kgpu.doctor.kinds import Container, Node, Pod
from kgpu.doctor.matching import PLUGIN, TOOLKIT
from kgpu.doctor.model import CERTAIN, LIKELY, POSSIBLE, Evidence, Finding, Place, Subject
from kgpu.doctor.objects import seconds
from kgpu.doctor.rule import rule
from kgpu.doctor.snapshot import Snapshot

_BELOW: Final = ("RUN-01", "DPL-*", "SCH-02", "OPR-15")
ROOT: Final = "/etc/containerd/config.toml"
_DROP_INS: Final = ("/etc/containerd/conf.d/", "/etc/containerd/config.d/")
_VERSION: Final = re.compile(r"^\s*version\s*=\s*(\d+)", re.MULTILINE)
_SLACK: Final = 60.0


def _finding(
    host: HostFacts, cause: str, *evidence: Evidence, remedy: tuple[Remedy, ...], confidence: float = CERTAIN
) -> Finding:
    return Finding(
        subject=Subject("Node", host.node),
        cause=cause,
        evidence=evidence,
        remedy=remedy,
        confidence=confidence,
        nodes=(host.node,),
    )


def drop_ins(host: HostFacts) -> list[str]:
    """The paths of containerd's drop-in files, of those that could be read."""
    return [path for path, file in host.files.items() if path.startswith(_DROP_INS) and file.text]


def started(pod: Pod) -> float | None:
    """When a pod's last container started, in seconds since 1970."""
    times = [
        seconds(text(mapping(mapping(container.status.get("state")).get("running")).get("startedAt")))
        for container in pod.containers
    ]
    return max((when for when in times if when is not None), default=None)


def toolkits(snapshot: Snapshot) -> dict[str, list[Pod]]:
    """The toolkit's pods by node; ask for it with ``snapshot.once``."""
    by_node: dict[str, list[Pod]] = {}
    for pod in matching.pods_of_part(snapshot, TOOLKIT):
        by_node.setdefault(pod.node, []).append(pod)
    return by_node


@rule(
    "RUN-03",
    "The runtime's configuration was overwritten",
    Place.RUNTIME,
    explains=_BELOW,
    rests_on=("NVIDIA/gpu-operator#1651",),
)
def overwritten(snapshot: Snapshot) -> Iterator[Finding]:
    """An upgrade of containerd or of the system puts its default file back; the toolkit does not look again."""
    for host in snapshot.hosts.values():
        root = host.files.get(ROOT)
        node = snapshot.nodes.get(host.node)
        if (
            root is None
            or not root.text
            or root.modified is None
            or "nvidia" in root.text
            or (node and _distribution(node))
        ):
            continue
        if any("nvidia" in host.files[path].text for path in drop_ins(host)):
            continue
        for pod in snapshot.once(toolkits).get(host.node, []):
            when = started(pod)
            if not pod.ready or when is None or root.modified <= when + _SLACK:
                continue
            yield _finding(
                host,
                f"{ROOT} of node {host.node} was overwritten after the toolkit had written it: "
                "the runtime nvidia is gone",
                host.cite_file(ROOT, value="no runtime nvidia"),
                Evidence(str(pod), "started before the file was written", text(pod.at("status.startTime"))),
                remedy=(
                    remedies.delete_pod(pod.namespace, pod.name).why("the toolkit writes it anew"),
                    Remedy("let it write a drop-in file, which packages leave alone (/etc/containerd/conf.d)"),
                ),
            )
            break


_DISTRIBUTIONS: Final = (
    (
        "k3s",
        re.compile(r"[-+]k3s"),
        "/var/lib/rancher/k3s/agent/etc/containerd/",
        "/run/k3s/containerd/containerd.sock",
    ),
    (
        "RKE2",
        re.compile(r"[-+]rke2"),
        "/var/lib/rancher/rke2/agent/etc/containerd/",
        "/run/k3s/containerd/containerd.sock",
    ),
    ("k0s", re.compile(r"[-+]k0s"), "/etc/k0s/containerd.d/", "/run/k0s/containerd.sock"),
    (
        "MicroK8s",
        re.compile(r"microk8s"),
        "/var/snap/microk8s/current/args/",
        "/var/snap/microk8s/common/run/containerd.sock",
    ),
)
"""Distributions with a containerd of their own: where its configuration and its socket are."""


def _distribution(node: Node) -> tuple[str, str, str] | None:
    # The kubelet's version first: RKE2's containerd is built by k3s, and says so.
    for words in (node.kubelet, f"{node.runtime[1]} {' '.join(key for key in node.labels if 'microk8s' in key)}"):
        for name, pattern, folder, socket in _DISTRIBUTIONS:
            if pattern.search(words):
                return name, folder, socket
    return None


def _toolkit_env(pod: Pod, name: str) -> tuple[str, Evidence]:
    for container in pod.containers:
        if name in container.env:
            return container.env[name], matching.cite_env(pod, container, name)
    return "", Evidence(str(pod), f"env {name}", "<none>")


_NO_HANDLER: Final = re.compile(r"no runtime for \"")


def _no_handler(snapshot: Snapshot) -> dict[str, Evidence]:
    """The nodes on which a pod was refused because its runtime is missing, with the message."""
    refusals = {}
    for search in (messages.in_events, messages.in_status):
        for hit in search(snapshot, _NO_HANDLER, "no runtime for"):
            if hit.pod and hit.node and not hit.pod.ready:
                refusals[hit.node] = hit.evidence
    return refusals


@rule(
    "RUN-10",
    "The toolkit writes where nobody reads",
    Place.RUNTIME,
    explains=_BELOW,
    rests_on=("NVIDIA/nvidia-container-toolkit#982", "NVIDIA/nvidia-container-toolkit#1323"),
)
def other_folder(snapshot: Snapshot) -> Iterator[Finding]:
    """k3s, RKE2, k0s and MicroK8s bring a containerd with its own files and socket."""
    refused = snapshot.once(_no_handler)
    for node in matching.gpu_nodes(snapshot, matching.NVIDIA):
        where = _distribution(node)
        host = snapshot.hosts.get(node.name)
        if where is None:
            continue
        name, folder, socket = where
        own = [
            file.text for path, file in (host.files if host else {}).items() if path.startswith(folder) and file.text
        ]
        without = bool(own) and not any("nvidia" in content for content in own)
        for pod in snapshot.once(toolkits).get(node.name, []):
            path, variable = _toolkit_env(pod, "CONTAINERD_CONFIG")
            if path.startswith(folder) or not (
                without or node.name in refused or (pod.ready is False and matching.failing(pod))
            ):
                continue
            proof = (refused[node.name],) if node.name in refused else ()
            yield Finding(
                subject=pod.subject,
                cause=(
                    f"{pod} writes {path or ROOT} on node {node.name}, and {name} reads its own files in {folder}: "
                    "the runtime nvidia is not there"
                ),
                evidence=(node.cite("status.nodeInfo.containerRuntimeVersion"), variable, *proof),
                remedy=(
                    Remedy("set in toolkit.env of the ClusterPolicy:"),
                    Remedy("CONTAINERD_CONFIG={}config.toml.tmpl", folder),
                    Remedy("CONTAINERD_SOCKET={}", socket),
                ),
                confidence=CERTAIN,
                nodes=(node.name,),
                pods=(pod.path,),
            )


@rule(
    "RUN-05",
    "Two writers of one configuration file",
    Place.RUNTIME,
    explains=_BELOW,
    rests_on=("NVIDIA/gpu-operator#712", "NVIDIA/gpu-operator#594", "NVIDIA/gpu-operator#399", "rancher/rke2#3723"),
)
def generated(snapshot: Snapshot) -> Iterator[Finding]:
    """k3s and RKE2 generate config.toml from a template at each start; what others write there is lost, and is written
    again.
    """
    for node in matching.gpu_nodes(snapshot, matching.NVIDIA):
        where = _distribution(node)
        for pod in snapshot.once(toolkits).get(node.name, []) if where else ():
            path, variable = _toolkit_env(pod, "CONTAINERD_CONFIG")
            if where is None or path != f"{where[1]}config.toml" or where[0] not in ("k3s", "RKE2"):
                continue
            yield Finding(
                subject=pod.subject,
                cause=(
                    f"{pod} writes {path} on node {node.name}, which {where[0]} generates anew at each start: two "
                    "writers, and a restart for each"
                ),
                evidence=(variable, node.cite("status.nodeInfo.containerRuntimeVersion")),
                remedy=(
                    Remedy("set CONTAINERD_CONFIG={}.tmpl in toolkit.env of the ClusterPolicy", path),
                    Remedy(
                        "or toolkit.enabled=false with the toolkit installed on the node: {} finds it by itself",
                        where[0],
                    ),
                ),
                confidence=LIKELY,
                nodes=(node.name,),
                pods=(pod.path,),
            )


@rule(
    "RUN-07",
    "A drop-in file of a higher version",
    Place.RUNTIME,
    explains=(*_BELOW, "SCH-*", "RUN-08"),
    rests_on=("NVIDIA/aicr#1688",),
)
def higher_version(snapshot: Snapshot) -> Iterator[Finding]:
    """containerd refuses to load a file of a higher version than the one that imports it; the node becomes NotReady."""
    for host in snapshot.hosts.values():
        root = host.files.get(ROOT)
        root_version = _VERSION.search(root.text) if root else None
        if root is None or not root.text:
            continue
        low = int(root_version[1]) if root_version else 1
        for path in drop_ins(host):
            hit = _VERSION.search(host.files[path].text)
            if hit is None or int(hit[1]) <= low:
                continue
            yield _finding(
                host,
                f"on node {host.node} {path} has configuration version {hit[1]} and {ROOT} has {low}: "
                "containerd refuses to start",
                host.cite_file(path, value=hit[0].strip()),
                host.cite_file(ROOT, value=root_version[0].strip() if root_version else "no version"),
                remedy=(
                    Remedy(
                        "set RUNTIME_CONFIG_SOURCE=file in toolkit.env of the ClusterPolicy, "
                        "so that the toolkit keeps the file's version"
                    ),
                    Remedy("at once, on node {}: mv {} /root/ && systemctl restart containerd", host.node, path),
                ),
            )
            break


def _runtimes(content: str) -> Mapping[str, Any]:
    """The runtimes in containerd's configuration, whatever its version; {} where it is not TOML."""
    try:
        plugins = mapping(tomllib.loads(content).get("plugins"))
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}
    for name in ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri"):
        runtimes = mapping(mapping(mapping(plugins.get(name)).get("containerd")).get("runtimes"))
        if runtimes:
            return runtimes
    return {}


_NO_CRI: Final = re.compile(r"unknown service runtime\.v1(?:alpha2)?\.RuntimeService")
_WRITTEN: Final = re.compile(r"(?:Flushing config to|Writing config to|Updating) '?(?P<path>/\S+\.toml)")


def no_cri(snapshot: Snapshot) -> Iterator[Finding]:
    """RUN-08 by the node's condition: containerd runs, and has refused its own CRI plugin for what it was given."""
    for node in snapshot.nodes.values():
        ready = node.condition("Ready")
        if ready is None or ready.status == "True" or not _NO_CRI.search(ready.message) or node.name in snapshot.hosts:
            continue
        tools = snapshot.once(toolkits).get(node.name, [])
        wrote = next(messages.in_logs(snapshot, _WRITTEN, ".toml", pods=tools), None) if tools else None
        yield Finding(
            subject=node.subject,
            cause=(
                f"containerd on node {node.name} runs without its CRI plugin (unknown service RuntimeService), so "
                "that the node is not Ready: a configuration file that it imports does not suit it"
            )
            + (f"; the toolkit has written {wrote.match['path']} there" if wrote else ""),
            evidence=(ready.cite(), *((wrote.evidence,) if wrote else ())),
            remedy=(
                Remedy("on node {}:", node.name),
                Remedy("journalctl -u containerd | grep -i 'failed to load plugin'; containerd config dump | head -60"),
                *(
                    (Remedy("on node {}: move that file away, then systemctl restart containerd", node.name),)
                    if wrote
                    else ()
                ),
                Remedy(
                    "let the toolkit write whole runtimes: NVIDIA_RUNTIME_SET_AS_DEFAULT=true in toolkit.env, "
                    "or a toolkit release with the fix"
                ),
            ),
            confidence=LIKELY if wrote else POSSIBLE,
            since=ready.since,
            nodes=(node.name,),
        )


@rule(
    "RUN-08",
    "A runtime without its type",
    Place.RUNTIME,
    explains=(*_BELOW, "NODE-00"),
    rests_on=("NVIDIA/nvidia-container-toolkit#1956",),
)
def untyped(snapshot: Snapshot) -> Iterator[Finding]:
    """Toolkits before 1.20.0 wrote drop-in files without runtime_type. containerd then leaves its CRI plugin out, and
    the kubelet finds no RuntimeService.
    """
    yield from no_cri(snapshot)
    for host in snapshot.hosts.values():
        paths = [path for path in (ROOT, *drop_ins(host)) if path in host.files]
        tables = {path: _runtimes(host.files[path].text) for path in paths}
        typed = {name for rows in tables.values() for name, row in rows.items() if mapping(row).get("runtime_type")}
        for path, rows in tables.items():
            bad = sorted(name for name in rows if "nvidia" in name and name not in typed)
            if bad:
                yield _finding(
                    host,
                    f"{path} of node {host.node} has the runtime {bad[0]} without a runtime_type: containerd says: "
                    "container.Runtime.Name must be set",
                    host.cite_file(path, value=f"runtimes.{bad[0]}: {', '.join(sorted(mapping(rows[bad[0]])))}"),
                    remedy=(
                        Remedy("use a toolkit of 1.20.0 or later"),
                        Remedy('or add runtime_type = "io.containerd.runc.v2" to runtimes.{} in {}', bad[0], path),
                    ),
                )


@rule(
    "RUN-11",
    "Two container runtimes in one cluster",
    Place.RUNTIME,
    explains=_BELOW,
    rests_on=("NVIDIA/gpu-operator#1528",),
)
def wrong_runtime(snapshot: Snapshot) -> Iterator[Finding]:
    """The replaced operator sets one RUNTIME for all nodes."""
    kinds = {"cri-o": "crio", "containerd": "containerd", "docker": "docker"}
    bad: list[tuple[Pod, Node, Evidence, str]] = []
    for pod in matching.pods_of_part(snapshot, TOOLKIT):
        node = snapshot.nodes.get(pod.node)
        runtime, variable = _toolkit_env(pod, "RUNTIME")
        real = kinds.get(node.runtime[0]) if node else None
        if node and runtime in kinds.values() and real and real != runtime:
            bad.append((pod, node, variable, runtime))
    if bad:
        pod, node, variable, runtime = bad[0]
        yield Finding(
            subject=pod.subject,
            cause=(
                f"{pod} configures {runtime} on node {node.name}, which runs {node.runtime[0]}: "
                "the operator takes one runtime for all nodes"
            ),
            evidence=(variable, node.cite("status.nodeInfo.containerRuntimeVersion")),
            remedy=(
                Remedy("bring the GPU nodes to one runtime"),
                Remedy("or set toolkit.enabled=false and install the toolkit on the nodes of the other one:"),
                Remedy("nvidia-ctk runtime configure --runtime=crio"),
            ),
            confidence=CERTAIN,
            nodes=tuple(dict.fromkeys(row[1].name for row in bad)),
            pods=tuple(row[0].path for row in bad),
        )


@rule(
    "RUN-14",
    "The NRI plugin without CDI or toolkit",
    Place.RUNTIME,
    explains=("RUN-15", "OPR-15"),
    rests_on=("NVIDIA/gpu-operator v26.7.0, source",),
)
def nri_alone(snapshot: Snapshot) -> Iterator[Finding]:
    """The plugin is part of the toolkit's container and gives CDI devices."""
    for policy in snapshot.all("ClusterPolicy"):
        if policy.at("spec.cdi.nriPluginEnabled") is not True:
            continue
        off = [field for field in ("spec.cdi.enabled", "spec.toolkit.enabled") if policy.at(field) is False]
        if off:
            yield Finding(
                subject=policy.subject,
                cause=f"{policy} enables the NRI plugin, which needs {' and '.join(off)}: the operator refuses that",
                evidence=(policy.cite("spec.cdi.nriPluginEnabled"), *(policy.cite(field) for field in off)),
                remedy=(
                    remedies.patch_policy(
                        policy.name, {"spec": {"cdi": {"enabled": True}, "toolkit": {"enabled": True}}}
                    ),
                ),
                confidence=CERTAIN,
            )


_LEGACY: Final = "/etc/docker/daemon.json"


@rule("RUN-26", "Configured for Docker, run by another", Place.RUNTIME, explains=_BELOW)
def for_docker(snapshot: Snapshot) -> Iterator[Finding]:
    """Old guides install nvidia-docker2, which knows Docker only."""
    for host in snapshot.hosts.values():
        node, docker = snapshot.nodes.get(host.node), host.files.get(_LEGACY)
        if (
            node is None
            or docker is None
            or "nvidia" not in docker.text
            or node.runtime[0] not in ("containerd", "cri-o")
        ):
            continue
        others = [
            file.text
            for path, file in host.files.items()
            if path.startswith(("/etc/containerd/", "/etc/crio/", "/var/lib/rancher/"))
        ]
        if not others or any("nvidia" in content for content in others) or snapshot.once(toolkits).get(node.name, []):
            continue
        kind = "crio" if node.runtime[0] == "cri-o" else "containerd"
        yield _finding(
            host,
            f"on node {node.name} the runtime nvidia is configured for Docker alone (nvidia-docker2), "
            f"and the kubelet uses {node.runtime[0]}",
            host.cite_file(_LEGACY, value="runtimes: nvidia"),
            node.cite("status.nodeInfo.containerRuntimeVersion"),
            remedy=(
                Remedy("on the node:"),
                Remedy("apt install nvidia-container-toolkit"),
                Remedy(
                    "nvidia-ctk runtime configure --runtime={} --set-as-default && systemctl restart {}", kind, kind
                ),
            ),
            confidence=LIKELY,
        )


_BINARY: Final = re.compile(r"BinaryName\s*=\s*[\"']([^\"']*nvidia-container-runtime[^\"']*)[\"']")


@rule("RUN-27", "Two installations of the toolkit", Place.RUNTIME)
def two_owners(snapshot: Snapshot) -> Iterator[Finding]:
    """Configured both by hand on the host and by the operator."""
    for host in snapshot.hosts.values():
        if not snapshot.once(toolkits).get(host.node, []):
            continue
        by_folder: dict[str, str] = {}
        for path, file in host.files.items():
            if path.startswith("/etc/containerd/"):
                for binary in _BINARY.findall(file.text):
                    by_folder.setdefault(binary.rpartition("/")[0], path)
        own = [folder for folder in by_folder if folder.startswith("/usr/local/nvidia/toolkit")]
        others = [folder for folder in by_folder if folder not in own]
        if own and others:
            yield _finding(
                host,
                f"on node {host.node} two installations of the toolkit are configured: {own[0]} (the operator's) and "
                f"{others[0]} (the host's); which one runs depends on the order of files",
                *(
                    host.cite_file(by_folder[folder], value=f"BinaryName = {folder}/nvidia-container-runtime")
                    for folder in (own[0], others[0])
                ),
                remedy=(
                    Remedy("choose one: toolkit.enabled=false in the ClusterPolicy, or"),
                    Remedy("on node {}:", host.node),
                    Remedy("apt remove nvidia-container-toolkit"),
                    Remedy("and take its runtime out of {}", by_folder[others[0]]),
                ),
                confidence=LIKELY,
            )


@rule(
    "RUN-30",
    "The kubelet is too old for CDI devices",
    Place.PLUGIN,
    rests_on=("NVIDIA/k8s-device-plugin v0.20.0, source",),
)
def old_kubelet(snapshot: Snapshot) -> Iterator[Finding]:
    """DevicePluginCDIDevices: alpha in 1.28, on from 1.29, always from 1.31."""
    for pod in matching.pods_of_part(snapshot, PLUGIN, vendor=matching.NVIDIA):
        node = snapshot.nodes.get(pod.node)
        version = re.match(r"v?1\.(\d+)", node.kubelet) if node else None
        if node is None or version is None or int(version[1]) >= 29:
            continue
        strategy = next((row for container in pod.containers if (row := _cdi_cri(pod, container)) is not None), None)
        if strategy is None:
            continue
        yield Finding(
            subject=pod.subject,
            cause=(
                f"{pod} gives devices by CDI names (cdi-cri), which the kubelet {node.kubelet} of node {node.name} "
                "leaves out without its gate DevicePluginCDIDevices: pods start without a GPU"
            ),
            evidence=(strategy, node.cite("status.nodeInfo.kubeletVersion")),
            remedy=(
                Remedy("upgrade the kubelet to 1.29 or later (1.28: --feature-gates=DevicePluginCDIDevices=true)"),
                Remedy("or set DEVICE_LIST_STRATEGY=cdi-annotations (or envvar) in devicePlugin.env"),
            ),
            confidence=LIKELY if int(version[1]) == 28 else CERTAIN,
            nodes=(node.name,),
            pods=(pod.path,),
        )


def _cdi_cri(pod: Pod, container: Container) -> Evidence | None:
    name = "DEVICE_LIST_STRATEGY"
    if "cdi-cri" in container.env.get(name, ""):
        return None if "cdi-annotations" in container.env[name] else matching.cite_env(pod, container, name)
    word = next((word for word in container.words if "device-list-strategy" in word and "cdi-cri" in word), "")
    return Evidence(str(pod), f"container {container.name}, args", word) if word and "annotations" not in word else None


_CUDA: Final = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d+\.\d+(?:\.\d+)?)")


def old_spec(snapshot: Snapshot) -> Iterator[Finding]:
    """RUN-19 by the host's facts: the CDI spec names the files of another driver."""
    for host in snapshot.hosts.values():
        for path, file in host.files.items():
            if not path.startswith(("/etc/cdi/", "/var/run/cdi/")) or not host.driver_version:
                continue
            versions = set(_CUDA.findall(file.text))
            if versions and host.driver_version not in versions:
                yield _finding(
                    host,
                    f"the CDI spec {path} of node {host.node} names files of driver {', '.join(sorted(versions))}, "
                    f"and {host.driver_version} is installed",
                    host.cite_file(path, value=f"libcuda.so.{min(versions)}"),
                    host.cite("driver_version"),
                    remedy=(
                        Remedy("on node {}:", host.node),
                        Remedy("kgpu cdi generate --output {}", path),
                        Remedy("and let it be made anew with each driver:"),
                        Remedy("systemctl enable --now nvidia-cdi-refresh.path"),
                    ),
                )
