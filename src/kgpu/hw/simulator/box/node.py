"""What people do to a simulated node of Gaudi accelerators or Intel GPUs: faults, errors, processes, the driver.

One engine for both; what a vendor's driver shows as files is its ``Drawing``. Every function takes the root that
``create`` made. Input errors are ``ConfigError``, an unusable root is ``HwError``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from kgpu.base.errors import ConfigError, HwError
from kgpu.base.suggest import did_you_mean
from kgpu.hw.simulator import kernel_log
from kgpu.hw.simulator.box.model import BoxDriver, BoxProfile, Card
from kgpu.hw.simulator.live_files import NOISE, hang, replace_file
from kgpu.hw.simulator.node_file import NodeFile
from kgpu.hw.simulator.profiles import convert
from kgpu.hw.simulator.tree import symlink, write

LOST, HANG, GARBAGE, HOT, ECC = "lost", "hang", "garbage", "hot", "ecc"
ASIDE: Final = ".unloaded"
SPEEDS: Final = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0", 7: "128.0"}


class CardRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What was done to a card: faults, memory errors, and processes by pid with their MiB."""

    faults: list[str] = []
    corrected: int = 0
    uncorrected: int = 0
    processes: dict[str, int] = {}


class BoxRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The whole node."""

    profile: BoxProfile
    seed: str = ""
    loaded: bool = True
    gpus: list[CardRecord]


@dataclass(frozen=True, slots=True)
class Drawing:
    """How a vendor's driver shows a node.

    ``files`` are a card's own, below its PCI folder, and below the root where a name begins with ``/``. Those of
    ``hung`` never answer while it hangs, those of ``noisy`` have garbage. ``once`` makes what does not change.
    ``of_driver`` is there only while the module is loaded. ``open_node(index)`` is the device node that a process has
    open. ``faults`` are those that there are, with what each does.
    """

    vendor: str
    title: str
    layout: int
    pci_vendor: int
    faults: Mapping[str, str]
    of_driver: Callable[[BoxRecord], tuple[str, ...]]
    once: Callable[[Path, BoxRecord], None]
    files: Callable[[BoxRecord, int], Iterator[tuple[str, str | bytes]]]
    hung: tuple[str, ...]
    noisy: tuple[str, ...]
    open_node: Callable[[int], str]


def pci_folder(card: Card) -> str:
    """The card's folder below the root."""
    domain, bus, _ = card.bus.split(":")
    parent = f"{domain}:{max(0, int(bus, 16) - 1):02x}"
    return f"sys/devices/pci{parent}/{parent}:01.0/{card.bus}"


def number_of(record: BoxRecord, index: int) -> int:
    """A number that follows from profile, seed and index."""
    text = f"{record.profile.name}/{record.seed}/{index}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")


def temperature(record: BoxRecord, index: int) -> int:
    """Celsius now."""
    model = record.profile.gpus[index].model
    return model.temperature_c.critical + 2 if HOT in record.gpus[index].faults else model.temperature_c.idle


