"""What ``nvidia-smi`` prints, as fields of ``HostFacts``: its table, its list (``-L``), its report (``-q``), its
refusals; and ``/proc/driver/nvidia/version``.

Total: what has no known form is left out. ``nvidia-bug-report.log`` has the report among much else. Readings have the
names of ``hw/README.md``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from kgpu.base.errors import DriverFault

_HEAD: Final = re.compile(r"NVIDIA-SMI \S+ +Driver Version: (?P<driver>\d[\d.]*\d) +CUDA Version: (?P<cuda>\d+\.\d+)")
_ROW: Final = re.compile(
    r"^\| +(?P<index>\d{1,3}) +(?P<name>\S.*?) +(?P<persistence>On|Off|N/A|ERR!) +\| +"
    r"(?P<pci>[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d) ",
    re.MULTILINE,
)
_MIG: Final = re.compile(r"\| +(?P<mig>Enabled\*?|Disabled\*?) \|\s*$")
_LISTED: Final = re.compile(
    r"^(?:GPU (?P<index>\d{1,3}): (?P<name>[^\n(]{1,100}?) \(UUID: (?P<uuid>GPU-[0-9a-f-]{36})\)"
    r"| +MIG (?P<profile>\S{1,40}) +Device +\d+: \(UUID: )",
    re.MULTILINE,
)
_LOG: Final = "=NVSMI LOG="
_GPU: Final = re.compile(r"^GPU (?P<pci>[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$")
_FIELD: Final = re.compile(r"^(?P<indent> *)(?P<key>\S[^:\n]{0,60}?) *(?:: (?P<value>.*))?$")
_REFUSED: Final = re.compile(
    r"NVIDIA-SMI has failed because (?P<why>it couldn't communicate with the NVIDIA driver)"
    r"|Failed to initialize NVML: (?P<nvml>[^\n]{1,100})"
)
_FAULTS: Final = {
    "driver not loaded": DriverFault.NOT_LOADED,
    "driver/library version mismatch": DriverFault.VERSION_MISMATCH,
    "insufficient permissions": DriverFault.NO_PERMISSION,
}
"""NVML's own words for what nvidia-smi passes on."""
_LOST: Final = re.compile(
    r"Unable to determine the device handle for (?:GPU|gpu) ?(?P<index>\d{1,3}(?=: ))?:? ?"
    r"(?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d): (?P<why>[^\n.]{1,80})"
)
_UNREADABLE: Final = "ERR!"
_MODULE: Final = re.compile(
    r"NVRM version: NVIDIA UNIX (?P<open>Open )?.{0,80}?Kernel Module(?: for \S+)?\s+(?P<version>\d+\.\d+(?:\.\d+)?)"
)
_LIBRARY: Final = re.compile(r"NVML library version: (?P<version>\d+\.\d+(?:\.\d+)?)")
_NONE: Final = re.compile(r"^No devices were found\s*$", re.MULTILINE)
_NUMBER: Final = re.compile(r"-?\d{1,9}(?:\.\d{1,6})?")
MAX_GPUS: Final = 64
MAX_LINES: Final = 200_000

_REASONS: Final = {
    "Idle": 0x1, "SW Power Cap": 0x4, "HW Slowdown": 0x8, "SW Thermal Slowdown": 0x20, "HW Thermal Slowdown": 0x40,
    "HW Power Brake Slowdown": 0x80,
}  # fmt: skip
_RECOVERY: Final = {
    "None": "none", "Reset": "reset", "Reboot": "reboot", "Drain P2P": "drain", "Drain and Reset": "drain-reset",
}  # fmt: skip


