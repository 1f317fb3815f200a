"""The parts of who uses what, each alone: claims, shares, containers, job files, and what is told of the rest."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from kgpu.base.clock import VirtualClock
from kgpu.base.errors import HostError, HwError, KubeletError
from kgpu.dra.api import DraApi
from kgpu.dra.devices import node_devices
from kgpu.dra.model import PublishRules
from kgpu.dra.slices import PoolOwner, pool_slices
from kgpu.exporter.holders import Holder, Unshown, resolve
from kgpu.exporter.model import Unit
from kgpu.exporter.users import jobs as jobs_module
from kgpu.exporter.users.claims import claimed, project
from kgpu.exporter.users.containers import ASK_SECONDS, Containers, ask_api
from kgpu.exporter.users.jobs import JOBS, job_ids, read_jobs
from kgpu.exporter.users.reasons import reason_of
from kgpu.exporter.users.shares import ProcessHolder, shares
from kgpu.exporter.users.unshown import _NOTICES, UnshownReporter
from kgpu.hw.port import Inventory, Process, ProcessKind
from kgpu.kube.fake import FakeApi
from kgpu.kube.port import PODS, KubeRefusedError, KubeUnreachableError
from kgpu.kubelet.pod_resources import DeviceClaim
from kgpu.kubelet.rpc import RpcError
from tests.dra.samples import gaudi, mi300x
from tests.exporter.made import gpu, holding, inventory, mig_uuid, partition, uuid

DRA = "gpu.nvidia.com"
CID = "ab" * 32
UID = "5b7d2f0e-6c1a-4d4e-9a55-0123456789ab"
KEY = ("team", "p", "main")


# --- claims ---


def slice_of(*devices: dict, driver: str = DRA, pool: str = "n1", generation: int = 1, name: str = "s") -> dict:
    spec = {"driver": driver, "nodeName": "n1", "pool": {"name": pool, "generation": generation}, "devices": devices}
    return project({"metadata": {"name": name, "resourceVersion": "1", "managedFields": ["big"]}, "spec": spec})


def device(name: str, deep: bool = False, **attributes: str) -> dict:
    given = {key.replace("__", "/").replace("_", "."): {"string": value} for key, value in attributes.items()}
    return {"name": name, "basic": {"attributes": given}} if deep else {"name": name, "attributes": given}


MIG = gpu(0, replace(partition(0, 7), placement_start=2), replace(partition(0, 8), placement_start=3))
NODE = inventory(MIG, gpu(1))


@pytest.mark.parametrize(
    ("one", "there"),
    [
        (device("gpu-1", type="gpu", uuid=uuid(1)), uuid(1)),
        (device("gpu-1", deep=True, type="gpu", uuid=uuid(1)), uuid(1)),
        (device("x", gpu_nvidia_com__uuid=uuid(1)), uuid(1)),
        (device("x", resource_kubernetes_io__pciBusID=NODE.accelerators[1].pci_bus_id.upper()), uuid(1)),
        (device("gpu-0-mig-1g10gb-19-3", type="mig", parentUUID=uuid(0), profile="1g.10gb"), mig_uuid(0, 8)),
        (device("mig", type="mig", uuid=mig_uuid(0, 7), parentUUID=uuid(0)), mig_uuid(0, 7)),
        # Not made yet, two of them and no place in the name, or of a GPU that is not there: told, never guessed.
        (device("gpu-0-mig-1g10gb-19-5", type="mig", parentUUID=uuid(0), profile="1g.10gb"), "gpu-0-mig-1g10gb-19-5"),
        (device("one-of-two", type="mig", parentUUID=uuid(0), profile="1g.10gb"), "one-of-two"),
        (device("gpu-9-mig-1g10gb-19-0", type="mig", parentUUID=uuid(9), profile="1g.10gb",
                resource_kubernetes_io__pciBusID="0000:1c:00.0"), "gpu-9-mig-1g10gb-19-0"),
        (device("channel-0", type="channel"), ""),
        (device("gpu-vfio-0", type="vfio", uuid=uuid(1)), ""),
        (device("nic"), ""),
    ],
)  # fmt: skip
def test_a_claims_device_by_its_attributes(one: dict, there: str) -> None:
    assert claimed([slice_of(one)], NODE) == {(DRA, "n1", one["name"]): there}


@pytest.mark.parametrize("node", [mi300x(), mi300x(parts=2), gaudi()])
def test_other_vendors_devices_are_known_by_their_names(node: Inventory) -> None:
    published = node_devices(node, PublishRules())
    (body,) = pool_slices(published, PoolOwner(name="n1"), DraApi())
    found = claimed([project(body)], node)
    assert found == {(published.driver, "n1", one.name): one.uuid for one in published.devices}
    gone = claimed([project(body)], replace(node, accelerators=()))
    assert not [uuid for uuid in gone.values() if uuid.startswith(("0000:", "AN"))]


def test_only_a_pools_newest_slices_count() -> None:
    old = slice_of(device("gpu-0", uuid=uuid(0)), device("gone", uuid=uuid(1)), name="a")
    new = slice_of(device("gpu-0", uuid=uuid(1)), generation=2, name="b")
    other = slice_of(device("gpu-0", uuid=uuid(0)), pool="n2", name="c")
    assert claimed([old, new, other], NODE) == {(DRA, "n1", "gpu-0"): uuid(1), (DRA, "n2", "gpu-0"): uuid(0)}


@pytest.mark.parametrize(
    "spec",
    [{}, {"devices": None}, {"devices": ["x", {}]}, {"pool": "x", "devices": [{"attributes": ["x"]}]},
     {"devices": [{"name": 1, "attributes": {"uuid": "plain", "type": {"int": 3}}}]}],
)  # fmt: skip
def test_slices_of_another_shape_break_nothing(spec: dict) -> None:
    found = claimed([project({"metadata": {"name": "s"}, "spec": spec})], NODE)
    assert all(value == "" for value in found.values())


# --- what is held and not shown ---


def by_claim(device_name: str, driver: str = DRA, pod: str = "p") -> object:
    return holding(pod, device_name, resource=driver, claim=DeviceClaim("c", "n1"))


@pytest.mark.parametrize(
    ("held", "uuids", "there"),
    [
        (holding("p", "GPU-old"), {}, ("device", "unknown-id")),
        (holding("p", "MIG-x", resource="nvidia.com/mig-1g.10gb"), {}, ("device", "unknown-id")),
        (holding("p", "x", resource="nvidia.com/gpu.shared"), {}, ("device", "unknown-id")),
        (holding("p", "x", resource="acme.com/gpu"), {}, ("device", "unknown-id")),  # one that the user named
        (holding("p", "x", resource="nvidia.com/hostdev"), {}, None),
        (holding("p", "x", resource="intel.com/sriov"), {}, None),
        (by_claim("gpu-0"), None, ("claim", "not-asked")),
        (by_claim("gpu-0"), {}, ("claim", "not-published")),
        (by_claim("gpu-0"), {(DRA, "n1", "gpu-0"): "GPU-other"}, ("claim", "unknown-id")),
        (by_claim("channel-0"), {(DRA, "n1", "channel-0"): ""}, None),
        (by_claim("nic-0", "net.example.com"), {}, None),
        (by_claim("nic-0", "net.example.com"), None, None),
        (by_claim("g-1", "gpu.example.com"), {("gpu.example.com", "n1", "g-0"): uuid(0)}, ("claim", "not-published")),
    ],
)
def test_what_can_not_be_shown_has_a_reason(held: object, uuids: dict | None, there: tuple | None) -> None:
    made = resolve(NODE, [held], uuids, frozenset({"acme.com/gpu"}))
    assert made.held == {}
    assert [(one.what, one.reason, one.key[1]) for one in made.unshown] == ([(*there, "p")] if there else [])


def test_a_mig_claim_has_its_instances_labels() -> None:
    made = resolve(NODE, [by_claim("m")], {(DRA, "n1", "m"): mig_uuid(0, 7)})
    ((one,),) = [made.held[Unit(uuid(0), 7)]]
    assert dict(one.claim) == {
        "dra_claim_name": "c", "dra_claim_namespace": "team", "dra_driver_name": DRA, "dra_pool_name": "n1",
        "dra_device_name": "m", "dra_mig_profile": "1g.10gb", "dra_mig_device_uuid": mig_uuid(0, 7),
    }  # fmt: skip


def test_every_reason_has_its_words() -> None:
    told: list = []
    teller = UnshownReporter(told.append)
    one = Unshown("device", "unknown-id", KEY, "GPU-old")
    counts = teller.missing([one, one], {("job-file", "unreadable"): 3})
    assert counts == {("device", "unknown-id"): 2, ("job-file", "unreadable"): 3}
    assert len(told) == 2
    assert "team/p, container main: device GPU-old" in " ".join(advice.one_line() for advice in told)
    teller.missing([one], {})
    assert len(told) == 2  # known already
    teller.missing([], {})
    teller.missing([one], {})
    assert len(told) == 3  # it had ended
    for kind in _NOTICES:
        teller.missing([], {kind: 1})
    assert all(advice.remedy and advice.why for advice in told)


# --- shares ---


def process(pid: int, mib: int | None = 100, *, index: int = 0, **more: object) -> Process:
    return Process(uuid=uuid(index), pid=pid, memory_mib=mib, **more)


def test_processes_are_summed_by_container_and_device() -> None:
    rows = [
        process(1, 100, sm_percent=30.0),
        process(1, 100, kind=ProcessKind.GRAPHICS),  # the same process once more
        process(2, 50, sm_percent=80.0),
        process(3, None, index=1),
        process(4, 7, gpu_instance=7, compute_instance=0),
        process(4, 7, gpu_instance=7, compute_instance=1),
    ]
    made = shares(
        rows, lambda _: ProcessHolder(KEY), {Unit(uuid(0)): {KEY}, Unit(uuid(1)): {KEY}, Unit(uuid(0), 7): {KEY}}
    )
    assert made.values == {
        (Unit(uuid(0)), KEY): {"memory_used_mib": 150.0, "utilization_percent": 100.0},
        (Unit(uuid(1)), KEY): {},
        (Unit(uuid(0), 7), KEY): {"memory_used_mib": 7.0},
    }
    assert made.unshown == ()


def test_processes_that_are_not_shown_have_a_reason() -> None:
    places = {
        1: ProcessHolder(None, "in-no-pod"),
        2: ProcessHolder(None, "container-not-known"),
        3: ProcessHolder(None, "ended"),
        4: ProcessHolder(KEY),
    }
    made = shares([process(pid) for pid in places], places.__getitem__, {Unit(uuid(1)): {KEY}})
    assert [(one.reason, one.id, one.key[1]) for one in made.unshown] == [
        ("in-no-pod", "1", ""), ("container-not-known", "2", ""), ("device-not-held", "4", "p"),
    ]  # fmt: skip
    assert made.values == {(Unit(uuid(0)), KEY): {"memory_used_mib": 100.0}}


def test_nobody_is_told_of_while_it_is_not_known_who_holds_what() -> None:
    made = shares([process(1)], lambda _: ProcessHolder(KEY), None)
    assert made == ({(Unit(uuid(0)), KEY): {"memory_used_mib": 100.0}}, ())


# --- containers ---


def node_root(tmp_path: Path, **groups: str) -> Path:
    """/proc with the processes' cgroups, by pid."""
    for pid, text in groups.items():
        (tmp_path / "proc" / pid[1:]).mkdir(parents=True)
        (tmp_path / "proc" / pid[1:] / "cgroup").write_text(text)
    (tmp_path / "proc").mkdir(exist_ok=True)
    (tmp_path / "var/log/containers").mkdir(parents=True)
    return tmp_path


