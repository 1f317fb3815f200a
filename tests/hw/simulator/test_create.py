"""A made root holds what programs look for, and NVML on it shows the profile's GPUs."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import textwrap

import pytest

from kgpu.base.errors import ConfigError
from kgpu.hw.simulator import mig, operate, profiles, tree
from kgpu.hw.simulator.create import create_root, environment, library_path

pytestmark = pytest.mark.usefixtures("sim_libs")

PROBE = """
import json, pynvml as n

def ask(call, *args):
    try:
        return call(*args)
    except n.NVMLError as error:
        return type(error).__name__.removeprefix("NVMLError_")

n.nvmlInit()
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
gpus = []
for handle in handles:
    pci = n.nvmlDeviceGetPciInfo(handle)
    remote, active = [], 0
    for link in range(18):
        if ask(n.nvmlDeviceGetNvLinkState, handle, link) == 1:
            active += 1
            remote.append(ask(lambda: n.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId))
    gpus.append({
        "name": n.nvmlDeviceGetName(handle),
        "uuid": n.nvmlDeviceGetUUID(handle),
        "mib": n.nvmlDeviceGetMemoryInfo(handle).total >> 20,
        "bus": pci.busId,
        "device": pci.pciDeviceId,
        "capability": list(n.nvmlDeviceGetCudaComputeCapability(handle)),
        "mig": ask(n.nvmlDeviceGetMigMode, handle),
        "levels": [ask(n.nvmlDeviceGetTopologyCommonAncestor, handle, other) for other in handles],
        "active": active,
        "remote": remote,
        "minor": n.nvmlDeviceGetMinorNumber(handle),
    })
