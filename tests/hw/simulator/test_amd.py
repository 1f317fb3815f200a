"""Simulated AMD nodes: the files that AMD's own tools read, what changes them, and what is refused."""

from __future__ import annotations

import os

import pytest

from kgpu.base.errors import ConfigError, HwError
from kgpu.formats import amd_gpu_metrics
from kgpu.formats.simulated import state_file
from kgpu.health import amdgpu_log
from kgpu.hw.simulator import create, machines, operate, processes
from kgpu.hw.simulator.amd import operate as amd
from kgpu.hw.simulator.amd import profiles
from kgpu.hw.simulator.amd.node_file import changing, is_amd
from kgpu.hw.simulator.reboot import reboot

GPU = "sys/bus/pci/devices/0000:26:00.0"
NODES = "sys/class/kfd/kfd/topology/nodes"


@pytest.fixture
def root(sim_root):
    return sim_root("mi300x")


def text(root, path: str) -> str:
    return (root / path).read_text().strip()


def test_the_tree_is_what_the_replaced_plugin_looks_at(root) -> None:
    assert min(os.listdir(root / "sys/module/amdgpu/drivers/pci:amdgpu")) == "0000:05:00.0"
    assert text(root, f"{GPU}/device") == "0x74a1"
    assert text(root, f"{GPU}/current_compute_partition") == "SPX"
    assert text(root, f"{GPU}/available_compute_partition") == "SPX, DPX, QPX, CPX"
    assert sorted(os.listdir(root / GPU / "drm")) == ["card8", "renderD136"]
    assert text(root, "sys/class/drm/card8/device/vendor") == "0x1002"
    assert text(root, f"{GPU}/driver/module/version") == "6.10.5"
    assert sorted(os.listdir(root / "sys/devices/platform/amdgpu_xcp_0/drm")) == ["card1", "renderD129"]
    assert (root / "dev/kfd").exists()
    assert (root / "dev/dri/renderD136").exists()
    assert len(os.listdir(root / NODES)) == 2 + 8
    rows = dict(row.split() for row in text(root, f"{NODES}/3/properties").splitlines())
    assert (rows["gfx_target_version"], rows["drm_render_minor"], rows["location_id"]) == ("90402", "136", str(0x2600))
    assert int(rows["simd_count"]) // int(rows["simd_per_cu"]) == 304
    assert state_file(str(root)) is not None
    assert is_amd(root)


def test_parts_have_nodes_of_their_own_in_the_topology(root) -> None:
    amd.set_partition(root, [1], "cpx", "nps4")
    assert len(os.listdir(root / NODES)) == 2 + 15
    rows = dict(row.split() for row in text(root, f"{NODES}/4/properties").splitlines())
    assert (rows["drm_render_minor"], rows["location_id"], rows["simd_count"]) == ("137", str(0x2601), "152")
    assert text(root, f"{NODES}/4/mem_banks/0/properties").splitlines()[1] == f"size_in_bytes {(196592 << 20) // 8}"
    assert text(root, f"{GPU}/current_memory_partition") == "NPS4"


def test_a_change_of_modes_makes_no_link_anew_that_is_as_before(root) -> None:
    amd.set_partition(root, range(8), "cpx", "nps1")
    links = root / "sys/class/kfd/kfd/links"
    before = {entry.name: entry.stat().st_ino for entry in links.iterdir()}
    assert len(before) >= 64 * 64
    assert amd.store_mode(root, 0, "compute", "SPX") == 0
    after = {entry.name: entry.stat().st_ino for entry in links.iterdir()}
    assert before.items() <= after.items()
    assert len(after) < len(before) + 8
    shown = root / NODES / "2/io_links"
    assert len(os.listdir(shown)) == 57
    rows = dict(row.split() for row in (shown / "56/properties").read_text().splitlines())
    assert (rows["node_from"], rows["node_to"], rows["type"]) == ("2", "58", "11")


@pytest.mark.parametrize(("gpu", "mode", "what"), [(9, "cpx", "no GPU 9"), (0, "tpx", "no mode")])
def test_what_can_never_be_is_refused_while_somebody_changes_the_node(root, gpu: int, mode: str, what: str) -> None:
    with changing(root), pytest.raises(ConfigError, match=what):
        amd.set_partition(root, [gpu], mode)


@pytest.mark.parametrize("profile", profiles.names())
def test_gpu_metrics_are_of_the_models_version(sim_root, profile: str) -> None:
    root, loaded = sim_root(profile), profiles.load(profile)
    for gpu in loaded.gpus:
        data = (root / f"sys/bus/pci/devices/{gpu.bus}/gpu_metrics").read_bytes()
        assert data[2:4] == bytes(profiles.metrics_version(gpu.model))
        assert amd_gpu_metrics.decode(data)["temperature_hotspot"] == gpu.model.temperature_c.idle