def link(root: Path, name: str) -> None:
    os.symlink("/var/log/pods/gone", root / "var/log/containers" / name)


async def test_a_container_is_known_by_the_link_to_its_log(tmp_path: Path) -> None:
    root = node_root(tmp_path, p10=f"0::/kubepods/pod{UID}/{CID}", p11="0::/user.slice", p13=f"0::/kubepods/pod{UID}")
    found = Containers(proc=root / "proc", root=root)
    assert (await found.place([10, 11, 12, 13]))[0] == {
        10: ProcessHolder(None, "container-not-known"), 11: ProcessHolder(None, "in-no-pod"), 12: ProcessHolder(None, "ended"),
        13: ProcessHolder(None, "container-not-known"),
    }  # fmt: skip
    link(root, "other.log")
    link(root, f"my.pod-0_team-a_side-car-{CID}.log")
    placed, error = await found.place([10])
    assert (placed, error) == ({10: ProcessHolder(("team-a", "my.pod-0", "side-car"))}, None)


async def test_the_api_server_is_asked_when_links_do_not_help_and_not_too_often(tmp_path: Path) -> None:
    root = node_root(tmp_path, p10=f"0::/kubepods/pod{UID}/{CID}", p11=f"0::/kubepods/pod{UID}/{'c' * 64}")
    api, clock = FakeApi(), VirtualClock()
    found = Containers(proc=root / "proc", root=root, ask=lambda: ask_api(api, "n1"), clock=clock)
    api.down = True
    placed, error = await found.place([10])
    assert placed[10].reason == "container-not-known"
    assert isinstance(error, KubeUnreachableError)
    api.down = False
    for node, pod in (("n1", "p"), ("n2", "q")):
        status = {"containerStatuses": [{"name": "main", "containerID": f"containerd://{CID}"}, {"name": "new"}]}
        api.put(PODS, {"metadata": {"name": pod, "namespace": "team"}, "spec": {"nodeName": node}, "status": status})
    assert (await found.place([10]))[0][10].key is None  # it was asked a moment ago
    await clock.advance(ASK_SECONDS)
    for _ in range(3):
        placed, error = await found.place([10, 11])
        assert (placed[10], placed[11].reason, error) == (ProcessHolder(KEY), "container-not-known", None)
    assert [call[0] for call in api.calls] == ["list", "list"]


