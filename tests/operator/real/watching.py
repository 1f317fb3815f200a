"""Debian's Prometheus beside a cluster with kgpu in it: the agent's exporter, the node's checks and the operator scraped.

Targets, labels and rules come from the ServiceMonitors and PrometheusRules that the operator has made in the cluster.
What is not there is stood in for by what the API server says at that moment, and nothing else: the Prometheus operator,
of which there are the kinds (``tests.monitoring.world``), Prometheus' discovery, without which Debian builds it
(``tests.monitoring.discovery``), and kube-state-metrics (``node_states``).
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kgpu.formats import names, yaml
from kgpu.lab.real.server import ApiServerConnection
from tests.monitoring import programs
from tests.monitoring.discovery import KINDS, targets
from tests.monitoring.world import Pages, Prometheus, closing, discovering, shortened, until
from tests.operator.real.conftest import NAMESPACE, Object, Site

GROUP = "monitoring.coreos.com"
MADE = ("ServiceMonitor", "PrometheusRule")
MONITORS = {"gpu-operator", "nvidia-dcgm-exporter", "nvidia-node-status-exporter"}
POD = "holder"
TEAM = "red"
GPUS = 2
KEPT_S = 1.0
VALUES = (
    "nodeStatusExporter.enabled=true",
    "operator.metrics.serviceMonitor.enabled=true",
    "dcgmExporter.enablePodLabels=true",
    "dcgmExporter.env[0].name=DCGM_EXPORTER_INTERVAL",
    "dcgmExporter.env[1].name=DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE",
)
# In milliseconds.
TEXTS = ("--set-string", "dcgmExporter.env[0].value=500,dcgmExporter.env[1].value=4000")


def definition(kind: str) -> Object:
    """The kind of the Prometheus operator's objects; what is in them is not checked."""
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


@dataclass
class Watched:
    """``prometheus`` scrapes what the operator has told it of; its rules' times are shortened."""

    prometheus: Prometheus

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        return {one.split()[0] for one in self.prometheus.firing()}

    def fire(self, alerts: Iterable[str], since: float) -> None:
        """All of them fire, or have fired since that ``time.monotonic()``."""
        missing: set[str] = set()

        def all_fired() -> bool:
            seconds = int(time.monotonic() - since) + 1  # an Xid is news for seconds
            missing.clear()
            missing.update(set(alerts) - self.prometheus.fired(f"{seconds}s"))
            return not missing

        with contextlib.suppress(AssertionError):
            until("all fire", all_fired)
        assert not missing

    def resolve(self, alerts: Iterable[str]) -> float:
        """None of them fires any more; the ``time.monotonic()`` of that."""
        wanted = set(alerts)
        with contextlib.suppress(AssertionError):
            until("none fires", lambda: not wanted & self.firing())
        assert not wanted & self.firing()
        return time.monotonic()


class Api:
    """Lists of the API server; kept open, for it is asked every second."""

    def __init__(self, kubeconfig: Path) -> None:
        self._server = ApiServerConnection(kubeconfig)
        self._lock = threading.Lock()

    def list(self, *kinds: str) -> Iterator[Object]:
        """The namespace's objects of those kinds, or the cluster's where they have none."""
        for kind in kinds:
            where = "" if kind == "Node" else f"namespaces/{NAMESPACE}/"
            with self._lock:
                code, answer = self._server("GET", f"/api/v1/{where}{kind.lower().removesuffix('s')}s")
            assert code == 200, answer
            yield from ({**one, "kind": kind} for one in answer["items"])

    def close(self) -> None:
        self._server.close()


def kept(text: Callable[[], str], seconds: float = KEPT_S) -> Callable[[], str]:
    """The text, made anew after so many seconds: every ServiceMonitor asks for the same list, once a second."""
    lock, last = threading.Lock(), [(-seconds, "")]

    def recent() -> str:
        with lock:
            if time.monotonic() - last[0][0] >= seconds:
                last[0] = (time.monotonic(), text())
            return last[0][1]

    return recent


