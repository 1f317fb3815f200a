"""``kgpu doctor --host`` on simulated nodes of AMD, Gaudi and Intel: each fault, what comes first, and what helps."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kgpu.doctor.host_facts import DeviceAccess, HostFacts
from kgpu.doctor.model import Finding, Report
from kgpu.doctor.plan import diagnose
from kgpu.doctor.sources.host import gather, snapshot_of_host
from kgpu.host.engines.paths import MountedPaths
from kgpu.hw.simulator import create, modules, operate, others
from kgpu.kube.port import Object

PROFILES = ("mi300x", "gaudi2", "arc", "max1550")
Break = Callable[[Path], None]


def inject(fault: str) -> Break:
    return lambda root: operate.inject(root, fault, gpu=1)


def without_kfd(root: Path) -> None:
    shutil.rmtree(root / "sys/class/kfd")
    (root / "dev/kfd").unlink()


def unbound(root: Path) -> None:
    """The second card's probe has failed: the driver shows the first alone."""
    bus = operate.snapshot(root)["gpus"][1]["pci_bus_id"]
    (root / "sys/bus/pci/devices" / bus / "driver").unlink()
    (root / "sys/bus/pci/drivers/habanalabs" / bus).unlink()
    shutil.rmtree(root / "sys/class/accel/accel1", ignore_errors=True)


def written(path: str, text: str) -> Break:
    def do(root: Path) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)

    return do


@pytest.fixture
def made(tmp_path: Path) -> Callable[[str], Path]:
    return lambda profile: create.create_root(profile, tmp_path / profile, gpus=2)


def look(root: Path) -> Report:
    return diagnose(asyncio.run(snapshot_of_host(str(root), node="node-1")), strict=True)


def first(root: Path) -> Finding:
    found = look(root)
    assert found.findings, "nothing was found"
    return found.findings[0]


CASES = [
    ("mi300x", modules.unload, "AMD-01", "modprobe amdgpu"),
    ("gaudi2", modules.unload, "GAU-01", "modprobe -a habanalabs"),
    ("arc", modules.unload, "INT-04", "modprobe xe"),
    ("max1550", modules.unload, "INT-04", "modprobe xe || modprobe i915"),
    ("mi300x", without_kfd, "AMD-02", "dmesg | grep -i kfd"),
    *[
        (profile, inject("lost"), "HW-01", f"dmesg | grep -E '{words}'")
        for profile, words in (("mi300x", "amdgpu|kfd"), ("gaudi2", "habanalabs"), ("arc", r"i915|\bxe\b"))
    ],
    ("mi300x", inject("hang"), "HW-12", "amd-smi reset --gpureset --gpu 1"),
    ("gaudi2", inject("hang"), "HW-12", "hl-smi -r -i"),
    ("arc", inject("hang"), "HW-12", "then reboot it"),
    ("mi300x", inject("ecc"), "HW-14", "amd-smi reset --gpureset --gpu 1"),
    ("gaudi2", inject("ecc"), "HW-14", "hl-smi -r -i"),
    ("gaudi2", inject("needs-reset"), "HW-14", "hl-smi -r -i"),
    ("mi300x", inject("hot"), "HW-05", "amd-smi metric --temperature"),
    ("gaudi2", inject("hot"), "HW-05", "hl-smi -q -d TEMPERATURE"),
    ("mi300x", inject("garbage"), "HW-00", "versions of driver and firmware"),
    ("gaudi2", inject("garbage"), "HW-00", "versions of driver and firmware"),
    ("arc", inject("garbage"), "HW-00", "versions of driver and firmware"),
    ("gaudi2", unbound, "HW-09", "dmesg | grep -E"),
]


@pytest.mark.parametrize(("profile", "breaks", "rule", "step"), CASES)
def test_the_first_finding_names_cause_and_remedy(
    *, profile: str, breaks: Break, rule: str, step: str, made: Callable[[str], Path]
) -> None:
    root = made(profile)
    breaks(root)
    found = first(root)
    steps = "\n".join(map(str, found.remedy))
    assert found.id == rule
    assert step in steps
    assert "nvidia" not in f"{found.cause} {steps}".lower()
    assert any(one.value for one in found.evidence)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_healthy_node_has_no_finding(*, profile: str, made: Callable[[str], Path]) -> None:
    root = made(profile)
    assert not look(root).findings
    for fault in ("lost", "hang", "hot"):
        operate.inject(root, fault, gpu=0)
    operate.clear(root)
    modules.unload(root)
    modules.load(root)
    assert not look(root).findings


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        ("etc/modprobe.d/amd.conf", "# no\nblacklist amdgpu\n", "/etc/modprobe.d/amd.conf forbids it"),
        ("etc/modprobe.d/amd.conf", "install amdgpu /bin/false\n", "/etc/modprobe.d/amd.conf forbids it"),
        ("proc/cmdline", "quiet modprobe.blacklist=nouveau,amdgpu\n", "/proc/cmdline forbids it"),
        ("proc/cmdline", "quiet nomodeset\n", "nomodeset"),
        ("var/lib/dkms/amdgpu/6.10.5/6.8.0-40/x86_64/module/amdgpu.ko", "", "DKMS has not built it"),
    ],
)
def test_what_keeps_the_driver_out_is_named(*, path: str, text: str, why: str, made: Callable[[str], Path]) -> None:
    root = made("mi300x")
    modules.unload(root)
    written("proc/sys/kernel/osrelease", "6.8.0-45\n")(root)
    written(path, text)(root)
    found = first(root)
    assert found.id == "AMD-01"
    assert why in found.cause


