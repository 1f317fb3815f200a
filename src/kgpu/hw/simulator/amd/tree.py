"""The files of a simulated AMD node, as the driver ``amdgpu`` and its KFD show them: sysfs, debugfs, device nodes.

``build`` makes them all; ``show_gpu``, ``show_topology`` and ``show_processes`` write those anew that change. As with
the real driver, every GPU that can be cut has the device nodes of all its parts from the start (``amdgpu_xcp_N``), and
the KFD's topology lists those that are in use.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgpu.formats import amd_gpu_metrics
from kgpu.hw.simulator import kernel_log
from kgpu.hw.simulator.amd.node_file import AmdNodeRecord, GpuRecord
from kgpu.hw.simulator.amd.profiles import NO_HIVE, AmdGpu, metrics_version
from kgpu.hw.simulator.live_files import NOISE, hang, replace_file
from kgpu.hw.simulator.tree import make_node, symlink, write

DRM_MAJOR, KFD_MAJOR = 226, 234
FIRST_RENDER: Final = 128
PARTS: Final = 8
LOST, HANG, GARBAGE, HOT = "lost", "hang", "garbage", "hot"
TOPOLOGY: Final = "sys/class/kfd/kfd/topology"
LINKS: Final = "links"
"""Beside the topology: a folder for each link between two nodes, to which every generation's links lead. A node of 64
parts has four thousand of them, and most are the same when a GPU is cut otherwise.
"""
PROCESSES: Final = "sys/class/kfd/kfd/proc"
HUNG_FILES: Final = ("gpu_busy_percent", "gpu_metrics")
XGMI, PCIE = 11, 2  # link types of the KFD
RAS_BLOCKS: Final = ("umc", "sdma", "gfx", "mmhub", "xgmi_wafl")
_SPEEDS: Final = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0", 7: "128.0"}
FIRMWARE: Final = {"VCE": 0, "MEC": 0xA9, "RLC": 0x5C, "SDMA": 0x13, "SMC": 0x554500}
"""Versions of firmware; 0 is one that the GPU has not."""


@dataclass(frozen=True, slots=True)
class DrmNode:
    """One part's numbers: its ``cardN``, ``renderDN``, and where its folder ``drm`` is, below the root."""

    card: int
    render: int
    folder: str
    part: int


def pci_folder(gpu: AmdGpu) -> str:
    """The GPU's folder below the root."""
    domain_bus = gpu.bus.rsplit(":", 1)[0]
    domain, bus = domain_bus.split(":")
    parent = f"{domain}:{max(0, int(bus, 16) - 1):02x}"
    return f"sys/devices/pci{parent}/{parent}:01.0/{gpu.bus}"


def drm_nodes(record: AmdNodeRecord, index: int) -> list[DrmNode]:
    """The GPU's own node and those of its parts, which exist however it is cut."""
    before = record.profile.gpus[:index]
    start = sum(_parts(gpu) for gpu in before)
    first_xcp = sum(_parts(gpu) - 1 for gpu in before)
    gpu = record.profile.gpus[index]
    rows = [DrmNode(start, FIRST_RENDER + start, f"{pci_folder(gpu)}/drm", 0)]
    rows += [
        DrmNode(
            start + part,
            FIRST_RENDER + start + part,
            f"sys/devices/platform/amdgpu_xcp_{first_xcp + part - 1}/drm",
            part,
        )
        for part in range(1, _parts(gpu))
    ]
    return rows


def _parts(gpu: AmdGpu) -> int:
    return PARTS if gpu.model.compute else 1


def unique_id(record: AmdNodeRecord, index: int) -> int:
    """A number that follows from profile and seed."""
    text = f"{record.profile.name}/{record.seed}/{index}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") | 1 << 63


