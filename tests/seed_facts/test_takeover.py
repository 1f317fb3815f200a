"""Instead of NVIDIA's operator and back, with Helm: one story, as ``docs/how-to/replace-the-gpu-operator.md`` tells it.

The release before is a small stand-in with the names, selectors and labels of NVIDIA's. Then a fresh
``helm install --wait``, as the documents print it (C09, D06, E05).
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kgpu.formats import names
from kgpu.formats.crd.definitions import crds
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.embedded.model import FirstNode
from kgpu.lab.port import kubectl
from kgpu.lab.progress import QuietProgress
from kgpu.lab.real import build
from tests.charts.conftest import CHART, NAMESPACE
from tests.lab import asking

pytestmark = pytest.mark.timeout(900)
WAIT_S = 300.0
OLD = Path(__file__).parent / "old_release.yaml"
OLD_PLUGIN = "nvidia-device-plugin-daemonset"
KEPT_LABEL = "nvidia.com/gpu.deploy.dcgm-exporter"
SETS = ("--set", "driver.enabled=false", "--set", "operator.cleanupCRD=false")


@dataclass(frozen=True)
class Site:
    """A cluster with one node of two GPUs and nobody who offers them."""

    lab: EmbeddedLab
    helm_program: str
    old: Path

    def helm(self, *words: str) -> subprocess.CompletedProcess[str]:
        home = {name: str(self.old.parent) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}
        env = {**os.environ, **home, "KUBECONFIG": str(self.lab.kubeconfig)}
        command = [self.helm_program, *words, "-n", NAMESPACE]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=env)

    def helm_does(self, *words: str) -> None:
        done = self.helm(*words)
        assert done.returncode == 0, done.stderr

    def get(self, *words: str) -> Any:
        try:
            return asking.get(self.lab.kubeconfig, *words)
        except LookupError:
            return None

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return kubectl(self.lab, *words, stdin=stdin)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > deadline:
                shown = self.lab.kubectl_run("get", "nodes,pods,daemonsets,clusterpolicies", "-A").stdout
                pytest.fail(f"not within {WAIT_S:g} s: {what}\n{shown}")
            time.sleep(0.3)

    def is_ready(self) -> bool:
        policy = self.get("clusterpolicy", "cluster-policy") or {}
        return (policy.get("status") or {}).get("state") == "ready" and self.offered() == "2"

    def offered(self) -> str:
        (node,) = self.get("nodes")["items"]
        return node["status"]["allocatable"].get(names.GPU_RESOURCE, "0")

    def daemon_sets(self) -> set[str]:
        return {one["metadata"]["name"] for one in self.get("daemonsets", "-n", NAMESPACE)["items"]}


@pytest.fixture(scope="module")
def site(helm: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if not build.find_kubectl():
        pytest.skip("no kubectl here")
    folder = tmp_path_factory.mktemp("takeover")
    templates = folder / "old" / "templates"
    templates.mkdir(parents=True)
    (templates / "all.yaml").write_text(OLD.read_text())
    (folder / "old" / "Chart.yaml").write_text("apiVersion: v2\nname: gpu-operator\nversion: v25.10.1\n")
    lab = EmbeddedLab("takeover", folder / "lab", QuietProgress(), first=FirstNode(gpus=2, agent=False))
    try:
        lab.up()
        site = Site(lab, helm, folder / "old")
        for definition in crds():
            site.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(definition))
        site.kubectl("wait", "--for=condition=Established", "crd/clusterpolicies.nvidia.com", "--timeout=300s")
        yield site
    finally:
        lab.down()


@pytest.fixture(scope="module")
def before(site: Site) -> str:
    """NVIDIA's operator works, with an operand and its labels; the uid of its policy."""
    site.helm_does("install", "gpu-operator", str(site.old), "--create-namespace")
    uid = site.get("clusterpolicy", "cluster-policy")["metadata"]["uid"]
    site.kubectl("apply", "-f", "-", stdin=json.dumps(operand_of(uid)))
    site.kubectl("label", "node", "--all", "nvidia.com/gpu.present=true", f"{KEPT_LABEL}=false")
    site.until(lambda: OLD_PLUGIN in site.daemon_sets(), "the old operand")
    return uid


