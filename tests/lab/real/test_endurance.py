"""A kubelet that restarts and an agent that is killed, again and again, with pods running: nobody loses a GPU, and none
is given twice.
"""

from __future__ import annotations

import random
import re
import time
from typing import Any

from kgpu.lab import processes
from tests.budget import count
from tests.lab.real.conftest import DEADLINE_S

ROUNDS = 20
UUID = re.compile(r"UUID: (GPU-[0-9a-f-]+)")
WORK = "nvidia-smi -L && ./vectoradd && exec sleep 3600"


def _seen(cluster: Any, name: str) -> set[str]:
    """The GPUs that a pod sees."""
    return set(UUID.findall(cluster.logs(name)))


def _until(cluster: Any, condition: Any, what: str) -> Any:
    end = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < end, f"waited for {what}\n{cluster.lab.log_tail('kgpu-agent', 30)}"
        time.sleep(0.05)
    return found


def _no_device_twice(cluster: Any) -> None:
    """By the kubelet's own record, among the pods that have not ended."""
    living = {
        pod["metadata"]["uid"]
        for pod in cluster.pods().values()
        if pod["status"].get("phase") in {"Pending", "Running"}
    }
    taken: dict[str, str] = {}
    for uid, devices in cluster.assignments().items():
        for device in devices if uid in living else ():
            assert device not in taken, f"{device} is given to {uid} and to {taken[device]}"
            taken[device] = uid


def test_the_kubelet_restarts_twenty_times(gpus: Any) -> None:
    gpus.pod("steady", command=WORK, gpus=2)
    gpus.wait_phase("steady", "Running")
    _until(gpus, lambda: "Test PASSED" in gpus.logs("steady"), "the computation")
    before, held = gpus.pods()["steady"], _seen(gpus, "steady")
    assert len(held) == 2
    socket = gpus.device_plugin_dir() / "kubelet.sock"
    delays = []
    for _ in range(ROUNDS):
        known = len(gpus.registrations())
        old = socket.stat().st_ctime_ns
        gpus.lab.restart_kubelet()
        returned = _until(gpus, lambda old=old: _new_ctime(socket, old), "the kubelet's socket")
        _until(gpus, lambda known=known: len(gpus.registrations()) > known, "the registration")
        delays.append(gpus.registrations()[known] - returned)
    # How soon is the machine's speed; that it happens each time is the agent's work.
    print(f"registered after the socket's return, in seconds: {[round(delay, 2) for delay in delays]}")
    gpus.wait_gpus("8", "8")
    after = gpus.pods()["steady"]
    assert (
        after["status"]["containerStatuses"][0]["containerID"]
        == before["status"]["containerStatuses"][0]["containerID"]
    )
    assert gpus.assignments()[after["metadata"]["uid"]] == held
    gpus.pod("afterwards", command="nvidia-smi -L && ./vectoradd", gpus=6)
    gpus.wait_phase("afterwards", "Succeeded")
    assert not _seen(gpus, "afterwards") & held


def _new_ctime(socket: Any, old: int) -> float:
    """When the socket was made anew, as seconds since the epoch; 0 while it is the old one or missing."""
    try:
        found = socket.stat().st_ctime_ns
    except FileNotFoundError:
        return 0.0
    return float(found / 1e9) if found != old else 0.0


def test_the_agent_is_killed_twenty_times(gpus: Any) -> None:
    seed = count(1, random.randrange(1 << 30))
    print(f"seed {seed}")
    chance = random.Random(seed)
    gpus.pod("steady", command=WORK, gpus=2)
    gpus.wait_phase("steady", "Running")
    _until(gpus, lambda: len(_seen(gpus, "steady")) == 2, "the steady pod's GPUs")
    before, held = gpus.pods()["steady"], _seen(gpus, "steady")
    agents = set[processes.ProcessRecord]()
    seen: dict[str, set[str]] = {}
    for number in range(ROUNDS):
        # Pods come and go all the time, so that the kill falls into allocations too.
        gpus.pod(f"round-{number}", command=WORK, gpus=2)
        if number >= 3:
            gpus.delete(f"round-{number - 3}")
        if number % 5 == 4:
            # Where an agent takes longer to register than it lives, no pod would ever run.
            _until(gpus, lambda number=number: _one_runs(gpus, number), "a pod of a round to run")
            _keep_theirs(gpus, seen)
        time.sleep(chance.uniform(0, 1.0))  # the random moment of the kill
        agents.add(_kill(gpus, agents))
        _no_device_twice(gpus)
        _keep_theirs(gpus, seen)
    assert len(agents) == ROUNDS
    assert len(seen) > 1, "no pod of a round ever ran, so that nothing was tested"
    gpus.wait_gpus("8", "8")
    last = [f"round-{number}" for number in range(ROUNDS - 3, ROUNDS)]
    for name in last:
        _until(gpus, lambda name=name: _runs(gpus, name), f"pod {name} to run")
    _no_device_twice(gpus)
    names = ["steady", *last]
    _until(gpus, lambda: all(len(_seen(gpus, name)) == 2 for name in names), "every pod's GPUs")
    assert len(set().union(*(_seen(gpus, name) for name in names))) == 8
    after = gpus.pods()["steady"]
    assert (
        after["status"]["containerStatuses"][0]["containerID"]
        == before["status"]["containerStatuses"][0]["containerID"]
    )
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    assert _seen(gpus, "steady") == held


def _one_runs(cluster: Any, number: int) -> bool:
    """Whether a pod of the last rounds runs; those that the kubelet has refused never will."""
    pods = cluster.pods()
    states = {pods[f"round-{one}"]["status"]["phase"] for one in range(max(0, number - 2), number + 1)}
    if states == {"Failed"}:
        return _runs(cluster, f"round-{number}")
    return "Running" in states


def _runs(cluster: Any, name: str) -> bool:
    """Whether the pod runs. Without its plugin the kubelet refuses a pod: it is made again, as a controller would."""
    status = cluster.pods()[name]["status"]
    if status["phase"] == "Failed":
        assert status["reason"] == "UnexpectedAdmissionError"
        cluster.delete(name)
        cluster.pod(name, command=WORK, gpus=2)
    return bool(status["phase"] == "Running")


def _keep_theirs(cluster: Any, known: dict[str, set[str]]) -> None:
    """Every running pod has the devices that it had when it was first seen running."""
    pods = cluster.pods()
    assigned = cluster.assignments()  # read last: what runs has been assigned before
    for name, pod in pods.items():
        if pod["status"]["phase"] == "Running":
            devices = assigned.get(pod["metadata"]["uid"], set())
            assert len(devices) == 2
            assert known.setdefault(name, devices) == devices


def _kill(cluster: Any, killed: set[processes.ProcessRecord]) -> processes.ProcessRecord:
    """SIGKILL the agent as soon as there is another than those: one that was killed is seen until it is reaped."""

    def another() -> bool:
        try:
            return bool(pid := cluster.lab.agent_pid) and processes.record(pid) not in killed
        except OSError:
            return False

    _until(cluster, another, "an agent to kill")
    found: processes.ProcessRecord = cluster.lab.kill_agent()
    return found