async def test_on_a_simulated_node_the_environment_tells(tmp_path: Path) -> None:
    root = node_root(tmp_path, p10="0::/user.slice/session-1.scope")
    (root / "proc/10/environ").write_text(f"A=1\0KGPU_LAB_CONTAINER={CID}\0B=2")
    link(root, f"p_team_main-{CID}.log")
    assert (await Containers(proc=root / "proc", root=root).place([10]))[0][10].reason == "in-no-pod"
    assert (await Containers(proc=root / "proc", root=root, simulated=True).place([10]))[0] == {10: ProcessHolder(KEY)}


async def test_another_process_is_found_in_the_real_proc() -> None:
    placed, _ = await Containers(root=Path("/nonexistent")).place([os.getppid()])
    assert placed[os.getppid()].reason in ("in-no-pod", "container-not-known")


def test_what_this_process_has_started_is_its_own() -> None:
    """The validator's checks use GPUs that the agent's pod does not hold."""
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        sleep = int(shell.stdout.readline())
        try:
            placed, _ = asyncio.run(Containers(root=Path("/nonexistent")).place([shell.pid, sleep]))
        finally:
            os.kill(sleep, signal.SIGKILL)
    assert placed == dict.fromkeys((shell.pid, sleep), ProcessHolder(None, "kgpu's own"))
    assert shares([process(sleep)], placed.__getitem__, {}) == ({}, ())


