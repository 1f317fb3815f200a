"""Break a real node in the ways that users do: status and Event name node, cause and remedy, alerts fire, and all gets
well again. Before that: what a Prometheus has of an installation that is well.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from kgpu.formats import names
from kgpu.monitoring.alerts import ALERTS, OF_OPENSHIFT
from kgpu.monitoring.boards import BOARDS
from kgpu.monitoring.records import RECORDS
from tests.monitoring.world import until
from tests.operator.real import watching
from tests.operator.real.conftest import NAMESPACE, Object, Site
from tests.operator.real.told import events, has, label, told
from tests.operator.real.watching import GPUS, MONITORS, POD, TEAM, Watched

ONLY_WITH_MIG = {"MIG instances: engines in use"}
# Nothing is done to nodes here; tests/monitoring shows these panels with operations.
ONLY_WITH_OPERATIONS = {"Operations by phase", "How long nodes are held", "Operations by outcome"}
# Nothing counts what GPUs are used for here; tests/monitoring shows these with kgpu-usage.
OF_USAGE = "kgpu_wasted"


@pytest.fixture(scope="module")
def running(site: Site) -> Iterator[Site]:
    with watching.kinds(site):
        site.gone()
        site.install(*watching.VALUES, words=("--create-namespace", *watching.TEXTS))
        site.ready()
        yield site
        if site.installed():
            site.uninstall()


@pytest.fixture(scope="module")
def watched(running: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watching.watching(running, tmp_path_factory.mktemp("watched")) as found:
        yield found


def hw(site: Site, *words: str) -> None:
    command = [sys.executable, "-m", "kgpu", "lab", "hw", *words, "--root", str(site.lab.hw_root)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def restart_agent(site: Site) -> None:
    site.lab.kubectl("-n", NAMESPACE, "delete", "pod", "-l", "app=kgpu-agent", "--wait=true")


def choose_config(site: Site, value: Object) -> None:
    patch = [{"op": "replace", "path": "/spec/devicePlugin/config", "value": value}]
    site.lab.kubectl("patch", "clusterpolicy", "cluster-policy", "--type=json", "-p", json.dumps(patch))


@contextmanager
def lost_gpu(site: Site) -> Iterator[None]:
    """Xid 79: it has fallen off the bus."""
    hw(site, "inject", "xid", "79", "--gpu", "3")
    try:
        yield
    finally:
        hw(site, "clear")


@contextmanager
def library_missing(site: Site) -> Iterator[None]:
    library = site.lab.hw_root / "usr/lib/x86_64-linux-gnu/libcuda.so.1"
    away = library.with_name("away")
    library.rename(away)
    restart_agent(site)
    try:
        yield
    finally:
        away.rename(library)


@contextmanager
def no_config_map(site: Site) -> Iterator[None]:
    choose_config(site, {"name": "missing", "default": "any"})
    try:
        yield
    finally:
        choose_config(site, {})


@contextmanager
def wrong_config(site: Site, text: str, key: str = "any") -> Iterator[None]:
    site.lab.kubectl("-n", NAMESPACE, "create", "configmap", "bad", f"--from-literal={key}={text}")
    choose_config(site, {"name": "bad", "default": key})
    try:
        yield
    finally:
        choose_config(site, {})
        site.lab.kubectl("-n", NAMESPACE, "delete", "configmap", "bad")


@contextmanager
def unknown_key(site: Site) -> Iterator[None]:
    with wrong_config(site, "version: v1\nsharing: {timeSlicing: {resource: []}}"):
        yield


@contextmanager
def wrong_value(site: Site) -> Iterator[None]:
    with wrong_config(
        site, "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: many}]}}"
    ):
        yield


@contextmanager
def label_without_config(site: Site) -> Iterator[None]:
    label(site, names.DEVICE_PLUGIN_CONFIG_LABEL, "tesla-t5")
    with wrong_config(site, "version: v1", key="tesla-t4"):
        yield
    label(site, names.DEVICE_PLUGIN_CONFIG_LABEL)


@contextmanager
def no_discovery(site: Site) -> Iterator[None]:
    """Nobody looks for features of nodes any more; the policy is not ready for another reason, too."""

    def discover(wanted: str) -> None:
        site.lab.kubectl("-n", NAMESPACE, "set", "env", "deployment/gpu-operator", f"KGPU_DISCOVERY={wanted}")

    discover("false")
    try:
        with no_config_map(site):
            yield
    finally:
        discover("true")


@contextmanager
def wrong_image(site: Site) -> Iterator[None]:
    def use(image: str) -> None:
        site.lab.kubectl("-n", NAMESPACE, "set", "env", "deployment/gpu-operator", f"OPERATOR_IMAGE={image}")

    (container,) = site.get("deployment", "gpu-operator", "-n", NAMESPACE)["spec"]["template"]["spec"]["containers"]
    use("kgpu.dev/kgpu:typo")
    try:
        yield
    finally:
        use(container["image"])


@contextmanager
def taint(site: Site) -> Iterator[None]:
    # The operator, whose only node this is, stays.
    site.lab.kubectl("taint", "node", site.node, "dedicated=ml:NoSchedule")
    restart_agent(site)
    try:
        yield
    finally:
        site.lab.kubectl("taint", "node", site.node, "dedicated-")


@contextmanager
def quota(site: Site) -> Iterator[None]:
    site.lab.kubectl("-n", NAMESPACE, "create", "quota", "few", "--hard=pods=1")
    restart_agent(site)
    try:
        yield
    finally:
        site.lab.kubectl("-n", NAMESPACE, "delete", "quota", "few")


BREAKAGES = {
    "a GPU is lost": (lost_gpu, ("gpu-node-1", "GPU 3", "to do:")),
    "a library is missing": (library_missing, ("gpu-node-1", "libcuda.so.1", "to do:")),
    "nobody looks for features": (no_discovery, ("create configmap missing",)),
    "there is no such ConfigMap": (no_config_map, (f"{NAMESPACE}/missing", "create configmap missing")),
    "a configuration has an unknown key": (unknown_key, ("gpu-node-1", "line 2", "resource", "to do:")),
    "a configuration has a wrong value": (
        wrong_value,
        # What an agent says is to be done is quoted as its word.
        ("gpu-node-1", "line 2", "replicas", "many", 'to do: its agent says: "correct'),
    ),
    "a label chooses no configuration": (
        label_without_config,
        ("gpu-node-1", '"tesla-t5"', f"{NAMESPACE}/bad", "tesla-t4", "to do: choose"),
    ),
    "the image is a wrong one": (wrong_image, ("gpu-node-1", "kgpu.dev/kgpu:typo", "to do: correct the image's name")),
    "a taint keeps the agent away": (taint, ("gpu-node-1", "dedicated=ml:NoSchedule", "daemonsets.tolerations")),
    "a quota keeps the agent away": (quota, ("gpu-node-1", "exceeded quota: few", "edit resourcequota few")),
}


# What fires meanwhile and resolves afterwards; every alert of the operator is tried.
ALERTED: dict[str, set[str]] = {
    "a GPU is lost": {"GPUFallenOffBus", "GPUXidError", "GPULost", "GPUUnhealthy", "GPUNotAllocatable"},
    "a library is missing": {
        "GPUOperatorReconciliationFailed", "GPUOperatorNodeDeploymentFailed", "GPUOperatorNodeDeploymentDriverFailed",
        "GPUOperatorNodeDeploymentToolkitFailed", "GPUOperatorNodeDeploymentCudaFailed",
    },
    "nobody looks for features": {"GPUOperatorReconciliationFailedNfdLabelsMissing"},
}  # fmt: skip
# The driver of this node is the lab's own: tests/lab/test_driver_rollout.py has one that can't be exchanged.
UPGRADE_FAILED = {"GPUOperatorDriverAutoUpgradeFailures"}


def test_every_source_is_found_and_scraped(watched: Watched) -> None:
    jobs = {*MONITORS, "kube-state-metrics"}

    def up() -> dict[str, str]:
        return {one["metric"]["job"]: one["value"][1] for one in watched.prometheus.query("up")}

    until("every source is up", lambda: up() == dict.fromkeys(jobs, "1"))


def test_every_rule_is_loaded_and_can_be_evaluated(watched: Watched) -> None:
    def rules() -> list[dict[str, str]]:
        return [rule for group in watched.prometheus.get("rules")["groups"] for rule in group["rules"]]

    until("every rule has been evaluated", lambda: all(rule["health"] != "unknown" for rule in rules()))
    assert [rule for rule in rules() if rule["health"] != "ok"] == []
    wanted = {alert.name for alert in ALERTS if alert not in OF_OPENSHIFT} | {record.name for record in RECORDS}
    assert {rule["name"] for rule in rules()} == wanted


def test_series_say_which_node_and_which_pod(running: Site, watched: Watched) -> None:
    series = watched.prometheus.query

    def held() -> list[Object]:
        return [one["metric"] for one in series(f'DCGM_FI_DEV_GPU_UTIL{{pod="{POD}"}}')]

    until("the pod is on its GPUs", lambda: len(held()) == GPUS)
    for labels in held():
        assert (labels["namespace"], labels["container"], labels["team"]) == ("default", "main", TEAM)
        assert labels["exported_pod"] == POD
    every = [one["metric"] for one in series("DCGM_FI_DEV_GPU_UTIL")]
    assert len(every) == 8
    for labels in every:
        assert labels["node"] == labels["kubernetes_node"] == labels["Hostname"] == running.node
        assert labels["endpoint"] == "gpu-metrics"
    (nodes,) = series("gpu_operator_gpu_nodes_total")
    assert nodes["value"][1] == "1"


def test_panels_and_recorded_series_have_data(watched: Watched) -> None:
    queries = {
        f"{board.title}: {panel.title}: {expr}": re.sub(r"\$(node|namespace|instance|gpu)\b", ".*", expr)
        for board in BOARDS
        for panel in board.panels
        if panel.title not in ONLY_WITH_MIG | ONLY_WITH_OPERATIONS
        for expr, _ in panel.queries
        if OF_USAGE not in expr
    }
    queries |= {record.name: record.name for record in RECORDS if OF_USAGE not in record.expr}
    empty: dict[str, str] = {}

    def all_have() -> bool:
        empty.clear()
        empty.update({name: query for name, query in queries.items() if not watched.prometheus.query(query)})
        return not empty

    with suppress(AssertionError):
        until("data", all_have)
    assert not empty


def test_top_shows_the_pod_through_the_api_server(running: Site, watched: Watched) -> None:
    def top(*words: str) -> str:
        command = [sys.executable, "-m", "kgpu", "top", "--kubeconfig", str(running.lab.kubeconfig), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (node,) = json.loads(top("--via", "proxy", "-o", "json"))["nodes"]
    assert node["problem"] is None
    assert node["through"].startswith(f"pod {NAMESPACE}/")
    pods = [[(one["namespace"], one["pod"]) for one in gpu["pods"]] for gpu in node["gpus"]]
    assert sorted(pods) == [*[[]] * (8 - GPUS), *[[("default", POD)]] * GPUS]
    assert top("--once").count(f"default/{POD}") == GPUS


@pytest.mark.parametrize("name", BREAKAGES)
def test_status_and_event_say_what_is_wrong_and_it_gets_well(running: Site, watched: Watched, name: str) -> None:
    site = running
    breakage, words = BREAKAGES[name]
    alerts = ALERTED.get(name, set())
    well = watched.resolve(alerts)
    with breakage(site):
        site.until(lambda: has(words, told(site)), f"{name}: {words} in the policy's message")
        assert site.policy_status()["state"] == "notReady"
        if "configuration" in name:  # the last good one is in force
            site.still_allocatable()
        site.until(lambda: any(has(words, text) for text in events(site)), f"{name}: {words} in an Event")
        watched.fire(alerts, since=well)
    site.ready()
    watched.resolve(alerts)


def test_every_alert_of_the_operator_is_tried() -> None:
    here = [alert for alert in ALERTS if alert not in OF_OPENSHIFT]
    of_operator = {alert.name for alert in here if alert.name.startswith("GPUOperator")}
    tried = UPGRADE_FAILED.union(*ALERTED.values())
    assert of_operator <= tried <= {alert.name for alert in ALERTS}


def test_no_probe_fails_while_agents_start(running: Site) -> None:
    site = running
    restart_agent(site)
    site.ready()
    found = site.get("events", "-n", NAMESPACE, "--field-selector=reason=Unhealthy")["items"]
    pods = {pod["metadata"]["name"] for pod in site.get("pods", "-n", NAMESPACE, "-l", "app=kgpu-agent")["items"]}
    said = [one["message"] for one in found if one["involvedObject"]["name"] in pods]
    # How soon a program listens and answers first is the machine's speed, which benchmarks measure; what has begun must
    # be well.
    early = re.compile(r"Startup probe failed: .*(connection refused|deadline exceeded|timeout)")
    assert [message for message in said if not early.match(message)] == []


def test_a_second_policy_is_ignored_and_told_which_one_is_in_force(running: Site) -> None:
    site = running
    second = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "second"}, "spec": {}}
    words = ("ClusterPolicy second is ignored", "ClusterPolicy cluster-policy", "kubectl delete clusterpolicy second")
    site.lab.kubectl("apply", "-f", "-", stdin=json.dumps(second))
    try:

        def status() -> dict[str, object]:
            found: dict[str, object] = site.get("clusterpolicy", "second").get("status", {})
            return found

        site.until(lambda: status().get("state") == "ignored", "the second policy to be ignored")
        assert has(words, json.dumps(status()))
        site.until(lambda: any(has(words, text) for text in events(site)), "an Event that says so")
        site.ready()
    finally:
        site.lab.kubectl("delete", "clusterpolicy", "second")