def build(root: Path, record: AmdNodeRecord) -> None:
    """Make every file. Raises OSError as the system gives it."""
    profile = record.profile
    make_node(f"{root}/dev/kfd", (KFD_MAJOR, 0), 0o660)
    write(f"{root}/{kernel_log.PATH}", "")
    for index, gpu in enumerate(profile.gpus):
        for node in drm_nodes(record, index):
            make_node(f"{root}/dev/dri/card{node.card}", (DRM_MAJOR, node.card), 0o660)
            make_node(f"{root}/dev/dri/renderD{node.render}", (DRM_MAJOR, node.render), 0o660)
            for name in (f"card{node.card}", f"renderD{node.render}"):
                os.makedirs(root / node.folder / name, exist_ok=True)
                symlink(root / "sys/class/drm" / name, f"../../{_below_sys(node.folder)}/{name}")
                symlink(root / node.folder / name / "device", "../..")
        folder = pci_folder(gpu)
        symlink(root / "sys/bus/pci/devices" / gpu.bus, f"../../../{_below_sys(folder)}")
        symlink(root / "sys/bus/pci/drivers/amdgpu" / gpu.bus, f"../../../../{_below_sys(folder)}")
        symlink(root / folder / "driver", f"{'../' * folder.count('/')}bus/pci/drivers/amdgpu")
        show_gpu(root, record, index)
    symlink(root / "sys/bus/pci/drivers/amdgpu/module", "../../../../module/amdgpu")
    symlink(root / "sys/module/amdgpu/drivers/pci:amdgpu", "../../../bus/pci/drivers/amdgpu")
    for name, text in _node_files(record):
        write(f"{root}/{name}", f"{text}\n")
    show_version(root, record)
    os.makedirs(root / PROCESSES, exist_ok=True)
    show_topology(root, record)


def _below_sys(folder: str) -> str:
    return folder.removeprefix("sys/")


def _node_files(record: AmdNodeRecord) -> Iterator[tuple[str, str]]:
    profile = record.profile
    yield "sys/class/dmi/id/product_name", profile.machine.product
    yield "sys/class/dmi/id/sys_vendor", profile.machine.vendor
    yield "sys/module/amdgpu/initstate", "live"
    yield "sys/module/amdgpu/refcnt", "0"
    for number, text in enumerate(profile.numa):
        yield f"sys/devices/system/node/node{number}/cpulist", text
    for index, _ in enumerate(profile.gpus):
        yield (
            f"sys/kernel/debug/dri/{drm_nodes(record, index)[0].card}/amdgpu_firmware_info",
            "".join(f"{name} feature version: 0, firmware version: 0x{code:08x}\n" for name, code in FIRMWARE.items()),
        )


def show_version(root: Path, record: AmdNodeRecord) -> None:
    """The driver's version; the kernel's own driver has none."""
    version, module = record.profile.driver.version, f"{root}/sys/module/amdgpu"
    write(f"{module}/srcversion", hashlib.sha256(version.encode()).hexdigest()[:23].upper() + "\n")
    if version:
        write(f"{module}/version", f"{version}\n")


def show_gpu(root: Path, record: AmdNodeRecord, index: int) -> None:
    """The GPU's own files as it is now. What hung before lets its readers go."""
    gpu, state = record.profile.gpus[index], record.gpus[index]
    folder = f"{root}/{pci_folder(gpu)}"
    for name, content in _gpu_files(record, index):
        replace_file(f"{folder}/{name}", content)
    faults = state.faults
    if GARBAGE in faults:
        for name in ("gpu_metrics", "numa_node", "current_compute_partition", "ras/umc_err_count", "gpu_busy_percent"):
            if os.path.lexists(f"{folder}/{name}"):
                replace_file(f"{folder}/{name}", NOISE)
    if HANG in faults:
        for name in HUNG_FILES:
            hang(f"{folder}/{name}")