@pytest.mark.parametrize(
    ("namespace", "container", "own"),
    [("gpu-operator", "nvidia-operator-validator", True), ("team", "nvidia-operator-validator", False),
     ("gpu-operator", "main", False)],
)  # fmt: skip
async def test_the_validators_own_pod(tmp_path: Path, namespace: str, container: str, own: bool) -> None:
    """With an operand in each pod, its tests run in another than the exporter's."""
    root = node_root(tmp_path, p10=f"0::/kubepods/pod{UID}/{CID}")
    link(root, f"p_{namespace}_{container}-{CID}.log")
    placed, _ = await Containers(proc=root / "proc", root=root, namespace="gpu-operator").place([10])
    assert placed[10] == (ProcessHolder(None, "kgpu's own") if own else ProcessHolder((namespace, "p", container)))


async def test_a_process_names_itself_and_not_its_parent(tmp_path: Path) -> None:
    root = node_root(tmp_path, p10=f"0::/kubepods/pod{UID}/{CID}", p11=f"0::/kubepods/pod{UID}/{CID}")
    link(root, f"p_team_main-{CID}.log")
    (root / "proc/10/stat").write_text(f"10 (a) S {os.getpid()}) S 1 10 10 0")
    (root / "proc/11/stat").write_text("11 (cut")
    assert (await Containers(proc=root / "proc", root=root).place([10, 11]))[0] == dict.fromkeys(
        (10, 11), ProcessHolder(KEY)
    )


