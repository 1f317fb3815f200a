"""All GPUs of one node: which of them an event, a log line or a person's order concerns, and what to report. Pure.

Inputs come with their time, in seconds since 1970. An input never fails. A GPU is known by its uuid; one that only the
kernel log names has its address as its name until the driver lists a GPU there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from msgspec import structs

from kgpu.base.advice import Advice, Severity
from kgpu.base.printable import one_line
from kgpu.formats.gpu_remedies import OF_VENDOR, of_vendor
from kgpu.formats.names import NVIDIA
from kgpu.formats.xid.action import Action
from kgpu.health import plan
from kgpu.health.config import HealthConfig
from kgpu.health.faults import MAX_TEXT
from kgpu.health.klog import LOST_XID, LineKind, LogEvent
from kgpu.health.model import FOREVER, EvidenceSource, Fault, HealthReading, HealthVerdict, RememberedGpu
from kgpu.health.readings import reading_of
from kgpu.health.recall import merged
from kgpu.hw.port import Accelerator, EventKind, HardwareEvent, Inventory
from kgpu.hw.vendor import vendor_of

MAX_GPUS: Final = 64
MAX_STRANGERS: Final = 8
"""The most devices that only the log names."""
ADDRESS: Final = "PCI-"
RESET: Final = "reset"
_NOTHING: Final = (Action.IGNORE, "", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryNote:
    """One line of the history. ``amends``: it adds its text to the last one of this GPU and name."""

    at: float
    gpu: str
    kind: str  # xid | sxid | driver | verdict | order | gpu
    name: str = ""
    action: str = ""
    text: str = ""
    amends: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthOrder:
    """A person's order: ``healthy``, or ``maintenance`` ``until`` then (0: it is over), about a uuid, index, or all. Or
    the word of an act that has ``reset`` the GPU.
    """

    kind: str
    gpu: str
    at: float
    until: float = FOREVER
    who: str = ""


@dataclass(slots=True)
class NodeHealth:
    """What is known of the node's GPUs. ``booted_at`` is when this boot began."""

    config: HealthConfig
    booted_at: float = 0.0
    memories: dict[str, RememberedGpu] = field(default_factory=dict)
    gpus: dict[str, Accelerator] = field(default_factory=dict)  # as last listed
    notes: list[HistoryNote] = field(default_factory=list)  # since the last ``take``
    advice: list[Advice] = field(default_factory=list)
    _addresses: dict[str, str] = field(default_factory=dict)  # from the log: uuid by address
    _last: dict[tuple[str, str], tuple[float, bool]] = field(default_factory=dict)
    _told: dict[str, tuple[Action, str, str]] = field(default_factory=dict)
    _absent: set[str] = field(default_factory=set)
    _vendor: str = NVIDIA

    # --- inputs ---

    def boot(self, booted_at: float) -> None:
        """Apply that the node was booted after the memories were made."""
        self.booted_at = booted_at
        self.memories = {
            name: plan.on_boot(memory, booted_at)
            for name, memory in self.memories.items()
            if not name.startswith(ADDRESS)
        }

    def recall(self, memories: Mapping[str, RememberedGpu], *, same_boot: bool) -> None:
        """Merge memories that could be read only after work had begun."""
        for name, memory in memories.items():
            old, new = memory, self.memories.get(name)
            if not same_boot:
                if name.startswith(ADDRESS):
                    continue
                # As at a boot, also where the clock is behind what the memory knows.
                latest = max(memory.read_at, memory.booted_at, *(event.last for event in memory.events), 0.0)
                old, before = plan.on_boot(memory, max(self.booted_at, latest + 1.0)), self.booted_at - 1.0
                old = replace(old, read_at=min(old.read_at, before), accepted_at=min(old.accepted_at, before))
            old = replace(old, booted_at=self.booted_at)
            self.memories[name] = old if new is None else merged(old, new, self.config)

    def inventory(self, inventory: Inventory, values: Mapping[str, Mapping[str, Any]], at: float) -> None:
        """Apply a reading: the GPUs that the driver lists, with their telemetry by uuid."""
        driver, self._vendor = _major(inventory.driver_version), inventory.vendor
        self.gpus = {gpu.uuid: gpu for gpu in inventory.accelerators[:MAX_GPUS]}
        for gpu in self.gpus.values():
            memory = replace(self._adopted(gpu), index=gpu.index, driver=driver)
            reading = reading_of(gpu, values.get(gpu.uuid, {}), at)
            self.memories[gpu.uuid] = plan.on_reading(memory, reading, self.config)
        for name in [name for name in self.memories if name not in self.gpus and not name.startswith(ADDRESS)]:
            self._missing(name, at)

    def event(self, event: HardwareEvent, at: float) -> None:
        """Apply an event of the driver."""
        if event.kind is not EventKind.XID:
            return
        if event.uuid is None:
            self._say(
                f"Xid {event.code} of a GPU that the driver can't name", "the kernel log tells which", "XidUnnamed"
            )
            return
        self._fault(
            event.uuid,
            Fault(
                code=event.code, at=at, gpu_instance=event.gpu_instance, compute_instance=event.compute_instance
            ),
        )  # fmt: skip

    def line(self, line: LogEvent, at: float) -> None:
        """Apply a line of the kernel log."""
        if line.kind is LineKind.IDENTITY:
            if len(self._addresses) < MAX_GPUS:
                self._addresses[line.pci] = line.uuid
        elif line.kind is LineKind.NVLINK_STUCK:
            self._say("the driver can't find its NVLinks", one_line(line.text, MAX_TEXT), "NVLinkStuck")
        elif line.kind is LineKind.SXID:
            # A switch's trouble is that of every GPU behind it; which those are, no line says.
            for name in [name for name in self.memories if not name.startswith(ADDRESS)]:
                self._fault(
                    name,
                    Fault(code=line.code, at=at, sxid=True, text=line.text, fatal=line.fatal, link=line.link),
                )  # fmt: skip
        elif name := self._at(line.pci) if line.kind in _OF_ONE_GPU else "":
            _OF_ONE_GPU[line.kind](self, name, line, at)

    def order(self, order: HealthOrder) -> tuple[str, ...]:
        """Carry out an order; return the GPUs that it concerned."""
        about = tuple(name for name, memory in self.memories.items() if _is_meant(order.gpu, name, memory))
        for name in about:
            memory = self.memories[name]
            if order.kind == "healthy":
                self.memories[name] = plan.set_healthy(memory, order.at)
                word = "set healthy"
            elif order.kind == RESET:
                self.memories[name] = plan.on_reset(memory, order.at)
                word = RESET
            else:
                self.memories[name] = plan.set_maintenance(memory, until=order.until)
                word = "maintenance" if order.until else "maintenance ended"
            self.notes.append(
                HistoryNote(at=order.at, gpu=name, kind="order", name=word, text=one_line(order.who, MAX_TEXT))
            )
        return about

    # --- outputs ---

    def judge(self, now: float) -> dict[str, HealthVerdict]:
        """Every GPU's verdict, in the driver's order; changes become notes and advice."""
        verdicts = {}
        for name in sorted(self.memories, key=lambda name: (_order(self.memories[name]), name)):
            before = self.memories[name].action
            self.memories[name], verdict = plan.judge(self.memories[name], self.config, now)
            verdict = _of_vendor(verdict, self._vendor)
            if name in self.gpus or self._is_of_now(name):
                verdicts[name] = verdict
                self._news(name, verdict, before, now)
        for name in [name for name in self._told if name not in verdicts]:
            del self._told[name]
        return verdicts

    def take(self) -> tuple[list[HistoryNote], list[Advice]]:
        """Return the notes to save and the advice to report, and forget them."""
        taken = self.notes, self.advice
        self.notes, self.advice = [], []
        return taken

    def title(self, name: str) -> str:
        """A GPU's name for people."""
        memory = self.memories.get(name)
        if name.startswith(ADDRESS):
            return f"the GPU at {name.removeprefix(ADDRESS)}, which the driver does not list"
        return f"GPU {memory.index} ({name})" if memory is not None and memory.index is not None else f"GPU {name}"

    # --- the rest ---

    def _new(self, name: str) -> RememberedGpu:
        return RememberedGpu(gpu=name, booted_at=self.booted_at)

    def _adopted(self, gpu: Accelerator) -> RememberedGpu:
        """The memory of a GPU, merged with what the log said about its address before the driver listed it."""
        known = self.memories.get(gpu.uuid) or self._new(gpu.uuid)
        stranger = self.memories.pop(ADDRESS + _short(gpu.pci_bus_id), None)
        if stranger is None:
            return known
        names = {event.name for event in stranger.events}
        return replace(
            known,
            events=(*(event for event in known.events if event.name not in names), *stranger.events),
            episodes=tuple(sorted({*known.episodes, *stranger.episodes}, key=lambda episode: episode[1])),
            xids={key: known.xids.get(key, 0) + stranger.xids.get(key, 0) for key in (*known.xids, *stranger.xids)},
        )

    def _at(self, address: str) -> str:
        """The name of the GPU at an address, "" when no more GPUs can be remembered."""
        listed = next((gpu.uuid for gpu in self.gpus.values() if _short(gpu.pci_bus_id) == address), "")
        name = listed or self._addresses.get(address, "") or ADDRESS + address
        if name not in self.memories:
            if sum(known.startswith(ADDRESS) for known in self.memories) >= MAX_STRANGERS:
                return ""
            self.memories[name] = self._new(name)
        return name

    def _xid(self, name: str, line: LogEvent, at: float) -> None:
        known = (event for event in self.memories[name].events if event.key == str(LOST_XID))
        if line.implied and any(abs(event.last - at) <= self.config.burst for event in known):
            return  # the sentence beside the number
        self._fault(
            name,
            Fault(
                code=line.code, at=at, text=line.text, recovery=line.recovery, gpu_instance=line.gpu_instance,
                compute_instance=line.compute_instance,
            ),
        )  # fmt: skip

    def _driver_line(self, name: str, line: LogEvent, at: float) -> None:
        fault = Fault(code=0, key=line.key, at=at, text=line.text)
        self.memories[name] = plan.on_fault(self.memories[name], fault, self.config)
        self._note(name, line, line.key, at)

    def _driver_reset(self, name: str, line: LogEvent, at: float) -> None:
        """Not of an earlier boot, and nothing that has come since is over by it."""
        if at >= self.booted_at:
            self.memories[name] = plan.on_reset(self.memories[name], at)
        self._note(name, line, RESET, at)

    def _note(self, name: str, line: LogEvent, word: str, at: float) -> None:
        self.notes.append(HistoryNote(at=at, gpu=name, kind="driver", name=word, text=one_line(line.text, MAX_TEXT)))

    def _fault(self, name: str, fault: Fault) -> None:
        memory = self.memories.get(name)
        if memory is None:
            if len(self.memories) >= MAX_GPUS:
                return
            memory = self._new(name)
        self.memories[name] = plan.on_fault(memory, fault, self.config)
        word = f"{'SXid' if fault.sxid else 'Xid'} {fault.code}"
        if fault.gpu_instance is not None:
            word += f" in GPU instance {fault.gpu_instance}"
        before, had_text = self._last.get((name, word), _told_of(memory, fault))
        # The driver's event and the log's line are one Xid; only the line has words.
        twice = abs(fault.at - before) <= self.config.settle and had_text != bool(fault.text)
        self._last[name, word] = (fault.at, bool(fault.text) or (twice and had_text))
        if len(self._last) > MAX_GPUS * 16:
            self._last.pop(next(iter(self._last)))
        if not twice:
            self.memories[name] = plan.counted(self.memories[name], fault)
        if not twice or fault.text:
            self.notes.append(
                HistoryNote(
                    at=fault.at, gpu=name, kind="sxid" if fault.sxid else "xid", name=word,
                    text=one_line(fault.text, MAX_TEXT), amends=twice,
                )
            )  # fmt: skip

    def _is_of_now(self, name: str) -> bool:
        """Whether a GPU that is not listed was seen since the boot."""
        memory = self.memories[name]
        return memory.read_at >= self.booted_at or any(event.last >= self.booted_at for event in memory.events)

    def _missing(self, name: str, at: float) -> None:
        """A GPU that the driver does not list: trouble when it did since the boot, else it may have been taken out."""
        memory = self.memories[name]
        if memory.read_at >= self.booted_at:
            reading = HealthReading(at=at, problems=(("missing", ""),))
            self.memories[name] = plan.on_reading(memory, reading, self.config)
        elif memory.read_at and name not in self._absent:
            self._absent.add(name)
            self._say(
                f"{self.title(name)} was here before the last boot, and the driver does not list it now",
                "every GPU is expected to come back",
                "GPUAbsent",
                f"nothing if it was taken out; otherwise look for it with `lspci -d {vendor_of(self._vendor).pci_id}:`",
            )

    def _news(self, name: str, verdict: HealthVerdict, former: Action, now: float) -> None:
        """Report a changed verdict; ``former`` is the action before, also an earlier run's, which has reported it."""
        # More evidence for the same action is not reported, except errors of programs: each may be another program's.
        mild = verdict.action is not Action.IGNORE and not verdict.action.withdraws
        state = (verdict.action, verdict.evidence[0].name if mild else "", verdict.muted)
        former_state = self._told.get(name)
        self._told[name] = state
        if state == (former_state or _NOTHING):
            return
        record = verdict.advice(self.title(name))
        what = record.what
        self.advice.append(replace(record, what=what[:1].upper() + what[1:]))
        if former_state is not None or verdict.action is not former:
            self.notes.append(
                HistoryNote(at=now, gpu=name, kind="verdict", name=record.reason, action=str(verdict.action), text=what)
            )

    def _say(
        self, what: str, why: str, reason: str, remedy: str = "read the kernel log with `dmesg | kgpu xid`"
    ) -> None:
        self.advice.append(
            Advice(subject="", what=what, why=why, severity=Severity.WARNING, reason=reason, remedy=remedy)
        )


