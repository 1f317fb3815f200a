"""``kgpu status`` for somebody who may read one namespace alone: its pods, what they wait for, its quotas."""

from __future__ import annotations

import json
from typing import Any

from kgpu.cli._status_tenant import TenantStatus, tenant_status
from kgpu.doctor.snapshot import Snapshot

GPU = "nvidia.com/gpu"


def pod(name: str, gpus: int = 1, *, namespace: str = "ml", node: str = "n1", **status: Any) -> dict[str, Any]:
    limits = {GPU: str(gpus)} if gpus else {}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}],
                 **({"nodeName": node} if node else {})},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], **status},
    }  # fmt: skip


def waits(message: str) -> dict[str, Any]:
    return {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}


def container(reason: str, message: str) -> dict[str, Any]:
    waiting = {"name": "c", "state": {"waiting": {"reason": reason, "message": message}}}
    return {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [waiting]}


def seen(*objects: dict[str, Any]) -> TenantStatus:
    snapshot = Snapshot()
    for obj in objects:
        snapshot.add(obj)
    return tenant_status(snapshot, "ml")


QUOTA = {
    "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": "ml"},
    "status": {"hard": {f"requests.{GPU}": "4"}, "used": {f"requests.{GPU}": "4"}},
}  # fmt: skip


def test_pods_that_wait_come_first_with_the_reason_and_a_command() -> None:
    found = seen(
        pod("a-runs", 2), pod("serve", 2, **container("ImagePullBackOff", "no such image")), QUOTA,
        pod("train", 8, node="", **waits("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")),
        pod("web", 0), pod("done", phase="Succeeded"), pod("others", namespace="other"),
    )  # fmt: skip
    assert not found.ready
    lines = found.text().splitlines()
    assert lines[0] == f"Namespace ml: 1 of 3 pods with accelerators ready; they hold 4 {GPU}"
    assert [line.split()[0] for line in lines[1:5]] == ["POD", "serve", "train", "a-runs"]
    assert f"quota gpus: 4 of 4 {GPU} used (used up)" in lines
    assert "✘ pod serve: no such image" in lines
    at = lines.index("✘ pod train: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    assert lines[at + 1] == "    to do: kgpu doctor pod ml/train"
    assert lines[-1].startswith("not known: nodes, operands and drivers")
    assert not any("others" in line or "done" in line for line in lines)


def test_all_well_and_nothing_at_all() -> None:
    assert seen(pod("runs")).ready
    assert seen().ready
    assert seen().text().splitlines()[0] == "Namespace ml: no pod asks for accelerators"
    claimed = pod("claims", 0)
    claimed["spec"]["resourceClaims"] = [{"name": "gpu"}, {"name": "nic"}]
    assert [one.asks for one in seen(claimed).pods] == ["2 claims"]


def test_a_pod_that_runs_and_is_not_ready_or_goes_away_is_not_well() -> None:
    unready = pod("late", conditions=[{"type": "Ready", "status": "False", "message": "the probe fails"}])
    going = pod("going")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = {one.name: (one.state, one.why) for one in seen(unready, going).pods}
    assert found == {"late": ("NotReady", "the probe fails"), "going": ("Terminating", "it is being deleted")}


def test_hostile_words_stay_on_their_line_and_many_pods_are_cut() -> None:
    many = [pod(f"p{at:03}", node="", **waits("\x1b[31m red\nline " + "x" * 5000)) for at in range(60)]
    text = seen(*many).text()
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 400
    assert "and 20 more pods; kgpu status -o json has them all" in text
    assert len(seen(*many).data()["pods"]) == 60
    json.dumps(seen(*many, QUOTA).data())
