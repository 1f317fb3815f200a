"""What `kgpu lab hw set` can change: one row for each key, with its unit, limits, and the state field behind it.

A row's value comes as text (or a number from Python), is checked against the row, and is written by the row's
``apply``. Keys are case-insensitive, and ``-`` and ``_`` are the same. Nothing is written when a value is bad.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.hw.recovery import RECOVERY_CODES
from kgpu.hw.simulator.fill import cuda_number
from kgpu.hw.simulator.load_model import fold_throttle, heat_level, power_level, set_clock
from kgpu.hw.simulator.profiles import FABRIC_STATES
from kgpu.hw.simulator.schema import C

THROTTLE_REASONS: Final[Mapping[str, int]] = {
    "none": 0, "idle": 0x1, "app-clocks": 0x2, "power-cap": 0x4, "hw-slowdown": 0x8, "sync-boost": 0x10,
    "sw-thermal": 0x20, "hw-thermal": 0x40, "power-brake": 0x80, "display": 0x100,
}  # fmt: skip
RECOVERY_ACTIONS: Final[Mapping[str, int]] = {**RECOVERY_CODES, "recover-imex": RECOVERY_CODES["imex"]}
TIMESLICES: Final[Mapping[str, int]] = {"default": 0, "short": 1, "medium": 2, "long": 3}
COMPUTE_MODES: Final[Mapping[str, int]] = {"default": 0, "exclusive-thread": 1, "prohibited": 2, "exclusive-process": 3}
SWITCH: Final[Mapping[str, int]] = {"on": 1, "off": 0, "true": 1, "false": 0, "yes": 1, "no": 0, "1": 1, "0": 0}
SPELLINGS: Final = frozenset({"true", "false", "yes", "no", "1", "0", "recover-imex"})  # accepted, not advertised
FAILING: Final[Mapping[str, int]] = {
    "none": 0,
    **{name.removeprefix("FAIL_").lower(): bit for name, bit in C.items() if name.startswith("FAIL_")},
}
NEXT_RESET: Final[Mapping[str, int]] = {
    "works": 0,
    **{name.removeprefix("RESET_").lower(): code for name, code in C.items() if name.startswith("RESET_")},
}
FABRIC_HEALTH: Final[Mapping[str, int]] = {"not-supported": 0, "healthy": 1, "unhealthy": 2, "limited": 3}
LINK: Final[Mapping[str, int]] = {"up": 1, "down": 0, **SWITCH}
DEVICE_MEMORY, UNCORRECTED = 2, 7  # offsets in the ECC counters: nvmlMemoryLocation_t, and the uncorrected half
MIB: Final = 1 << 20

Apply = Callable[[Any, Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeSetting:
    """A key: ``low``/``high`` bound a number (a callable asks the GPU), ``words`` map names, ``pattern`` a text."""

    key: str
    unit: str
    doc: str
    apply: Apply
    low: int = 0
    high: int | Callable[[Any], int] = 0xFFFFFFFF
    words: Mapping[str, int] | None = None
    several: bool = False  # a comma list of words, or-ed
    pattern: str = ""
    node: bool = False  # about the node, not a GPU
    link: int | None = None  # the NVLink that the key names, which the GPU must have

    @property
    def form(self) -> str:
        """What a value looks like, for people."""
        if self.words is None:
            return self.unit or "number"
        return "|".join(word for word in self.words if word not in SPELLINGS)

    def parse(self, text: str, target: Any) -> Any:
        """The value for ``apply``. Raises ConfigError."""
        if self.link is not None and self.link >= target.link_count:
            links = f"a link from 0 to {target.link_count - 1}" if target.link_count else "a GPU with NVLink"
            raise ConfigError(f"there is no NVLink {self.link}", links, "choose another link or GPU")
        if self.words is not None:
            return self._words(text.strip().lower().replace("_", "-"))
        if self.pattern:
            if not re.fullmatch(self.pattern, text):
                raise self._bad(text, self.unit)
            return text
        high = self.high(target) if callable(self.high) else self.high
        number = text.strip().removesuffix(self.unit).strip() if self.unit else text.strip()
        if not re.fullmatch(r"-?\d{1,19}", number) or not self.low <= int(number) <= high:
            raise self._bad(text, f"a whole number from {self.low} to {high}{' ' if self.unit else ''}{self.unit}")
        return int(number)

    def _words(self, text: str) -> int:
        assert self.words is not None
        bits = 0
        for word in text.split(",") if self.several else [text]:
            if word not in self.words:
                hint = did_you_mean(word, self.words)
                raise self._bad(word, f"{'some' if self.several else 'one'} of: {self.form.replace('|', ', ')}", hint)
            bits |= self.words[word]
        return bits

    def _bad(self, text: str, expected: str, hint: str = "") -> ConfigError:
        what = f'{self.key}="{text:.80}" can\'t be set{"; " if hint else ""}{hint}'
        return ConfigError(what, expected, "give another value; `kgpu lab hw set --help` lists the keys")


def _field(name: str, factor: int = 1) -> Apply:
    return lambda gpu, value: setattr(gpu, name, value * factor)


def _text(name: str) -> Apply:
    return lambda target, value: setattr(target, name, value.encode())


def _item(name: str, *places: int) -> Apply:
    def apply(gpu: Any, value: int) -> None:
        for place in places:
            getattr(gpu, name)[place] = value

    return apply


def temperature(gpu: Any) -> int:
    """The core temperature now, in Celsius."""
    return int(base_temperature(gpu) + gpu.temp_offset)


def base_temperature(gpu: Any) -> int:
    """The same without an injected fault or a value set by hand."""
    return int(gpu.temp_idle + (gpu.temp_max_load - gpu.temp_idle) * heat_level(gpu) // 100_000)


def power_mw(gpu: Any) -> int:
    """The draw now, in mW."""
    return int(gpu.power_idle_mw + (int(gpu.power_max_mw) - int(gpu.power_idle_mw)) * power_level(gpu) // 100_000)


def _set_temperature(gpu: Any, value: int) -> None:
    gpu.temp_offset = value - base_temperature(gpu)


def _set_memory_temperature(gpu: Any, value: int) -> None:
    gpu.temp_memory_delta = value - temperature(gpu)


def _set_power(gpu: Any, watts: int) -> None:
    shift = watts * 1000 - power_mw(gpu)
    gpu.power_idle_mw = max(0, int(gpu.power_idle_mw) + shift)
    gpu.power_max_mw = max(int(gpu.power_idle_mw), int(gpu.power_max_mw) + shift)


def _set_ecc_mode(gpu: Any, value: int) -> None:
    gpu.ecc_current = gpu.ecc_pending = value


def _set_fan(gpu: Any, value: int) -> None:
    gpu.fan_idle = gpu.fan_max = value


def _set_throttle(gpu: Any, value: int) -> None:
    fold_throttle(gpu)
    gpu.throttle_forced = value


def _set_links(gpu: Any, value: int) -> None:
    for link in gpu.link[: int(gpu.link_count)]:
        link.active = value


def _link_errors(name: str) -> Apply:
    """All of the GPU's errors of one kind, on its first link."""

    def apply(gpu: Any, value: int) -> None:
        for number, link in enumerate(gpu.link[: int(gpu.link_count)]):
            setattr(link, name, 0 if number else value)

    return apply


