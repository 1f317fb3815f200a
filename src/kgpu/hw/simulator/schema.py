"""The layout of the simulated driver's state file, as data rows.

One table serves both sides: the ctypes classes that Python maps the file with, and the C header
`native/include/kgpu_state.h` (`python -m kgpu.hw.simulator.schema > native/include/kgpu_state.h`), which asserts every
offset at compile time. Promise: all multi-byte fields are naturally aligned, so the layout has no compiler-made
padding surprises. A change of any row needs `VERSION + 1`.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

from kgpu.formats.simulated import MAGIC
from kgpu.hw.simulator.load_profiles import CHANNELS

VERSION = 4

CONSTANTS: tuple[tuple[str, int, str], ...] = (
    ("MAX_GPUS", 64, "GPUs per node"),
    ("MAX_LINKS", 36, "NVLinks per GPU (NVML_NVLINK_MAX_LINKS of NVML 13)"),
    ("MAX_PROCESSES", 128, "process slots per GPU"),
    ("MAX_GI_PROFILES", 24, "GPU instance profiles per GPU"),
    ("MAX_CI_PROFILES", 9, "compute instance profiles per GPU instance profile"),
    ("MAX_PLACEMENTS", 8, "start positions per profile"),
    ("MAX_GI", 16, "GPU instance slots per GPU"),
    ("MAX_CI", 16, "compute instance slots per GPU"),
    ("MAX_RETIRED", 64, "retired pages per cause"),
    ("EVENT_RING", 256, "events kept"),
    ("CPU_WORDS", 16, "64-bit words of a CPU set (1024 CPUs)"),
    ("NO_INSTANCE", 0xFFFFFFFF, "GPU/compute instance id of something that is not in a MIG slice"),
    ("PROC_COMPUTE", 1, "process kind: compute context"),
    ("PROC_GRAPHICS", 2, "process kind: graphics context"),
    ("PROC_MPS", 4, "process kind: MPS client"),
    ("PROC_LOCK_BASE", 1 << 32, "offset of the POSIX lock byte of process slot 0 of GPU 0"),
    ("CLIENT_LOCK_BASE", 1 << 33, "offset of the lock byte that every NVML client of GPU 0 holds shared"),
    ("FAIL_POWER", 0x1, "failing: power readings"),
    ("FAIL_TEMPERATURE", 0x2, "failing: temperature readings"),
    ("FAIL_UTILIZATION", 0x4, "failing: utilisation of the GPU and its engines"),
    ("FAIL_MEMORY", 0x8, "failing: memory readings"),
    ("FAIL_CLOCKS", 0x10, "failing: clocks"),
    ("FAIL_FIELDS", 0x20, "failing: every field id"),
    ("FAIL_GPM", 0x40, "failing: GPM samples"),
    ("FAIL_PROCESSES", 0x80, "failing: process lists"),
    ("RESET_HANGS", 1, "next_reset: the reset does not return until this is cleared"),
    ("RESET_FAILS", 2, "next_reset: the reset is refused with UNKNOWN and cures nothing"),
    ("RESET_LOSES", 3, "next_reset: the GPU is off the bus afterwards"),
    ("RESET_RENAMES", 4, "next_reset: the GPU has another UUID afterwards"),
    ("LOAD_RAMP_MS", 4000, "time in which a load change reaches its full effect on power and temperature"),
    ("MAX_LOADS", 16, "load profiles of a node"),
    ("MAX_PHASES", 12, "phases of a load profile"),
    *((f"LOAD_{channel.name}", place, channel.doc) for place, channel in enumerate(CHANNELS)),
    ("LOAD_CHANNELS", len(CHANNELS), "what a load profile tells of each phase"),
)
C = {name: value for name, value, _ in CONSTANTS}

MAX_GPUS = C["MAX_GPUS"]
MAX_LINKS = C["MAX_LINKS"]
NO_INSTANCE = C["NO_INSTANCE"]


@dataclass(frozen=True, slots=True)
class StructMember:
    """One member: `kind` is a scalar of `SCALARS`, `char`, or an earlier struct's name; `count` 1 is a plain member."""

    name: str
    kind: str
    count: int
    doc: str


