"""The scrape job that the page gives to who has no Prometheus operator: it finds the exporters of kgpu's Service.

Discovery is the tests' own (``discovery``), and so are the two actions that the job uses.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from kgpu.formats import names
from kgpu.formats.names import GPU_OPERATOR_NAMESPACE as NAMESPACE
from tests.monitoring.discovery import Object, targets
from tests.operator.objects.test_monitoring import EXPORTER, made

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "monitor-with-prometheus.md"
DEPLOY = f"{names.LABEL_DEPLOY_PREFIX}dcgm-exporter"
NODES = {"gpu-1": {DEPLOY: "true"}, "gpu-2": {DEPLOY: "false"}, "cpu-1": {}}


def job() -> Any:
    blocks = re.findall(r"^```yaml\n(- job_name.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    ((found,),) = map(yaml.safe_load, blocks)
    return found


def cluster() -> list[Object]:
    """The Service as the operator makes it, an agent on each node, and another program's Service."""
    service = made()["Service", EXPORTER]
    ports = [{"name": port["name"], "port": port["targetPort"]} for port in service["spec"]["ports"]]
    addresses = [
        {"ip": f"10.0.0.{number}", "nodeName": node, "targetRef": {"kind": "Pod", "name": f"agent-{node}"}}
        for number, node in enumerate(NODES)
    ]

    def endpoints(name: str) -> Object:
        subset = {"addresses": addresses, "ports": ports}
        return {"kind": "Endpoints", "metadata": {"name": name, "namespace": NAMESPACE}, "subsets": [subset]}

    return [
        service,
        endpoints(EXPORTER),
        {"kind": "Service", "metadata": {"name": "other", "namespace": NAMESPACE}},
        endpoints("other"),
        *({"kind": "Node", "metadata": {"name": node, "labels": labels}} for node, labels in NODES.items()),
        *(
            {
                "kind": "Pod",
                "metadata": {"name": f"agent-{node}"},
                "spec": {"nodeName": node, "containers": [{"name": "agent", "ports": [{"containerPort": 9400}]}]},
            }
            for node in NODES
        ),
    ]


def relabelled(labels: dict[str, str], steps: list[Any]) -> dict[str, str] | None:
    """The labels after all steps, None for a target that is not kept."""
    for step in steps:
        value = ";".join(labels.get(label, "") for label in step["source_labels"])
        if step.get("action") == "keep":
            if not re.fullmatch(step["regex"], value):
                return None
        else:
            labels = {**labels, step["target_label"]: value}
    return labels


def test_the_job_of_ones_own_scrapes_each_exporter_once_and_names_its_node() -> None:
    asked = job()
    (discovery,) = asked["kubernetes_sd_configs"]
    assert discovery == {
        "role": "endpoints",
        "namespaces": {"names": [NAMESPACE]},
        "attach_metadata": {"node": True},
    }
    found = [
        (one["targets"][0], tuple((name, value) for name, value in kept.items() if not name.startswith("__")))
        for one in targets(cluster())
        if (kept := relabelled(one["labels"], asked["relabel_configs"])) is not None
    ]
    # Both names of the Service's port lead to the same port of the pod: to Prometheus that is one target.
    assert set(found) == {("10.0.0.0:9400", (("node", "gpu-1"),))}


def test_the_job_keeps_what_the_service_monitor_keeps() -> None:
    monitor = made("serviceMonitor: {enabled: true}")["ServiceMonitor", EXPORTER]
    keep = monitor["spec"]["endpoints"][0]["relabelings"][0]
    assert {"source_labels": keep["sourceLabels"], "regex": keep["regex"], "action": "keep"} in job()["relabel_configs"]


def test_without_the_last_condition_the_exporters_of_one_daemon_set_are_all_scraped() -> None:
    """As with ``layout=operands``, whose exporters are only where GPUs are."""
    steps = [step for step in job()["relabel_configs"] if "node_label" not in step["source_labels"][0]]
    kept = [one for one in targets(cluster()) if relabelled(one["labels"], steps) is not None]
    assert {one["targets"][0] for one in kept} == {f"10.0.0.{number}:9400" for number in range(len(NODES))}
