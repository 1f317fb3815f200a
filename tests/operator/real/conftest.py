"""A real cluster without kgpu in it, kgpu's image loaded, and Helm: what a user of the chart begins with.

One lab for the module; where the machine can't carry it the tests are skipped, with KGPU_REQUIRE_REAL=1 they fail.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kgpu.base.errors import LabError
from kgpu.formats.names import GPU_RESOURCE
from kgpu.lab.progress import PlainProgress
from kgpu.lab.real import bootstrap, build, hosttools, kgpu_image
from kgpu.lab.real.cluster import RealLab
from kgpu.lab.real.model import NODE_NAME, LabSpec
from tests import on_real
from tests.budget import DEEP

T = TypeVar("T")
# Only ends what would never end: a machine that does much else is slow, not wrong.
DEADLINE_S = 300.0
# It needs a machine that has run for two hours, which those of CI have not: in deep runs.
collect_ignore = [] if DEEP else ["test_usage.py"]

CHART = Path(__file__).resolve().parents[3] / "charts" / "kgpu"
NAMESPACE = "gpu-operator"
RELEASE = "kgpu"
GATES = ("DRAExtendedResource=true",)
"""On beside those that are on anyway: pods that ask for nvidia.com/gpu get it by claims, too."""
# Kinds that tests look at until something has happened: a kubectl for each look would leave no processor to what happens.
PATHS = {
    "clusterpolicy": "/apis/nvidia.com/v1/clusterpolicies",
    "nodeoperation": "/apis/kgpu.dev/v1alpha1/nodeoperations",
    "pod": "/api/v1/namespaces/{}/pods",
    "event": "/api/v1/namespaces/{}/events",
    "daemonset": "/apis/apps/v1/namespaces/{}/daemonsets",
    "deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "pdb": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
}

Object = dict[str, Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_real.mark(items, __file__)


def path_of(words: tuple[str, ...]) -> str:
    """The path for ``kubectl get WORDS``: ``KIND [NAME] [-n NAMESPACE | -A]`` of a kind in PATHS; "" for anything else."""
    rest = list(words)
    namespace = "default"
    if "-n" in rest:
        at = rest.index("-n")
        namespace = rest[at + 1]
        del rest[at : at + 2]
    everywhere = "-A" in rest
    if everywhere:
        rest.remove("-A")
    kind = rest[0].removesuffix("s")
    if kind not in PATHS or len(rest) > 2 or any(word.startswith("-") for word in rest):
        return ""
    path = PATHS[kind].replace("/namespaces/{}", "") if everywhere else PATHS[kind].format(namespace)
    return "/".join([path, *rest[1:]])


def is_ready(pod: Object) -> bool:
    """Whether the kubelet says so."""
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))


@dataclass
class Site:
    """A cluster, and Helm to change it with."""

    lab: RealLab
    helm_program: str
    home: Path
    values: tuple[str, ...] | None = None
    """Those that kgpu was installed with last; None where it is not, or was made by other means."""

    def helm(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "HELM_CACHE_HOME": str(self.home), "HELM_CONFIG_HOME": str(self.home)}
        command = [self.helm_program, "--kubeconfig", str(self.lab.kubeconfig), "--namespace", NAMESPACE, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=600)
        if check and done.returncode != 0:
            print(self.evidence())
            pytest.fail(f"helm {' '.join(words)}: {done.stderr}")
        return done

    def install(self, *sets: str, verb: str = "install", words: tuple[str, ...] = ("--create-namespace",)) -> None:
        values = ["driver.enabled=false", f"hostPaths.driverInstallDir={self.lab.hw_root}", *sets]
        given = [word for value in values for word in ("--set", value)]
        self.values = None
        self.helm(verb, RELEASE, str(CHART), *words, *given)
        self.values = sets

    def uninstall(self) -> None:
        self.values = None
        self.helm("uninstall", RELEASE)

    def gone(self) -> None:
        """A cluster without kgpu, whatever tests before have left to share; its last pods remove what is theirs."""
        if self.installed():
            self.uninstall()
        self.until(lambda: not (self.get("pods", "-n", NAMESPACE) or {"items": ()})["items"], "the last pods to go")
        # Where the layout was changed from agent to operands, the agent's files stay: nobody sees them who could remove them.
        self.shell("rm -rf /var/lib/kgpu/*")

    def have(self, layout: str, *sets: str) -> None:
        """kgpu at work with these values: what is there is used, or upgraded, as an installation anew costs three times
        as much. For tests that begin with nothing but that; ``clean`` is for those that are about how it comes or goes.
        """
        wanted = (f"layout={layout}", *sets)
        if self.values != wanted:
            self.install(*wanted, verb="upgrade", words=("--install", "--create-namespace"))
        self.until(lambda: self.at_work(layout), f"the pods of the layout {layout} alone")
        self.ready()

    def at_work(self, layout: str) -> bool:
        """Whether there are the pods of this layout, all of them ready, and none that ends."""
        pods = (self.get("pods", "-n", NAMESPACE) or {"items": ()})["items"]
        apps = {pod["metadata"]["labels"].get("app", "") for pod in pods}
        expected = {"agent": {"kgpu-agent"}, "operands": {"nvidia-device-plugin-daemonset"}}
        others = set().union(*expected.values()) - expected[layout]
        well = all(not pod["metadata"].get("deletionTimestamp") and is_ready(pod) for pod in pods)
        return well and expected[layout] <= apps and not others & apps

    def installed(self) -> bool:
        return RELEASE in self.helm("list", "--all", "--short").stdout.split()

    def get(self, *words: str) -> Any:
        """What ``kubectl get WORDS`` is about, None when it is not there; what is asked often without kubectl."""
        if path := path_of(words):
            return self.lab.ask(path)
        done = self.lab.kubectl_run("get", *words, "-o", "json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def policy_status(self) -> Object:
        return (self.get("clusterpolicy", "cluster-policy") or {}).get("status", {})

    def allocatable(self, resource: str = GPU_RESOURCE) -> str:
        return self.lab.node()["status"]["allocatable"].get(resource, "")

    def conditions(self) -> dict[str, Object]:
        return {one["type"]: one for one in self.policy_status().get("conditions", [])}

    def until(self, condition: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
        """The first true value of ``condition``; the deadline only ends a wait that would never end."""
        found = on_real.looked_for(condition, deadline_s)
        if found is None:
            print(self.evidence())
            pytest.fail(f"waited {deadline_s:.0f} s for {what}")
        return found

    def still_allocatable(self, gpus: str = "8") -> None:
        """Fails, with what there is to see, where another number of GPUs is allocatable now."""
        if (found := self.allocatable()) != gpus:
            print(self.evidence())
            pytest.fail(f"{found or 'no'} GPUs are allocatable, and {gpus} were")

    def ready(self, gpus: str = "8") -> None:
        self.until(lambda: self.policy_status().get("state") == "ready", "the ClusterPolicy to be ready")
        self.until(lambda: self.allocatable() == gpus, f"{gpus} GPUs to be allocatable")

    def evidence(self) -> str:
        """What there is to see of an installation that went wrong."""
        parts = []
        for words in (
            ("get", "all,clusterpolicies", "-A"),
            ("get", "clusterpolicy", "-o", "yaml"),
            ("get", "nodes", "-o", "yaml"),
            ("-n", NAMESPACE, "get", "events"),
            ("-n", NAMESPACE, "logs", "deploy/gpu-operator", "--tail=40"),
            ("-n", NAMESPACE, "logs", "ds/kgpu-agent", "--tail=40"),
            ("-n", NAMESPACE, "logs", "-l", "app in (gpu-operator-cleanup, gpu-operator-cleanup-crd)", "--tail=20"),
        ):
            done = self.lab.kubectl_run(*words)
            parts.append(f"--- kubectl {' '.join(words)}\n{done.stdout}{done.stderr}")
        return "\n".join(parts)

    def run_pod(self, name: str, *, gpus: int) -> str:
        """What the vector addition sample prints with that many GPUs."""
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {
                        "name": "cuda",
                        "image": "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0",
                        "resources": {"limits": {"nvidia.com/gpu": gpus}},
                    }
                ],
            },
        }
        self.lab.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
        try:
            done = {"Succeeded", "Failed"}
            self.until(lambda: self.get("pod", name)["status"].get("phase") in done, f"pod {name} to end")
            status = self.get("pod", name)["status"]
            if not status.get("containerStatuses"):  # the kubelet took it not in, and there is no log
                print(self.evidence())
                pytest.fail(f"pod {name}: {status.get('reason')}: {status.get('message')}")
            return self.lab.kubectl("logs", name)
        finally:
            self.lab.kubectl("delete", "pod", name, "--force", "--grace-period=0")

    def shell(self, script: str) -> str:
        """What a shell prints that runs in the node's namespaces, beside its kubelet."""
        command = self.lab.in_node(["sh", "-c", script])
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    def node_labels(self) -> dict[str, str]:
        labels: dict[str, str] = self.lab.node()["metadata"]["labels"]
        return labels

    @property
    def node(self) -> str:
        return NODE_NAME


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The cluster: one node with eight simulated GPUs, no agent, kgpu's image."""
    spec = LabSpec(name=f"operator-{os.getpid()}", agent=False, audit=True, feature_gates=GATES)
    with made(spec, tmp_path_factory.mktemp("operator")) as site:
        yield site


@contextmanager
def made(spec: LabSpec, folder: Path) -> Iterator[Site]:
    """A cluster with kgpu's image, taken down at the end."""
    progress = PlainProgress()
    try:
        hosttools.require_platform()
        hosttools.ensure_host_tools(progress)
        helm = build.ensure_helm(progress)
    except LabError as error:
        on_real.unavailable(error.one_line())
    lab = RealLab(spec, folder=folder / "lab", progress=progress)
    try:
        lab.up()
        bootstrap.import_archive(lab, kgpu_image.ensure_image(progress))
        yield Site(lab, helm, folder)
    finally:
        lab.down()


@pytest.fixture
def clean(site: Site) -> Iterator[Site]:
    """The cluster without kgpu, before and after."""
    site.gone()
    yield site
    site.values = None
    if site.installed() and site.helm("uninstall", RELEASE, check=False).returncode != 0:
        site.helm("uninstall", RELEASE, "--no-hooks", check=False)