@dataclass(frozen=True, slots=True)
class Struct:
    """One C struct / ctypes.Structure."""

    name: str
    doc: str
    fields: tuple[StructMember, ...]


SCALARS: dict[str, tuple[Any, str]] = {
    "u8": (ctypes.c_uint8, "uint8_t"),
    "u32": (ctypes.c_uint32, "uint32_t"),
    "i32": (ctypes.c_int32, "int32_t"),
    "u64": (ctypes.c_uint64, "uint64_t"),
    "i64": (ctypes.c_int64, "int64_t"),
    "char": (ctypes.c_char, "char"),
}


def _rows(text: str) -> tuple[StructMember, ...]:
    """Parse `kind name[count]  doc` lines; counts may be constants' names."""
    out = []
    for line in text.strip().splitlines():
        kind, declared, doc = line.split(None, 2)
        name, _, count = declared.partition("[")
        size = count.rstrip("]") or "1"
        total = 1
        for factor in size.split("*"):
            total *= C[factor] if factor in C else int(factor)
        out.append(StructMember(name, kind, total, doc))
    return tuple(out)


STRUCTS: tuple[Struct, ...] = (
    Struct(
        "kg_load_phase",
        "a part of a load profile",
        _rows("""
u32 ms  how long it lasts
u32 value[LOAD_CHANNELS]  percent of each channel
"""),
    ),
    Struct(
        "kg_load_profile",
        "what a program does to its GPU: phases that come once, then phases that come again and again",
        _rows("""
char name[32]  such as train
u32 memory  memory held, 1/1000 of the device's
u32 phase_count  filled rows of phase
u32 once  phases of the beginning that come once
u32 reserved  zero
kg_load_phase phase[MAX_PHASES]  phases
"""),
    ),
    Struct(
        "kg_pci",
        "a PCI function's address and ids",
        _rows("""
u32 domain  PCI domain
u32 bus  PCI bus
u32 device  PCI device
u32 function  PCI function
u32 device_id  combined 16-bit device id << 16 | vendor id
u32 subsystem_id  combined subsystem id
u32 class_code  base class and subclass: 0x030200 3D controller, 0x030000 VGA, 0x068000 bridge
i32 numa_node  NUMA node, -1 unknown
u32 gen_cur  current link generation
u32 gen_max  maximum link generation of GPU and slot
u32 gen_gpu_max  maximum link generation of the GPU
u32 width_cur  current link width
u32 width_max  maximum link width
u32 reserved  zero
"""),
    ),
    Struct(
        "kg_link",
        "one NVLink of a GPU",
        _rows("""
u32 present  the link exists on this GPU
u32 active  NVLink state: 1 active
u32 version  NVML link version (1.0=1 2.0=2 2.2=3 3.0=4 3.1=5 4.0=6 5.0=7)
u32 speed_mbps  line rate per direction in MB/s
u32 remote_type  NVML: 0 GPU, 1 IBM NPU, 2 switch, 255 unknown
u32 remote_domain  PCI domain of the other end
u32 remote_bus  PCI bus of the other end
u32 remote_device  PCI device of the other end
u32 remote_device_id  PCI device id of the other end
u32 remote_link  link number at the other end
u32 caps  bits by NVML capability: 0 P2P, 1 sysmem, 2 P2P atomics, 3 sysmem atomics, 4 SLI, 5 valid
u32 reserved  zero
u64 err_replay  DL replay errors
u64 err_recovery  DL recovery errors
u64 err_crc_flit  DL CRC FLIT errors
u64 err_crc_data  DL CRC data errors
u64 err_ecc  DL ECC data errors
u64 tx_kib  payload sent, KiB, without the load model's share
u64 rx_kib  payload received, KiB, without the load model's share
"""),
    ),
    Struct(
        "kg_ci_profile",
        "a compute instance profile inside a GPU instance profile",
        _rows("""
u32 used  row is filled
u32 enum_id  NVML_COMPUTE_INSTANCE_PROFILE_*
u32 id  id that nvidia-smi prints
u32 slices  compute slices
u32 instances  maximum number of them in one GPU instance
u32 sm  multiprocessors
u32 ce  shared copy engines
u32 dec  shared decoders
u32 enc  shared encoders
u32 jpeg  shared JPEG engines
u32 ofa  shared OFA engines
u32 reserved  zero
char name[32]  such as 1c.2g.10gb or 1g.5gb
"""),
    ),
    Struct(
        "kg_gi_profile",
        "a GPU instance profile",
        _rows("""
u32 used  row is filled
u32 enum_id  NVML_GPU_INSTANCE_PROFILE_*
u32 id  id that nvidia-smi prints
u32 slices  compute slices
u32 instances  maximum number on a GPU
u32 sm  multiprocessors
u32 ce  copy engines
u32 dec  decoders
u32 enc  encoders
u32 jpeg  JPEG engines
u32 ofa  OFA engines
u32 p2p  1 where P2P is supported
u32 caps  NVML_GPU_INSTANCE_PROFILE_CAPS_*: 1 P2P, 2 graphics
u32 placement_size  size in memory slices
u32 placement_count  filled entries of placement_start
u32 reserved  zero
u64 memory_mib  framebuffer MiB
u32 placement_start[MAX_PLACEMENTS]  start positions in memory slices
kg_ci_profile ci[MAX_CI_PROFILES]  compute instance profiles
char name[32]  such as 1g.10gb+me
"""),
    ),
    Struct(
        "kg_gi",
        "a GPU instance",
        _rows("""
u32 used  slot is taken
u32 id  GPU instance id
u32 row  index in gi_profile
u32 start  placement start
u32 size  placement size
u32 serial  increments for every creation, so that stale handles are noticed
u64 created_us  creation time, microseconds since the epoch
u64 load_done[LOAD_CHANNELS]  percent x ns that load profiles caused until load_since_ns, of the instance
"""),
    ),
    Struct(
        "kg_ci",
        "a compute instance",
        _rows("""
u32 used  slot is taken
u32 id  compute instance id within the GPU instance
u32 gi_id  GPU instance id
u32 row  index in gi_profile[...].ci
u32 start  placement start in compute slices
u32 size  placement size in compute slices
u32 serial  increments for every creation
u32 ecc_sram  uncorrected errors of its on-chip memory since it was made or healed
u64 created_us  creation time, microseconds since the epoch
char uuid[64]  MIG-... deterministic
"""),
    ),
    Struct(
        "kg_process",
        "a process that uses a GPU",
        _rows("""
u32 used  slot is taken
u32 live  1: the owner holds a POSIX lock on the slot's lock byte, the slot ends with it; 0: set by hand
u32 pid  process id as its owner sees it (the lock tells the reader's view of it)
u32 kind  PROC_COMPUTE, PROC_GRAPHICS or PROC_MPS
u32 gi_id  GPU instance id or NO_INSTANCE
u32 ci_id  compute instance id or NO_INSTANCE
u32 sm_util  busy share it causes, percent
u32 mem_util  memory bandwidth share, percent
u32 enc_util  encoder share, percent
u32 dec_util  decoder share, percent
u32 load  load profile that it follows, its place + 1; 0: none
u32 load_shift_ms  how far in its profile it began
u32 load_share  part of the GPU that it has, 1/1000
u32 load_scale  what others leave it of its profile, 1/1000
u64 memory  device memory held, bytes
u64 start_us  start time, microseconds since the epoch
char name[64]  program path
"""),
    ),
    Struct(
        "kg_event",
        "an entry of the event ring",
        _rows("""
u64 seq  1, 2, 3 ...; slot is (seq - 1) % EVENT_RING; written last
u32 gpu  GPU slot number
u32 reserved  zero
u64 type  nvmlEventType bit
u64 data  Xid number for Xid events
u32 gi_id  GPU instance id or NO_INSTANCE
u32 ci_id  compute instance id or NO_INSTANCE
u64 time_us  microseconds since the epoch
"""),
    ),
    Struct(
        "kg_gpu",
        "a GPU",
        _rows("""
u32 used  slot is taken; GPUs fill slots 0..gpu_count-1 in PCI order
u32 minor  N of /dev/nvidiaN
u32 brand  nvmlBrandType_t
u32 architecture  nvmlDeviceArchitecture_t
u32 cc_major  compute capability, major
u32 cc_minor  compute capability, minor
u32 cores  CUDA cores
u32 sm_count  multiprocessors
char name[96]  product name
char uuid[96]  GPU-...
char serial[32]  board serial, empty where the board has none
char board_part[32]  board part number
char vbios[32]  VBIOS version
char inforom_image[16]  inforom image version
char inforom_oem[16]  inforom OEM object version
char inforom_ecc[16]  inforom ECC object version
char inforom_power[16]  inforom power object version
u32 board_id  board id
u32 module_id  GPU module (baseboard slot) id
u32 multi_gpu  on a multi GPU board
u32 chassis_slot  platform: slot number
u32 tray_index  platform: tray index
u32 host_id  platform: host id
u32 peer_type  platform: 1 direct, 2 switch connected
u32 display_active  a display is initialised
kg_pci pci  address, ids and link
u64 mem_total  framebuffer bytes
u64 mem_reserved  bytes kept by driver and firmware
u64 mem_used_base  bytes in use besides processes (set by hand)
u64 bar1_total  BAR1 bytes
u64 bar1_used  BAR1 bytes in use
u32 mem_bus_width  bits
u32 ecc_supported  1 where ECC exists
u32 ecc_current  ECC mode
u32 ecc_pending  ECC mode after reset
u32 ecc_default  factory ECC mode
u32 persistence  persistence mode
u32 compute_mode  nvmlComputeMode_t
u32 virtualization_mode  nvmlGpuVirtualizationMode_t
u32 gsp_mode  GSP firmware: 1 in use
u32 gsp_default  GSP firmware is the default
u32 accounting_mode  accounting mode
u32 accounting_buffer  accounting buffer size
u32 timeslice_supported  the time slice of compute contexts can be set (GP100, Volta and later)
u32 timeslice  0 default, 1 short, 2 medium, 3 long, as nvidia-smi counts them
u64 ecc_volatile[14]  errors since reset: [corrected 0..6, uncorrected 7..13] by nvmlMemoryLocation_t
u64 ecc_aggregate[14]  lifetime errors, same order
u32 sram_threshold_exceeded  SRAM uncorrectable error threshold flag
u32 retired_sbe_count  pages retired for single bit errors
u32 retired_dbe_count  pages retired for double bit errors
u32 retired_pending  a retirement waits for a reset
u64 retired_sbe[MAX_RETIRED]  page addresses
u64 retired_dbe[MAX_RETIRED]  page addresses
u64 retired_sbe_us[MAX_RETIRED]  retirement times
u64 retired_dbe_us[MAX_RETIRED]  retirement times
u32 remap_supported  row remapping exists (Ampere and later data center)
u32 remap_corrected  rows remapped for correctable errors
u32 remap_uncorrected  rows remapped for uncorrectable errors
u32 remap_pending  a remap waits for a reset
u32 remap_failed  a remap has failed
u32 remap_histogram[5]  banks by remap availability: max, high, partial, low, none
u32 remap_corrected_inactive  rows remapped but inactive, correctable
u32 remap_uncorrected_inactive  rows remapped but inactive, uncorrectable
u32 unrepairable_memory  unrepairable memory flag
u32 clock_max[4]  MHz: graphics, SM, memory, video
u32 clock_idle[4]  MHz when idle
u32 clock_app[4]  application clocks, MHz (0: none)
u32 clock_app_default[4]  default application clocks, MHz
u32 clock_lock[2]  locked graphics clock minimum and maximum, 0 none
u32 power_supported  power readings exist
u32 power_idle_mw  draw when idle
u32 power_max_mw  draw at full load
u32 power_limit_mw  management limit
u32 power_limit_default_mw  default limit
u32 power_limit_min_mw  smallest limit allowed
u32 power_limit_max_mw  largest limit allowed
i32 temp_idle  degrees C when idle
i32 temp_max_load  degrees C at full load
i32 temp_memory_delta  memory is warmer by this; -1000 where no memory sensor exists
i32 temp_offset  degrees C added by an injected fault
i32 temp_shutdown  threshold
i32 temp_slowdown  threshold
i32 temp_mem_max  threshold
i32 temp_gpu_max  threshold
i32 temp_acoustic  acoustic target, 0 none
u32 fan_count  fans
u32 fan_idle  percent when idle
u32 fan_max  percent at full load
u32 pstate_idle  performance state when idle
u32 pstate_busy  performance state under load
u64 throttle_forced  clocks event reasons set by hand
u64 throttle_since_ns  wall time at which throttle_forced was set
u64 throttle_ns[8]  ns: power, thermal, sync boost, board limit, low util, reliability, HW thermal, HW power brake
u32 load_set  busy percent set by hand
u32 mem_load_set  memory controller busy percent set by hand; 0: follows load
u32 enc_util  encoder percent
u32 dec_util  decoder percent
u32 jpg_util  JPEG percent
u32 ofa_util  OFA percent
u32 load_prev  effective load when the target last changed, in 1/1000 percent
u32 load_target  load that the ramp goes to, in 1/1000 percent
u64 load_since_ns  time at which load_target was set
u64 busy_ns  busy time until load_since_ns (integral of load), without load profiles
u64 load_done[LOAD_CHANNELS]  percent x ns that load profiles caused until load_since_ns
u64 energy_mj  energy until load_since_ns
u32 pcie_replays  replay counter
u32 pcie_tx_kbs  throughput at full load
u32 pcie_rx_kbs  throughput at full load
u32 pcie_err[12]  counters of field ids 173..183, the last unused
u32 gpm_supported  GPM sampling exists (Hopper and later)
u32 gpm_streaming  GPM streaming on
u32 link_count  NVLinks
u32 c2c_links  chip to chip links (Grace)
u32 failing  fault: readings that answer UNKNOWN, bits FAIL_*
kg_link link[MAX_LINKS]  NVLinks
u64 cpu_affinity[CPU_WORDS]  CPUs near the GPU
u64 mem_affinity[4]  NUMA nodes near the GPU
u32 fabric_state  0 not supported, 1 not started, 2 in progress, 3 completed
u32 fabric_status  nvmlReturn of the probe
u32 fabric_clique  clique id
u32 fabric_health_mask  health bits as in nvmlGpuFabricInfoV
u32 fabric_health_summary  0 not supported, 1 healthy, 2 unhealthy, 3 limited
u32 addressing_mode  0 none, 1 HMM, 2 ATS
u8 fabric_uuid[16]  cluster uuid
u8 chassis_serial[16]  platform: chassis serial
u32 recovery_action  nvmlDeviceGpuRecoveryAction_t
u32 lost  fault: fell off the bus
u32 hang  fault: calls block
u32 slow_us  fault: delay of each call
u32 reset_required  fault: calls answer RESET_REQUIRED
u32 init_error  fault: getting a handle answers this nvmlReturn
u32 next_reset  fault: what the next reset does, RESET_*; 0 works
u32 resets  resets since it was made
u64 xid_last  last Xid
u64 xid_count  number of Xids
u32 mig_capable  MIG exists
u32 mig_current  MIG mode
u32 mig_pending  MIG mode after reset
u32 mig_needs_reset  a mode change needs a reset (Ampere)
u32 mig_max_devices  most MIG devices
u32 mig_slices  memory slices of the placement grid
u32 mig_compute_slices  compute slices
u32 mig_family  family id of mig_tables
u32 mig_serial  serial of the last instance made
u32 gi_profile_count  filled rows of gi_profile
kg_gi_profile gi_profile[MAX_GI_PROFILES]  GPU instance profiles
kg_gi gi[MAX_GI]  GPU instances
kg_ci ci[MAX_CI]  compute instances
kg_process process[MAX_PROCESSES]  processes
"""),
    ),
    Struct(
        "kg_state",
        "the whole file",
        _rows("""
u64 magic  MAGIC
u32 version  VERSION
u32 size  bytes of this struct
u64 generation  increments with each change
u64 event_head  events ever pushed
u32 event_futex  futex word, increments with each event and each fault change
u32 init_error  nvmlInit answers this nvmlReturn
u32 slow_us  delay of each call on this node
u32 hang_all  calls on any GPU block
u32 gpu_count  GPUs
u32 nvswitch_count  NVSwitches
u32 cuda_version  such as 12040
u32 fabric_manager  1: fabric manager runs
u32 cc_state  confidential compute state
u32 reserved  zero
u64 boot_us  creation time, microseconds since the epoch
u64 clock_real_ns  the node's clock: wall time at which it was set, 0: it shows wall time
u64 clock_node_ns  what it showed then
u32 clock_rate  seconds that it goes on in a second
u32 load_count  filled rows of load
kg_load_profile load[MAX_LOADS]  load profiles
char driver_version[80]  such as 550.54.15
char nvml_version[80]  such as 12.550.54.15
char hostname[64]  node name
char profile[64]  profile the state was made from
u8 topology[MAX_GPUS*MAX_GPUS]  nvmlGpuTopologyLevel_t by GPU pair: 0 10 20 30 40 50
u8 p2p[MAX_GPUS*MAX_GPUS]  nvmlGpuP2PStatus_t by GPU pair
kg_event event[EVENT_RING]  event ring
kg_gpu gpu[MAX_GPUS]  GPUs
"""),
    ),
)


