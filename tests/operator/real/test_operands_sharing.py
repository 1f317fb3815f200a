"""MIG slices and MPS shares where each operand runs in pods of its own, on a real cluster."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from kgpu.formats.names import DEVICE_PLUGIN_CONFIG_LABEL
from tests.lab import mps_story
from tests.lab.mps_story import MpsLab
from tests.operator.real.conftest import NAMESPACE, Site
from tests.operator.real.cutting import GPU, SLICE, ask, is_done, offered, run, running, to_be_cut

CONFIGS = "shares-of-the-test"
PLUGIN = "nvidia-device-plugin-daemonset"


@contextlib.contextmanager
def to_be_shared(site: Site) -> Iterator[MpsLab]:
    """kgpu with a configuration of the device plugin, ``four``, that shares GPU 0 with four clients."""
    site.have("operands")
    texts = {"plain": "version: v1\n", "four": mps_story.sharing()}
    manifest = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIGS, "namespace": NAMESPACE}, "data": texts,
    }  # fmt: skip
    site.lab.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    choose(site, CONFIGS, "plain")
    (hardware,) = (one for one in site.lab.hardware() if one.node == site.node)
    try:
        yield MpsLab(site.lab, hardware)
    finally:
        site.lab.kubectl("delete", "pods", "--selector=mps=client", "--grace-period=0", "--force")
        site.lab.kubectl("label", "node", site.node, f"{DEVICE_PLUGIN_CONFIG_LABEL}-")
        choose(site, "", "")
        site.lab.kubectl("delete", "configmap", CONFIGS, "-n", NAMESPACE)
        site.gone()


def choose(site: Site, name: str, default: str) -> None:
    change = json.dumps({"spec": {"devicePlugin": {"config": {"name": name, "default": default}}}})
    site.lab.kubectl("patch", "clusterpolicy", "cluster-policy", "--type=merge", "--patch", change)
    site.ready()


def plugin_pods(site: Site) -> set[str]:
    pods = site.get("pods", "-n", NAMESPACE)["items"]
    return {one["metadata"]["uid"] for one in pods if one["metadata"]["labels"].get("app") == PLUGIN}


def test_one_gpu_is_cut_by_the_label_and_the_plugin_follows_without_a_restart(site: Site) -> None:
    with to_be_cut(site, "operands"):
        before = plugin_pods(site)
        trains = [f"train-{number}" for number in range(8)]
        for name in trains:
            run(site, name, GPU)
        pods = {name: running(site, name) for name in trains}
        ask(site, "one-cut")
        site.until(lambda: offered(site) == {GPU: 7, SLICE: 7}, "GPU 1 to be cut")
        site.until(lambda: is_done(site, "one-cut"), "it to be told")
        assert sum(running(site, name) == pods[name] for name in trains) == 7
        assert "MIG 1g.10gb" in run(site, "slice", SLICE)
        assert plugin_pods(site) == before
        site.until(lambda: site.policy_status().get("state") == "ready", "the ClusterPolicy to be ready")


def test_four_pods_share_a_gpu_by_the_control_daemon_of_another_pod(site: Site) -> None:
    with to_be_shared(site) as mps:
        site.lab.kubectl("label", "node", site.node, f"{DEVICE_PLUGIN_CONFIG_LABEL}=four")
        mps.until_offered(shared=4, whole=7)
        mps_story.four_quarters(mps)
        site.until(lambda: site.policy_status().get("state") == "ready", "the ClusterPolicy to be ready")
        mps.kubectl("delete", "pods", "--selector=mps=client", "--grace-period=0", "--force")
        site.lab.kubectl("label", "node", site.node, f"{DEVICE_PLUGIN_CONFIG_LABEL}-")
        mps.until_offered(whole=8)
        mps.until(lambda: mps.daemons() == [], "the end of the daemon")
