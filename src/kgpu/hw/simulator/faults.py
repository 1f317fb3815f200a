"""Side effects of Xids on a simulated GPU, as rows: what the real driver and hardware show with each.

``recovery`` is the driver's own verdict (NVML recovery action); codes whose published immediate action is "reset the
GPU" ask for a reset, 79 for a reboot. Codes that are not in the table are the event alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.hw.simulator.settings import DEVICE_MEMORY, NEXT_RESET, UNCORRECTED

NONE, RESET, REBOOT = 0, 1, 2
SRAM, MEMORY, L2_CACHE = 7, DEVICE_MEMORY, 1
HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x8, 0x20, 0x40, 0x80
Change = Callable[[Any], None]
RESETS: Final[Mapping[int, str]] = {code: word for word, code in NEXT_RESET.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEffect:
    """Side effects of one Xid: state changes, the driver's recovery action, and a line for people."""

    what: str
    changes: tuple[Change, ...] = ()
    recovery: int = NONE


def count_ecc(gpu: Any, *, uncorrected: bool, number: int) -> None:
    """Count errors of device memory, volatile and aggregate; GPUs without ECC count nothing."""
    if gpu.ecc_current:
        place = MEMORY + (UNCORRECTED if uncorrected else 0)
        gpu.ecc_volatile[place] += number
        gpu.ecc_aggregate[place] += number


def count_slice_ecc(gpu: Any, gi: int, ci: int, number: int) -> None:
    """Count uncorrected errors of a MIG device's part of the L2 cache: its own, and the GPU's."""
    if not gpu.ecc_current:
        return
    for counts in (gpu.ecc_volatile, gpu.ecc_aggregate):
        counts[L2_CACHE + UNCORRECTED] += number
    for slot in gpu.ci:
        if slot.used and (slot.gi_id, slot.id) == (gi, ci):
            slot.ecc_sram = min(slot.ecc_sram + number, 0xFFFFFFFF)


def _double_bit(gpu: Any) -> None:
    count_ecc(gpu, uncorrected=True, number=1)


def _many_single_bits(gpu: Any) -> None:
    count_ecc(gpu, uncorrected=False, number=1000)


def _repair_recorded(gpu: Any) -> None:
    """A row remap or, before Ampere, a page retirement, that waits for a reset."""
    if gpu.remap_supported:
        gpu.remap_uncorrected += 1
        gpu.remap_pending = 1
    elif gpu.retired_dbe_count < len(gpu.retired_dbe):
        gpu.retired_dbe[gpu.retired_dbe_count] = 0x1000 * (gpu.retired_dbe_count + 1)
        gpu.retired_dbe_count += 1
        gpu.retired_pending = 1


def _repair_failed(gpu: Any) -> None:
    if gpu.remap_supported:
        gpu.remap_failed = 1


def _lost(gpu: Any) -> None:
    gpu.lost = 1


def _answers_reset_required(gpu: Any) -> None:
    gpu.reset_required = 1


def _power_brake(gpu: Any) -> None:
    gpu.throttle_forced |= HW_SLOWDOWN | POWER_BRAKE


def _link_down(gpu: Any) -> None:
    """The first link that is up goes down, with errors counted."""
    for link in gpu.link[: gpu.link_count]:
        if link.active:
            link.active = 0
            link.err_replay += 1
            link.err_recovery += 1
            link.err_crc_flit += 100
            return


def _link_errors(gpu: Any) -> None:
    for link in gpu.link[: min(1, gpu.link_count)]:
        link.err_replay += 1
        link.err_crc_flit += 100


_RESET_CODES: Final[Mapping[int, str]] = {
    46: "GPU stopped", 62: "micro-controller halt", 109: "context switch timeout", 110: "security fault",
    136: "link training failed", 143: "GPU initialisation failed", 155: "NVLink error", 156: "resource retirement",
    158: "fatal timeout",
}  # fmt: skip

XID_EFFECTS: Final[Mapping[int, XidEffect]] = {
    48: XidEffect(what="double-bit ECC error", changes=(_double_bit, _repair_recorded), recovery=RESET),
    54: XidEffect(what="auxiliary power missing", changes=(_power_brake,)),
    63: XidEffect(what="row remap or page retirement recorded", changes=(_repair_recorded,)),
    64: XidEffect(what="row remap failed", changes=(_repair_failed,), recovery=RESET),
    74: XidEffect(what="NVLink error", changes=(_link_down,)),
    79: XidEffect(what="fallen off the bus", changes=(_lost,), recovery=REBOOT),
    92: XidEffect(what="high single-bit ECC rate", changes=(_many_single_bits,)),
    94: XidEffect(what="contained memory error", changes=(_double_bit, _repair_recorded)),
    95: XidEffect(what="uncontained memory error", changes=(_double_bit, _repair_recorded), recovery=RESET),
    119: XidEffect(what="GSP RPC timeout", changes=(_answers_reset_required,), recovery=RESET),
    120: XidEffect(what="GSP error", changes=(_answers_reset_required,), recovery=RESET),
    140: XidEffect(what="unrecovered ECC error", changes=(_double_bit,), recovery=RESET),
    **{code: XidEffect(what="NVLink error", changes=(_link_errors,)) for code in range(144, 151)},
    **{code: XidEffect(what=what, recovery=RESET) for code, what in _RESET_CODES.items()},
}


def heal(gpu: Any) -> None:
    """Undo what faults leave behind besides ``State.clear_faults``: pending repairs, volatile counters, links, PCI."""
    for place in range(len(gpu.ecc_volatile)):
        gpu.ecc_volatile[place] = 0
    for slot in gpu.ci:
        slot.ecc_sram = 0
    gpu.remap_pending = gpu.remap_failed = gpu.retired_pending = gpu.unrepairable_memory = 0
    gpu.remap_corrected_inactive = gpu.remap_uncorrected_inactive = gpu.sram_threshold_exceeded = 0
    train_links(gpu)


def train_links(gpu: Any) -> None:
    """Bring PCI and every NVLink up as at a start, with no errors counted, and have the fabric take the GPU in anew."""
    gpu.fabric_health_mask, gpu.fabric_status = 0, 0
    if gpu.fabric_health_summary:
        gpu.fabric_health_summary = 1
    gpu.pci.gen_cur, gpu.pci.width_cur = gpu.pci.gen_max, gpu.pci.width_max
    for link in gpu.link[: gpu.link_count]:
        link.active = int(link.remote_type in {0, 2})
        link.err_replay = link.err_recovery = link.err_crc_flit = link.err_crc_data = link.err_ecc = 0


def names(gpu: Any) -> list[str]:
    """The faults of a GPU, for people: ``lost``, ``hang``, ``slow 500us``, ``xid 79``, ..."""
    rows = (
        ("lost", gpu.lost),
        ("hang", gpu.hang),
        (f"slow {gpu.slow_us}us", gpu.slow_us),
        ("reset required", gpu.reset_required),
        (f"init error {gpu.init_error}", gpu.init_error),
        ("hot", gpu.throttle_forced & HW_THERMAL),
        (f"xid {gpu.xid_last}", gpu.xid_last),
        ("remap pending", gpu.remap_pending),
        ("remap failed", gpu.remap_failed),
        ("page retirement pending", gpu.retired_pending),
        ("readings fail", gpu.failing),
        (f"the next reset {RESETS.get(gpu.next_reset, 'goes wrong')}", gpu.next_reset),
    )
    return [name for name, on in rows if on]