def operand_of(uid: str) -> dict[str, Any]:
    labels = {"app": OLD_PLUGIN, names.LABEL_OPERATOR_STATE: "state-device-plugin"}
    owner = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "cluster-policy", "uid": uid}
    container = {"name": "c", "image": "busybox:1.36", "command": ["sleep", "100000"]}
    template = {
        "metadata": {"labels": {"app": OLD_PLUGIN}},
        "spec": {"containers": [container], "tolerations": [{"operator": "Exists"}]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": OLD_PLUGIN, "namespace": NAMESPACE, "labels": labels, "ownerReferences": [owner]},
        "spec": {"selector": {"matchLabels": {"app": OLD_PLUGIN}}, "template": template},
    }


@pytest.fixture(scope="module")
def taken(site: Site, before: str) -> str:
    """The same release with kgpu's chart."""
    site.kubectl("-n", NAMESPACE, "delete", "deployment", "gpu-operator")
    site.helm_does("upgrade", "gpu-operator", str(CHART), *SETS, "--no-hooks")
    site.until(site.is_ready, "kgpu to have taken over")
    return before


def test_opr25_a_second_release_beside_it_is_refused_by_helm(site: Site, before: str) -> None:
    done = site.helm("install", "kgpu", str(CHART), *SETS, "--no-hooks")
    assert (done.returncode, "cannot be imported into the current release" in done.stderr) == (1, True)
    assert site.get("clusterpolicy", "cluster-policy")["metadata"]["uid"] == before


def test_the_policy_is_the_same_object_and_ready(site: Site, taken: str) -> None:
    assert site.get("clusterpolicy", "cluster-policy")["metadata"]["uid"] == taken


def test_old_operands_make_room_and_labels_of_users_stay(site: Site, taken: str) -> None:
    own = {names.AGENT_DAEMON_SET, names.FINDER_DAEMON_SET}
    site.until(lambda: site.daemon_sets() == own, "the old operand to be gone, and only kgpu's own")
    (node,) = site.get("nodes")["items"]
    assert node["metadata"]["labels"][KEPT_LABEL] == "false"


def test_back_again_leaves_the_policy_and_nothing_of_kgpus(site: Site, taken: str) -> None:
    from click.testing import CliRunner

    from kgpu.cli.operator import operator

    words = ["cleanup", "--namespace", NAMESPACE, "--kubeconfig", str(site.lab.kubeconfig)]
    result = CliRunner().invoke(operator, words)
    assert result.exit_code == 0, result.output
    site.kubectl("-n", NAMESPACE, "delete", "deployment", "gpu-operator", "--ignore-not-found")
    site.helm_does("upgrade", "gpu-operator", str(site.old), "--no-hooks")
    assert site.get("clusterpolicy", "cluster-policy")["metadata"]["uid"] == taken
    site.until(lambda: names.AGENT_DAEMON_SET not in site.daemon_sets(), "kgpu's agents to be gone")

    def ours() -> set[str]:
        """Whose fields the node has; an agent may be ending yet whose DaemonSet is gone."""
        (node,) = site.get("nodes")["items"]
        return {one["manager"] for one in node["metadata"]["managedFields"] if one["manager"].startswith("kgpu-")}

    agents = ("pods", "-n", NAMESPACE, "-l", f"app={names.AGENT_DAEMON_SET}")
    site.until(lambda: not site.get(*agents)["items"], "the pods of kgpu's agents to be gone")
    site.until(lambda: ours() <= {"kgpu-lab"}, "nothing of kgpu's to be left on the node")
    (node,) = site.get("nodes")["items"]
    assert node["metadata"]["labels"][KEPT_LABEL] == "false"


def test_c09_d06_e05_a_fresh_install_with_wait_ends(site: Site, taken: str) -> None:
    """As printed: namespace first, with its Pod Security label; then ``--wait --generate-name``."""
    site.helm_does("uninstall", "gpu-operator", "--wait", "--no-hooks")
    site.lab.kubectl_run("delete", "clusterpolicy", "--all", "--timeout=300s")
    site.kubectl("label", "--overwrite", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=privileged")
    site.helm_does("install", "--wait", "--generate-name", str(CHART), *SETS, "--timeout", "150s")
    site.until(site.is_ready, "both GPUs and a ready policy")