print(json.dumps({
    "driver": n.nvmlSystemGetDriverVersion(),
    "cuda": n.nvmlSystemGetCudaDriverVersion(),
    "gpus": gpus,
}))
"""


def nvml(root, program=PROBE):
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **environment(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", profiles.names())
def test_nvml_shows_the_profile(name, tmp_path):
    root = create_root(name, tmp_path / "node")
    profile = profiles.load(name)
    seen = nvml(root)
    assert seen["driver"] == profile.driver.version
    major, minor = profile.driver.cuda.split(".")
    assert seen["cuda"] == int(major) * 1000 + int(minor) * 10
    assert len(seen["gpus"]) == len(profile.gpus)
    for index, (shown, gpu) in enumerate(zip(seen["gpus"], profile.gpus, strict=True)):
        assert shown["name"] == gpu.model.name
        assert shown["mib"] == gpu.model.memory.total_mib
        assert shown["device"] == gpu.model.pci.device
        assert profiles.bus_id(shown["bus"]) == gpu.bus
        assert ".".join(map(str, shown["capability"])) == gpu.model.compute_capability
        assert shown["mig"] == ([0, 0] if gpu.model.mig else "NotSupported")
        assert shown["levels"] == list(profile.topology.levels[index])
        ports = gpu.model.nvlink.links if gpu.model.nvlink else 0
        assert shown["active"] == (ports if profile.topology.switched else sum(profile.topology.lanes[index]))
        if not profile.topology.switched:
            lanes = [
                sum(profiles.bus_id(bus) == other.bus for bus in shown["remote"] if ":" in bus)
                for other in profile.gpus
            ]
            assert lanes == list(profile.topology.lanes[index])


@pytest.mark.parametrize("name", ["hgx-h100", "dgx-1-v100", "gb200", "mixed-models"])
def test_the_files_that_programs_read_are_there(name, tmp_path):
    root = create_root(name, tmp_path / "node")
    profile = profiles.load(name)
    version = profile.driver.version
    assert version in (root / "proc/driver/nvidia/version").read_text()
    assert (root / "sys/module/nvidia/version").read_text().strip() == version
    assert (root / "sys/module/nvidia/initstate").read_text() == "live\n"
    assert (root / "sys/class/dmi/id/product_name").read_text().strip() == profile.machine.product
    libraries = library_path(root)
    for library in ("libnvidia-ml.so", "libcuda.so"):
        assert (libraries / f"{library}.1").resolve().name == f"{library}.{version}"
        assert (libraries / f"{library}.{version}").is_file()
    assert os.access(root / "usr/bin/nvidia-smi", os.X_OK)
    snapshot = operate.snapshot(root)
    for shown, gpu in zip(snapshot["gpus"], profile.gpus, strict=True):
        device = root / "sys/bus/pci/devices" / gpu.bus
        assert (device / "vendor").read_text() == "0x10de\n"
        assert int((device / "device").read_text(), 16) == gpu.model.pci.device >> 16
        assert int((device / "class").read_text(), 16) == gpu.model.pci.pci_class
        assert int((device / "numa_node").read_text()) == shown["numa_node"]
        assert (device / "driver").resolve() == (root / "sys/bus/pci/drivers/nvidia").resolve()
        assert device.resolve().parent.parent.name.startswith("pci")
        config = (device / "config").read_bytes()
        assert len(config) == 256
        assert int.from_bytes(config[:4], "little") == gpu.model.pci.device
        information = (root / "proc/driver/nvidia/gpus" / gpu.bus / "information").read_text()
        assert f"GPU UUID: \t {shown['uuid']}\n" in information
        assert f"Device Minor: \t {shown['minor']}\n" in information


def test_gpus_under_one_host_bridge_share_a_root_complex(tmp_path):
    root = create_root("dgx-1-v100", tmp_path / "node")
    roots = [(root / "sys/bus/pci/devices" / gpu.bus).resolve().parts[-3] for gpu in profiles.load("dgx-1-v100").gpus]
    assert roots[0] == roots[3] != roots[4] == roots[7]


def test_device_nodes_exist_with_the_drivers_numbers(tmp_path):
    root = create_root("gb200", tmp_path / "node")
    names = {"nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset",
             "nvidia-caps/nvidia-cap1", "nvidia-caps-imex-channels/channel0"}  # fmt: skip
    for name in names:
        found = os.stat(root / "dev" / name)
        if stat.S_ISCHR(found.st_mode):  # where this user may make device nodes
            assert os.major(found.st_rdev) == tree.MAJORS.get(os.path.dirname(name) or name[:10], 195)
        else:
            assert stat.S_ISREG(found.st_mode)
    assert not (root / "dev/nvidia4").exists()
    assert not (root / "dev/nvidia-nvswitch0").exists()


def test_capability_numbers_agree_everywhere(tmp_path):
    root = create_root("hgx-h100", tmp_path / "node")
    lines = (root / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    minors = dict(line.rsplit(" ", 1) for line in lines)
    assert (minors["config"], minors["monitor"]) == ("1", "2")
    assert (minors["gpu0/gi0/access"], minors["gpu0/gi0/ci0/access"], minors["gpu0/gi1/access"]) == ("3", "4", "12")
    assert minors["gpu1/gi0/access"] == str(3 + 135)
    assert len(set(minors.values())) == len(minors) == 2 + 8 * 135
    for path, minor in minors.items():
        assert (root / f"dev/nvidia-caps/nvidia-cap{minor}").exists()
        gpu, _, rest = path.partition("/")
        if rest:
            access = (root / "proc/driver/nvidia/capabilities" / gpu / "mig" / rest).read_text()
            assert f"DeviceFileMinor: {minor}\n" in access


def test_every_possible_slice_has_its_capability_nodes(tmp_path):
    root = create_root("hgx-h100", tmp_path / "node", gpus=1)
    mig.partition(root, 0, ["1g.10gb"] * 7)
    program = """
    import json, pynvml as n
    n.nvmlInit()
    gpu = n.nvmlDeviceGetHandleByIndex(0)
    found = []
    for i in range(n.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        handle = n.nvmlDeviceGetMigDeviceHandleByIndex(gpu, i)
        found.append((n.nvmlDeviceGetGpuInstanceId(handle), n.nvmlDeviceGetComputeInstanceId(handle)))
    print(json.dumps(found))
    """
    slices = nvml(root, program)
    assert len(slices) == 7
    for gi, ci in slices:
        for minor in (tree.gi_minor(0, gi), tree.ci_minor(0, gi, ci)):
            assert (root / f"dev/nvidia-caps/nvidia-cap{minor}").exists()


def test_identity_depends_on_profile_and_seed_alone(tmp_path):
    def uuids(name, **options):
        root = create_root("hgx-h100", tmp_path / name, **options)
        return [(gpu["uuid"], gpu["serial"]) for gpu in operate.snapshot(root)["gpus"]]

    first, again, other = uuids("a"), uuids("b"), uuids("c", seed="node-c")
    assert first == again
    assert not {uuid for uuid, _ in first} & {uuid for uuid, _ in other}
    assert len({uuid for uuid, _ in first}) == len({serial for _, serial in first}) == 8
    assert uuids("d", gpus=3) == first[:3]


def test_sixty_four_gpus_and_another_driver(tmp_path):
    root = create_root("t4", tmp_path / "node", gpus=64, driver="560.35.03")
    seen = nvml(root)
    assert len(seen["gpus"]) == 64
    assert seen["driver"] == "560.35.03"
    assert (library_path(root) / "libcuda.so.560.35.03").exists()


def test_an_existing_root_is_replaced_only_by_force(tmp_path):
    root = create_root("t4", tmp_path / "node")
    with pytest.raises(ConfigError, match="already has"):
        create_root("l4", root)
    assert operate.snapshot(root)["profile"] == "t4"
    create_root("l4", root, force=True)
    assert operate.snapshot(root)["profile"] == "l4"
    assert sorted(os.listdir(tmp_path)) == ["node"]


def test_other_peoples_folders_are_never_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    for force in (False, True):
        with pytest.raises(ConfigError, match="other files"):
            create_root("t4", tmp_path, force=force)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    for place in (tmp_path / "thesis.tex", tmp_path / "thesis.tex" / "node"):
        with pytest.raises(ConfigError, match="Not a directory"):
            create_root("t4", place)


def test_an_empty_folder_may_be_there_and_a_failure_leaves_nothing(tmp_path):
    (tmp_path / "node").mkdir()
    with pytest.raises(ConfigError):
        create_root("t4", tmp_path / "node", driver="new")
    assert os.listdir(tmp_path / "node") == []
    assert create_root("t4", tmp_path / "node") == tmp_path / "node"
    assert operate.snapshot(tmp_path / "node")["gpus"]


def test_a_mount_point_is_filled_in_place(tmp_path, monkeypatch):
    root = tmp_path / "node"
    root.mkdir()
    before = root.stat().st_ino
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == str(root))
    create_root("t4", root)
    create_root("l4", root, force=True)
    assert root.stat().st_ino == before
    assert operate.snapshot(root)["profile"] == "l4"
    assert {"dev", "proc", "state", "sys", "usr"} <= set(os.listdir(root))
    assert not [name for name in os.listdir(root) if name.startswith(".")]


def test_the_fabric_of_gb200_is_complete(tmp_path):
    root = create_root("gb200", tmp_path / "node")
    program = """
    import json, pynvml as n
    n.nvmlInit()
    info = n.c_nvmlGpuFabricInfo_t()
    n.nvmlDeviceGetGpuFabricInfo(n.nvmlDeviceGetHandleByIndex(3), n.byref(info))
    print(json.dumps([info.state, info.status, info.cliqueId, bytes(bytearray(info)[:16]).hex()]))
    """
    fabric = profiles.load("gb200").fabric
    assert nvml(root, program) == [3, 0, fabric.clique, fabric.cluster.replace("-", "")]