def _gpu_files(record: AmdNodeRecord, index: int) -> Iterator[tuple[str, str | bytes]]:
    gpu, state = record.profile.gpus[index], record.gpus[index]
    model, lost = gpu.model, LOST in state.faults
    used = _used_mib(state) << 20
    identity = unique_id(record, index)
    vram = model.vram_mib << 20
    texts = {
        "vendor": "0x1002",
        "device": f"0x{model.pci.device:04x}",
        "subsystem_vendor": "0x1002",
        "subsystem_device": f"0x{model.pci.subsystem:04x}",
        "class": f"0x{model.pci.pci_class:06x}",
        "revision": "0x00",
        "numa_node": str(gpu.numa),
        "local_cpulist": record.profile.numa[gpu.numa] if gpu.numa >= 0 else "",
        "current_link_speed": f"{_SPEEDS[model.pci.gen]} GT/s PCIe",
        "max_link_speed": f"{_SPEEDS[model.pci.gen]} GT/s PCIe",
        "current_link_width": str(model.pci.width),
        "max_link_width": str(model.pci.width),
        "unique_id": f"{identity:016x}",
        "serial_number": f"{identity % 10**12:012d}",
        "product_name": model.name,
        "vbios_version": model.vbios,
        **{f"fw_version/{name.lower()}_fw_version": f"0x{version:08x}" for name, version in FIRMWARE.items()},
        "mem_info_vram_total": str(vram),
        "mem_info_vram_used": str(used),
        "mem_info_vis_vram_total": str(vram),
        "mem_info_vis_vram_used": str(used),
        "mem_info_gtt_total": str(model.gtt_mib << 20),
        "mem_info_gtt_used": str(14 << 20),
        "gpu_busy_percent": "0" if not state.processes else "100",
        "mem_busy_percent": "0",
        "pcie_replay_count": "0",
        "uevent": f"DRIVER=amdgpu\nPCI_CLASS={model.pci.pci_class:X}\nPCI_ID=1002:{model.pci.device:04X}\n"
        f"PCI_SLOT_NAME={gpu.bus}",
    }
    texts |= _hwmon(gpu, hot=HOT in state.faults)
    if model.compute:
        texts |= {
            "current_compute_partition": state.compute,
            "available_compute_partition": ", ".join(model.compute),
            "current_memory_partition": state.memory,
            "available_memory_partition": ", ".join(model.memory),
        }
    if gpu.hive != NO_HIVE:
        texts["xgmi_hive_info/xgmi_hive_id"] = str(0x5000_0000 + gpu.hive)
        texts["xgmi_device_id"] = str(identity)
    if model.ras:
        for block in RAS_BLOCKS:
            corrected, uncorrected = (state.corrected, state.uncorrected) if block == "umc" else (0, 0)
            texts[f"ras/{block}_err_count"] = f"ue: {uncorrected}\nce: {corrected}"
    yield from ((name, f"{text}\n") for name, text in texts.items())
    yield "config", b"\xff" * 64 if lost else bytes((0x02, 0x10)) + model.pci.device.to_bytes(2, "little") + bytes(60)
    yield "gpu_metrics", b"" if lost else _metrics(gpu, state)


def _hwmon(gpu: AmdGpu, *, hot: bool) -> dict[str, str]:
    """Sensors: millidegrees, microwatts, hertz."""
    model = gpu.model
    temperature = model.temperature_c.critical + 2 if hot else model.temperature_c.idle
    readings = {
        "name": "amdgpu",
        "temp1_label": "edge", "temp1_input": str(temperature * 1000 - 3000),
        "temp2_label": "junction", "temp2_input": str(temperature * 1000),
        "temp2_crit": str(model.temperature_c.critical * 1000),
        "temp3_label": "mem", "temp3_input": str(model.temperature_c.memory_idle * 1000),
        "power1_average": str(model.power_w.idle * 1_000_000),
        "power1_cap": str(model.power_w.limit * 1_000_000),
        "power1_cap_max": str(model.power_w.limit * 1_000_000),
        "freq1_input": str(model.clocks_mhz.idle_graphics * 1_000_000),
    }  # fmt: skip
    return {f"hwmon/hwmon0/{name}": text for name, text in readings.items()}