def node_states(api: Api) -> str:
    """Of every Node what kube-state-metrics has of its devices."""
    lines = []
    for node in api.list("Node"):
        for part in ("capacity", "allocatable"):
            for resource, count in node["status"][part].items():
                if "/" in resource:
                    about = f'node="{node["metadata"]["name"]}",resource="{re.sub("[^a-z0-9]", "_", resource)}"'
                    lines.append(f'kube_node_status_{part}{{{about},unit="integer"}} {count}\n')
    return "".join(lines)


def found(site: Site, kind: str) -> dict[str, Object]:
    """The operator's objects of that kind, by name."""
    items = (site.get(f"{kind}s.{GROUP}", "-n", NAMESPACE) or {"items": ()})["items"]
    return {one["metadata"]["name"]: one for one in items}


@contextlib.contextmanager
def kinds(site: Site) -> Iterator[None]:
    """The Prometheus operator's kinds are there for as long as this lasts."""
    made = json.dumps({"apiVersion": "v1", "kind": "List", "items": [definition(kind) for kind in MADE]})
    site.lab.kubectl("apply", "-f", "-", stdin=made)
    try:
        yield
    finally:
        site.lab.kubectl("delete", "-f", "-", stdin=made)


@contextlib.contextmanager
def watching(site: Site, folder: Path) -> Iterator[Watched]:
    """Prometheus watches the installation, in which a pod holds two GPUs."""
    program = programs.unpacked(folder / "programs") / "prometheus"
    with contextlib.ExitStack() as stack:
        stack.enter_context(working(site))
        site.until(lambda: set(found(site, "servicemonitor")) == MONITORS, "the ServiceMonitors")
        monitors = found(site, "servicemonitor").values()
        assert {one["metadata"]["namespace"] for one in monitors} == {NAMESPACE}  # that is where each looks
        groups = [one for rule in found(site, "prometheusrule").values() for one in rule["spec"]["groups"]]
        (folder / "rules.yaml").write_text(yaml.dump({"groups": shortened(groups)}))
        network = site.lab.network
        pages = Pages(network.host_ip)
        stack.enter_context(closing(pages))
        api = Api(site.lab.kubeconfig)
        stack.enter_context(closing(api))
        pages.texts["/state"] = lambda: node_states(api)
        pages.texts["/targets"] = kept(lambda: json.dumps(targets(api.list(*KINDS))))
        here = f"{network.host_ip}:{pages.port}"
        state = {"job_name": "kube-state-metrics", "scrape_interval": "2s", "scrape_timeout": "2s",
                 "metrics_path": "/state", "honor_labels": True, "static_configs": [{"targets": [here]}]}  # fmt: skip
        config: Object = {
            "global": {"evaluation_interval": "1s"},
            "rule_files": [str(folder / "rules.yaml")],
            "scrape_configs": [*(discovering(one, f"http://{here}/targets") for one in monitors), state],
        }
        # Pods are reached from the node's network.
        before = ("nsenter", f"--net=/proc/{site.lab.keeper}/ns/net", "--")
        prometheus = Prometheus(program, folder, config, host=network.node_ip, before=before)
        stack.enter_context(closing(prometheus))
        until("Prometheus answers", prometheus.ready)
        yield Watched(prometheus)


@contextlib.contextmanager
def working(site: Site) -> Iterator[None]:
    """A pod that holds two GPUs, for as long as this lasts."""
    container = {"name": "main", "image": "kgpu.dev/cuda:base", "command": ["sleep", "3600"],
                 "resources": {"limits": {names.GPU_RESOURCE: GPUS}}}  # fmt: skip
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD, "labels": {"team": TEAM}},
           "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}  # fmt: skip
    site.lab.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    try:
        site.until(lambda: site.get("pod", POD)["status"].get("phase") == "Running", "the workload to run")
        yield
    finally:
        site.lab.kubectl("delete", "pod", POD, "--force", "--grace-period=0")
