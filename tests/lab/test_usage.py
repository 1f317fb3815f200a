"""Usage in an operated embedded lab: pods with loads, their agent's counters, ``kgpu usage``, and the history's process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgpu.formats.names import GPU_OPERATOR_NAMESPACE
from kgpu.formats.usage import UsageState
from kgpu.kube.client import connect
from kgpu.lab.common import FIRST_NODE
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.nodes import manage
from kgpu.lab.port import kubectl as run_kubectl
from kgpu.lab.progress import QuietProgress
from kgpu.manager.usage_host import UsageHostOptions, keep
from kgpu.usage.agents import UsageAgents
from kgpu.usage.live import HeardAgents
from kgpu.usage.states import IdleRules
from tests import polling

pytestmark = pytest.mark.timeout(600)
WAIT_S = 300.0
SHORT = IdleRules(window=20.0, warm_up=0.0)
PODS = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: train, namespace: default}
spec:
  selector: {matchLabels: {app: train}}
  template:
    metadata: {labels: {app: train}}
    spec:
      containers: [{name: main, image: pytorch/pytorch, command: [gpu-load], resources: {limits: {nvidia.com/gpu: 1}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: empty, namespace: default}
spec:
  containers: [{name: main, image: nvidia/cuda, command: [sleep, infinity], resources: {limits: {nvidia.com/gpu: 1}}}]
"""
SECOND = "second-1"
RANK = """
---
apiVersion: v1
kind: Pod
metadata: {{name: rank-{at}, namespace: default, labels: {{scheduling.x-k8s.io/pod-group: ring}}}}
spec:
  nodeSelector: {{kubernetes.io/hostname: {node}}}
  containers: [{{name: main, image: pytorch/pytorch, command: {command}, resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]
"""


@pytest.fixture(scope="module")
def lab(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLab]:
    """A lab whose agents count: on a node of four GPUs pods that train and do nothing, and a gang on it and another."""
    del kubectl
    folder = tmp_path_factory.mktemp("usage")
    first = FirstNode(profile="l4", gpus=4)
    made = EmbeddedLab("usage", folder / "lab", QuietProgress(), first=first, usage=True)
    try:
        made.up()
        manage.add_to_running(made.folder, "l4", name_prefix="second", gpus=1)
        ranks = ((0, SECOND, "[sleep, infinity]"), (1, FIRST_NODE, "[gpu-load]"))
        gang = "".join(RANK.format(at=at, node=node, command=command) for at, node, command in ranks)
        (folder / "pods.yaml").write_text(gang + "---" + PODS)
        run_kubectl(made, "apply", "--filename", str(folder / "pods.yaml"))
        yield made
    finally:
        made.down()


async def seen(lab: EmbeddedLab) -> dict[str, UsageState]:
    """The state of each pod's GPU, by a short window; "" is what nobody holds."""
    api = connect(str(lab.kubeconfig))
    try:
        agents, heard = UsageAgents(api, namespace=GPU_OPERATOR_NAMESPACE, direct=False), HeardAgents()
        now = time.time()
        await agents.all_now(await agents.find(), 3600.0, lambda said: heard.heard(said, now))
        found = heard.devices(SHORT, now)
    finally:
        await api.close()
    return {(one.holders[0].owner or one.holders[0].pod) if one.holders else "": one.verdict.state for one in found}


def test_busy_is_busy_held_for_nothing_is_empty_and_a_rank_waits_for_another_nodes(lab: EmbeddedLab) -> None:
    wanted = {
        "Deployment/train": UsageState.BUSY, "empty": UsageState.HELD_EMPTY, "": UsageState.FREE,
        "rank-0": UsageState.WAITING, "rank-1": UsageState.BUSY,
    }  # fmt: skip
    last: dict[str, UsageState] = {}

    def reached() -> bool:
        last.clear()
        last.update(asyncio.run(seen(lab)))
        return last == wanted

    assert polling.holds(reached, seconds=WAIT_S, pause=1.0), (last, lab.log_tail("server", 20))


def test_the_history_has_what_agents_have_and_kgpu_usage_shows_it(lab: EmbeddedLab, tmp_path: Path) -> None:
    async def kept() -> int:
        api = connect(str(lab.kubeconfig))
        options = UsageHostOptions(namespace=GPU_OPERATOR_NAMESPACE, folder=tmp_path, direct=False)
        process = []
        task = asyncio.create_task(keep(api, options, started=process.append))
        try:
            while not (process and not any(controller.missing() for controller in process[0]._controllers)):
                assert not task.done()
                await asyncio.sleep(0.1)
        finally:
            process[0].stop.set()
            await task
            await api.close()
        return (tmp_path / "history.sqlite").stat().st_size

    assert asyncio.run(kept()) > 0

    # A line is written when a holder goes.
    run_kubectl(lab, "delete", "pod", "empty", "--grace-period=1")

    def shown() -> set[str]:
        words = ("usage", "--kubeconfig", str(lab.kubeconfig), "--by", "owner", "--output", "json")
        done = subprocess.run([sys.executable, "-m", "kgpu", *words], capture_output=True, text=True, timeout=WAIT_S)
        return {row["name"] for row in json.loads(done.stdout)["rows"]} if done.returncode == 0 else set()

    assert polling.holds(lambda: "default/Pod/empty" in shown(), seconds=WAIT_S, pause=2.0), shown()
