"""A fault stays where it happened: Xid, hang and repair on a real node, without any restart."""

from __future__ import annotations

import json
import time
from typing import Any

from kgpu.hw.simulator import operate
from kgpu.lab import reset
from kgpu.lab.real import status
from kgpu.lab.real.model import NODE_NAME
from tests.lab.real.conftest import until

WORK = "nvidia-smi -L && ./vectoradd && exec sleep 3600"


def test_the_node_offers_its_gpus_and_says_what_they_are(gpus: Any) -> None:
    assert gpus.gpus() == ("8", "8")
    labels = gpus.lab.node()["metadata"]["labels"]
    assert labels["nvidia.com/gpu.count"] == "8"
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"


def test_an_xid_costs_one_gpu_and_nothing_restarts(gpus: Any) -> None:
    agent = gpus.lab.agent_pid
    gpus.pod("bystander", command=WORK)
    gpus.wait_phase("bystander", "Running")
    gpus.hw("inject", "xid", "79", "--gpu", "7")
    begun = time.monotonic()
    gpus.wait_gpus("8", "7")
    print(f"Allocatable fell {time.monotonic() - begun:.2f} s after the Xid")  # how soon is the machine's speed
    assert gpus.phase("bystander") == "Running"
    assert gpus.pods()["bystander"]["status"]["containerStatuses"][0]["restartCount"] == 0
    gpus.hw("clear", "--gpu", "7")
    gpus.wait_gpus("8", "8")
    assert gpus.lab.agent_pid == agent


def test_a_hanging_gpu_does_not_keep_others_from_being_allocated(gpus: Any) -> None:
    agent = gpus.lab.agent_pid
    gpus.hw("inject", "hang", "--gpu", "5")
    for number in range(4):
        gpus.pod(f"other-{number}", command="exec sleep 3600")
    for number in range(4):
        gpus.wait_phase(f"other-{number}", "Running")
    gpus.wait_gpus("8", "7")
    gpus.hw("clear", "--gpu", "5")
    gpus.wait_gpus("8", "8")
    assert gpus.lab.agent_pid == agent


def _events(gpus: Any, uuid: str) -> list[dict[str, Any]]:
    """The Events about this GPU called unhealthy; those of the tests before about others may come late."""
    found = json.loads(gpus.lab.kubectl("get", "events", "--namespace", "default", "-o", "json"))["items"]
    of_it = [event for event in found if event["reason"] == "DeviceUnhealthy" and uuid in event["message"]]
    return [event for event in of_it if "Xid 79" in event["message"]]


def test_the_same_fault_again_counts_its_event_up(gpus: Any) -> None:
    counts = []
    uuid = operate.snapshot(gpus.lab.hw_root)["gpus"][6]["uuid"]
    for _ in range(2):
        before = sum(event["count"] for event in _events(gpus, uuid))
        gpus.hw("inject", "xid", "79", "--gpu", "6")
        gpus.wait_gpus("8", "7")
        until(lambda old=before: sum(event["count"] for event in _events(gpus, uuid)) > old, "an Event about the fault")
        counts.append(len(_events(gpus, uuid)))
        gpus.hw("clear", "--gpu", "6")
        gpus.wait_gpus("8", "8")
    assert counts[0] == counts[1]
    assert "an Event was not written" not in (gpus.lab.paths.logs / "kgpu-agent.log").read_text()


def test_status_says_which_gpu_is_unhealthy_and_why(gpus: Any) -> None:
    assert status.report(gpus.lab)["unhealthy"] == []
    gpus.hw("inject", "xid", "79", "--gpu", "2")
    gpus.wait_gpus("8", "7")
    rows = until(lambda: status.report(gpus.lab)["unhealthy"], "an unhealthy device in the status")
    assert [row["gpu"] for row in rows] == [2]
    assert rows[0]["why"]


def test_reset_puts_everything_back(gpus: Any) -> None:
    lab = gpus.lab
    assert reset.leftovers(lab) == []
    gpus.hw("inject", "xid", "79", "--gpu", "3")
    gpus.hw("mig", "--gpu", "0", "--profiles", "1g.10gb:7")
    lab.kubectl("label", "node", NODE_NAME, "nvidia.com/device-plugin.config=other")
    lab.kubectl("create", "namespace", "demo-mig-mixed")
    found = "\n".join(reset.leftovers(lab))
    for part in ("GPU 3: lost", "GPU 0: MIG is on, 7 slices", "device-plugin.config=other", "demo-mig-mixed"):
        assert part in found
    assert reset.reset(lab)
    assert reset.leftovers(lab) == []
    gpus.wait_gpus("8", "8")
