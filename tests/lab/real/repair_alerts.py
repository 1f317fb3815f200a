"""Debian's Prometheus on the machine of the lab: it scrapes the agents of simulated nodes, by kgpu's own monitors and rules.

Programs of simulated nodes listen on the machine itself, where no pod of the real node is reached: of the targets that
discovery finds those of simulated nodes are kept, with the address at which each is reached.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from kgpu.formats import yaml
from kgpu.lab.nodes import manage
from kgpu.lab.nodes.addresses import loopback
from tests.lab.real.repairs import Fleet
from tests.monitoring import programs
from tests.monitoring.discovery import KINDS, Object, targets
from tests.monitoring.world import Pages, Prometheus, closing, discovering, shortened, until
from tests.operator.real.watching import MONITORS, Api, found, kept

EXPORTER = "nvidia-dcgm-exporter"


def reachable(fleet: Fleet, api: Api) -> list[Object]:
    """The targets on simulated nodes."""
    folder = manage.nodes_dir(fleet.site.lab.paths.root)
    return [
        {**one, "targets": [at_loopback(address, folder) for address in one["targets"]]}
        for one in targets(api.list(*KINDS))
        if one["labels"].get("__meta_kubernetes_pod_node_name") in fleet.simulated
    ]


def at_loopback(address: str, nodes: Path) -> str:
    """``ADDRESS:PORT`` of a simulated pod, as this machine reaches it."""
    host, _, port = address.rpartition(":")
    return f"{loopback(host, nodes)}:{port}"


@contextlib.contextmanager
def alerting(fleet: Fleet, folder: Path) -> Iterator[Prometheus]:
    """Prometheus scrapes the simulated nodes, and every one of them answers."""
    program = programs.unpacked(folder / "programs") / "prometheus"
    site = fleet.site
    fleet.until(lambda: set(found(site, "servicemonitor")) >= MONITORS, "the ServiceMonitors")
    monitor = found(site, "servicemonitor")[EXPORTER]
    groups = [one for rule in found(site, "prometheusrule").values() for one in rule["spec"]["groups"]]
    (folder / "rules.yaml").write_text(yaml.dump({"groups": shortened(groups)}))
    with contextlib.ExitStack() as stack:
        pages, api = Pages(), Api(site.lab.kubeconfig)
        stack.enter_context(closing(pages, api))
        pages.texts["/targets"] = kept(lambda: json.dumps(reachable(fleet, api)))
        config: Object = {
            "global": {"evaluation_interval": "1s"},
            "rule_files": [str(folder / "rules.yaml")],
            "scrape_configs": [discovering(monitor, f"http://127.0.0.1:{pages.port}/targets")],
        }
        prometheus = Prometheus(program, folder, config)
        stack.enter_context(closing(prometheus))
        until("Prometheus answers", prometheus.ready)
        fleet.until(lambda: scraped(prometheus) == set(fleet.simulated), "every simulated node to be scraped")
        yield prometheus


def scraped(prometheus: Prometheus) -> set[str]:
    """The nodes whose metrics are there."""
    return {one["metric"]["Hostname"] for one in prometheus.query("DCGM_FI_DEV_GPU_UTIL")}