def _metrics(gpu: AmdGpu, state: GpuRecord) -> bytes:
    model, version = gpu.model, metrics_version(gpu.model)
    temperature = model.temperature_c.critical + 2 if HOT in state.faults else model.temperature_c.idle
    values: dict[str, int | tuple[int, ...]] = {
        "temperature_hotspot": temperature,
        "temperature_mem": model.temperature_c.memory_idle,
        "average_gfx_activity": 100 if state.processes else 0,
        "average_umc_activity": 0,
        "energy_accumulator": 65536 * 1_000,
        "system_clock_counter": 1_000_000_000,
        "pcie_link_width": model.pci.width,
        "pcie_link_speed": round(float(_SPEEDS[model.pci.gen]) * 10),
        "current_gfxclk": model.clocks_mhz.idle_graphics,
        "current_uclk": model.clocks_mhz.memory,
    }
    if version == (1, 3):
        values |= {"temperature_edge": temperature - 3, "average_socket_power": model.power_w.idle}
    else:
        clock = model.clocks_mhz.idle_graphics
        values |= {"curr_socket_power": model.power_w.idle, "current_gfxclk": (clock,) * PARTS}
        values |= {"pcie_replay_count_acc": 0, "xgmi_read_data_acc": (1000,) * 7, "xgmi_write_data_acc": (2000,) * 7}
    return amd_gpu_metrics.encode(version, values)


def _used_mib(state: GpuRecord) -> int:
    return 283 + sum(state.processes.values())


@dataclass(frozen=True, slots=True)
class ShownKfdNode:
    """A GPU's part in the KFD's topology; ``number`` is the node's."""

    number: int
    gpu: int
    part: int
    render: int


def kfd_nodes(record: AmdNodeRecord) -> list[ShownKfdNode]:
    """Those of the parts that the GPUs are cut into; the processors come first. A lost GPU keeps its node."""
    rows: list[ShownKfdNode] = []
    number = len(record.profile.numa)
    for index, gpu in enumerate(record.profile.gpus):
        count = gpu.model.compute.get(record.gpus[index].compute, 1)
        for node in drm_nodes(record, index)[:count]:
            rows.append(ShownKfdNode(number + len(rows), index, node.part, node.render))
    return rows