# --- batch jobs ---


def test_job_files(tmp_path: Path) -> None:
    files = {
        "1": "7\n8\n\n 8 \n", "0.7": "a", "0": "", "5": "x", "0.9": "x", "notes.txt": "x", "0.7.lock": "x",
        "1.tmp": "x", "٣": "x",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = read_jobs(tmp_path, NODE)
    assert found.by_unit == {Unit(uuid(1)): ("7", "8"), Unit(uuid(0), 7): ("a",)}
    assert found.missing == {("job-file", "unknown-device"): 2}


def test_a_job_file_that_is_wrong_costs_itself_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0")
    (tmp_path / "0.7").write_bytes(b"x\n" * 40_000)
    secret = tmp_path.parent / "shadow"
    secret.write_text("root:$6$hash\n")
    (tmp_path / "0.8").symlink_to(secret)  # read as root, its lines would be labels
    (tmp_path / "1").write_text("\n".join(f"job-{n}" for n in range(JOBS + 5)))
    found = read_jobs(tmp_path, NODE)
    assert len(found.by_unit[Unit(uuid(1))]) == JOBS
    assert found.missing == {("job-file", "unreadable"): 3, ("job-file", "too-many-jobs"): 1}
    assert "hash" not in str(found)
    with pytest.raises(HostError):
        read_jobs(tmp_path / "none", NODE)


def test_a_job_folder_that_is_a_link_is_followed_for_root_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who can write the folder above may put a link there, to any folder with a file called 0."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "0").write_text("hash\n")
    link = tmp_path / "jobs"
    link.symlink_to("secrets")
    assert read_jobs(link, NODE).by_unit == {Unit(uuid(0)): ("hash",)}
    if os.geteuid() == 0:
        os.lchown(link, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(HostError, match="is a link that user"):
        read_jobs(link, NODE)


def test_of_a_folder_full_of_names_only_so_many_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "NAMES", 3)
    for number in range(5):
        (tmp_path / f"x{number}").touch()
    assert read_jobs(tmp_path, NODE).missing == {("job-file", "too-many"): 1}


def test_job_ids_of_any_bytes() -> None:
    assert job_ids(b"\xff1\r\n2\t\n\n2") == ("\ufffd1", "2")
    assert [len(one) for one in job_ids(b"x" * 5000)] == [256]


# --- reasons ---


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (KubeRefusedError("w", "e", "t", code=403), "forbidden"),
        (KubeRefusedError("w", "e", "t", code=500), "refused"),
        (KubeUnreachableError("w", "e", "t"), "unreachable"),
        (RpcError("w", "e", "t", status="RESOURCE_EXHAUSTED", message="m"), "resource-exhausted"),
        (caused(KubeletError("w", "e", "t"), FileNotFoundError()), "no-socket"),
        (caused(KubeletError("w", "e", "t"), TimeoutError()), "unreachable"),
        (HwError("w", "e", "t"), "driver"),
        (HostError("w", "e", "t"), "unreadable"),
    ],
)
def test_reasons_are_a_few_words(error: Exception, word: str) -> None:
    assert reason_of(error) == word


def test_shares_of_holders_are_sorted_with_their_claims() -> None:
    held = [holding("b", f"{uuid(1)}::1"), holding("a", f"{uuid(1)}::0"), by_claim("g", pod="c")]
    made = resolve(NODE, held, {(DRA, "n1", "g"): uuid(1)})
    assert [(one.pod, one.replica, bool(one.claim)) for one in made.held[Unit(uuid(1))]] == [
        ("a", "0", False), ("b", "1", False), ("c", "", True),
    ]  # fmt: skip
    assert Holder("team", "a", "main", "0") in made.held[Unit(uuid(1))]