class BoxSimulation:
    """The nodes of one drawing."""

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing
        self._file: Final = NodeFile(drawing.layout, BoxRecord, drawing.title)

    def create(self, profile: BoxProfile, root: Path, *, seed: str = "") -> None:
        """Make the node's files in the folder ``root``. Raises OSError, and HwError without a compiler."""
        record = BoxRecord(profile=profile, seed=seed, gpus=[CardRecord() for _ in profile.gpus])
        write(f"{root}/{kernel_log.PATH}", "")
        for name, text in (("product_name", profile.machine.product), ("sys_vendor", profile.machine.vendor)):
            write(f"{root}/sys/class/dmi/id/{name}", f"{text}\n")
        for number, text in enumerate(profile.numa):
            write(f"{root}/sys/devices/system/node/node{number}/cpulist", f"{text}\n")
        module = profile.driver.module
        for name, text in (("initstate", "live"), ("refcnt", "0"), ("version", profile.driver.version)):
            if text:
                write(f"{root}/sys/module/{module}/{name}", f"{text}\n")
        for index, card in enumerate(profile.gpus):
            place = pci_folder(card).removeprefix("sys/")
            symlink(root / "sys/bus/pci/devices" / card.bus, f"../../../{place}")
            symlink(root / f"sys/bus/pci/drivers/{module}" / card.bus, f"../../../../{place}")
            symlink(root / "sys" / place / "driver", f"{'../' * (place.count('/') + 1)}bus/pci/drivers/{module}")
            self._show(root, record, index)
        symlink(root / f"sys/bus/pci/drivers/{module}/module", f"../../../../module/{module}")
        self._drawing.once(root, record)
        self._file.save(root, record)

    def inject(
        self, root: Path, fault: str, *, gpu: int | None = None, count: int = 1, corrected: bool = False
    ) -> None:
        """Make a fault happen to a card; ``count`` and ``corrected`` go with ``ecc``."""
        known = self._drawing.faults
        if fault not in known:
            hint = did_you_mean(fault, known)
            what = f'there is no fault "{fault:.80}" of {self._drawing.title}{"; " if hint else ""}{hint}'
            raise ConfigError(what, f"one of: {', '.join(known)}", "choose one of them")
        with self._file.changing(root) as record:
            if gpu is None:
                raise ConfigError(
                    f'"{fault}" needs a GPU', f"--gpu 0 to {len(record.gpus) - 1}", "say which with --gpu"
                )
            state = _card(record, gpu)
            if fault == ECC and not 1 <= count <= 1 << 40:
                raise ConfigError(f"{count} errors", "1 or more", "correct --count")
            if fault == ECC and corrected:
                state.corrected += count
            elif fault == ECC:
                state.uncorrected += count
            elif fault not in state.faults:
                state.faults.append(fault)
            self._show(root, record, gpu)

    def clear(self, root: Path, gpu: int | None = None) -> None:
        """Make one card, or all of them, healthy again, as a reset does; processes stay."""
        with self._file.changing(root) as record:
            for index in range(len(record.gpus)) if gpu is None else [gpu]:
                state = _card(record, index)
                state.faults, state.corrected, state.uncorrected = [], 0, 0
                self._show(root, record, index)

    def add_process(self, root: Path, gpu: int, *, pid: int, memory_mib: int) -> None:
        """Let a process use a card."""
        with self._file.changing(root) as record:
            _card(record, gpu).processes[str(pid)] = memory_mib
            symlink(root / f"proc/{pid}/fd/{3 + gpu}", self._drawing.open_node(gpu))
            self._show(root, record, gpu)

    def remove_process(self, root: Path, gpu: int, pid: int) -> None:
        """Let it end."""
        with self._file.changing(root) as record:
            _card(record, gpu).processes.pop(str(pid), None)
            if not any(str(pid) in state.processes for state in record.gpus):
                shutil.rmtree(root / f"proc/{pid}", ignore_errors=True)
            self._show(root, record, gpu)

    def unload(self, root: Path) -> None:
        """Unload the driver: what it shows is gone. Refused while a process uses a card."""
        with self._file.changing(root) as record:
            module = record.profile.driver.module
            if any(state.processes for state in record.gpus):
                raise HwError(f"the driver {module} is in use", "no process on a GPU", "end them first")
            for name in self._drawing.of_driver(record):
                _move(root / name, root / ASIDE / name)
            record.loaded = False

    def load(self, root: Path, version: str | None = None) -> str:
        """Load it again, of another ``version`` if given; its version. Raises ConfigError for a bad one."""
        with self._file.changing(root) as record:
            if version is not None:
                record.profile = with_version(record.profile, version)
            for name in self._drawing.of_driver(record):
                _move(root / ASIDE / name, root / name)
            shutil.rmtree(root / ASIDE, ignore_errors=True)
            record.loaded = True
            if version is not None:
                write(f"{root}/sys/module/{record.profile.driver.module}/version", f"{version}\n")
            return record.profile.driver.version

    def reboot(self, root: Path) -> None:
        """What a machine is after a boot: healthy, its driver loaded, nothing running."""
        self.load(root)
        with self._file.changing(root) as record:
            for state in record.gpus:
                for pid in state.processes:
                    shutil.rmtree(root / f"proc/{pid}", ignore_errors=True)
            record.gpus = [CardRecord() for _ in record.gpus]
            for index in range(len(record.gpus)):
                self._show(root, record, index)

    def snapshot(self, root: Path) -> dict[str, Any]:
        """The node as it is now, as JSON-ready data; MiB, W, Celsius, percent."""
        record = self._file.read(root)
        return {
            "vendor": record.profile.vendor,
            "profile": record.profile.name,
            "hostname": record.seed,
            "driver_version": record.profile.driver.version,
            "driver_loaded": record.loaded,
            "faults": [],
            "gpus": [_shown(record, index) for index in range(len(record.gpus))],
        }

    def _show(self, root: Path, record: BoxRecord, index: int) -> None:
        """The card's files as it is now. What hung before lets its readers go."""
        card, faults = record.profile.gpus[index], record.gpus[index].faults
        folder = f"{root}/{pci_folder(card)}"

        def place(name: str) -> str:
            return f"{root}{name}" if name.startswith("/") else f"{folder}/{name}"

        for name, content in (
            *_pci_files(record, index, self._drawing.pci_vendor),
            *self._drawing.files(record, index),
        ):
            replace_file(place(name), content)
        own = {"bus": card.bus, "index": index}
        for fault, names in ((GARBAGE, self._drawing.noisy), (HANG, self._drawing.hung)):
            for name in names if fault in faults else ():
                path = place(name.format(**own))
                if fault == HANG:
                    hang(path)
                else:
                    replace_file(path, NOISE)


