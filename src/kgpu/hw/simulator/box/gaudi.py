"""What the driver ``habanalabs`` shows of a simulated Gaudi node, and what the stand-in ``libhlml.so`` reads.

The library's figures of a card are lines ``key value`` in ``hlml/<PCI address>`` under the root, as nothing in sysfs
has them. The interfaces of RDMA (``hlib_N``, ``uverbsN``) are there as with the modules habanalabs_ib and _en.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kgpu.formats.names import HLML_LIBRARY
from kgpu.hw.simulator import build
from kgpu.hw.simulator.box.node import (
    ECC,
    GARBAGE,
    HANG,
    HOT,
    LOST,
    BoxRecord,
    BoxSimulation,
    Drawing,
    number_of,
    pci_folder,
    temperature,
)
from kgpu.hw.simulator.tree import make_node, symlink, write

ACCEL_MAJOR, UVERBS_MAJOR, FIRST_UVERBS = 261, 231, 192
MODULES: Final = ("habanalabs_cn", "habanalabs_ib", "habanalabs_en")
FIRMWARE: Final = "Linux gaudi 5.10.18-hl-gaudi-1.23.0-fw-61.2.0"
RESET: Final = "needs-reset"
PORT: Final = "port-down"
EXTERNAL: Final = 1 << 21 | 1 << 22 | 1 << 23
"""The ports that leave the machine, a bit for each."""
DOWN: Final = 1 << 22
"""The port of these that has no link while the fault PORT lasts."""


def serial(record: BoxRecord, index: int) -> str:
    """The board's serial."""
    return f"AN{number_of(record, index) % 10**8:08d}"


def _files(record: BoxRecord, index: int) -> Iterator[tuple[str, str | bytes]]:
    card, state = record.profile.gpus[index], record.gpus[index]
    model, busy = card.model, bool(state.processes)
    clock = model.clock_mhz.highest if busy else model.clock_mhz.idle
    texts = {
        "pci_addr": card.bus,
        "module_id": str(index % 8),
        "device_type": model.family,
        "status": "Malfunction" if RESET in state.faults else "Operational",
        "armcp_kernel_ver": FIRMWARE,
        "uboot_ver": "U-Boot 2021.04-hl-gaudi-1.23.0-fw-61.2.0",
        "clk_cur_freq_mhz": str(clock),
        "clk_max_freq_mhz": str(model.clock_mhz.highest),
        "max_power": str(model.power_w.limit * 1000),
    }
    yield from ((name, f"{text}\n") for name, text in texts.items())
    used, total = sum(state.processes.values()) << 20, model.memory_mib << 20
    figures = {
        "name": model.name,
        "serial": serial(record, index),
        "uuid": f"01P1-HL2080A0-15-TNPS34-{number_of(record, index) % 10**8:08d}-00-07-00",
        "minor": index,
        "module": index % 8,
        "device": model.device,
        "lost": int(LOST in state.faults),
        "memory_total": total,
        "memory_used": used,
        "utilization": 100 if busy else 0,
        "power": model.power_w.idle * 1000,
        "power_limit": model.power_w.limit * 1000,
        "energy": 1_000_000,
        "temperature_chip": temperature(record, index),
        "temperature_board": model.temperature_c.idle - 4,
        "temperature_slowdown": model.temperature_c.critical,
        "temperature_shutdown": model.temperature_c.critical + 10,
        "temperature_chip_highest": model.temperature_c.critical,
        "temperature_memory_highest": model.temperature_c.critical,
        "clock": clock,
        "clock_highest": model.clock_mhz.highest,
        "ecc_corrected": state.corrected,
        "ecc_uncorrected": state.uncorrected,
        "replays": 0,
        "link_generation": model.gen,
        "link_width": model.width,
        "rows_pending": 0,
        "rows_single_bit": 0,
        "rows_double_bit": 0,
        "pcie_tx": 1_500_000_000 if busy else 0,
        "pcie_rx": 900_000_000 if busy else 0,
        "ports_mask": (1 << 24) - 1,
        "ports_external": EXTERNAL,
        "ports_down": DOWN if PORT in state.faults else 0,
    }
    yield f"/hlml/{card.bus}", "".join(f"{key} {value}\n" for key, value in figures.items())


def _once(root: Path, record: BoxRecord) -> None:
    library = root / HLML_LIBRARY
    library.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(build.native_dir() / "libhlml.so", library)
    library.chmod(0o755)
    for module in MODULES:
        write(f"{root}/sys/module/{module}/initstate", "live\n")
    for index, card in enumerate(record.profile.gpus):
        folder = root / pci_folder(card)
        make_node(f"{root}/dev/accel/accel{index}", (ACCEL_MAJOR, 2 * index), 0o666)
        make_node(f"{root}/dev/accel/accel_controlD{index}", (ACCEL_MAJOR, 2 * index + 1), 0o666)
        make_node(f"{root}/dev/infiniband/uverbs{index}", (UVERBS_MAJOR, FIRST_UVERBS + index), 0o666)
        for kind, name in (
            ("accel", f"accel{index}"), ("accel", f"accel_controlD{index}"),
            ("infiniband", f"hlib_{index}"), ("infiniband_verbs", f"uverbs{index}"),
        ):  # fmt: skip
            os.makedirs(folder / kind / name, exist_ok=True)
            symlink(folder / kind / name / "device", "../..")
            symlink(root / "sys/class" / kind / name, f"../../{pci_folder(card).removeprefix('sys/')}/{kind}/{name}")


def _of_driver(_record: BoxRecord) -> tuple[str, ...]:
    places = ("bus/pci/drivers/habanalabs", "class/accel", "class/infiniband", "class/infiniband_verbs")
    modules = ("habanalabs", *MODULES)
    return (
        *(f"sys/{place}" for place in places),
        *(f"sys/module/{name}" for name in modules),
        "dev/accel",
        "dev/infiniband",
    )


SIMULATION: Final = BoxSimulation(
    Drawing(
        vendor="gaudi",
        title="Gaudi accelerators",
        layout=0x484C,  # "HL"
        pci_vendor=0x1DA3,
        faults={
            LOST: "the card falls off the bus: what is read of it has all bits set",
            HANG: "its driver and firmware never answer",
            GARBAGE: "files have content that no driver writes",
            HOT: "the card passes its critical temperature",
            ECC: "memory errors are counted",
            RESET: "its driver says that it malfunctions",
            PORT: "one of its ports that leave the machine has no link",
        },
        of_driver=_of_driver,
        once=_once,
        files=_files,
        hung=("status", "/hlml/{bus}"),
        noisy=("module_id", "device_type", "numa_node", "clk_cur_freq_mhz"),
        open_node=lambda index: f"/dev/accel/accel{index}",
    )
)