def _classes() -> dict[str, type[ctypes.Structure]]:
    classes: dict[str, type[ctypes.Structure]] = {}
    for struct in STRUCTS:
        members: list[tuple[str, Any]] = []
        for field in struct.fields:
            kind: Any = classes[field.kind] if field.kind in classes else SCALARS[field.kind][0]
            members.append((field.name, kind if field.count == 1 else kind * field.count))
        classes[struct.name] = type(struct.name, (ctypes.Structure,), {"__doc__": struct.doc, "_fields_": members})
    return classes


CLASSES = _classes()
STATE_SIZE = ctypes.sizeof(CLASSES["kg_state"])


def header_text() -> str:
    """The C header: constants, structs, and static asserts on every size and offset."""
    lines = [
        "/* Generated by `python -m kgpu.hw.simulator.schema`: the layout of the simulated driver's state file.",
        " * Do not edit: change src/kgpu/hw/simulator/schema.py and generate again. */",
        "#ifndef KGPU_STATE_H",
        "#define KGPU_STATE_H",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        f"#define KG_MAGIC 0x{MAGIC:X}ull",
        f"#define KG_VERSION {VERSION}u",
    ]
    for name, value, doc in CONSTANTS:
        suffix = "ull" if value > 0xFFFFFFFF else "u"
        lines.append(f"#define KG_{name} {value}{suffix} /* {doc} */")
    for struct in STRUCTS:
        lines += ["", f"/* {struct.doc} */", f"typedef struct {struct.name} {{"]
        for field in struct.fields:
            kind = SCALARS[field.kind][1] if field.kind in SCALARS else field.kind
            count = f"[{field.count}]" if field.count > 1 else ""
            lines.append(f"    {kind} {field.name}{count}; /* {field.doc} */")
        lines.append(f"}} {struct.name};")
    lines.append("")
    for struct in STRUCTS:
        cls = CLASSES[struct.name]
        lines.append(f'_Static_assert(sizeof({struct.name}) == {ctypes.sizeof(cls)}, "size of {struct.name}");')
        for field in struct.fields:
            offset = getattr(cls, field.name).offset
            lines.append(
                f'_Static_assert(offsetof({struct.name}, {field.name}) == {offset}, "{struct.name}.{field.name}");'
            )
    lines += ["#endif", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(header_text())