def read(text: str) -> dict[str, Any]:
    """Fields of ``HostFacts``; {} where nothing in it is of nvidia-smi."""
    facts: dict[str, Any] = {}
    gpus: dict[str, dict[str, Any]] = {}
    if head := _HEAD.search(text):
        facts |= {"driverVersion": head["driver"], "cuda": head["cuda"]}
    if module := _MODULE.search(text):
        facts |= {"driverVersion": module["version"], "driverOpen": bool(module["open"])}
    if library := _LIBRARY.search(text):
        facts["libraryVersion"] = library["version"]
    for make in (_table, _list, _lost):
        for gpu in make(text):
            known = gpus.setdefault(str(gpu.get("pci") or gpu["index"]), {})
            known |= gpu
    if _LOG in text:
        host_fields, reported = _report(text)
        facts |= host_fields
        gpus = {str(gpu["pci"]): gpus.get(str(gpu["pci"]), {}) | gpu for gpu in reported} or gpus
    if gpus or (_NONE.search(text) and not facts.get("nvmlError")):
        facts["gpus"] = list(gpus.values())[:MAX_GPUS]
    if refused := _REFUSED.search(text):
        facts["nvmlError"] = (refused["why"] or refused["nvml"]).strip()
        facts["nvmlFault"] = DriverFault.NOT_LOADED if refused["why"] else _fault(facts["nvmlError"])
    return facts


def _fault(words: str) -> DriverFault:
    said = words.casefold()
    return next((fault for known, fault in _FAULTS.items() if known in said), DriverFault.OTHER)


def _pci(address: str) -> str:
    """With a domain of four digits, as the bus has it."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _table(text: str) -> Iterator[dict[str, Any]]:
    lines = text.splitlines()[:MAX_LINES] if _HEAD.search(text) else []
    for at, line in enumerate(lines):
        hit = _ROW.match(line)
        if hit is None:
            continue
        name = hit["name"] if hit["name"] != _UNREADABLE else ""
        gpu: dict[str, Any] = {"index": int(hit["index"]), "name": name, "pci": _pci(hit["pci"]), "readings": {}}
        if hit["persistence"] == _UNREADABLE:
            gpu["lost"] = f"nvidia-smi shows {_UNREADABLE} for it"
        if hit["persistence"] in ("On", "Off"):
            gpu["readings"]["persistence_mode"] = int(hit["persistence"] == "On")
        mig = next((match for row in lines[at + 1 : at + 3] if (match := _MIG.search(row))), None)
        if mig is not None:
            gpu |= {"migCapable": True, "migEnabled": mig["mig"].startswith("Enabled")}
            gpu["migPending"] = gpu["migEnabled"] is not mig["mig"].endswith("*")
        yield gpu


def _list(text: str) -> Iterator[dict[str, Any]]:
    gpus: list[dict[str, Any]] = []
    for hit in _LISTED.finditer(text):
        if hit["uuid"]:
            gpus.append({"index": int(hit["index"]), "name": hit["name"], "uuid": hit["uuid"], "instances": []})
        elif gpus:
            gpus[-1]["instances"].append(hit["profile"])
    for gpu in gpus:
        if gpu["instances"]:
            gpu |= {"migCapable": True, "migEnabled": True, "migPending": True}
    yield from gpus


def _lost(text: str) -> Iterator[dict[str, Any]]:
    for hit in _LOST.finditer(text):
        index = {"index": int(hit["index"])} if hit["index"] else {}
        yield {**index, "pci": _pci(hit["pci"]), "lost": hit["why"].strip()}


def _report(text: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The first report: what stands before the GPUs, and a row for each GPU."""
    before: dict[str, Any] = {}
    gpus: list[dict[str, Any]] = []
    fields: dict[tuple[str, ...], str] = {}
    path: list[tuple[int, str]] = []
    for line in text[text.index(_LOG) :].splitlines()[1:MAX_LINES]:
        hit = _GPU.match(line)
        if hit is not None or line.startswith(("____", _LOG)):
            _close(gpus, fields)
            if hit is None:
                break
            fields, path = {("PCI address",): hit["pci"]}, []
            continue
        row = _FIELD.match(line)
        if row is None or not line.strip():
            continue
        indent = len(row["indent"])
        while path and path[-1][0] >= indent:
            path.pop()
        path.append((indent, row["key"].strip()))
        if row["value"] is not None:
            fields.setdefault(tuple(key for _, key in path), row["value"].strip())
        if ("PCI address",) not in fields and row["key"] in _BEFORE and row["value"]:
            before[_BEFORE[row["key"]]] = row["value"].strip()
    _close(gpus, fields)
    return before, gpus


