"""Break a real node in the ways that users do: status and Event name node, cause and remedy, and all gets well again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kgpu.formats import names
from tests.operator.real.conftest import NAMESPACE, Object, Site


@pytest.fixture(scope="module")
def running(site: Site) -> Iterator[Site]:
    site.install()
    site.ready()
    yield site
    if site.installed():
        site.uninstall()


def hw(site: Site, *words: str) -> None:
    command = [sys.executable, "-m", "kgpu", "lab", "hw", *words, "--root", str(site.lab.hw_root)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def restart_agent(site: Site) -> None:
    site.lab.kubectl("-n", NAMESPACE, "delete", "pod", "-l", "app=kgpu-agent", "--wait=true")


def label(site: Site, key: str, value: str = "") -> None:
    site.lab.kubectl("label", "--overwrite", "node", site.node, f"{key}={value}" if value else f"{key}-")


def choose_config(site: Site, value: Object) -> None:
    patch = [{"op": "replace", "path": "/spec/devicePlugin/config", "value": value}]
    site.lab.kubectl("patch", "clusterpolicy", "cluster-policy", "--type=json", "-p", json.dumps(patch))


@contextmanager
def lost_gpu(site: Site) -> Iterator[None]:
    hw(site, "inject", "lost", "--gpu", "3")
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
    "there is no such ConfigMap": (no_config_map, (f"{NAMESPACE}/missing", "create configmap missing")),
    "a configuration has an unknown key": (unknown_key, ("gpu-node-1", "line 2", "resource", "to do:")),
    "a configuration has a wrong value": (wrong_value, ("gpu-node-1", "line 2", "replicas", "many", "to do: correct")),
    "a label chooses no configuration": (
        label_without_config,
        ("gpu-node-1", '"tesla-t5"', f"{NAMESPACE}/bad", "tesla-t4", "to do: choose"),
    ),
    "the image is a wrong one": (wrong_image, ("gpu-node-1", "kgpu.dev/kgpu:typo", "to do: correct the image's name")),
    "a taint keeps the agent away": (taint, ("gpu-node-1", "dedicated=ml:NoSchedule", "daemonsets.tolerations")),
    "a quota keeps the agent away": (quota, ("gpu-node-1", "exceeded quota: few", "edit resourcequota few")),
}


def told(site: Site) -> str:
    message: str = site.conditions().get("Ready", {}).get("message", "")
    return message


def events(site: Site) -> list[str]:
    """What the Events about Nodes and ClusterPolicies say."""
    found = site.get("events", "-n", "default")["items"]
    about = {"Node", "ClusterPolicy"}
    return [one["message"] for one in found if one["involvedObject"]["kind"] in about and one["type"] == "Warning"]


def has(words: tuple[str, ...], text: str) -> bool:
    return all(word in text for word in words)


@pytest.mark.parametrize("name", BREAKAGES)
def test_status_and_event_say_what_is_wrong_and_it_gets_well(running: Site, name: str) -> None:
    site = running
    breakage, words = BREAKAGES[name]
    with breakage(site):
        site.until(lambda: has(words, told(site)), f"{name}: {words} in the policy's message", 90)
        assert site.policy_status()["state"] == "notReady"
        if "configuration" in name:  # the last good one is in force
            assert site.allocatable() == "8"
        site.until(lambda: any(has(words, text) for text in events(site)), f"{name}: {words} in an Event")
    site.ready()


def test_no_probe_fails_while_agents_start(running: Site) -> None:
    site = running
    restart_agent(site)
    site.ready()
    found = site.get("events", "-n", NAMESPACE, "--field-selector=reason=Unhealthy")["items"]
    pods = {pod["metadata"]["name"] for pod in site.get("pods", "-n", NAMESPACE)["items"]}
    assert [one["message"] for one in found if one["involvedObject"]["name"] in pods] == []


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


def test_a_node_whose_toolkit_is_switched_off_gives_no_gpus(clean: Site) -> None:
    """From here on the installation of the others is gone: this is about a node that has never been validated."""
    site = clean
    if site.installed():
        site.uninstall()
    key = f"{names.LABEL_DEPLOY_PREFIX}container-toolkit"
    words = ("gpu-node-1", f'{key} is "false"', "no CDI spec", f"to do: kubectl label node gpu-node-1 {key}-")
    label(site, key, "false")
    try:
        site.install()
        site.until(lambda: has(words, told(site)), f"{words} in the policy's message", 90)
        site.until(lambda: any(has(words, text) for text in events(site)), f"{words} in an Event")
        assert site.allocatable() in {"", "0"}
    finally:
        label(site, key)
    site.ready()


NO_GPUS = {
    "NFD labels are missing": ("nfd.enabled=false", ("No NFD labels found", "gpu-node-1", "nfd.enabled")),
    "there are no GPU nodes": ("hostPaths.driverInstallDir=/run/nvidia/none", ("No GPU node found", "gpu-node-1")),
}


@pytest.mark.parametrize("name", NO_GPUS)
def test_a_cluster_without_gpus_is_ready_and_told_what_was_looked_for(clean: Site, name: str) -> None:
    site = clean
    if site.installed():
        site.uninstall()
    value, words = NO_GPUS[name]
    site.install(value)
    site.until(lambda: has(words, told(site)), f"{name}: {words} in the policy's message")
    assert site.policy_status()["state"] == "ready"
    site.until(lambda: any(has(words, text) for text in events(site)), f"{name}: {words} in an Event")