def with_version(profile: BoxProfile, version: str) -> BoxProfile:
    """The profile with another driver version. Raises ConfigError."""
    about = {"module": profile.driver.module, "version": version}
    return msgspec.structs.replace(profile, driver=convert(about, BoxDriver, source="--driver"))


def _pci_files(record: BoxRecord, index: int, vendor: int) -> Iterator[tuple[str, str | bytes]]:
    card = record.profile.gpus[index]
    model, lost = card.model, LOST in record.gpus[index].faults
    texts = {
        "vendor": f"0x{vendor:04x}",
        "device": f"0x{model.device:04x}",
        "class": f"0x{model.pci_class:06x}",
        "subsystem_vendor": f"0x{vendor:04x}",
        "subsystem_device": "0x0000",
        "revision": "0x01",
        "numa_node": str(card.numa),
        "local_cpulist": record.profile.numa[card.numa] if card.numa >= 0 else "",
        "current_link_speed": f"{SPEEDS[model.gen]} GT/s PCIe",
        "max_link_speed": f"{SPEEDS[model.gen]} GT/s PCIe",
        "current_link_width": str(model.width),
        "max_link_width": str(model.width),
        "sriov_numvfs": "0",
        "uevent": f"DRIVER={record.profile.driver.module}\nPCI_CLASS={model.pci_class:X}\n"
        f"PCI_ID={vendor:04X}:{model.device:04X}\nPCI_SLOT_NAME={card.bus}",
    }
    yield from ((name, f"{text}\n") for name, text in texts.items())
    alive = vendor.to_bytes(2, "little") + model.device.to_bytes(2, "little") + bytes(60)
    yield "config", b"\xff" * 64 if lost else alive


def _shown(record: BoxRecord, index: int) -> dict[str, Any]:
    card, state = record.profile.gpus[index], record.gpus[index]
    return {
        "index": index,
        "name": card.model.name,
        "uuid": card.bus,
        "pci_bus_id": card.bus,
        "numa_node": card.numa,
        "memory_total_mib": card.model.memory_mib,
        "memory_used_mib": sum(state.processes.values()),
        "temperature_c": temperature(record, index),
        "power_w": card.model.power_w.idle,
        "power_limit_w": card.model.power_w.limit,
        "recovery_action": "reset" if state.uncorrected else "none",
        "mig": {"capable": False, "enabled": False, "pending": False, "devices": []},
        "utilization_percent": 100 if state.processes else 0,
        "ecc": {"corrected": state.corrected, "uncorrected": state.uncorrected},
        "processes": [{"pid": int(pid), "name": "", "memory_mib": mib} for pid, mib in state.processes.items()],
        "faults": [*state.faults, *([f"{state.uncorrected} uncorrectable errors"] if state.uncorrected else [])],
    }


def _card(record: BoxRecord, index: int) -> CardRecord:
    if not 0 <= index < len(record.gpus):
        raise ConfigError(
            f"there is no GPU {index} on this node", f"an index from 0 to {len(record.gpus) - 1}",
            "list the GPUs with `kgpu lab hw show`",
        )  # fmt: skip
    return record.gpus[index]


def _move(source: Path, target: Path) -> None:
    if os.path.lexists(source) and not os.path.lexists(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(source, target)
