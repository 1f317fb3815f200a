"""Somebody with rights to one namespace, on the embedded cluster, whose API server grants them by its own rules."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.port import kubectl as run_kubectl
from tests import polling

POD = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "large", "namespace": "tenancy"},
    "spec": {"containers": [{"name": "c", "image": "busybox:1", "resources": {"limits": {"nvidia.com/gpu": 99}}}]},
}  # fmt: skip


@pytest.fixture
def tenant(embedded: EmbeddedLab, tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of a ServiceAccount that may edit the namespace ``tenancy``, with a pod that waits."""
    run_kubectl(embedded, "create", "namespace", "tenancy")
    try:
        of_it = ("--namespace", "tenancy")
        run_kubectl(embedded, "create", "serviceaccount", "tenant", *of_it)
        run_kubectl(
            embedded, "create", "rolebinding", "tenant", "--clusterrole=edit", "--serviceaccount=tenancy:tenant", *of_it
        )
        run_kubectl(embedded, "apply", "-f", "-", stdin=json.dumps(POD))
        config = yaml.safe_load(embedded.kubeconfig.read_text())
        token = run_kubectl(embedded, "create", "token", "tenant", *of_it).strip()
        config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
        path = tmp_path / "tenant"
        path.write_text(yaml.safe_dump(config))
        yield path
    finally:
        run_kubectl(embedded, "delete", "namespace", "tenancy")


RIGHTS = Path(__file__).resolve().parents[2] / "docs/how-to/usage-rights.yaml"


@pytest.fixture
def watcher(embedded: EmbeddedLab, tenant: Path) -> Iterator[Path]:
    """The tenant with the rights to look at usage; those of kgpu's namespace are in one that is made for this."""
    account = "{kind: ServiceAccount, name: tenant, namespace: tenancy}"
    rights = RIGHTS.read_text().replace("namespace: team-a", "namespace: tenancy")
    rights = rights.replace("{apiGroup: rbac.authorization.k8s.io, kind: Group, name: gpu-watchers}", account)
    rights = rights.replace("namespace: gpu-operator", "namespace: kgpus-own")
    run_kubectl(embedded, "create", "namespace", "kgpus-own")
    run_kubectl(embedded, "apply", "-f", "-", stdin=rights)
    try:
        yield tenant
    finally:
        run_kubectl(embedded, "delete", "-f", "-", stdin=rights)
        run_kubectl(embedded, "delete", "namespace", "kgpus-own")


def kgpu(kubeconfig: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kgpu", *words, "--kubeconfig", str(kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("words", [("-n", "tenancy"), ("pod", "tenancy/large")])
def test_who_has_one_namespace_is_told_why_his_pod_waits(tenant: Path, words: tuple[str, ...]) -> None:
    assert polling.holds(lambda: kgpu(tenant, "doctor", *words).returncode == 1, seconds=90), "the scheduler says so"
    found = json.loads(kgpu(tenant, "doctor", *words, "-o", "json").stdout)
    (one,) = found["findings"]
    assert one["id"] == "SCH-00"
    assert "Insufficient nvidia.com/gpu" in one["cause"]
    assert {"nodes": 0, "pods": 1}.items() <= {"nodes": 0, **found["looked"]}.items()
    assert any("of other namespaces than tenancy" in gap["what"] for gap in found["missing"])


def test_he_sees_his_quota_and_nothing_of_others(tenant: Path) -> None:
    done = kgpu(tenant, "quota", "tenancy")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split()[:6] == ["tenancy", "nvidia.com/gpu", "-", "-", "0", "99"]
    assert "of other namespaces than tenancy" in done.stderr
    assert "pods is forbidden" in kgpu(tenant, "quota", "kube-system").stderr
    assert "nor the pods of namespace default" in kgpu(tenant, "doctor").stderr


def test_status_shows_him_what_is_his(tenant: Path) -> None:
    """By the namespace of his context, or that which he names; another's is refused with what would help."""
    config = yaml.safe_load(tenant.read_text())
    config["contexts"][0]["context"]["namespace"] = "tenancy"
    tenant.write_text(yaml.safe_dump(config))

    def told() -> bool:
        return "Insufficient nvidia.com/gpu" in kgpu(tenant, "status").stdout

    assert polling.holds(told, seconds=90), "the scheduler says so"
    for words in (("quota",), ("doctor",)):
        assert "this is namespace tenancy alone" in kgpu(tenant, *words).stderr
    done = kgpu(tenant, "status")
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("Namespace tenancy: 0 of 1 pod with accelerators ready\n")
    assert "to do: kgpu doctor pod tenancy/large" in done.stdout
    (row,) = json.loads(kgpu(tenant, "status", "-n", "tenancy", "-o", "json").stdout)["pods"]
    assert (row["name"], row["devices"], row["state"]) == ("large", {"nvidia.com/gpu": 99}, "Pending")
    activity = kgpu(tenant, "top", "--once")
    assert (activity.returncode, "kgpu status -n NAMESPACE" in activity.stderr) == (2, True)
    refused = kgpu(tenant, "status", "-n", "kube-system")
    assert (refused.returncode, "you may list neither nodes nor the pods of namespace kube-system" in refused.stderr) == (
        2, True,
    )  # fmt: skip


def refused(kubeconfig: Path, *words: str) -> bool:
    command = ["kubectl", "--kubeconfig", str(kubeconfig), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode == 0) != ("is forbidden" in done.stderr), done.stderr
    return done.returncode != 0


def test_rights_to_see_usage_show_no_pods_of_others_and_change_nothing(watcher: Path) -> None:
    """With kgpu's agents they see whose GPUs are used, which the file says; the rest is their own namespace's."""
    assert not refused(watcher, "get", "pods", "-n", "kgpus-own")
    for words in (
        ("get", "pods", "-A"), ("get", "pods", "-n", "default"), ("get", "secrets", "-n", "kgpus-own"),
        ("get", "configmaps", "-n", "kgpus-own"), ("get", "nodes"), ("get", "namespace", "default"),
        ("delete", "pod", "x", "-n", "kgpus-own"),
        ("create", "serviceaccount", "more", "-n", "kgpus-own"),
        ("create", "--raw", "/api/v1/namespaces/kgpus-own/pods/x:9410/proxy/", "-f", "/dev/null"),
        ("get", "--raw", "/api/v1/namespaces/default/pods/x:9410/proxy/"),
        ("get", "--raw", "/api/v1/namespaces/kgpus-own/services/x:80/proxy/"),
    ):  # fmt: skip
        assert refused(watcher, *words), words
    # In his namespace he may look at all but agents, which here are in a namespace that the rights do not name.
    assert "you may not read what GPUs are used for" in kgpu(watcher, "idle", "explain", "tenancy/large").stderr
    assert "kgpu:idle-explain" in kgpu(watcher, "idle", "explain", "default/large").stderr