@pytest.mark.parametrize(
    "line",
    [
        "#blacklist amdgpu",
        "blacklist amdgpu2",
        "install amdgpu /sbin/modprobe --ignore-install amdgpu",
        "options amdgpu dc=0",
    ],
)
def test_other_lines_of_modprobe_forbid_nothing(*, line: str, made: Callable[[str], Path]) -> None:
    root = made("mi300x")
    written("etc/modprobe.d/a.conf", f"{line}\n")(root)
    assert facts(root).blacklist == {}


def facts(root: Path) -> HostFacts:
    return gather(MountedPaths.at(str(root)), node="node-1")


@pytest.mark.parametrize(
    ("profile", "loaded", "version"),
    [
        ("mi300x", {"amdgpu"}, {"amdgpu": "6.10.5"}),
        ("gaudi2", {"habanalabs", "habanalabs_cn", "habanalabs_ib", "habanalabs_en"}, {"habanalabs": "1.23.0-695"}),
        ("arc", {"xe"}, {}),
        ("max1550", {"i915"}, {}),
    ],
)
def test_modules_and_their_versions(
    *, profile: str, loaded: set[str], version: dict[str, str], made: Callable[[str], Path]
) -> None:
    root = made(profile)
    found = facts(root)
    assert set(found.modules or {}) == loaded
    assert found.module_versions == version
    assert {device.driver for device in found.pci or ()} == {next(iter(sorted(loaded)))}
    modules.unload(root)
    found = facts(root)
    assert found.modules == {}
    assert {device.driver for device in found.pci or ()} == {""}


def test_a_driver_that_is_built_into_the_kernel_is_loaded(made: Callable[[str], Path]) -> None:
    root = made("max1550")
    written("proc/modules", "ext4 1 2 - Live 0x0\n")(root)
    shutil.rmtree(root / "sys/module/i915")
    (root / "sys/module/i915/drivers").mkdir(parents=True)
    assert facts(root).modules == {"i915": 0, "ext4": 2}


def test_who_has_a_card_open_is_known(made: Callable[[str], Path]) -> None:
    root = made("gaudi2")
    simulation = others.simulation_of(root)
    assert simulation is not None
    simulation.add_process(root, 1, pid=4242, memory_mib=512)
    assert [(one.pid, one.holds) for one in facts(root).processes or ()] == [(4242, ("/dev/accel/accel1",))]


def test_groups_and_modes_of_device_files_are_known(made: Callable[[str], Path]) -> None:
    root = made("mi300x")
    own = (root / "dev/kfd").stat().st_gid
    written("etc/group", f"broken\nrender:x:{own}:\nother:x:{own}:\nroot:x:0:\n")(root)
    (root / "dev/kfd").chmod(0o660)
    found = {one.path: one for one in facts(root).device_access}
    assert set(found) == {"/dev/kfd", "/dev/dri/renderD*"}
    assert found["/dev/kfd"] == DeviceAccess(path="/dev/kfd", gid=own, group="render", mode="0660")
    assert found["/dev/kfd"].shown == f"/dev/kfd: group render ({own}), mode 0660"


@pytest.mark.parametrize(
    ("mode", "groups", "lets"),
    [
        ("0666", (), True), ("0660", (109,), True), ("0660", (44,), False), ("0600", (109,), False), ("0640", (109,), False),
        ("", (109,), False), ("0989", (109,), False), ("-1", (109,), False), ("7" * 40, (), False),
    ],
)  # fmt: skip
def test_who_may_open_a_file(*, mode: str, groups: tuple[int, ...], lets: bool) -> None:
    assert DeviceAccess(path="/dev/kfd", gid=109, mode=mode).lets(groups) is lets


def translating(kind: str) -> Break:
    def do(root: Path) -> None:
        for card in operate.snapshot(root)["gpus"]:
            written(f"sys/bus/pci/devices/{card['pci_bus_id']}/iommu_group/type", f"{kind}\n")(root)

    return do


def closed(root: Path) -> None:
    (root / "dev/kfd").chmod(0o600)


def nothing(_root: Path) -> None:
    pass