def show_topology(root: Path, record: AmdNodeRecord) -> None:
    """Write the KFD's topology anew, and put it in the place of the one of another generation."""
    place = root / TOPOLOGY
    fresh = place.with_name(f"topology.{record.generation}")
    shutil.rmtree(fresh, ignore_errors=True)
    nodes = kfd_nodes(record)
    pool = place.with_name(LINKS)
    os.makedirs(pool, exist_ok=True)
    links = _Links(str(pool), set(os.listdir(pool)))
    write(f"{fresh}/generation_id", f"{record.generation}\n")
    write(f"{fresh}/system_properties", "platform_oem 0\nplatform_id 0\nplatform_rev 0\n")
    for number, _ in enumerate(record.profile.numa):
        folder = f"{fresh}/nodes/{number}"
        write(f"{folder}/gpu_id", "0\n")
        write(f"{folder}/properties", _text({"cpu_cores_count": 96, "simd_count": 0, "drm_render_minor": 0}))
    for node in nodes:
        _show_node(fresh, record, node, nodes, links)
    symlink(place, fresh.name)
    for old in place.parent.glob("topology.*"):
        if old.name not in (fresh.name, f"topology.{record.generation - 1}"):  # somebody may be reading the last one
            shutil.rmtree(old, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Links:
    """The folders of links that are there, by name."""

    pool: str
    there: set[str]

    def show(self, folder: str, rows: list[dict[str, int]]) -> None:
        """Make a node's folder of links."""
        if rows:
            os.makedirs(folder)
        for number, row in enumerate(rows):
            name = "-".join(str(row.get(key, 0)) for key in ("node_from", "node_to", "type", "weight", "max_bandwidth"))
            if name not in self.there:
                making = f"{self.pool}/.{name}"  # whole, or not there: who makes it may be killed
                shutil.rmtree(making, ignore_errors=True)
                write(f"{making}/properties", _text(row))
                os.rename(making, f"{self.pool}/{name}")
                self.there.add(name)
            os.symlink(f"../../../../{LINKS}/{name}", f"{folder}/{number}")


def _show_node(fresh: Path, record: AmdNodeRecord, node: ShownKfdNode, nodes: list[ShownKfdNode], pool: _Links) -> None:
    gpu, state = record.profile.gpus[node.gpu], record.gpus[node.gpu]
    model, folder = gpu.model, f"{fresh}/nodes/{node.number}"
    parts = model.compute.get(state.compute, 1)
    domain, bus, rest = gpu.bus.split(":")
    device = int(rest.split(".")[0], 16)
    links = [_link(record, node, other) for other in nodes if other is not node]
    near, far = [row for row in links if row["type"] == XGMI], [row for row in links if row["type"] != XGMI]
    processor = {"type": PCIE, "node_from": node.number, "node_to": max(gpu.numa, 0), "weight": 20}
    write(f"{folder}/gpu_id", f"{gpu_id(record, node.gpu, node.part)}\n")
    write(f"{folder}/name", f"{model.kfd_name}\n")
    write(
        f"{folder}/properties",
        _text(
            {
                "cpu_cores_count": 0,
                "simd_count": model.simds // parts,
                "mem_banks_count": 1,
                "io_links_count": len(near) + 1,
                "p2p_links_count": len(far),
                "simd_per_cu": model.simds_per_cu,
                "gfx_target_version": model.kfd_version,
                "vendor_id": 0x1002,
                "device_id": model.pci.device,
                "location_id": int(bus, 16) << 8 | device << 3 | node.part,
                "domain": int(domain, 16),
                "drm_render_minor": node.render,
                "hive_id": 0 if gpu.hive == NO_HIVE else 0x5000_0000 + gpu.hive,
                "unique_id": unique_id(record, node.gpu),
                "num_xcc": max(1, max(model.compute.values(), default=1) // parts),
            }
        ),
    )
    size = (model.vram_mib << 20) // parts
    write(f"{folder}/mem_banks/0/properties", _text({"heap_type": 1, "size_in_bytes": size, "flags": 0}))
    pool.show(f"{folder}/io_links", [processor, *near])
    pool.show(f"{folder}/p2p_links", far)


def _link(record: AmdNodeRecord, node: ShownKfdNode, other: ShownKfdNode) -> dict[str, int]:
    mine, theirs = record.profile.gpus[node.gpu], record.profile.gpus[other.gpu]
    joined = node.gpu == other.gpu or (mine.hive != NO_HIVE and mine.hive == theirs.hive)
    bandwidth = mine.model.xgmi_mb_per_s if joined else 32000
    return {
        "type": XGMI if joined else PCIE, "version_major": 0, "version_minor": 0, "node_from": node.number,
        "node_to": other.number, "weight": 15 if joined else 40, "max_bandwidth": bandwidth, "flags": 1,
    }  # fmt: skip


def gpu_id(record: AmdNodeRecord, index: int, part: int = 0) -> int:
    """The KFD's number of a part."""
    return unique_id(record, index) % 60_000 + 1 + part


def show_processes(root: Path, record: AmdNodeRecord) -> None:
    """The KFD's folder of processes: one for each pid, with the bytes that it has of each GPU."""
    place = root / PROCESSES
    wanted: dict[str, dict[str, str]] = {}
    for index, state in enumerate(record.gpus):
        for pid, mib in state.processes.items():
            wanted.setdefault(pid, {})[f"vram_{gpu_id(record, index)}"] = f"{mib << 20}\n"
    if os.path.lexists(root / "sys/module/amdgpu"):
        replace_file(f"{root}/sys/module/amdgpu/refcnt", f"{len(wanted)}\n")
    for entry in place.iterdir():
        if entry.name not in wanted:
            shutil.rmtree(entry, ignore_errors=True)
    for pid, files in wanted.items():
        for old in place.joinpath(pid).glob("vram_*"):
            if old.name not in files:
                old.unlink()
        for name, text in files.items():
            replace_file(f"{place}/{pid}/{name}", text)


def _text(properties: dict[str, int]) -> str:
    return "".join(f"{name} {value}\n" for name, value in properties.items())
