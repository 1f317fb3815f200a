"""Break a real node in the ways that users do: the ClusterPolicy names node, cause and remedy, and gets well again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.operator.real.conftest import NAMESPACE, Site


@pytest.fixture(scope="module")
def running(site: Site) -> Iterator[Site]:
    site.install()
    site.ready()
    yield site
    site.uninstall()


def hw(site: Site, *words: str) -> None:
    command = [sys.executable, "-m", "kgpu", "lab", "hw", *words, "--root", str(site.lab.hw_root)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def restart_agent(site: Site) -> None:
    site.lab.kubectl("-n", NAMESPACE, "delete", "pod", "-l", "app=kgpu-agent", "--wait=true")


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
    patch = '[{"op":"replace","path":"/spec/devicePlugin/config","value":%s}]'
    words = ("patch", "clusterpolicy", "cluster-policy", "--type=json", "-p")
    site.lab.kubectl(*words, patch % '{"name":"missing","default":"any"}')
    try:
        yield
    finally:
        site.lab.kubectl(*words, patch % "{}")


@contextmanager
def bad_config(site: Site) -> Iterator[None]:
    patch = '[{"op":"replace","path":"/spec/devicePlugin/config","value":%s}]'
    words = ("patch", "clusterpolicy", "cluster-policy", "--type=json", "-p")
    bad = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: many}]}}"
    site.lab.kubectl("-n", NAMESPACE, "create", "configmap", "bad", f"--from-literal=any={bad}")
    site.lab.kubectl(*words, patch % '{"name":"bad","default":"any"}')
    try:
        yield
    finally:
        site.lab.kubectl(*words, patch % "{}")
        site.lab.kubectl("-n", NAMESPACE, "delete", "configmap", "bad")


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
    site.lab.kubectl("-n", NAMESPACE, "create", "quota", "small", "--hard=pods=1")
    restart_agent(site)
    try:
        yield
    finally:
        site.lab.kubectl("-n", NAMESPACE, "delete", "quota", "small")
        # The DaemonSet controller's pauses between tries grow to minutes; a change makes it try at once.
        site.lab.kubectl("-n", NAMESPACE, "annotate", "daemonset", "kgpu-agent", "again=yes", "--overwrite")


BREAKAGES = {
    "a GPU is lost": (lost_gpu, ("gpu-node-1", "GPU 3")),
    "a library is missing": (library_missing, ("gpu-node-1", "libcuda.so.1")),
    "there is no such ConfigMap": (no_config_map, (f"{NAMESPACE}/missing", "create configmap missing")),
    "a taint keeps the agent away": (taint, ("gpu-node-1", "dedicated=ml:NoSchedule", "daemonsets.tolerations")),
    "a quota keeps the agent away": (quota, ("small", "pods")),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_the_policy_says_what_is_wrong_and_gets_well(running: Site, name: str) -> None:
    site = running
    breakage, words = BREAKAGES[name]

    def told() -> str:
        return site.conditions().get("Ready", {}).get("message", "")

    with breakage(site):
        site.until(lambda: site.policy_status().get("state") == "notReady", f"{name}: the policy not to be ready", 90)
        site.until(lambda: all(word in told() for word in words), f"{name}: {words} in the message")
    site.ready()


def test_a_wrong_configuration_is_refused_with_place_and_remedy_and_the_last_good_one_stays(running: Site) -> None:
    site = running

    def told() -> list[str]:
        events = site.get("events", "-n", "default", "--field-selector=reason=ConfigRefused")["items"]
        return [one["message"] for one in events if one["involvedObject"]["name"] == site.node]

    with bad_config(site):
        words = ("gpu-operator/bad", "line 2", "replicas", "many", "to do: correct")
        site.until(lambda: any(all(word in text for word in words) for text in told()), f"an Event with {words}")
        assert site.allocatable() == "8"
    site.ready()


def test_a_second_policy_is_ignored(running: Site) -> None:
    site = running
    second = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "second"}, "spec": {}}
    site.lab.kubectl("apply", "-f", "-", stdin=json.dumps(second))
    try:
        site.until(
            lambda: site.get("clusterpolicy", "second").get("status", {}).get("state") == "ignored",
            "the second policy to be ignored",
        )
        site.ready()
    finally:
        site.lab.kubectl("delete", "clusterpolicy", "second")
