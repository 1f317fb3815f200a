"""Metrics for HorizontalPodAutoscalers on the real cluster: an exporter, Prometheus, and the real prometheus-adapter.

They run on the machine of the lab. The API server reaches the adapter through a Service with an address of that machine,
as it would a pod. Discovery and scraping are what the operator's ServiceMonitor says.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kgpu.lab.real import build, components
from kgpu.lab.real.cluster import RealLab
from kgpu.lab.real.model import NODE_NAME, node_dir
from tests.monitoring import adapter_rules, programs
from tests.monitoring.world import Node, Prometheus, closing, free_port, rendered, scrape_config, until

Object = dict[str, Any]
GROUP: Final = "custom.metrics.k8s.io"
NAMESPACE: Final = "kube-system"
NAME: Final = "prometheus-adapter"


@dataclass
class Metrics:
    """What is served of the pods' GPUs."""

    lab: RealLab
    prometheus: Prometheus

    def of_pods(self, metric: str) -> dict[str, str]:
        """The adapter's values by pod, as the API server hands them on; empty while it has none."""
        found = self.lab.ask(f"/apis/{GROUP}/v1beta1/namespaces/default/pods/*/{metric}")
        return {one["describedObject"]["name"]: one["value"] for one in (found or {}).get("items", ())}


def exporter_of(lab: RealLab, folder: Path) -> Node:
    """kgpu's exporter of the cluster's node, which asks its kubelet who holds which GPU."""
    sockets = node_dir(lab.paths, "/var/lib/kubelet") / "pod-resources"
    folder.mkdir()
    node = Node(NODE_NAME, folder, lab.hw_root, free_port(), ("exporter",))
    node.env = {
        "DCGM_EXPORTER_KUBERNETES": "true", "DCGM_POD_RESOURCES_KUBELET_SOCKET": str(sockets / "kubelet.sock"),
    }  # fmt: skip
    return node


def objects(host: str, port: int) -> list[Object]:
    """By which the API server knows the adapter."""

    def obj(api: str, kind: str, name: str, **more: Any) -> Object:
        return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **more.pop("metadata", {})}, **more}

    here = {"namespace": NAMESPACE}
    slice_labels = {"kubernetes.io/service-name": NAME}
    service = {"name": NAME, "namespace": NAMESPACE}
    api = {
        "group": GROUP, "version": "v1beta1", "service": service, "insecureSkipTLSVerify": True,
        "groupPriorityMinimum": 100, "versionPriority": 100,
    }  # fmt: skip
    return [
        obj("v1", "Service", NAME, metadata=here, spec={"ports": [{"name": "https", "port": 443, "targetPort": port}]}),
        obj(
            "discovery.k8s.io/v1", "EndpointSlice", NAME, metadata={**here, "labels": slice_labels}, addressType="IPv4",
            endpoints=[{"addresses": [host], "conditions": {"ready": True}}],
            ports=[{"name": "https", "port": port, "protocol": "TCP"}],
        ),
        obj("apiregistration.k8s.io/v1", "APIService", f"v1beta1.{GROUP}", spec=api),
    ]  # fmt: skip


@contextlib.contextmanager
def adapter(lab: RealLab, prometheus: Prometheus, folder: Path) -> Iterator[None]:
    """The adapter runs with the sample's rules as they are, and the API server has it."""
    program = build.ensure_binaries(programs=(components.METRICS_ADAPTER,), only=frozenset({"adapter"})) / "adapter"
    host, port = lab.network.host_ip, free_port()
    config = str(lab.kubeconfig)
    words = [
        str(program), f"--config={adapter_rules.FILE}", f"--prometheus-url=http://{prometheus.address}",
        f"--lister-kubeconfig={config}", f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}",
        f"--bind-address={host}", f"--secure-port={port}", f"--cert-dir={folder}", "--metrics-relist-interval=5s",
        "--metrics-max-age=1m",
    ]  # fmt: skip
    manifests = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects(host, port)})
    log = folder / "adapter.log"
    with log.open("wb") as output, subprocess.Popen(words, stdout=output, stderr=output) as process:
        try:
            lab.kubectl("apply", "--filename", "-", stdin=manifests)
            with contextlib.suppress(AssertionError):
                until("the API server has the adapter's metrics", lambda: lab.ask(f"/apis/{GROUP}/v1beta1"))
            assert lab.ask(f"/apis/{GROUP}/v1beta1"), log.read_text()[-3000:]
            yield
        finally:
            process.terminate()
            lab.kubectl("delete", "--ignore-not-found", "--filename", "-", stdin=manifests)


@contextlib.contextmanager
def served(lab: RealLab, folder: Path) -> Iterator[Metrics]:
    """All of it."""
    program = programs.unpacked(folder / "programs") / "prometheus"
    (monitor,) = (
        one
        for one in rendered()
        if (one["kind"], one["metadata"]["name"]) == ("ServiceMonitor", "nvidia-dcgm-exporter")
    )
    with contextlib.ExitStack() as stack:
        node = exporter_of(lab, folder / "exporter")
        stack.enter_context(closing(node))
        node.start()
        until("the exporter serves", node.begun)
        job = scrape_config(monitor, {NODE_NAME: (f"127.0.0.1:{node.port}", "kgpu-agent")})
        prometheus = Prometheus(program, folder, {"scrape_configs": [job]})
        stack.enter_context(closing(prometheus))
        until("Prometheus answers", prometheus.ready)
        stack.enter_context(adapter(lab, prometheus, folder))
        yield Metrics(lab, prometheus)
