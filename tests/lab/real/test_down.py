"""Taking a lab down leaves nothing of it: no process, mount, link, cgroup, folder or changed kernel setting."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kgpu.base.errors import LabError
from kgpu.lab import lock, processes
from kgpu.lab.progress import PlainProgress
from kgpu.lab.real import cgroups, mountpoints
from kgpu.lab.real.cluster import RealLab
from kgpu.lab.real.model import KERNEL_TUNABLES, NODE_DIRS, LabSpec
from tests.lab.real.conftest import Cluster

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "sleeper"},
    "spec": {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "kgpu.dev/busybox:1", "command": ["sleep", "3600"]}],
    },
}


def _footprint(lab: RealLab) -> dict[str, object]:
    """What the lab could leave behind on this machine, its links aside. Other labs may come and go meanwhile."""
    with lock.machine():  # or another lab could be about to sit on a folder that it has just made
        used = mountpoints.in_use()
        folders = {target for target in NODE_DIRS if os.path.isdir(target) and target not in used}
    return {
        "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if "kgpu-suite" not in line],
        "netns": sorted(Path("/run/netns").glob("*")) if Path("/run/netns").is_dir() else [],
        "cgroups": sorted(str(found) for root in cgroups.trees() for found in root.glob(f"kgpu-lab-{lab.spec.name}*")),
        "folders": folders,
        "kernel": {name: Path(name).read_text() for name in KERNEL_TUNABLES if Path(name).exists()},
        "loop devices": sorted(path.name for path in Path("/sys/block").glob("loop*/backing_file")),
        "iptables": subprocess.run(["iptables-save"], capture_output=True, text=True, check=False).stdout.count("KUBE"),
    }


SECOND = f"second-{os.getpid()}"


@pytest.fixture
def second_lab(real_machine: None, tmp_path: Path) -> Iterator[RealLab]:
    lab = RealLab(LabSpec(name=SECOND, agent=False), folder=tmp_path / "second", progress=PlainProgress())
    yield lab
    lab.down()


def test_down_leaves_nothing_even_with_pods_running(second_lab: RealLab) -> None:
    before = _footprint(second_lab)
    second_lab.up()
    during = _footprint(second_lab)
    link, namespaces = _links()[second_lab.network.host_link], _namespaces(second_lab.keeper)
    assert during["cgroups"]
    assert during["mounts"] == before["mounts"]
    assert during["kernel"] == before["kernel"]
    second_lab.kubectl("apply", "-f", "-", stdin=json.dumps(POD))
    second_lab.kubectl("wait", "--for=condition=Ready", "pod/sleeper", "--timeout=60s")
    inside = _inside(namespaces)
    assert len(inside) > 3
    assert second_lab.down()
    assert _footprint(second_lab) == before
    assert link not in _links().values()
    # A namespace's number is soon another lab's, and so is a pid; both with the start time are not.
    assert not [each for each in inside if processes.alive(each)]
    assert not _processes_of(second_lab)
    assert not second_lab.paths.root.exists()
    assert not second_lab.down()


def _links() -> dict[str, int]:
    """This machine's links: by their names, which are used again, the numbers, which are not."""
    found = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True).stdout)
    return {link["ifname"]: link["ifindex"] for link in found}


def _namespaces(pid: str | int) -> set[str]:
    """Those of the process that are not this one's."""
    try:
        found = {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("pid", "mnt", "net")}
    except OSError:
        return set()
    return {name for kind, name in found.items() if name != os.readlink(f"/proc/self/ns/{kind}")}


def _inside(namespaces: set[str]) -> list[processes.ProcessRecord]:
    """The processes in one of these namespaces."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if _namespaces(pid) & namespaces:
            with suppress(OSError):
                found.append(processes.record(int(pid)))
    return found


def _processes_of(lab: RealLab) -> list[str]:
    """Processes of this machine whose command line or environment names the lab's folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(lab.paths.root) in command:
            found.append(f"{pid} {command}")
    return found


def test_up_again_keeps_what_is_there_and_refuses_other_settings(second_lab: RealLab, tmp_path: Path) -> None:
    second_lab.up()
    keeper = second_lab.keeper
    second_lab.up()
    assert second_lab.keeper == keeper
    other = RealLab(LabSpec(name=SECOND, profile="t4", agent=False), folder=tmp_path / "second")
    with pytest.raises(LabError, match="already up with other settings"):
        other.up()


def test_a_lab_whose_keeper_was_killed_can_be_brought_up_again(second_lab: RealLab) -> None:
    second_lab.up()
    keeper = second_lab.state.keeper
    assert keeper is not None
    assert processes.signal_process(keeper, signal.SIGKILL)
    while processes.alive(keeper):
        os.sched_yield()
    assert not second_lab.running
    with pytest.raises(LabError, match="no running lab"):
        second_lab.node()
    second_lab.up()
    assert second_lab.node()["status"]["conditions"]
    assert mountpoints.missing(NODE_DIRS) == []


def test_a_lab_goes_without_disturbing_another(cluster: Cluster, second_lab: RealLab) -> None:
    """They have folders of this machine as mount points in common: the first to go leaves them to the other."""
    second_lab.up()
    assert second_lab.down()
    assert all(os.path.isdir(target) for target in NODE_DIRS)
    assert cluster.gpus() == ("8", "8")
    cluster.pod("still-here", command="./vectoradd")
    cluster.wait_phase("still-here", "Succeeded")
    cluster.clear()


def test_who_still_looks_into_the_network_of_a_node_keeps_no_link(second_lab: RealLab) -> None:
    """Nor does a connection to a pod that is gone: for a minute or two the kernel keeps the namespace for it."""
    second_lab.up()
    link, network = _links()[second_lab.network.host_link], f"--net=/proc/{second_lab.keeper}/ns/net"
    words = ["nsenter", network, "sh", "-c", "echo there && exec sleep 600"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as looking:
        try:
            assert looking.stdout is not None
            assert looking.stdout.readline() == "there\n"
            assert second_lab.down()
            assert link not in _links().values()
        finally:
            looking.kill()


def test_who_still_looks_into_a_node_that_has_ended_keeps_no_folder(tmp_path: Path) -> None:
    """A command within the node, started from outside, ends a moment after the node does."""
    folder = tmp_path / "point"
    folder.mkdir()
    script = f"mount -t tmpfs tmpfs {folder} && echo there && exec sleep 600"
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as looking:
        try:
            assert looking.stdout is not None
            assert looking.stdout.readline() == "there\n"
            own = mountpoints.namespace(str(looking.pid))
            assert mountpoints.remove([str(folder)]) == []
            assert folder.exists()
            assert mountpoints.remove([str(folder)], own=own) == []
            assert not folder.exists()
        finally:
            looking.kill()