def test_seeds_tell_nodes_apart_and_nothing_else_does(sim_root) -> None:
    ids = [text(sim_root("mi210", seed=seed), "sys/class/drm/card0/device/unique_id") for seed in ("a", "b", "a")]
    assert ids[0] == ids[2] != ids[1]


def test_more_gpus_than_the_box_has_are_more_boxes(sim_root) -> None:
    root = sim_root("mi210", gpus=10, driver="6.12.0")
    assert max(os.listdir(root / "sys/bus/pci/devices")) == "0001:23:00.0"
    assert operate.snapshot(root)["driver_version"] == "6.12.0"


def test_processes_come_and_go_and_keep_the_gpu_from_being_parted(root) -> None:
    processes.add(root, 1, pid=4242, memory_mib=1024)
    assert operate.snapshot(root)["gpus"][1]["memory_used_mib"] == 283 + 1024
    with pytest.raises(HwError, match="in use by 4242"):
        amd.set_partition(root, [1], "cpx")
    with pytest.raises(HwError, match="in use"):
        amd.unload(root)
    processes.remove(root, 1, 4242)
    assert os.listdir(root / "sys/class/kfd/kfd/proc") == []
    amd.set_partition(root, [1], "cpx")


def test_the_kernel_log_tells_of_errors_and_of_the_reset_that_ends_them(root) -> None:
    """Health may have seen the line of an error, and not yet the counter: only a line can end that then."""
    operate.inject(root, "ecc", gpu=3)
    operate.clear(root)
    operate.clear(root)
    operate.inject(root, "lost", gpu=3)
    operate.clear(root)
    said = [line.partition(";")[2] for line in (root / "dev/kmsg").read_text().splitlines()]
    found = [amdgpu_log.parse(one) for one in said]
    assert [one and one.key for one in found] == ["ras-uncorrectable", "", ""]
    assert [one.partition("amdgpu: ")[2] for one in said[1:]] == ["GPU reset(1) succeeded!", "GPU reset(2) succeeded!"]


def test_a_reboot_makes_all_whole_and_well(root) -> None:
    amd.set_partition(root, [0], "cpx")
    operate.inject(root, "ecc", gpu=2)
    operate.inject(root, "lost", gpu=3)
    amd.unload(root)
    reboot(root)
    node = operate.snapshot(root)
    assert node["driver_loaded"]
    assert {(gpu["partition"], *gpu["faults"]) for gpu in node["gpus"]} == {("SPX/NPS1",)}
    assert len(os.listdir(root / NODES)) == 10


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (lambda root: operate.inject(root, "xid", gpu=0, xid=79), "no fault"),
        (lambda root: operate.inject(root, "lots", gpu=0), 'did you mean "lost"'),
        (lambda root: operate.inject(root, "lost"), "needs a GPU"),
        (lambda root: operate.inject(root, "lost", gpu=8), "no GPU 8"),
        (lambda root: operate.inject(root, "ecc", gpu=0, count=0), "0 errors"),
        (lambda root: operate.set_values(root, {"temperature": 80}), "has AMD GPUs"),
        (lambda root: amd.set_partition(root, [0], "tpx"), 'no mode "TPX"'),
        (lambda root: amd.set_partition(root, [0], "spx", "nps4"), "SPX with NPS4"),
        (lambda root: machines.load("mi300", gpus=None), 'did you mean "mi300x"'),
        (lambda root: machines.load("mi300x", gpus=65), "65 GPUs"),
    ],
)
def test_what_can_not_be_is_refused(root, act, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        act(root)


def test_a_card_without_ras_or_modes_refuses_both(sim_root) -> None:
    root = sim_root("w7900")
    with pytest.raises(ConfigError, match="has no RAS"):
        operate.inject(root, "ecc", gpu=0)
    with pytest.raises(ConfigError, match="no mode"):
        amd.set_partition(root, [0], "cpx")


def test_a_profile_of_ones_own(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "vendor: amd\nmachine: {product: Box}\nnuma: ['0-7']\n"
        "models:\n  small: {base: mi210, name: Half an MI210, vram_mib: 32768, simds: 208}\n"
        "gpus: [{model: small, numa: 0, pci: ['0000:01:00.0']}]\n"
    )
    root = create.create_root(str(path), tmp_path / "root")
    gpu = operate.snapshot(root)["gpus"][0]
    assert (gpu["name"], gpu["memory_total_mib"]) == ("Half an MI210", 32768)
    with pytest.raises(ConfigError, match="unknown field"):
        create.create_root(_with(path, "gups: 1\n"), tmp_path / "other")
    with pytest.raises(ConfigError, match="NUMA node 3"):
        create.create_root(_with(path, "", "numa: 0", "numa: 3"), tmp_path / "other")


def _with(path, more: str, old: str = "", new: str = "") -> str:
    changed = path.with_name("changed.yaml")
    changed.write_text(path.read_text().replace(old or "\0", new) + more)
    return str(changed)
