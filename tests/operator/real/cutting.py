"""What tests of the label ``nvidia.com/mig.config`` on a real cluster share: layouts, wishes, and what has become of them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from kgpu.formats import mig_request
from kgpu.formats.mig_request import MigReport
from kgpu.formats.names import MIG_CONFIG_LABEL, MIG_CONFIG_STATE_LABEL
from tests.lab.real.dra_kills import LISTED, LISTING
from tests.operator.real.conftest import NAMESPACE, Site

GPU, SLICE, LARGE_SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
LAYOUTS = "layouts-of-the-test"
CONFIGS = """version: v1
mig-configs:
  all-disabled:
  - {devices: all, mig-enabled: false}
  all-1g.10gb:
  - {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}
  one-cut:
  - {devices: [0, 2, 3, 4, 5, 6, 7], mig-enabled: false}
  - {devices: [1], mig-enabled: true, mig-devices: {1g.10gb: 7}}
  two-cut:
  - {devices: [2, 3, 4, 5, 6, 7], mig-enabled: false}
  - {devices: [0, 1], mig-enabled: true, mig-devices: {1g.10gb: 7}}
  two-large:
  - {devices: [2, 3, 4, 5, 6, 7], mig-enabled: false}
  - {devices: [0, 1], mig-enabled: true, mig-devices: {3g.40gb: 2}}
"""


@contextlib.contextmanager
def to_be_cut(site: Site, layout: str = "agent") -> Iterator[Site]:
    """kgpu with MIG strategy mixed and layouts of its own; afterwards no GPU is cut, and nothing of them is there."""
    site.have(layout, "mig.strategy=mixed")
    manifest = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": LAYOUTS, "namespace": NAMESPACE},
        "data": {"config.yaml": CONFIGS},
    }  # fmt: skip
    site.lab.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    change_config(site, LAYOUTS)
    try:
        yield site
    finally:
        site.lab.kubectl("delete", "deployment,pdb", "--all", "--wait")
        ask(site, "all-disabled")
        site.until(lambda: offered(site) == {GPU: 8}, "whole GPUs")
        change_config(site, "default-mig-parted-config")
        site.lab.kubectl("delete", "configmap", LAYOUTS, "-n", NAMESPACE)
        site.gone()
        site.lab.kubectl("label", "node", site.node, f"{MIG_CONFIG_LABEL}-", f"{MIG_CONFIG_STATE_LABEL}-")


def change_config(site: Site, name: str) -> None:
    change = json.dumps({"spec": {"migManager": {"config": {"name": name}}}})
    site.lab.kubectl("patch", "clusterpolicy", "cluster-policy", "--type=merge", "--patch", change)
    site.until(lambda: site.policy_status().get("state") == "ready", "the ClusterPolicy to be ready")


def ask(site: Site, config: str) -> None:
    site.lab.kubectl("label", "node", site.node, "--overwrite", f"{MIG_CONFIG_LABEL}={config}")


def report(site: Site) -> MigReport | None:
    return mig_request.read_report(site.lab.node()["metadata"].get("annotations") or {})


def is_done(site: Site, config: str) -> bool:
    told = report(site)
    state = site.node_labels().get(MIG_CONFIG_STATE_LABEL)
    return told is not None and (told.config, told.state, state) == (config, "success", "success")


def offered(site: Site) -> dict[str, int]:
    """What pods can have of the node's GPUs."""
    resources = (GPU, SLICE, LARGE_SLICE)
    counts = {name: int(count) for name, count in site.lab.node()["status"]["allocatable"].items() if name in resources}
    return {name: count for name, count in counts.items() if count}  # the kubelet keeps former resources at 0


def deploy(site: Site, name: str, resource: str) -> None:
    """Make a Deployment whose pod has one device of a resource."""
    container = {
        "name": "main", "image": "kgpu.dev/cuda:base", "command": ["sh", "-c", LISTING],
        "resources": {"limits": {resource: 1}},
    }  # fmt: skip
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}
    manifest = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }  # fmt: skip
    site.lab.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))


def run(site: Site, name: str, resource: str) -> str:
    """Make a Deployment whose pod has one device of a resource; all that nvidia-smi says in it."""
    deploy(site, name, resource)

    def said() -> str:
        text = site.lab.kubectl_run("logs", "--selector", f"app={name}").stdout
        return text if LISTED in text else ""

    return site.until(said, f"{name} to run")


def running(site: Site, name: str) -> set[str]:
    """The uids of the pods of this app that run."""
    pods = (site.get("pods") or {"items": ()})["items"]
    mine = [pod for pod in pods if pod["metadata"]["labels"].get("app") == name]
    return {pod["metadata"]["uid"] for pod in mine if pod["status"].get("phase") == "Running"}
