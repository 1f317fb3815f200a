"""Resolves each setting of the labels: flag, then environment, then config file, then default.

Flags, variables, their order and their defaults are feature discovery's. A variable that is set counts, even if it is
empty. The file is the device plugin's v1 config file, whose sharing section also affects labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.discovery.model import LabelledResource, LabelSettings, MigStrategy, SharingInForce, SharingStrategy
from kgpu.formats import plugin_config, settings
from kgpu.formats.duration import INFINITE, parse_duration
from kgpu.formats.go_flags import read_bool
from kgpu.formats.names import AMD_LABELS, NFD_FEATURE_FILE
from kgpu.formats.plugin_config import PluginConfig
from kgpu.formats.settings import FlagShape, Restart, Setting, choice, read_text, switch

MACHINE_TYPE_FILE: Final = "/sys/class/dmi/id/product_name"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSettings:
    """All settings of feature discovery. ``sleep_interval`` is in seconds, math.inf for never."""

    mig_strategy: MigStrategy = MigStrategy.NONE
    fail_on_init_error: bool = True
    oneshot: bool = False
    no_timestamp: bool = False
    sleep_interval: float = 60.0
    output_file: str = NFD_FEATURE_FILE
    machine_type_file: str = MACHINE_TYPE_FILE
    use_node_feature_api: bool = True
    device_discovery_strategy: str = "auto"
    amd_labels: frozenset[str] = frozenset(AMD_LABELS)
    sharing: SharingInForce = field(default_factory=SharingInForce)
    given: frozenset[str] = frozenset()
    """The attributes that are set in any way; the others are defaults."""

    def labels(self) -> LabelSettings:
        """The settings that affect the labels."""
        return LabelSettings(
            mig_strategy=self.mig_strategy,
            sharing=self.sharing,
            timestamp=not self.no_timestamp,
            interval=None if math.isinf(self.sleep_interval) else self.sleep_interval,
            machine_type_file=self.machine_type_file,
            amd_labels=self.amd_labels,
        )


def read_output_file(value: Any, where: str) -> str:
    """Read a file name. As a flag's value, ``json`` and ``text`` look like output formats and are refused."""
    if where.startswith("-") and value in {"json", "text"}:
        raise ConfigError(
            f'{where} names a file, and "{value}" looks like a form', f"a path, such as ./{value}",
            f"use -o {value} for the form of what is printed, or {where} ./{value} for a file of that name",
        )  # fmt: skip
    return str(value)


def read_interval(value: Any, where: str) -> float:
    """Read seconds from a Go duration or ``infinite``; a number is nanoseconds, as in the config file."""
    try:
        nanoseconds = value if isinstance(value, int) else parse_duration(str(value).strip())
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.what}", error.expected, f"correct {where}") from error
    if nanoseconds <= 0:
        raise ConfigError(f"{where}: an interval of {value} is not possible", "more than zero", f"correct {where}")
    return math.inf if nanoseconds >= INFINITE else nanoseconds / 1e9


_strategy = choice(MigStrategy, "unknown strategy: ")


def read_strategy(value: Any, where: str) -> MigStrategy:
    """Read none, single or mixed. Raises ConfigError."""
    return MigStrategy(_strategy(value, where))


def _amd_attr(name: str) -> str:
    return f"amd_{name}".replace("-", "_")