def _set_cuda(view: Any, value: str) -> None:
    view.cuda_version = cuda_number(value)


def _most_memory(gpu: Any) -> int:
    return int(gpu.mem_total - gpu.mem_reserved) // MIB


MAX_AHEAD_S: Final = 366 * 24 * 3600
PRINTABLE: Final = r"[ -~]{1,95}"
_ROWS: Final = (
    FakeSetting(key="temperature", unit="C", low=-20, high=150, doc="core temperature now; moves on with load",
                apply=_set_temperature),
    FakeSetting(key="memory-temperature", unit="C", low=-20, high=150, doc="memory temperature now",
                apply=_set_memory_temperature),
    FakeSetting(key="utilization", unit="%", high=100,
                doc="busy share besides running processes; power and heat follow",
                apply=_field("load_set")),
    FakeSetting(key="memory-utilization", unit="%", high=100, doc="memory controller; 0: follows utilization",
                apply=_field("mem_load_set")),
    FakeSetting(key="encoder", unit="%", high=100, doc="encoder utilization", apply=_field("enc_util")),
    FakeSetting(key="decoder", unit="%", high=100, doc="decoder utilization", apply=_field("dec_util")),
    FakeSetting(key="jpeg", unit="%", high=100, doc="JPEG engine utilization", apply=_field("jpg_util")),
    FakeSetting(key="ofa", unit="%", high=100, doc="optical flow engine utilization", apply=_field("ofa_util")),
    FakeSetting(key="power", unit="W", high=10_000, doc="draw now; moves on with load", apply=_set_power),
    FakeSetting(key="power-limit", unit="W", low=1, high=lambda gpu: int(gpu.power_limit_max_mw) // 1000,
                doc="management limit", apply=_field("power_limit_mw", 1000)),
    FakeSetting(key="memory-used", unit="MiB", high=_most_memory, doc="memory in use besides processes",
                apply=_field("mem_used_base", MIB)),
    FakeSetting(key="bar1-used", unit="MiB", high=lambda gpu: int(gpu.bar1_total) // MIB, doc="BAR1 in use",
                apply=_field("bar1_used", MIB)),
    FakeSetting(key="sm-clock", unit="MHz", high=lambda gpu: int(gpu.clock_max[1]),
                doc="lock graphics and SM; 0 unlocks",
                apply=_item("clock_lock", 0, 1)),
    FakeSetting(key="app-clock", unit="MHz", high=lambda gpu: int(gpu.clock_max[1]),
                doc="application clock of graphics",
                apply=_item("clock_app", 0, 1)),
    FakeSetting(key="fan", unit="%", high=100, doc="fan speed, where there are fans", apply=_set_fan),
    FakeSetting(key="throttle", unit="", doc="clocks event reasons, a comma list", words=THROTTLE_REASONS, several=True,
                apply=_set_throttle),
    FakeSetting(key="ecc", unit="", doc="ECC mode", words=SWITCH, apply=_set_ecc_mode),
    FakeSetting(key="ecc-corrected", unit="", high=1 << 62, doc="volatile count, device memory",
                apply=_item("ecc_volatile", DEVICE_MEMORY)),
    FakeSetting(key="ecc-uncorrected", unit="", high=1 << 62, doc="volatile count, device memory",
                apply=_item("ecc_volatile", UNCORRECTED + DEVICE_MEMORY)),
    FakeSetting(key="ecc-corrected-total", unit="", high=1 << 62, doc="aggregate count, device memory",
                apply=_item("ecc_aggregate", DEVICE_MEMORY)),
    FakeSetting(key="ecc-uncorrected-total", unit="", high=1 << 62, doc="aggregate count, device memory",
                apply=_item("ecc_aggregate", UNCORRECTED + DEVICE_MEMORY)),
    FakeSetting(key="remapped-corrected", unit="", high=512, doc="rows remapped", apply=_field("remap_corrected")),
    FakeSetting(key="remapped-uncorrected", unit="", high=512, doc="rows remapped", apply=_field("remap_uncorrected")),
    FakeSetting(key="remap-pending", unit="", words=SWITCH, doc="a remap waits for a reset",
                apply=_field("remap_pending")),
    FakeSetting(key="remap-failed", unit="", words=SWITCH, doc="a remap has failed", apply=_field("remap_failed")),
    FakeSetting(key="retired-pages", unit="", high=64, doc="pages retired for double bit errors",
                apply=_field("retired_dbe_count")),
    FakeSetting(key="retired-pages-corrected", unit="", high=64, doc="pages retired for single bit errors",
                apply=_field("retired_sbe_count")),
    FakeSetting(key="retired-pending", unit="", words=SWITCH, doc="a page waits for a reset to be retired",
                apply=_field("retired_pending")),
    FakeSetting(key="sram-exceeded", unit="", words=SWITCH, doc="the SRAM has more errors than it may",
                apply=_field("sram_threshold_exceeded")),
    FakeSetting(key="unrepairable-memory", unit="", words=SWITCH, doc="the memory can't be repaired",
                apply=_field("unrepairable_memory")),
    FakeSetting(key="persistence", unit="", words=SWITCH, doc="persistence mode", apply=_field("persistence")),
    FakeSetting(key="compute-mode", unit="", words=COMPUTE_MODES, doc="compute mode", apply=_field("compute_mode")),
    FakeSetting(key="timeslice", unit="", words=TIMESLICES, doc="time slice of compute contexts",
                apply=_field("timeslice")),
    FakeSetting(key="timeslice-support", unit="", words=SWITCH, doc="the time slice can be set",
                apply=_field("timeslice_supported")),
    FakeSetting(key="recovery-action", unit="", words=RECOVERY_ACTIONS, doc="what the driver asks for",
                apply=_field("recovery_action")),
    FakeSetting(key="next-reset", unit="", words=NEXT_RESET,
                doc="what the next `nvidia-smi --gpu-reset` does: loses the GPU, renames it (another UUID), ...",
                apply=_field("next_reset")),
    FakeSetting(key="pcie-gen", unit="", low=1, high=lambda gpu: int(gpu.pci.gen_max), doc="current link generation",
                apply=lambda gpu, value: setattr(gpu.pci, "gen_cur", value)),
    FakeSetting(key="pcie-width", unit="", low=1, high=lambda gpu: int(gpu.pci.width_max), doc="current link width",
                apply=lambda gpu, value: setattr(gpu.pci, "width_cur", value)),
    FakeSetting(key="pcie-replays", unit="", doc="replay counter", apply=_field("pcie_replays")),
    FakeSetting(key="pcie-errors", unit="", doc="errors that PCIe corrected", apply=_item("pcie_err", 0)),
    FakeSetting(key="nvlink", unit="", words=LINK, doc="every NVLink; `nvlink.3` is one", apply=_set_links),
    FakeSetting(key="nvlink-crc-flit", unit="", high=1 << 62, doc="CRC errors of flow control, on link 0", link=0,
                apply=_link_errors("err_crc_flit")),
    FakeSetting(key="nvlink-crc-data", unit="", high=1 << 62, doc="CRC errors of data, on link 0", link=0,
                apply=_link_errors("err_crc_data")),
    FakeSetting(key="nvlink-replays", unit="", high=1 << 62, doc="replay errors, on link 0", link=0,
                apply=_link_errors("err_replay")),
    FakeSetting(key="nvlink-recoveries", unit="", high=1 << 62, doc="recovery errors, on link 0", link=0,
                apply=_link_errors("err_recovery")),
    FakeSetting(key="fabric-health", unit="", words=FABRIC_HEALTH, doc="the fabric's health in short",
                apply=_field("fabric_health_summary")),
    FakeSetting(key="fabric-health-mask", unit="", doc="the fabric's health, as NVML's bit mask",
                apply=_field("fabric_health_mask")),
    FakeSetting(key="fabric-status", unit="", high=999, doc="NVML's return code of the registration",
                apply=_field("fabric_status")),
    FakeSetting(key="failing", unit="", words=FAILING, several=True, doc="readings that fail, a comma list",
                apply=_field("failing")),
    FakeSetting(key="fabric", unit="", words=FABRIC_STATES, doc="NVLink fabric registration",
                apply=_field("fabric_state")),
    FakeSetting(key="name", unit="1-95 printable characters", pattern=PRINTABLE, doc="product name",
                apply=_text("name")),
    FakeSetting(key="vbios", unit="1-31 printable characters", pattern=r"[ -~]{1,31}", doc="VBIOS version",
                apply=_text("vbios")),
    FakeSetting(key="driver-version", unit="a version such as 550.54.15", pattern=r"\d{2,4}\.\d{1,4}(\.\d{1,4})?",
                doc="driver, and the names of its files", node=True, apply=_text("driver_version")),
    FakeSetting(key="cuda-version", unit="a version such as 12.4", pattern=r"\d{1,2}\.\d", doc="newest CUDA served",
                node=True, apply=_set_cuda),
    FakeSetting(key="hostname", unit="a host name", pattern=r"[A-Za-z0-9.-]{1,63}", doc="node name", node=True,
                apply=_text("hostname")),
    FakeSetting(key="clock-ahead", unit="s", high=MAX_AHEAD_S, node=True,
                doc="put the node's clock forward by this; load, energy and times of the driver follow",
                apply=lambda view, value: set_clock(view, ahead_ns=value * 1_000_000_000)),
    FakeSetting(key="clock-rate", unit="", high=10_000, node=True,
                doc="how many seconds the node's clock goes on in a second, from now on; 0: it stands",
                apply=lambda view, value: set_clock(view, rate=value)),
    FakeSetting(key="fabric-manager", unit="", words=SWITCH, doc="fabric manager runs", node=True,
                apply=_field("fabric_manager")),
)  # fmt: skip
SETTINGS: Final[Mapping[str, FakeSetting]] = {row.key: row for row in _ROWS}


def find(key: str) -> FakeSetting:
    """The row of a key, or of one NVLink (``nvlink.<n>``). Raises ConfigError with the nearest known key."""
    plain = key.strip().lower().replace("_", "-")
    if hit := re.fullmatch(r"nvlink\.(\d{1,2})", plain):
        return _one_link(int(hit[1]))
    if plain not in SETTINGS:
        hint = did_you_mean(plain, SETTINGS)
        raise ConfigError(
            f'there is no key "{key:.80}"{"; " if hint else ""}{hint}', f"one of: {', '.join(SETTINGS)}", "correct it"
        )
    return SETTINGS[plain]


def _one_link(number: int) -> FakeSetting:
    def apply(gpu: Any, value: int) -> None:
        gpu.link[number].active = value

    return FakeSetting(key=f"nvlink.{number}", unit="", doc="one NVLink", words=LINK, apply=apply, link=number)
