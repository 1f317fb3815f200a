"""From `helm install` to a ClusterPolicy that is ready, on a real cluster of one node with eight simulated GPUs.

``python -m bench.install [--rounds N]``. Everything is on the node already, so that no image is pulled. Each round
installs the chart, notes when each step on the way was seen, and uninstalls it again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.measures import World
from bench.nodes import require_real_lab
from bench.skip import SkippedError
from kgpu.base.errors import KubeError, LabError
from kgpu.base.plain import items, mapping, strings, text
from kgpu.formats import names
from kgpu.kube import kinds
from kgpu.kube.client import Client, connect
from kgpu.kube.port import NODES, PODS, Change, Object, Resource, name_of
from kgpu.lab.progress import QuietProgress
from kgpu.lab.real import bootstrap, build, kgpu_image
from kgpu.lab.real.cluster import RealLab
from kgpu.lab.real.model import LabSpec

CHART: Final = Path(__file__).resolve().parent.parent / "charts" / "kgpu"
NAME: Final = "bench-install"
NAMESPACE: Final = "gpu-operator"
GPUS: Final = "8"
LIMIT_S: Final = 300.0
LOOK_S: Final = 0.5
OPERATOR: Final = "gpu-operator"
HELM: Final = "helm"
READY: Final = "ready"


def _runs(prefix: str) -> Callable[[Object], bool]:
    """A pod of that name whose containers have started."""

    def seen(pod: Object) -> bool:
        states = items(mapping(pod.get("status")).get("containerStatuses"))
        return name_of(pod).startswith(prefix) and any("running" in mapping(one.get("state")) for one in states)

    return seen


def _labelled(key: str) -> Callable[[Object], bool]:
    return lambda node: key in strings(node["metadata"].get("labels"))


@dataclass(frozen=True, slots=True)
class Step:
    """What is seen of an object of a kind when that far on the way."""

    key: str
    title: str
    resource: Resource
    seen: Callable[[Object], bool]


STEPS: Final = (
    Step("operator", "operator runs", PODS, _runs(OPERATOR)),
    Step("finder", "finder runs", PODS, _runs(names.FINDER_DAEMON_SET)),
    Step("found", "GPU's PCI label on the node", NODES, _labelled("feature.node.kubernetes.io/pci-10de.present")),
    Step("chosen", "node chosen for an agent", NODES, _labelled(f"{names.LABEL_DEPLOY_PREFIX}device-plugin")),
    Step("agent", "agent runs", PODS, _runs(names.AGENT_DAEMON_SET)),
    Step("offered", "all GPUs allocatable", NODES, lambda node: _offers(node) == GPUS),
    Step(READY, "ClusterPolicy ready", kinds.CLUSTER_POLICIES, lambda one: _state(one) == READY),
)
"""In the order in which they are usually seen."""


def _offers(node: Object) -> str:
    return text(mapping(mapping(node.get("status")).get("allocatable")).get(names.GPU_RESOURCE))


def _state(policy: Object) -> str:
    return text(mapping(policy.get("status")).get("state"))


def to_ready(world: World) -> Mapping[str, list[float]]:
    """Seconds from the start of `helm install`, for ``HELM``'s own end and each step. Raises SkippedError."""
    require_real_lab()
    progress = QuietProgress()
    # A pod that is not privileged can't reach what is mounted below its own /root.
    lab = RealLab(LabSpec(name=NAME, agent=False), folder=world.folder / NAME, progress=progress)
    if lab.running:
        raise SkippedError(f'a lab named "{NAME}" runs here; take it down with `kgpu lab down --name {NAME}`')
    try:
        try:
            helm = build.ensure_helm(progress)
            lab.up()
            bootstrap.import_archive(lab, kgpu_image.ensure_image(progress))
        except LabError as error:
            raise SkippedError(f"the real lab does not come up here: {error.one_line()}") from error
        found: dict[str, list[float]] = {}
        for _ in range(world.runs):
            for key, seconds in asyncio.run(_Round(lab, helm, world.folder).play()).items():
                found.setdefault(key, []).append(seconds)
        return found
    finally:
        lab.down()


@dataclass(slots=True)
class _Round:
    """One installation. ``at``: seconds from its start at which a step was first seen."""

    lab: RealLab
    helm: str
    folder: Path
    at: dict[str, float] = field(default_factory=dict)

    async def play(self) -> dict[str, float]:
        api = connect(str(self.lab.kubeconfig))
        watches: list[asyncio.Task[None]] = []
        try:
            begin = time.perf_counter()
            watches = [
                asyncio.create_task(self._watch(api, resource, begin)) for resource in {one.resource for one in STEPS}
            ]
            sets = ("driver.enabled=false", f"hostPaths.driverInstallDir={self.lab.hw_root}")
            given = [word for value in sets for word in ("--set", value)]
            begin = time.perf_counter()
            await self._run("install", OPERATOR, str(CHART), "--create-namespace", *given)
            self.at[HELM] = time.perf_counter() - begin
            _, waiting = await asyncio.wait(watches, timeout=LIMIT_S)
            if waiting:
                missing = [step.title for step in STEPS if step.key not in self.at]
                raise RuntimeError(f"not within {LIMIT_S:.0f} s: {', '.join(missing)}; seen: {self.at}")
        finally:
            for task in watches:
                task.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
            await self._run("uninstall", OPERATOR)
            await self._until_clean(api)
            await api.close()
        return self.at

    async def _watch(self, api: Client, resource: Resource, begin: float) -> None:
        """Note when the steps of a kind are seen; returns with the last of them."""
        missing = {one for one in STEPS if one.resource == resource}

        def look(obj: Object) -> None:
            for step in [one for one in missing if one.seen(obj)]:
                self.at[step.key] = time.perf_counter() - begin
                missing.discard(step)

        while missing:
            with contextlib.suppress(KubeError):  # the policy's kind is not there at first
                listing = await api.list(resource)
                for obj in listing.items:
                    look(obj)
                async for event in api.watch(resource, listing.resource_version):
                    if event.change not in (Change.BOOKMARK, Change.DELETED):
                        look(event.object)
                    if not missing:
                        return
            await asyncio.sleep(0.1)

    async def _run(self, *words: str) -> None:
        env = {**os.environ, "HELM_CACHE_HOME": str(self.folder), "HELM_CONFIG_HOME": str(self.folder)}
        command = [self.helm, "--kubeconfig", str(self.lab.kubeconfig), "--namespace", NAMESPACE, *words]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=False, env=env, timeout=LIMIT_S
        )
        if done.returncode:
            raise RuntimeError(f"helm {words[0]}: {done.stderr}")

    async def _until_clean(self, api: Client) -> None:
        """Until nothing is left that a step could be taken for."""
        for _ in range(int(LIMIT_S / LOOK_S)):
            if not await self._anything(api):
                return
            await asyncio.sleep(LOOK_S)
        raise RuntimeError(f"helm uninstall has left something {LIMIT_S:.0f} s later")

    async def _anything(self, api: Client) -> bool:
        if (await api.list(PODS, namespace=NAMESPACE)).items:
            return True
        nodes = (await api.list(NODES)).items
        return any(step.seen(node) for step in STEPS if step.resource == NODES for node in nodes)


def main() -> int:
    """Measure and print each round."""
    parser = argparse.ArgumentParser(prog="bench.install", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kgpu-bench-") as folder:
        found = to_ready(World(Path(folder), arguments.rounds))
    for key, values in found.items():
        sys.stdout.write(f"{key:<10}{''.join(f'{value:8.2f}' for value in values)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
