"""What the drivers ``i915`` and ``xe`` show of a simulated node with Intel GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kgpu.hw.simulator.box.node import (
    GARBAGE,
    HANG,
    HOT,
    LOST,
    BoxRecord,
    BoxSimulation,
    Drawing,
    pci_folder,
    temperature,
)
from kgpu.hw.simulator.tree import make_node, symlink

DRM_MAJOR, FIRST_RENDER = 226, 128


def _files(record: BoxRecord, index: int) -> Iterator[tuple[str, str | bytes]]:
    model, busy = record.profile.gpus[index].model, bool(record.gpus[index].processes)
    clock = model.clock_mhz.highest if busy else model.clock_mhz.idle
    sensors = {
        "name": record.profile.driver.module,
        "power1_max": str(model.power_w.limit * 1_000_000),
        "power1_crit": str(model.power_w.limit * 1_200_000),
        "energy1_input": str(1_000_000_000),
        "temp2_input" if record.profile.driver.module == "xe" else "temp1_input": str(
            temperature(record, index) * 1000
        ),
        "fan1_input": "0",
    }
    texts = {f"hwmon/hwmon{index}/{name}": text for name, text in sensors.items()}
    if record.profile.driver.module == "xe":
        texts |= {
            "tile0/gt0/freq0/act_freq": str(clock),
            "tile0/gt0/freq0/max_freq": str(model.clock_mhz.highest),
            "tile0/physical_vram_size_bytes": hex(model.memory_mib << 20),
        }
    else:
        texts |= {
            f"drm/card{index}/gt/gt0/rps_act_freq_mhz": str(clock),
            f"drm/card{index}/gt/gt0/rps_max_freq_mhz": str(model.clock_mhz.highest),
            f"drm/card{index}/lmem_total_bytes": str(model.memory_mib << 20),
        }
    yield from ((name, f"{text}\n") for name, text in texts.items())


def _once(root: Path, record: BoxRecord) -> None:
    for index, card in enumerate(record.profile.gpus):
        folder = root / pci_folder(card)
        for name, minor in ((f"card{index}", index), (f"renderD{FIRST_RENDER + index}", FIRST_RENDER + index)):
            make_node(f"{root}/dev/dri/{name}", (DRM_MAJOR, minor), 0o660)
            os.makedirs(folder / "drm" / name, exist_ok=True)
            symlink(folder / "drm" / name / "device", "../..")
            symlink(root / "sys/class/drm" / name, f"../../{pci_folder(card).removeprefix('sys/')}/drm/{name}")
            role = "card" if name.startswith("card") else "render"
            symlink(root / f"dev/dri/by-path/pci-{card.bus}-{role}", f"../{name}")


def _of_driver(record: BoxRecord) -> tuple[str, ...]:
    module = record.profile.driver.module
    return (f"sys/bus/pci/drivers/{module}", f"sys/module/{module}", "sys/class/drm", "dev/dri")


SIMULATION: Final = BoxSimulation(
    Drawing(
        vendor="intel",
        title="Intel GPUs",
        layout=0x494E54,  # "INT"
        pci_vendor=0x8086,
        faults={
            LOST: "the GPU falls off the bus: what is read of it has all bits set",
            HANG: "files whose content its firmware gives can be opened and never answer",
            GARBAGE: "files have content that no driver writes",
            HOT: "the GPU passes its critical temperature",
        },
        of_driver=_of_driver,
        once=_once,
        files=_files,
        hung=("hwmon/hwmon{index}/energy1_input",),
        noisy=("numa_node", "hwmon/hwmon{index}/energy1_input"),
        open_node=lambda index: f"/dev/dri/renderD{FIRST_RENDER + index}",
    )
)