OPTIONS: Final = (
    Setting(attr="mig_strategy", flag="--mig-strategy", read=read_strategy, default=MigStrategy.NONE,
            envs=("GFD_MIG_STRATEGY", "MIG_STRATEGY"), key="flags.migStrategy",
            help="How MIG devices are labelled: none, single or mixed.",
            restart=Restart.NONE),
    Setting(attr="fail_on_init_error", flag="--fail-on-init-error", read=read_bool, shape=FlagShape.SWITCH,
            default=True,
            envs=("GFD_FAIL_ON_INIT_ERROR", "FAIL_ON_INIT_ERROR"), key="flags.failOnInitError",
            help="End with an error when no driver answers, instead of writing no labels.", empty_counts=True),
    Setting(attr="oneshot", flag="--oneshot", read=read_bool, shape=FlagShape.SWITCH, default=False,
            envs=("GFD_ONESHOT",),
            key="flags.gfd.oneshot", help="Label once and exit.", empty_counts=True),
    Setting(attr="no_timestamp", flag="--no-timestamp", read=read_bool, shape=FlagShape.SWITCH, default=False,
            envs=("GFD_NO_TIMESTAMP",), key="flags.gfd.noTimestamp", help="Leave the timestamp label out.",
            empty_counts=True,
            restart=Restart.NONE),
    Setting(attr="sleep_interval", flag="--sleep-interval", read=read_interval, default=60.0,
            envs=("GFD_SLEEP_INTERVAL",), key="flags.gfd.sleepInterval",
            help="Time between labellings, such as 60s, or infinite.",
            restart=Restart.NONE),
    Setting(attr="output_file", flag="--output-file", aliases=("--output",), read=read_output_file,
            default=NFD_FEATURE_FILE, envs=("GFD_OUTPUT_FILE",), key="flags.gfd.outputFile",
            help="Write the labels to this feature file; empty: standard output.", empty_counts=True),
    Setting(attr="machine_type_file", flag="--machine-type-file", read=read_text, default=MACHINE_TYPE_FILE,
            envs=("GFD_MACHINE_TYPE_FILE",), key="flags.gfd.machineTypeFile",
            help="The file that says what machine this is.", empty_counts=True,
            restart=Restart.NONE),
    Setting(attr="use_node_feature_api", flag="--use-node-feature-api", read=read_bool, shape=FlagShape.SWITCH,
            default=True, envs=("GFD_USE_NODE_FEATURE_API", "USE_NODE_FEATURE_API"), key="flags.useNodeFeatureAPI",
            help="Write a NodeFeature object.", empty_counts=True),
    Setting(attr="device_discovery_strategy", flag="--device-discovery-strategy",
            read=choice(("auto", "nvml"), "invalid --device-discovery-strategy option "), default="auto",
            envs=("DEVICE_DISCOVERY_STRATEGY",), key="flags.deviceDiscoveryStrategy",
            help="How devices are found: auto or nvml."),
    *(switch(_amd_attr(name), f"--{name}", f"On nodes with AMD GPUs: the labels {name}. Where any of AMD's are asked "
             "for, these alone are written; =false leaves out one.")
      for name in AMD_LABELS),
)  # fmt: skip

CONFIG_FILE_ENVS: Final = ("GFD_CONFIG_FILE", "CONFIG_FILE")

_SHARING_KINDS: Final[Mapping[plugin_config.SharingKind, SharingStrategy]] = {
    plugin_config.SharingKind.TIME_SLICING: SharingStrategy.TIME_SLICING,
    plugin_config.SharingKind.MPS: SharingStrategy.MPS,
}


def resolve(
    config: PluginConfig, *, overrides: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None
) -> ProgramSettings:
    """The settings in force. Raises ConfigError, which names the flag, the variable or the file's key."""
    overrides, env = overrides or {}, env or {}
    resolved = settings.resolve(OPTIONS, flags=overrides, env=env, file=config.flags)
    values = dict(resolved.values)
    of_amd = {name: values.pop(_amd_attr(name)) for name in AMD_LABELS}
    return ProgramSettings(
        **values,
        amd_labels=_chosen({name: on for name, on in of_amd.items() if _amd_attr(name) in resolved.given}),
        sharing=sharing_of(config.sharing),
        given=frozenset(resolved.given),
    )


def _chosen(given: Mapping[str, bool]) -> frozenset[str]:
    """AMD's labels that are asked for; without any, all that are not switched off."""
    wanted = frozenset(name for name, on in given.items() if on)
    return wanted or frozenset(AMD_LABELS) - given.keys()


def first_set(env: Mapping[str, str], names: tuple[str, ...]) -> str:
    """The value of the first variable that is set, "" if none is."""
    return next((env[name] for name in names if name in env), "")


def sharing_of(block: plugin_config.Sharing | None) -> SharingInForce:
    """The sharing that labels show, from the config file's block."""
    if block is None:
        return SharingInForce()
    entries = tuple(
        LabelledResource(entry.name, entry.replicas, renamed=block.offered_name(entry) != entry.name)
        for entry in block.resources
    )
    return SharingInForce(_SHARING_KINDS[block.kind], entries)