def _of_vendor(verdict: HealthVerdict, vendor: str) -> HealthVerdict:
    """The verdict with this vendor's own programs in what is to be done."""
    if vendor not in OF_VENDOR:
        return verdict
    evidence = tuple(structs.replace(fact, remedy_key=of_vendor(fact.remedy_key, vendor)) for fact in verdict.evidence)
    return replace(verdict, evidence=evidence, remedy_key=of_vendor(verdict.remedy_key, vendor))


def _told_of(memory: RememberedGpu, fault: Fault) -> tuple[float, bool]:
    """When an earlier run last saw the same fault, and whether it had the log's text."""
    source = EvidenceSource.SXID if fault.sxid else EvidenceSource.XID
    wanted = (source, str(fault.code), fault.gpu_instance)
    known = [one for one in memory.events if (one.source, one.key, one.gpu_instance) == wanted]
    return max(((one.last, bool(one.text)) for one in known), default=(float("-inf"), False))


def _short(bus_id: str) -> str:
    """A PCI address as the log writes it: ``0000:07:00`` for ``0000:07:00.0``."""
    return bus_id.rpartition(".")[0].lower() or bus_id.lower()


def _major(version: str) -> int | None:
    first = version.partition(".")[0]
    return int(first) if first.isascii() and first.isdecimal() and len(first) < 6 else None


def _order(memory: RememberedGpu) -> int:
    return 1 << 30 if memory.index is None else memory.index


def _is_meant(word: str, name: str, memory: RememberedGpu) -> bool:
    return word in {"all", name, name.removeprefix(ADDRESS)} or (memory.index is not None and word == str(memory.index))


_OF_ONE_GPU: Final[Mapping[LineKind, Callable[[NodeHealth, str, LogEvent, float], None]]] = {
    LineKind.XID: NodeHealth._xid,
    LineKind.DRIVER: NodeHealth._driver_line,
    LineKind.RESET: NodeHealth._driver_reset,
}
