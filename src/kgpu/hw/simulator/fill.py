"""From a profile to the contents of a state file: ids, capacities, limits, links and topology of every GPU.

Deterministic: the same profile and seed give the same UUIDs and serials. Sizes go from the profile's units (MiB, W,
MHz) to the state's (bytes, mW, MHz). The only thing touched is the ``kg_state`` view that is passed in.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kgpu.hw.simulator import mig_tables, schema
from kgpu.hw.simulator.profiles import ARCHITECTURES, BRANDS, FABRIC_STATES, Model, Profile, ProfileGpu

NAMESPACE: Final = uuid.UUID("7b0a6f5e-52a4-5d0c-9f6b-6b67707500a1")
LINK_VERSIONS: Final[Mapping[int, int]] = {1: 1, 2: 2, 3: 4, 4: 6, 5: 7, 6: 8, 7: 9}  # NVLink -> nvmlNvLinkVersion
SWITCH_DEVICE_IDS: Final[Mapping[int, int]] = {2: 0x1AC210DE, 3: 0x1AF110DE, 4: 0x22A310DE}  # by NVLink generation
REMOTE_GPU, REMOTE_SWITCH, REMOTE_UNKNOWN = 0, 2, 255
P2P_OK, P2P_GPU_NOT_SUPPORTED, P2P_NOT_SUPPORTED = 0, 2, 5
BAR1_USED: Final = 1 << 20  # bytes, while nothing runs
LINK_CAPS: Final = 0b101111  # P2P, sysmem and the atomics of both, valid
TURING, AMPERE, HOPPER = 6, 7, 9
PCIE_LANE_KBS: Final[Mapping[int, int]] = {1: 250, 2: 500, 3: 985, 4: 1969, 5: 3938, 6: 7563, 7: 15125}  # in 1000 KB/s


def fill(view: Any, profile: Profile, *, seed: str) -> None:
    """Write ``profile`` into an empty ``kg_state`` view; ``seed`` tells nodes of one profile apart."""
    view.gpu_count = len(profile.gpus)
    view.nvswitch_count = len(profile.nvswitches)
    view.fabric_manager = int(bool(profile.nvswitches or profile.fabric))
    for index, gpu in enumerate(profile.gpus):
        _gpu(view.gpu[index], profile, index, gpu, seed)
    _links(view, profile)
    limit = schema.MAX_GPUS
    for i, a in enumerate(profile.gpus):
        for j, b in enumerate(profile.gpus):
            view.topology[i * limit + j] = profile.topology.levels[i][j]
            view.p2p[i * limit + j] = P2P_OK if i == j else _p2p(a.model, b.model)


def gpu_uuid(profile: str, seed: str, index: int) -> str:
    """``GPU-<uuid5>``, the same for the same node at all times."""
    return f"GPU-{uuid.uuid5(NAMESPACE, f'{profile}/{seed}/{index}')}"


def persistence(brand: int) -> int:
    """The persistence mode that a GPU has after its machine's start: data centers' machines switch it on."""
    return int(brand != BRANDS["geforce"])


def cuda_number(text: str) -> int:
    """``12.4`` as the driver reports it: 12040."""
    major, minor = text.split(".")
    return int(major) * 1000 + int(minor) * 10


def split_bus(bus: str) -> tuple[int, int, int, int]:
    """``0000:1b:00.0`` as (domain, bus, device, function)."""
    domain, number, rest = bus.split(":")
    device, function = rest.split(".")
    return int(domain, 16), int(number, 16), int(device, 16), int(function, 16)


def _gpu(out: Any, profile: Profile, index: int, gpu: ProfileGpu, seed: str) -> None:
    model = gpu.model
    architecture = ARCHITECTURES[model.architecture]
    major, minor = model.compute_capability.split(".")
    identity = uuid.uuid5(NAMESPACE, f"serial/{profile.name}/{seed}/{index}").int
    datacenter = model.brand != "geforce"
    low_power_memory = model.clocks_mhz.idle_memory != model.clocks_mhz.memory
    _set(
        out,
        used=1,
        minor=index,
        brand=BRANDS[model.brand],
        architecture=architecture,
        cc_major=int(major),
        cc_minor=int(minor),
        cores=model.cores,
        sm_count=model.multiprocessors,
        name=model.name,
        uuid=gpu_uuid(profile.name, seed, index),
        serial=f"13{identity % 10**11:011d}" if datacenter else "",
        board_part=model.part_number[:31],
        vbios=model.vbios,
        board_id=split_bus(gpu.bus)[1] << 8,
        module_id=index % 8 + 1,
        multi_gpu=0,
        peer_type=2 if profile.topology.switched else 1,
        persistence=persistence(BRANDS[model.brand]),
        gsp_mode=int(architecture >= TURING),
        gsp_default=int(architecture >= TURING),
        accounting_buffer=4000,
        timeslice_supported=int(int(major) >= 7 or (major, minor) == ("6", "0")),
        pstate_idle=8 if low_power_memory else 0,
        gpm_supported=int(architecture >= HOPPER),
        c2c_links=model.c2c_links,
        addressing_mode=2 if model.c2c_links else 0,
    )
    if datacenter:
        image = re.sub(r"^\d+-2?(\w{5})-(\d{4}).*", r"\1.\2", model.part_number)
        _set(
            out,
            inforom_image=f"{image[:10]}.00.05",
            inforom_oem="2.1",
            inforom_ecc="7.16" if model.ecc.supported else "",
        )
    _capacity(out, model)
    _thermals(out, model)
    _pci(out.pci, gpu, profile.topology.numa[index])
    _near(out, profile, index)
    if profile.fabric is not None:
        out.fabric_state = FABRIC_STATES[profile.fabric.state]
        out.fabric_clique = profile.fabric.clique
        out.fabric_health_summary = 1
        out.fabric_uuid[:] = uuid.UUID(profile.fabric.cluster).bytes
    if model.mig:
        mig_tables.apply(out, model.mig)


def _set(out: Any, **values: int | str) -> None:
    for name, value in values.items():
        setattr(out, name, value.encode() if isinstance(value, str) else value)


def _capacity(out: Any, model: Model) -> None:
    lane = PCIE_LANE_KBS[model.pci.gen] * 1000 * model.pci.width
    _set(
        out,
        mem_total=model.memory.total_mib << 20,
        mem_reserved=model.memory.reserved_mib << 20,
        bar1_total=model.memory.bar1_mib << 20,
        bar1_used=BAR1_USED,
        mem_bus_width=model.memory.bus_bits,
        ecc_supported=int(model.ecc.supported),
        ecc_current=int(model.ecc.enabled),
        ecc_pending=int(model.ecc.enabled),
        ecc_default=int(model.ecc.enabled),
        remap_supported=int(model.remap_banks > 0),
        pcie_tx_kbs=lane // 4,
        pcie_rx_kbs=lane // 2,
    )
    out.remap_histogram[0] = model.remap_banks
    clocks = model.clocks_mhz
    idle_video = max(clocks.idle_graphics, clocks.video * clocks.idle_graphics // clocks.graphics)
    out.clock_max[:] = [clocks.graphics, clocks.sm, clocks.memory, clocks.video]
    out.clock_idle[:] = [clocks.idle_graphics, clocks.idle_graphics, clocks.idle_memory, idle_video]
    if model.brand != "geforce":
        out.clock_app[:] = out.clock_app_default[:] = [clocks.graphics, clocks.sm, clocks.memory, clocks.video]


def _thermals(out: Any, model: Model) -> None:
    heat, power = model.temperature_c, model.power_w
    _set(
        out,
        power_supported=1,
        power_idle_mw=power.idle * 1000,
        power_max_mw=power.limit * 960,
        power_limit_mw=power.limit * 1000,
        power_limit_default_mw=power.limit * 1000,
        power_limit_min_mw=power.min * 1000,
        power_limit_max_mw=power.max * 1000,
        temp_idle=heat.idle,
        temp_max_load=max(heat.idle, heat.max_operating - 19),
        temp_memory_delta=heat.memory_idle - heat.idle if heat.memory_idle else -1000,
        temp_shutdown=heat.shutdown,
        temp_slowdown=heat.slowdown,
        temp_mem_max=heat.max_operating + 10 if heat.memory_idle else 0,
        temp_gpu_max=heat.max_operating,
        fan_count=model.fans,
        fan_idle=30 if model.fans else 0,
        fan_max=75 if model.fans else 0,
    )


def _pci(out: Any, gpu: ProfileGpu, numa: int) -> None:
    out.domain, out.bus, out.device, out.function = split_bus(gpu.bus)
    pci = gpu.model.pci
    _set(out, device_id=pci.device, subsystem_id=pci.subsystem, class_code=pci.pci_class, numa_node=numa)
    _set(out, gen_cur=pci.gen, gen_max=pci.gen, gen_gpu_max=pci.gen, width_cur=pci.width, width_max=pci.width)


def _near(out: Any, profile: Profile, index: int) -> None:
    """CPU and memory affinity: those of the GPU's NUMA node."""
    node = profile.topology.numa[index]
    if 0 <= node < 64 * len(out.mem_affinity):
        out.mem_affinity[node // 64] |= 1 << node % 64
    if 0 <= node < len(profile.topology.cpus):
        for cpu in cpus(profile.topology.cpus[node]):
            if cpu >= 64 * len(out.cpu_affinity):
                break
            out.cpu_affinity[cpu // 64] |= 1 << cpu % 64


def cpus(text: str) -> Iterator[int]:
    """The CPU numbers of a list such as ``0-3,8``."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _links(view: Any, profile: Profile) -> None:
    """Every lane a link of its own: pairs take the lowest free numbers, a switched fabric deals them out in turn."""
    shape = profile.topology
    free = [0] * shape.count
    for i, gpu in enumerate(profile.gpus):
        ports = gpu.model.nvlink
        view.gpu[i].link_count = ports.links if ports else 0
        for number in range(ports.links if ports else 0):
            link = view.gpu[i].link[number]
            assert ports is not None
            _set(link, present=1, version=LINK_VERSIONS[ports.version], speed_mbps=ports.mbps)
            link.remote_type = REMOTE_UNKNOWN
            if shape.switched:
                _to_switch(link, profile, i, number)
    for i in range(shape.count):
        for j in range(i + 1, shape.count):
            for _ in range(shape.lanes[i][j]):
                for near, far in ((i, j), (j, i)):
                    link = view.gpu[near].link[free[near]]
                    pci = view.gpu[far].pci
                    _set(link, active=1, remote_type=REMOTE_GPU, caps=LINK_CAPS, remote_link=free[far])
                    _set(link, remote_domain=pci.domain, remote_bus=pci.bus, remote_device=pci.device)
                    link.remote_device_id = pci.device_id
                free[i] += 1
                free[j] += 1


def _to_switch(link: Any, profile: Profile, gpu: int, number: int) -> None:
    """Switches that are no PCI devices of the host leave the address zero."""
    _set(link, active=1, remote_type=REMOTE_SWITCH, caps=LINK_CAPS)
    switches = profile.nvswitches
    if switches:
        link.remote_domain, link.remote_bus, link.remote_device, _ = split_bus(switches[number % len(switches)])
        ports = profile.gpus[gpu].model.nvlink
        link.remote_device_id = SWITCH_DEVICE_IDS.get(ports.version if ports else 0, 0)
        link.remote_link = gpu * 4 + number // len(switches)


def _p2p(a: Model, b: Model) -> int:
    if "geforce" in {a.brand, b.brand}:
        return P2P_GPU_NOT_SUPPORTED
    return P2P_OK if a.name == b.name else P2P_NOT_SUPPORTED