WORDS = {
    "AMD-17": "Unable to open /dev/kfd read-write: Permission denied",
    "AMD-20": 'NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!',
    "GAU-06": "ERROR Allocation failed for size 8589934592 during warmup of graph",
    "INT-03": "RuntimeError: failed to open /dev/dri/by-path/pci-{pci}-render: No such file or directory",
}
NETWORK = "etc/habanalabs/gaudinet.json"


def cluster(root: Path, rule: str) -> list[Object]:
    """What is on the node ``node-1`` of the cluster, for a rule: work that says its words and ends, and Intel's plugin."""
    resource = {"AMD": "amd.com/gpu", "GAU": "habana.ai/gaudi", "INT": "gpu.intel.com/xe"}[rule[:3]]
    words = WORDS.get(rule, "").format(pci=operate.snapshot(root)["gpus"][0]["pci_bus_id"])

    def node(name: str) -> Object:
        return {
            "kind": "Node", "metadata": {"name": name},
            "status": {"allocatable": {resource: "8"}, "capacity": {resource: "8"},
                       "conditions": [{"type": "Ready", "status": "True"}]},
        }  # fmt: skip

    def pod(name: str, on: str, **spec: object) -> Object:
        owner = {"kind": "Job", "name": "train", "controller": True}
        limits = {"limits": {resource: 8}, "requests": {resource: 8}}
        return {
            "kind": "Pod", "metadata": {"name": name, "namespace": "ml", "ownerReferences": [owner]},
            "spec": {"nodeName": on, "containers": [{"name": "main", "image": "work", "resources": limits}], **spec},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(not words)}]},
        }  # fmt: skip

    plugin: Object = {
        "kind": "Pod", "metadata": {"name": "intel-gpu-plugin-a", "namespace": "kube-system"},
        "spec": {"nodeName": "node-1", "containers": [{"name": "p", "image": "intel/intel-gpu-plugin:0.34.0", "args": ["-v=2"]}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip
    work = [pod("train-0", "node-1", securityContext={"runAsUser": 1000})]
    if rule == "GAU-05":
        work.append(pod("train-1", "node-2"))
    if words:
        work.append(
            {
                "kind": "PodLog",
                "metadata": {"namespace": "ml", "name": "train-0"},
                "container": "main",
                "lines": [words],
            }
        )
    return [node("node-1"), node("node-2"), *work, *([plugin] if rule.startswith("INT") else [])]


# model, rule, how the sound node differs from a new one, what breaks it (None: its work alone), evidence of the host
CLUSTERS: list[tuple[str, str, Break, Break | None, str]] = [
    ("mi300x", "AMD-17", nothing, closed, "mode 0600"),
    ("mi300x", "AMD-20", translating("identity"), translating("DMA-FQ"), "DMA-FQ"),
    ("gaudi2", "GAU-05", written(NETWORK, "{}"), inject("port-down"), "ports down: port 22 of card 1"),
    ("gaudi2", "GAU-05", written(NETWORK, "{}"), lambda root: (root / NETWORK).unlink(), "gaudinet.json: not there"),
    ("arc", "INT-02", nothing, inject("hot"), "temperature_c"),
]  # fmt: skip


def asked(root: Path, rule: str) -> Report:
    snapshot = asyncio.run(snapshot_of_host(str(root), node="node-1"))
    for one in cluster(root, rule):
        snapshot.add(one)
    return diagnose(snapshot, strict=True)


@pytest.mark.parametrize(("profile", "rule", "sound", "breaks", "word"), CLUSTERS)
def test_what_the_host_has_proves_what_its_work_meets(
    *, profile: str, rule: str, sound: Break, breaks: Break, word: str, made: Callable[[str], Path]
) -> None:
    root = made(profile)
    sound(root)
    assert rule not in {found.id for found in asked(root, rule).findings}
    breaks(root)
    report = asked(root, rule)
    assert report.findings[0].id == rule
    assert word in " ".join(one.value for one in report.findings[0].evidence)


def fill(root: Path) -> None:
    simulation = others.simulation_of(root)
    assert simulation is not None
    simulation.add_process(root, 1, pid=4242, memory_mib=95_000)


@pytest.mark.parametrize(
    ("profile", "rule", "breaks", "word"),
    [
        ("gaudi2", "GAU-06", fill, "card 1: 95000 of 98304 MiB in use"),
        ("gaudi2", "GAU-06", fill, "4242 "),
        ("arc", "INT-03", nothing, "-render: there"),
        ("arc", "INT-03", lambda root: shutil.rmtree(root / "dev/dri/by-path"), "-render: not there"),
    ],
)
def test_what_work_says_has_evidence_of_its_host(
    *, profile: str, rule: str, breaks: Break, word: str, made: Callable[[str], Path]
) -> None:
    root = made(profile)
    breaks(root)
    found = asked(root, rule).findings[0]
    assert found.id == rule
    assert word in " ".join(one.value for one in found.evidence)
