"""The samples of quotas and queues in the embedded lab: what they refuse and hold back, and what the doctor says of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kgpu.cli.main import main
from kgpu.lab.embedded.lab import EmbeddedLab
from kgpu.lab.port import kubectl as run_kubectl
from tests import polling
from tests.lab import asking

pytestmark = pytest.mark.timeout(600)
Object = dict[str, Any]
Said = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "docs" / "samples"
GPU = "nvidia.com/gpu"
TEAM = "team-ml"
WAIT_S = 120.0


def pod_spec(gpus: int, **more: Any) -> Object:
    container = {"name": "main", "image": "busybox", "command": ["sleep", "3600"], "resources": {"limits": {GPU: gpus}}}
    return {"terminationGracePeriodSeconds": 0, "containers": [container], **more}


def workload(name: str, replicas: int, gpus: int) -> Object:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod_spec(gpus)}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": TEAM}, "spec": spec}


def bare(name: str, gpus: int, **more: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": pod_spec(gpus, **more),
    }


def claim(name: str) -> Object:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name, "namespace": TEAM},
        "spec": {"devices": {"requests": [request]}},
    }  # fmt: skip


@contextlib.contextmanager
def applied(lab: EmbeddedLab, file: Path) -> Iterator[None]:
    """The objects of a file are there, as long as the block lasts."""
    run_kubectl(lab, "apply", "--filename", str(file))
    try:
        yield
    finally:
        run_kubectl(lab, "delete", "--filename", str(file), "--ignore-not-found", "--wait")


@pytest.fixture
def team(embedded: EmbeddedLab) -> Iterator[EmbeddedLab]:
    with applied(embedded, SAMPLES / "quota.yaml"):
        until("the quota is counted", lambda: "hard" in quota(embedded)["status"])
        yield embedded


def until(what: str, true: Any) -> None:
    assert polling.holds(true, seconds=WAIT_S), what


def quota(lab: EmbeddedLab) -> Object:
    found: Object = asking.read(lab.kubeconfig, f"/api/v1/namespaces/{TEAM}/resourcequotas/gpus")
    return found


def used(lab: EmbeddedLab) -> dict[str, str]:
    found: dict[str, str] = quota(lab)["status"].get("used", {})
    return found


def pods(lab: EmbeddedLab, namespace: str = TEAM) -> list[Object]:
    found: list[Object] = asking.get(lab.kubeconfig, "pods", "-n", namespace)["items"]
    return found


def create(lab: EmbeddedLab, obj: Object) -> str:
    """What kubectl says, "" for nothing wrong."""
    return lab.kubectl_run("create", "--filename", "-", stdin=json.dumps(obj)).stderr


def asked(lab: EmbeddedLab, capsys: Said, *words: str) -> tuple[int, Any]:
    """The exit code of ``kgpu WORDS``, and what it says as JSON."""
    capsys.readouterr()
    code = main(["kgpu", *words, "--kubeconfig", str(lab.kubeconfig), "-o", "json"])
    out, err = capsys.readouterr()
    assert out, err
    return code, json.loads(out)


def test_a_pod_beyond_the_quota_is_refused_and_the_doctor_names_the_quota(team: EmbeddedLab, capsys: Said) -> None:
    assert create(team, workload("serve", replicas=5, gpus=1)) == ""
    until("four pods run", lambda: [one["status"]["phase"] for one in pods(team)] == ["Running"] * 4)
    until("the fifth is refused", lambda: found(team, capsys, "QTA-04"))
    (finding,) = found(team, capsys, "QTA-04")
    assert all(word in finding["cause"] for word in ("serve", "quota gpus", GPU))
    assert len(pods(team)) == 4
    code, said = asked(team, capsys, "quota", TEAM)
    (row,) = (one for one in said["rows"] if one["resource"] == GPU)
    assert (row["hard"], row["used"], row["held"], code) == (4, 4, 4, 0)


def found(lab: EmbeddedLab, capsys: Said, rule: str) -> list[Object]:
    _, said = asked(lab, capsys, "doctor", "deployment", f"{TEAM}/serve")
    return [one for one in said["findings"] if one["id"] == rule]


def test_no_container_has_more_than_two_gpus_and_one_that_asks_for_none_gets_none(
    team: EmbeddedLab, capsys: Said
) -> None:
    assert f"maximum {GPU} usage per Container is 2, but limit is 3" in create(team, bare("three", 3))
    without = bare("none", 0)
    del without["spec"]["containers"][0]["resources"]
    assert create(team, without) == ""
    (made,) = pods(team)
    assert made["spec"]["containers"][0]["resources"]["limits"][GPU] == "0"
    assert used(team)[f"requests.{GPU}"] == "0"
    _, said = asked(team, capsys, "doctor", "pod", f"{TEAM}/none")
    assert [one for one in said["findings"] if one["id"].startswith("QTA")] == []


def test_a_max_alone_would_give_every_container_that_many(team: EmbeddedLab, capsys: Said) -> None:
    """Why the sample has zeros."""
    (limits,) = asking.read(team.kubeconfig, f"/api/v1/namespaces/{TEAM}/limitranges")["items"]
    bare_max = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        **limits,
        "spec": {"limits": [{"type": "Container", "max": {GPU: "2"}}]},
    }
    run_kubectl(team, "replace", "--filename", "-", stdin=json.dumps(bare_max))
    without = bare("none", 0)
    del without["spec"]["containers"][0]["resources"]
    assert create(team, without) == ""
    (made,) = pods(team)
    assert made["spec"]["containers"][0]["resources"]["limits"][GPU] == "2"
    _, said = asked(team, capsys, "doctor")
    assert "QTA-07" in {one["id"] for one in said["findings"]}


def test_a_third_device_by_claims_is_refused(team: EmbeddedLab) -> None:
    assert [create(team, claim(name)) for name in ("one", "two")] == ["", ""]
    assert "exceeded quota: gpus" in create(team, claim("three"))
    key = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"
    until("both are counted", lambda: used(team)[key] == "2")


def test_who_has_the_class_waits_and_pushes_nobody_out(team: EmbeddedLab) -> None:
    assert create(team, bare("train", 1, priorityClassName="gpu-batch")) == ""
    (made,) = pods(team)
    assert (made["spec"]["priority"], made["spec"]["preemptionPolicy"]) == (1000, "Never")


def test_a_job_in_a_queue_waits_until_kueue_starts_it_and_its_pods_have_their_gpus(embedded: EmbeddedLab) -> None:
    """Kueue's part is done by hand: it takes ``suspend`` away, and adds what the flavor says to the template."""
    team, job = "team-vision", "/apis/batch/v1/namespaces/team-vision/jobs/train"
    with contextlib.ExitStack() as stack:
        for file in sorted((ROOT / "tests" / "samples" / "crds").glob("kueue*.yaml")):
            stack.enter_context(applied(embedded, file))
        stack.enter_context(applied(embedded, SAMPLES / "kueue.yaml"))
        until("the job is held", lambda: "Suspended" in json.dumps(asking.read(embedded.kubeconfig, job)["status"]))
        assert pods(embedded, team) == []
        flavor = asking.read(embedded.kubeconfig, "/apis/kueue.x-k8s.io/v1beta2/resourceflavors/h100")["spec"]
        admitted = {"nodeSelector": flavor["nodeLabels"], "tolerations": flavor["tolerations"]}
        patch = {"spec": {"suspend": False, "template": {"spec": admitted}}}
        run_kubectl(
            embedded, "--namespace", team, "patch", "job", "train", "--type=merge", "--patch", json.dumps(patch)
        )
        until("its pods run", lambda: [one["status"]["phase"] for one in pods(embedded, team)] == ["Running"] * 2)


@pytest.mark.parametrize("file", ["hpa.yaml", "quota.yaml"])
def test_what_kubernetes_itself_reads_is_accepted_and_nothing_in_it_is_unknown(
    embedded: EmbeddedLab, file: str
) -> None:
    """Objects of a namespace that is only in the file are not made in a dry run."""
    done = embedded.kubectl_run("create", "--dry-run=server", "--validate=strict", "--filename", str(SAMPLES / file))
    left = [line for line in done.stderr.splitlines() if f'namespaces "{TEAM}" not found' not in line]
    assert left == []
    assert done.stdout
