"""The label ``nvidia.com/mig.config`` on a real cluster: slices for a real kubelet, beside pods in real containers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from kgpu.formats import mig_request
from kgpu.formats.mig_request import MigReport
from kgpu.formats.names import MIG_CONFIG_LABEL, MIG_CONFIG_STATE_LABEL
from kgpu.hw.simulator import operate
from tests.operator.real.conftest import NAMESPACE, Site

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
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
"""


@pytest.fixture(scope="module")
def sliced(site: Site) -> Iterator[Site]:
    """kgpu with MIG strategy mixed and layouts of its own; afterwards no GPU is cut, and nothing of them is there."""
    site.have("agent", "mig.strategy=mixed")
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
    counts = {
        name: int(count) for name, count in site.lab.node()["status"]["allocatable"].items() if name in (GPU, SLICE)
    }
    return {name: count for name, count in counts.items() if count}  # the kubelet keeps former resources at 0


def run(site: Site, name: str, resource: str) -> str:
    """A pod of a Deployment that has one device of a resource; what nvidia-smi says of it."""
    container = {
        "name": "main", "image": "kgpu.dev/cuda:base", "command": ["sh", "-c", "nvidia-smi -L; exec sleep 3600"],
        "resources": {"limits": {resource: 1}},
    }  # fmt: skip
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}
    manifest = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }  # fmt: skip
    site.lab.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    return site.until(lambda: site.lab.kubectl_run("logs", "--selector", f"app={name}").stdout, f"{name} to run")


def running(site: Site, name: str) -> set[str]:
    """The uids of the pods of this app that run."""
    pods = (site.get("pods") or {"items": ()})["items"]
    mine = [pod for pod in pods if pod["metadata"]["labels"].get("app") == name]
    return {pod["metadata"]["uid"] for pod in mine if pod["status"].get("phase") == "Running"}


def test_the_label_becomes_56_slices(sliced: Site) -> None:
    ask(sliced, "all-1g.10gb")
    began = time.monotonic()
    sliced.until(lambda: offered(sliced) == {SLICE: 56}, "56 slices")
    print(f"from the label to 56 slices that pods can have: {time.monotonic() - began:.1f} s")
    sliced.until(lambda: is_done(sliced, "all-1g.10gb"), "it to be told")
    assert "MIG 1g.10gb" in run(sliced, "slice", SLICE)
    sliced.lab.kubectl("delete", "deployment", "slice", "--wait")
    ask(sliced, "all-disabled")
    sliced.until(lambda: offered(sliced) == {GPU: 8}, "whole GPUs")
    sliced.until(lambda: is_done(sliced, "all-disabled"), "it to be told")


def test_only_the_pod_on_the_gpu_that_is_cut_goes_once_its_budget_lets_it(sliced: Site) -> None:
    uuid = operate.snapshot(sliced.lab.hw_root)["gpus"][1]["uuid"]
    seen = {name: run(sliced, name, GPU) for name in (f"train-{number}" for number in range(8))}
    (goes,) = (name for name, said in seen.items() if uuid in said)
    before = {name: running(sliced, name) for name in seen}
    budget = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "never"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": goes}}},
    }  # fmt: skip
    sliced.lab.kubectl("apply", "-f", "-", stdin=json.dumps(budget))
    ask(sliced, "one-cut")
    sliced.until(lambda: (told := report(sliced)) is not None and "never" in told.message, "the budget to be named")
    assert sliced.node_labels()[MIG_CONFIG_STATE_LABEL] == "pending"
    assert {name: running(sliced, name) for name in seen} == before
    sliced.lab.kubectl("delete", "pdb", "never")
    sliced.until(lambda: offered(sliced) == {GPU: 7, SLICE: 7}, "GPU 1 to be cut")
    sliced.until(lambda: is_done(sliced, "one-cut"), "it to be told")
    after = {name: running(sliced, name) for name in seen}
    assert {name for name in seen if after[name] != before[name]} == {goes}
    assert not sliced.lab.node()["spec"].get("unschedulable")
