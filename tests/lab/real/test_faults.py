"""A fault stays where it happened: Xid, hang and repair on a real node, without any restart."""

from __future__ import annotations

import time
from typing import Any

# The kubelet of the lab updates the node's status every second; the fault must be in the update after next at the latest.
STATUS_PERIOD_S = 1.0
SEEN_WITHIN_S = 2.0
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
    took = time.monotonic() - begun
    print(f"Allocatable fell {took:.2f} s after the Xid")
    assert took <= STATUS_PERIOD_S + SEEN_WITHIN_S
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
