"""Usage, history and reclaim on a real cluster: kgpu's image with the chart's rights, and people with few rights of their own.

Nobody waits for the half hour that a policy asks for at least: the agent is killed, what it remembers is put back by an
hour, and it goes on from that; so is the moment at which the warning was delivered.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from kgpu.base.boot import uptime
from kgpu.base.times import stamp_of
from kgpu.formats import names
from kgpu.lab.real.model import STATE_DIR, node_dir
from kgpu.usage.gathering import Gathered, TrackedGpu
from kgpu.usage.reclaim import record
from kgpu.usage.reclaim.guards import moment_of
from kgpu.usage.run import usage_store
from kgpu.usage.store import UsageStore
from tests import polling
from tests.notifications.receiver import LocalReceiver, receiving_beside
from tests.operator.real.conftest import CHART, NAMESPACE, Object, Site

HOUR = 3600
RIGHTS = CHART.parents[1] / "docs" / "how-to" / "usage-rights.yaml"
VALUES = (
    "usage.enabled=true", "usage.labels={team}", "usage.reclaim.enabled=true", "usage.reclaim.namespaces={research}",
    "usage.reclaim.secrets={gpu-costs}",
)  # fmt: skip
POLICY = """
apiVersion: kgpu.dev/v1alpha1
kind: GPUUsagePolicy
metadata: {name: research}
spec:
  mode: reclaim
  namespaces: [research]
  idle: {after: 30m, nodeAfter: 30m, warmUp: 1m}
  reclaim: {after: 30m, grace: 5m, activityPercent: 5}
  schedule: {days: [Mon, Tue, Wed, Thu, Fri, Sat, Sun], hours: "00:00-24:00", timeZone: Europe/Berlin}
  cost: {perGpuHour: "3.06"}
  notify: [{type: slack, secretRef: {name: gpu-costs}}]
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: %(name)s, namespace: %(space)s}
spec:
  replicas: %(replicas)s
  selector: {matchLabels: {app: %(name)s}}
  template:
    metadata: {labels: {app: %(name)s, team: %(space)s}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
        - {name: main, image: "%(image)s", command: [%(command)s], resources: {limits: {nvidia.com/gpu: 2}}}
"""
HELD_FOR_NOTHING = {
    "name": "llama", "space": "research", "replicas": 2, "image": "ubuntu:22.04", "command": "sleep, infinity",
}  # fmt: skip
AT_WORK = {
    "name": "train", "space": "team-b", "replicas": 1, "image": "nvcr.io/nvidia/pytorch:24.01-py3",
    "command": "gpu-load",
}  # fmt: skip


@dataclass
class Person:
    """Somebody with a kubeconfig of their own."""

    kubeconfig: Path

    def kgpu(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kgpu", *words, "--kubeconfig", str(self.kubeconfig)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    def rows(self) -> dict[str, Any]:
        """What ``kgpu usage`` says of owners; nothing while nothing is recorded."""
        done = self.kgpu("usage", "--by", "owner", "-o", "json")
        return {row["name"]: row for row in json.loads(done.stdout)["rows"]} if done.returncode == 0 else {}


@dataclass
class Watched:
    """A cluster with a workload that holds four GPUs for nothing, one that works, and who is told."""

    site: Site
    slack: LocalReceiver
    watcher: Person
    owner: Person

    def deployment(self) -> Object:
        found: Object = self.site.get("deployment", "llama", "-n", "research")
        return found

    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = self.deployment()["metadata"].get("annotations", {})
        return found

    def told(self, words: str) -> str:
        """The message that has these words, "" without."""
        return next((text for one in self.slack.got if words in (text := one.json["text"])), "")

    def events(self) -> dict[str, str]:
        """Message by reason, of Events about the Deployment."""
        found = self.site.get("events", "-n", "research")["items"]
        return {one["reason"]: one["message"] for one in found if one["involvedObject"]["kind"] == "Deployment"}

    def record(self) -> record.ReclaimRecord:
        """What the process has on record."""
        (text,) = self.site.get("configmap", "kgpu-reclaim", "-n", NAMESPACE)["data"].values()
        found = record.decode(text)
        assert found is not None
        return found

    def status(self) -> Object:
        found: Object = self.site.get("gpuusagepolicy", "research")["status"]
        return found

    def new_process(self) -> None:
        """A process that goes on from what is written, and has its round at once."""
        self.site.lab.kubectl("-n", NAMESPACE, "delete", "pod", "-l", "app=kgpu-usage", "--wait=false")

    @contextmanager
    def no_process(self) -> Iterator[None]:
        """Within the block none runs, which would write over what is changed of its record; then one that goes on."""
        of_usage = ("-n", NAMESPACE, "-l", "app=kgpu-usage")
        scale = ("-n", NAMESPACE, "scale", "deployment/kgpu-usage")
        self.site.lab.kubectl(*scale, "--replicas=0")
        self.site.until(lambda: not self.site.get("pods", *of_usage)["items"], "the process to end")
        try:
            yield
        finally:
            self.site.lab.kubectl(*scale, "--replicas=1")

    def agent(self) -> Object:
        """The agent's pod."""
        pods = self.site.get("pods", "-n", NAMESPACE)["items"]
        found: Object = next(pod for pod in pods if pod["metadata"]["labels"].get("app") == "kgpu-agent")
        return found

    def said(self) -> Object:
        """What the agent says of its devices; nothing while it does not answer."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{self.agent()['metadata']['name']}:9410/proxy/usage/now"
        return self.site.lab.ask(path) or {}

    def holders(self) -> set[str]:
        """The pods' owners that the agent knows as holders."""
        return {holder["owner"] for device in self.said().get("devices", ()) for holder in device.get("holders", ())}

    def an_hour_passes(self) -> None:
        """For the agent: it is killed, and finds that those who do nothing have done so for an hour longer."""
        store = usage_store(node_dir(self.site.lab.paths, STATE_DIR))
        store.open()
        uid = self.agent()["metadata"]["uid"]
        pid = next(
            pid for pid in processes_of(uid) if b"agent" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        )
        try:
            self.site.until(lambda: len(of_research(store.load()[0])) == 4, "the agent to remember who holds GPUs")
            os.kill(pid, signal.SIGSTOP)
            put_back(store)
        finally:
            os.kill(pid, signal.SIGKILL)
            store.close()
        killed = uptime()
        # Until it has looked twice: what the first one lacks, as what the kubelet says of a pod, is unknown.
        self.site.until(lambda: self.said().get("looked_us", 0) / 1e6 > killed + 15.0, "the agent to look again")

    def the_time_of_grace_passes(self) -> None:
        """For the process: the warning was delivered, and its deadline set, half an hour earlier."""
        kept = self.record()
        (warning,) = kept.warnings
        assert warning.delivered is not None
        delivered, deadline_on_record = warning.delivered - HOUR / 2, warning.deadline - HOUR / 2
        earlier = msgspec.structs.replace(warning, delivered=delivered, deadline=deadline_on_record)
        text = record.encode(msgspec.structs.replace(kept, warnings=(earlier,)))
        (key,) = self.site.get("configmap", "kgpu-reclaim", "-n", NAMESPACE)["data"]
        change = json.dumps({"data": {key: text}})
        self.site.lab.kubectl("-n", NAMESPACE, "patch", "configmap", "kgpu-reclaim", "--type=merge", "-p", change)
        deadline = moment_of(self.annotations()[names.RECLAIM_AT])
        assert deadline is not None
        new = f"{names.RECLAIM_AT}={stamp_of(deadline - HOUR / 2)}"
        self.site.lab.kubectl("-n", "research", "annotate", "--overwrite", "deployment/llama", new)


def processes_of(uid: str) -> list[int]:
    """The processes of a pod on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            if uid in path.read_text().replace("_", "-"):
                found.append(int(path.parent.name))
        except OSError:  # it has ended
            continue
    return sorted(found)


def of_research(gathered: Gathered | None) -> list[TrackedGpu]:
    """The GPUs of which an agent remembers that pods hold them that do nothing."""
    tracked = gathered.devices.values() if gathered is not None else ()
    return [gpu for gpu in tracked if any(one.who.namespace == "research" for one in gpu.holders.values())]


def put_back(store: UsageStore) -> None:
    """What an agent remembers, put back by an hour for pods that do nothing."""
    gathered, _ = store.load()
    for gpu in of_research(gathered):
        for holder in gpu.holders.values():
            holder.since_us -= HOUR * 10**6
        if gpu.unit.busy_us is not None:
            gpu.unit.busy_us -= HOUR * 10**6
        stretch = gpu.unit.watch.open
        assert stretch is not None
        # What was on the GPU before its pod, such as kgpu's first check, would have been an hour ago, too.
        stretch.begin_us, stretch.watched_us = stretch.begin_us - HOUR * 10**6, stretch.watched_us + HOUR * 10**6
        stretch.peak, stretch.sum_us, stretch.changed = 0.0, 0.0, False
    store.save((), gathered=gathered)


def person(site: Site, folder: Path, name: str) -> Person:
    """A ServiceAccount without rights, and its kubeconfig."""
    site.lab.kubectl("create", "serviceaccount", name)
    token = site.lab.kubectl("create", "token", name).strip()
    config = yaml.safe_load(site.lab.kubectl("config", "view", "--raw", "--flatten"))
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
    path = folder / name
    path.write_text(yaml.safe_dump(config))
    return Person(path)


@pytest.fixture(scope="module")
def watched(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """kgpu with everything about usage switched on, two workloads, a policy, and Slack on this machine."""
    if uptime() < 2 * HOUR:
        pytest.skip("an hour ago this machine did not run")
    folder, kubectl = tmp_path_factory.mktemp("people"), site.lab.kubectl
    rights = RIGHTS.read_text().replace(
        "{apiGroup: rbac.authorization.k8s.io, kind: Group, name: gpu-watchers}",
        "{kind: ServiceAccount, name: watcher, namespace: default}",
    ).replace("namespace: team-a", "namespace: research")  # fmt: skip
    with receiving_beside(host=site.lab.network.host_ip) as slack:
        for space in ("research", "team-b"):
            kubectl("create", "namespace", space)
        try:
            kubectl("label", "namespace", "research", f"{names.RECLAIM_LABEL}=enabled")
            site.have("agent", *VALUES)
            kubectl("apply", "-f", "-", stdin=rights)
            found = Watched(site, slack, person(site, folder, "watcher"), person(site, folder, "owner"))
            kubectl(
                "-n", "research", "create", "rolebinding", "own", "--clusterrole=edit", "--serviceaccount=default:owner"
            )
            url = f"--from-literal=url=http://{site.lab.network.host_ip}:{slack.port}/services/T0/B0/secret"
            kubectl("-n", NAMESPACE, "create", "secret", "generic", "gpu-costs", url)
            manifests = (POLICY, DEPLOYMENT % HELD_FOR_NOTHING, DEPLOYMENT % AT_WORK)
            kubectl("apply", "-f", "-", stdin="\n---\n".join(manifests))
            yield found
        finally:
            kubectl("delete", "--ignore-not-found", "-f", "-", stdin=rights)
            for words in (
                ("gpuusagepolicy", "research"), ("-n", NAMESPACE, "secret", "gpu-costs"),
                ("serviceaccount", "watcher", "owner"), ("namespace", "research", "team-b"),
            ):  # fmt: skip
                kubectl("delete", "--ignore-not-found", *words)


def test_what_does_nothing_is_told_about_warned_stopped_and_brought_back(watched: Watched) -> None:
    site, watcher = watched.site, watched.watcher
    site.until(lambda: watched.deployment()["status"].get("readyReplicas") == 2, "both pods to run")
    site.until(lambda: {"Deployment/llama", "Deployment/train"} <= watched.holders(), "the agent to see who holds GPUs")
    watched.an_hour_passes()

    def idle_now() -> subprocess.CompletedProcess[str]:
        return watcher.kgpu("idle", "--min", "30m", "-o", "json")

    # For half a minute after its start the agent tests GPUs itself, and can't say what their holders do.
    polling.holds(lambda: idle_now().returncode == 3, seconds=120)
    done = idle_now()
    if done.returncode != 3:
        explained = watcher.kgpu("idle", "explain", "research/llama")
        pytest.fail(f"it is not idle: {done.stdout}{done.stderr}{explained.stdout}{explained.stderr}{watched.said()}")
    (idle,) = json.loads(done.stdout)["idle"]
    assert (done.returncode, idle["who"], idle["gpus"], idle["state"]) == (3, "research/llama", 4.0, "held-empty")

    watched.new_process()
    site.until(lambda: watched.told("*Will be stopped: idle GPUs in research*"), "the warning to be delivered")
    about = watched.told("*Idle GPUs in research*")
    assert "Deployment research/llama" in about
    assert "12.24 USD an hour" in about, "four GPUs"
    site.until(lambda: [one for one in watched.record().warnings if one.delivered], "the delivery on record")
    assert watched.deployment()["spec"]["replicas"] == 2, "it has five minutes"
    assert watched.annotations()[names.RECLAIM_AT]
    explained = watcher.kgpu("idle", "explain", "research/llama")
    assert explained.returncode == 0, explained.stderr
    assert "STOP" not in explained.stdout
    assert "would be done: Deployment research/llama: scale" in explained.stdout

    with watched.no_process():
        watched.the_time_of_grace_passes()
    site.until(lambda: watched.deployment()["spec"]["replicas"] == 0, "it to be scaled to 0")
    site.until(lambda: watched.told("*Stopped: idle GPUs in research*"), "people to be told")
    assert {"ReclaimWarned", "Reclaimed"} <= watched.events().keys()
    (action,) = watched.record().actions
    assert (action.state, action.gpus, action.undo) == (record.ActionState.DONE, 4.0, "kgpu idle resume research/llama")
    site.until(lambda: "research/llama" in str(watched.status()["lastActions"]), "the policy to say so")

    assert watcher.kgpu("idle", "resume", "research/llama").returncode != 0, "who watches changes nothing"
    resumed = watched.owner.kgpu("idle", "resume", "research/llama")
    assert resumed.returncode == 0, resumed.stderr
    site.until(lambda: watched.deployment()["status"].get("readyReplicas") == 2, "both pods to run again")
    assert not {names.RECLAIM_ACTION, names.ORIGINAL_REPLICAS} & watched.annotations().keys()


def test_who_used_what_is_in_the_history(watched: Watched) -> None:
    wanted = {"research/Deployment/llama", "team-b/Deployment/train"}
    watched.site.until(lambda: wanted <= watched.watcher.rows().keys(), "both in the history")
    rows = watched.watcher.rows()
    assert rows["team-b/Deployment/train"]["busy_ratio"] > 0.5
    assert rows["research/Deployment/llama"]["busy_ratio"] < 0.05