_BEFORE: Final = {"Driver Version": "driverVersion", "CUDA Version": "cuda"}


def _close(gpus: list[dict[str, Any]], fields: dict[tuple[str, ...], str]) -> None:
    if ("PCI address",) in fields and len(gpus) < MAX_GPUS:
        gpus.append(_gpu(len(gpus), fields))


def _gpu(index: int, fields: dict[tuple[str, ...], str]) -> dict[str, Any]:
    readings: dict[str, Any] = {}
    for path, name, convert in _READINGS:
        value = convert(fields.get(path, ""))
        if value is not None:
            readings.setdefault(name, value)
    mask = [bit for key, bit in _REASONS.items() for path, state in fields.items()
            if path[-1] == key and path[0] in _REASON_TITLES and state == "Active"]  # fmt: skip
    if any(path[0] in _REASON_TITLES for path in fields):
        readings["clock_event_reasons"] = sum(mask)
    mig, pending = fields.get(("MIG Mode", "Current"), ""), fields.get(("MIG Mode", "Pending"), "")
    recovery = _RECOVERY.get(fields.get(("GPU Recovery Action",), ""), "none")
    if recovery == "none" and fields.get(("GPU Reset Status", "Reset Required")) == "Yes":
        recovery = "reset"
    memory = _amount(fields.get(("FB Memory Usage", "Total"), ""))
    return {
        "index": index,
        "pci": _pci(fields["PCI address",]),
        "name": fields.get(("Product Name",), ""),
        "uuid": fields.get(("GPU UUID",), ""),
        "memoryMib": None if memory is None else int(memory),
        "migCapable": mig in ("Enabled", "Disabled"),
        "migEnabled": mig == "Enabled",
        "migPending": pending == "Enabled",
        "recovery": recovery,
        "readings": readings,
    }


_REASON_TITLES: Final = ("Clocks Event Reasons", "Clocks Throttle Reasons")


def _amount(text: str) -> float | None:
    """``81559 MiB``, ``16x``, ``30 C`` as a number, None for what has none."""
    hit = _NUMBER.match(text)
    return float(hit[0]) if hit else None


def _switch(text: str) -> int | None:
    return {"Yes": 1, "No": 0, "Enabled": 1, "Disabled": 0}.get(text)


def _one_of(*words: str) -> Callable[[str], float | None]:
    """NVML's number of a word, which is its place among these."""
    return lambda said: float(words.index(said)) if said in words else None


_compute: Final = _one_of("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
_fabric: Final = _one_of("Not Supported", "Not Started", "In Progress", "Completed")


_READINGS: Final[tuple[tuple[tuple[str, ...], str, Callable[[str], Any]], ...]] = (
    (("Remapped Rows", "Pending"), "remapped_rows_pending", _switch),
    (("Remapped Rows", "Remapping Failure Occurred"), "remapped_rows_failure", _switch),
    (("Remapped Rows", "Uncorrectable Error"), "remapped_rows_uncorrectable", _amount),
    (("Retired Pages", "Pending Page Blacklist"), "retired_pages_pending", _switch),
    (("Retired Pages", "Pending"), "retired_pages_pending", _switch),
    (("PCI", "GPU Link Info", "Link Width", "Current"), "pcie_width", _amount),
    (("PCI", "GPU Link Info", "Link Width", "Max"), "pcie_max_width", _amount),
    (("PCI", "GPU Link Info", "PCIe Generation", "Current"), "pcie_generation", _amount),
    (("PCI", "GPU Link Info", "PCIe Generation", "Max"), "pcie_max_generation", _amount),
    (("Temperature", "GPU Current Temp"), "temperature_c", _amount),
    (("Temperature", "GPU T.Limit Temp"), "temperature_margin_c", _amount),
    (("Utilization", "Gpu"), "utilization_percent", _amount),
    (("Utilization", "GPU"), "utilization_percent", _amount),
    (("FB Memory Usage", "Used"), "memory_used_mib", _amount),
    (("Compute Mode",), "compute_mode", _compute),
    (("Persistence Mode",), "persistence_mode", _switch),
    (("Fabric", "State"), "fabric_state", _fabric),
)
