"""Simulated nodes of Gaudi accelerators and Intel GPUs: the files that drivers show, what changes them, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kgpu.base.errors import ConfigError, HwError
from kgpu.formats.names import HLML_LIBRARY
from kgpu.formats.simulated import state_file
from kgpu.hw.simulator import create, machines, mig, modules, operate, processes
from kgpu.hw.simulator.box import model
from kgpu.hw.simulator.reboot import reboot

CARD = "sys/bus/pci/devices/0000:1a:00.0"
LIBRARY = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print(library.hlml_init())
count = ctypes.c_uint()
print(library.hlml_device_get_count(ctypes.byref(count)), count.value)
handles = [ctypes.c_void_p() for _ in range(2)]
text = ctypes.create_string_buffer(64)
for index, handle in enumerate(handles):
    assert library.hlml_device_get_handle_by_index(index, ctypes.byref(handle)) == 0
for handle in handles:
    minor = ctypes.c_uint()
    code = library.hlml_device_get_minor_number(handle, ctypes.byref(minor))
    print(code, minor.value, library.hlml_device_get_serial(handle, text, 64), text.value.decode())
print(library.hlml_device_get_serial(handles[0], text, 3), library.hlml_device_get_handle_by_index(99, ctypes.byref(handles[0])))
print(library.hlml_device_get_handle_by_pci_bus_id(b"0000:ff:00.0", ctypes.byref(handles[0])))
"""


def text(root, path: str) -> str:
    return (root / path).read_text().strip()


def test_a_gaudi_nodes_tree_is_what_gaudis_programs_look_at(sim_root) -> None:
    root = sim_root("gaudi3")
    assert sorted(os.listdir(root / "sys/class/accel"))[:2] == ["accel0", "accel1"]
    assert text(root, "sys/class/accel/accel1/device/pci_addr") == "0000:1a:00.0"
    assert text(root, "sys/class/accel/accel1/device/module_id") == "1"
    assert text(root, f"{CARD}/device_type") == "GAUDI3"
    assert text(root, f"{CARD}/status") == "Operational"
    assert text(root, f"{CARD}/vendor") == "0x1da3"
    assert text(root, "sys/bus/pci/drivers/habanalabs/0000:1a:00.0/device") == "0x1060"
    assert os.listdir(root / CARD / "infiniband_verbs") == ["uverbs1"]
    assert text(root, "sys/module/habanalabs/version") == "1.23.0-695"
    for name in ("accel/accel1", "accel/accel_controlD1", "infiniband/uverbs1"):
        assert (root / "dev" / name).exists()
    assert state_file(str(root)) is not None


def test_the_library_tells_cards_apart_and_its_codes_are_the_real_ones(sim_root) -> None:
    root = sim_root("gaudi2")
    operate.inject(root, "lost", gpu=1)
    command = [sys.executable, "-c", LIBRARY, str(root / HLML_LIBRARY)]
    done = subprocess.run(
        command, env={**os.environ, **create.environment(root)}, capture_output=True, text=True, timeout=60, check=True
    )
    rows = done.stdout.splitlines()
    assert rows[:2] == ["0", "0 8"]
    assert rows[2].startswith("0 0 0 AN")
    assert rows[3].startswith("0 1 15"), "AIP_IS_LOST"
    assert rows[4:] == ["7 2", "6"]
    outside = subprocess.run(
        command, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=60, check=False
    )
    assert outside.stdout.startswith("9\n"), "DRIVER_NOT_LOADED"


@pytest.mark.parametrize(("profile", "driver", "size"), [
    ("arc", "xe", "tile0/physical_vram_size_bytes"), ("max1550", "i915", "drm/card0/lmem_total_bytes"),
])  # fmt: skip
def test_an_intel_nodes_tree_is_what_intels_plugin_scans(sim_root, profile: str, driver: str, size: str) -> None:
    root = sim_root(profile)
    assert text(root, "sys/class/drm/card0/device/vendor") == "0x8086"
    assert os.path.basename(os.readlink(root / "sys/class/drm/card0/device/driver")) == driver
    assert sorted(os.listdir(root / "sys/class/drm/card0/device/drm")) == ["card0", "renderD128"]
    assert int(text(root, f"sys/class/drm/card0/device/{size}"), 0) > 20 << 30
    assert min(os.listdir(root / "dev/dri/by-path")).endswith("-card")


@pytest.mark.parametrize("profile", model.names())
def test_every_profile_can_be_had_unloaded_loaded_and_rebooted(sim_root, profile: str) -> None:
    root = sim_root(profile, gpus=2, seed="a")
    before = operate.snapshot(root)
    operate.inject(root, "hot", gpu=1)
    assert operate.snapshot(root)["gpus"][1]["faults"] == ["hot"]
    processes.add(root, 0, pid=77, memory_mib=100)
    with pytest.raises(HwError, match="in use"):
        modules.unload(root)
    processes.remove(root, 0, 77)
    modules.unload(root)
    assert not operate.snapshot(root)["driver_loaded"]
    reboot(root)
    assert operate.snapshot(root) == before
    assert len(before["gpus"]) == 2


def test_another_driver_version_is_what_the_files_say(sim_root) -> None:
    root = sim_root("gaudi3", driver="1.22.1-6")
    assert text(root, "sys/module/habanalabs/version") == "1.22.1-6"
    assert modules.load(root, "1.24.0-1") == "1.24.0-1"
    assert text(root, "sys/module/habanalabs/version") == "1.24.0-1"


@pytest.mark.parametrize(
    ("profile", "fault", "options", "what"),
    [
        ("gaudi3", "hagn", {"gpu": 0}, "hang"), ("gaudi3", "lost", {}, "needs a GPU"), ("arc", "ecc", {"gpu": 0}, "no fault"),
        ("arc", "lost", {"gpu": 9}, "no GPU 9"), ("gaudi3", "ecc", {"gpu": 0, "count": 0}, "0 errors"),
    ],
)  # fmt: skip
def test_faults_that_can_not_be_are_refused(sim_root, profile: str, fault: str, options: dict, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        operate.inject(sim_root(profile), fault, **options)


def test_what_only_nvidias_gpus_have_is_refused(sim_root) -> None:
    with pytest.raises(ConfigError, match="has Gaudi accelerators"):
        mig.partition(sim_root("gaudi3"), 0, ["1g.10gb"])


BAD = {
    "a model that is not there": ("gaudi3, numa: 0", "gaudi4, numa: 0"),
    "NUMA node": ("numa: 1, pci", "numa: 7, pci"),
    "ascending": ('"0000:1a:00.0"', '"0000:19:00.0"'),
    "module": ("module: habanalabs", "module: other"),
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_a_profile_that_can_not_be_is_refused(change: tuple[str, str]) -> None:
    old, new = change
    text_of = model.text_of("gaudi3")
    assert old in text_of
    with pytest.raises(ConfigError):
        model.parse(text_of.replace(old, new), name="x", source="x")


def test_a_profile_of_ones_own_is_read_by_its_vendor(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(model.text_of("arc"))
    assert isinstance(machines.load(str(path), gpus=5), model.BoxProfile)
    assert [card.bus for card in machines.load(str(path), gpus=3).gpus][2] == "0001:03:00.0"
