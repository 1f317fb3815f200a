"""The device plugin's settings: one table of flags, resolved as flag > environment > config file > default.

Names, aliases, environment variables and defaults are the replaced program's. Known error texts are kept inside the
three-part messages, because users search for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from kgpu.base.advice import Advice
from kgpu.base.errors import ConfigError
from kgpu.formats import names
from kgpu.formats import settings as settings_engine
from kgpu.formats.go_flags import read_bool
from kgpu.formats.plugin_config import NamePattern, PluginConfig, Sharing, SharingKind
from kgpu.formats.settings import FlagShape, Restart, Setting, choice, read_list, some_of

MIG_STRATEGIES: Final = ("none", "single", "mixed")
LIST_STRATEGIES: Final = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
ID_STRATEGIES: Final = ("uuid", "index")
BALANCED: Final = "balanced"
NO_POLICY: Final = "none"
SHARED_POLICIES: Final = ("distributed", "packed", BALANCED, NO_POLICY)
MONITORING_MODES: Final = ("single", "split")
NAMING_STRATEGIES: Final = ("single", "mixed")
DISCOVERY_STRATEGIES: Final = ("auto", "nvml", "tegra")
MOST_SHARES: Final = 100
_PCI_ID: Final = re.compile(r"0x[0-9a-f]{4}", re.ASCII)
CDI_FEATURES: Final = (
    "enable-explicit-driver-libraries",
    "disable-nvsandboxutils",
    "enable-coherent-annotations",
    "disable-multiple-csv-devices",
    "no-additional-gids-for-device-nodes",
    "disable-ipc-discoverer",
)


def _read_channels(value: Any, where: str) -> tuple[int, ...]:
    try:
        channels = tuple(int(item) for item in read_list(value, where))
    except ValueError as problem:
        raise ConfigError(f"{where}: {value!r} is not a list of numbers", "e.g. 0", f"correct {where}") from problem
    if channels not in {(), (0,)}:
        shown = " ".join(map(str, channels))
        raise ConfigError(
            f"{where}: invalid IMEX channel IDs: invalid IMEX config: channelIDs must be [] or [0]; found [{shown}]",
            "no channel, or channel 0",
            f"correct {where}",
        )
    return channels


def _read_policy(value: Any, where: str) -> str:
    text = _policy(value, where)
    return "distributed" if text == BALANCED else text


_policy: Final = choice(SHARED_POLICIES, "invalid --shared-devices-allocation-policy option: ")


def _read_by_path(value: Any, where: str) -> str:
    text = str(value).strip()
    if text != "none":
        raise ConfigError(
            f"{where}: {text[:40]!r}: links in /dev/dri/by-path are not mounted", "none",
            f"take {where} out: a link that is not on the host would keep containers from starting",
        )  # fmt: skip
    return text


def _read_shares(value: Any, where: str) -> int:
    text = str(value).strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= MOST_SHARES):
        raise ConfigError(
            f"{where}: {text!r} is no number of shares", f"1 (not shared) to {MOST_SHARES}", f"correct {where}"
        )
    return int(text)


def _read_ids(value: Any, where: str) -> tuple[str, ...]:
    ids = read_list(value, where)
    wrong = next((text for text in ids if not _PCI_ID.fullmatch(text)), None)
    if wrong is not None:
        raise ConfigError(
            f"{where}: {wrong!r} is no PCI device id", "ids such as 0xe211, in lower case", f"correct {where}"
        )
    return ids


_row = partial(Setting, empty_counts=True, restart=Restart.NONE)
"""A variable that is set counts even if empty, as in the replaced program; for choices, an empty one is ignored. The
config file counts anew whenever it changes or the Node's label chooses another."""
_AT_START: Final[Any] = {"restart": Restart.PROCESS}

_SWITCH: Final[Any] = {"read": read_bool, "shape": FlagShape.SWITCH}

FLAGS: Final = (
    _row(attr="mig_strategy", flag="--mig-strategy", read=choice(MIG_STRATEGIES, "unknown MIG strategy: "),
         default="none", choices=MIG_STRATEGIES, envs=("MIG_STRATEGY",), key="flags.migStrategy",
         help="how MIG devices are offered", empty_counts=False),
    _row(attr="fail_on_init_error", flag="--fail-on-init-error", **_SWITCH, default=True, envs=("FAIL_ON_INIT_ERROR",),
         key="flags.failOnInitError", **_AT_START,
         help="end when the driver can't be used at the start, instead of waiting for it"),
    _row(attr="driver_root", flag="--driver-root", aliases=("--nvidia-driver-root",), default="/",
         envs=("NVIDIA_DRIVER_ROOT",), key="flags.nvidiaDriverRoot", **_AT_START,
         help="the driver's root folder on the host"),
    _row(attr="dev_root", flag="--dev-root", aliases=("--nvidia-dev-root",), default="", envs=("NVIDIA_DEV_ROOT",),
         key="flags.nvidiaDevRoot", help="the folder on the host that holds dev/nvidia*; the driver root when empty"),
    _row(attr="pass_device_specs", flag="--pass-device-specs", **_SWITCH, default=False, envs=("PASS_DEVICE_SPECS",),
         key="flags.plugin.passDeviceSpecs", help="name the device nodes to the kubelet"),
    _row(attr="list_strategies", flag="--device-list-strategy",
         read=some_of(LIST_STRATEGIES, "invalid --device-list-strategy option: invalid strategy: ", needed=True),
         shape=FlagShape.LIST, default=("envvar",), choices=LIST_STRATEGIES, envs=("DEVICE_LIST_STRATEGY",),
         key="flags.plugin.deviceListStrategy", help="how containers learn of their devices; several are allowed"),
    _row(attr="id_strategy", flag="--device-id-strategy",
         read=choice(ID_STRATEGIES, "invalid --device-id-strategy option: "), default="uuid", choices=ID_STRATEGIES,
         envs=("DEVICE_ID_STRATEGY",), key="flags.plugin.deviceIDStrategy",
         help="what devices are called in containers", empty_counts=False),
    _row(attr="gdrcopy_enabled", flag="--gdrcopy-enabled", **_SWITCH, default=False, envs=("GDRCOPY_ENABLED",),
         key="flags.gdrcopyEnabled", help="give containers GDRCopy"),
    _row(attr="gds_enabled", flag="--gds-enabled", **_SWITCH, default=False, envs=("GDS_ENABLED",),
         key="flags.gdsEnabled", help="give containers GPUDirect Storage"),
    _row(attr="mofed_enabled", flag="--mofed-enabled", **_SWITCH, default=False, envs=("MOFED_ENABLED",),
         key="flags.mofedEnabled", help="give containers the Mellanox OFED devices"),
    _row(attr="cdi_annotation_prefix", flag="--cdi-annotation-prefix", default=names.CDI_ANNOTATION_PREFIX,
         envs=("CDI_ANNOTATION_PREFIX",), key="flags.plugin.cdiAnnotationPrefix", help="prefix of CDI annotation keys"),
    _row(attr="cdi_hook_path", flag="--nvidia-cdi-hook-path", aliases=("--nvidia-ctk-path",),
         default="/usr/bin/nvidia-ctk", envs=("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
         key="flags.plugin.nvidiaCTKPath", **_AT_START, idle="kgpu's CDI specs name no hook program",
         help="path on the host of the hook program that CDI specs name; without effect, kgpu's specs have no hooks"),
    _row(attr="container_driver_root", flag="--driver-root-ctr-path", aliases=("--container-driver-root",),
         default="/driver-root", envs=("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
         key="flags.plugin.containerDriverRoot", **_AT_START, help="where this process sees the driver root"),
    _row(attr="mps_root", flag="--mps-root", default="", envs=("MPS_ROOT",), key="flags.mpsRoot",
         help="the folder on the host for MPS pipes and shared memory"),
    _row(attr="shared_policy", flag="--shared-devices-allocation-policy", aliases=("--allocation-policy",),
         read=_read_policy, default="distributed", choices=SHARED_POLICIES,
         envs=("SHARED_DEVICES_ALLOCATION_POLICY", "ALLOCATION_POLICY"),
         key="flags.plugin.sharedDevicesAllocationPolicy",
         help="spread shares over the GPUs (Intel's word: balanced), fill one after the other, or none: the first",
         empty_counts=False),
    _row(attr="naming_strategy", flag="--resource-naming-strategy", aliases=("--resource_naming_strategy",),
         read=choice(NAMING_STRATEGIES, "invalid --resource-naming-strategy option: "), default="single",
         choices=NAMING_STRATEGIES, envs=("RESOURCE_NAMING_STRATEGY",), empty_counts=False,
         help="AMD GPUs that are parted: one resource name for all, or one for each partition mode"),
    _row(attr="pulse", flag="--pulse", default="", envs=("DEVICE_PLUGIN_PULSE",), **_AT_START,
         idle="health is looked at every second, and told at once",
         help="seconds between checks of AMD GPUs; without effect, they are looked at every second"),
    _row(attr="shared_dev_num", flag="--shared-dev-num", read=_read_shares, default=1, envs=("SHARED_DEV_NUM",),
         empty_counts=False, help="how many containers share an Intel GPU, by time-slicing"),
    _row(attr="by_path", flag="--bypath", read=_read_by_path, default="none", envs=("BYPATH",), empty_counts=False,
         idle="no link is ever mounted, which none asks for",
         help="links by PCI path of Intel GPUs; none alone can be had"),
    _row(attr="allow_ids", flag="--allow-ids", read=_read_ids, shape=FlagShape.LIST, default=(), envs=("ALLOW_IDS",),
         help="PCI device ids of the only devices to offer, such as 0xe211; all when empty"),
    _row(attr="deny_ids", flag="--deny-ids", read=_read_ids, shape=FlagShape.LIST, default=(), envs=("DENY_IDS",),
         help="PCI device ids of devices not to offer"),
    _row(attr="enable_monitoring", flag="--enable-monitoring", **_SWITCH, default=False, envs=("ENABLE_MONITORING",),
         help="offer a device that is all Intel GPUs of the node, for programs that monitor them"),
    _row(attr="monitoring_mode", flag="--monitoring-mode", read=choice(MONITORING_MODES, "invalid monitoring mode: "),
         default="single", choices=MONITORING_MODES, envs=("MONITORING_MODE",), empty_counts=False,
         help="single: one resource for all Intel GPUs; split: one for those of each driver"),
    _row(attr="discovery_strategy", flag="--device-discovery-strategy",
         read=choice(DISCOVERY_STRATEGIES, "invalid --device-discovery-strategy option "), default="auto",
         choices=DISCOVERY_STRATEGIES, envs=("DEVICE_DISCOVERY_STRATEGY",), key="flags.deviceDiscoveryStrategy",
         help="how devices are found", empty_counts=False),
    _row(attr="imex_channel_ids", flag="--imex-channel-ids", read=_read_channels, shape=FlagShape.LIST, default=(),
         envs=("IMEX_CHANNEL_IDS",), key="imex.channelIDs", help="IMEX channels for every container: none, or 0"),
    _row(attr="imex_required", flag="--imex-required", **_SWITCH, default=False, envs=("IMEX_REQUIRED",),
         key="imex.required", help="offer nothing while the IMEX channels are missing"),
    _row(attr="cdi_feature_flags", flag="--cdi-feature-flags",
         read=some_of(CDI_FEATURES, "invalid --cdi-feature-flags option: "), shape=FlagShape.LIST, default=(),
         choices=CDI_FEATURES, envs=("CDI_FEATURE_FLAGS",), **_AT_START,
         idle="the features are those of NVIDIA's generator of CDI specs, and kgpu has its own",
         help="features of NVIDIA's generator of CDI specs; without effect, kgpu has its own"),
    _row(attr="cdi_disable_hooks", flag="--cdi-disable-hooks", read=read_list, shape=FlagShape.LIST, default=(),
         envs=("CDI_DISABLE_HOOKS",), **_AT_START, idle="kgpu's CDI specs have no hooks", usual=(("all",),),
         help="CDI hooks to leave out, or all; kgpu's specs have none"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """The settings in force. Folders are as given; ``host_dev_root`` applies the rule for an empty ``dev_root``."""

    mig_strategy: str = "none"
    fail_on_init_error: bool = True
    driver_root: str = "/"
    dev_root: str = ""
    pass_device_specs: bool = False
    list_strategies: tuple[str, ...] = ("envvar",)
    id_strategy: str = "uuid"
    gdrcopy_enabled: bool = False
    gds_enabled: bool = False
    mofed_enabled: bool = False
    cdi_annotation_prefix: str = names.CDI_ANNOTATION_PREFIX
    cdi_hook_path: str = "/usr/bin/nvidia-ctk"
    container_driver_root: str = "/driver-root"
    mps_root: str = ""
    shared_policy: str = "distributed"
    naming_strategy: str = "single"
    pulse: str = ""
    shared_dev_num: int = 1
    by_path: str = "none"
    allow_ids: tuple[str, ...] = ()
    deny_ids: tuple[str, ...] = ()
    enable_monitoring: bool = False
    monitoring_mode: str = "single"
    discovery_strategy: str = "auto"
    imex_channel_ids: tuple[int, ...] = ()
    imex_required: bool = False
    cdi_feature_flags: tuple[str, ...] = ()
    cdi_disable_hooks: tuple[str, ...] = ()
    gpus: tuple[NamePattern, ...] = ()
    mig: tuple[NamePattern, ...] = ()
    sharing: Sharing | None = None

    @property
    def host_dev_root(self) -> str:
        """The folder on the host under which device nodes lie."""
        return self.dev_root or self.driver_root

    @property
    def uses_cdi(self) -> bool:
        """True if the answers to the kubelet need a CDI spec."""
        return any(strategy.startswith("cdi-") for strategy in self.list_strategies)

    @property
    def only_cdi(self) -> bool:
        """True if containers get their devices through CDI alone."""
        return all(strategy.startswith("cdi-") for strategy in self.list_strategies)


def resolve(config: PluginConfig, *, overrides: Mapping[str, Any], env: Mapping[str, str]) -> PluginSettings:
    """Flag > environment > file > default, validated. Raises ConfigError with the known texts."""
    resolved = settings_engine.resolve(FLAGS, flags=overrides, env=env, file=config.flags)
    settings = PluginSettings(**resolved.values, gpus=config.gpus, mig=config.mig, sharing=config.sharing)
    _check_together(settings)
    return settings


def _check_together(settings: PluginSettings) -> None:
    if both := set(settings.allow_ids) & set(settings.deny_ids):
        raise ConfigError(
            f"--deny-ids: {', '.join(sorted(both))} is allowed and denied",
            "each id in one of the two lists",
            "correct them",
        )
    if settings.shared_dev_num > 1 and settings.sharing is not None:
        raise ConfigError("--shared-dev-num with a sharing block in the config file", "one of the two", "leave one out")
    if settings.sharing is None or settings.sharing.kind is not SharingKind.MPS:
        return
    if settings.mig_strategy == "mixed":
        raise ConfigError(
            "sharing.mps: using --mig-strategy=mixed is not supported with MPS",
            "MIG strategy none or single with sharing.mps",
            "change flags.migStrategy, or share by timeSlicing",
        )
    if not settings.mps_root:
        raise ConfigError(
            "sharing.mps: using MPS requires --mps-root to be specified",
            "the folder on the host where the MPS daemon keeps its pipes, usually /run/nvidia/mps",
            "set flags.mpsRoot, MPS_ROOT or --mps-root",
        )


def without_effect(settings: PluginSettings) -> list[Advice]:
    """Advice on settings that have no effect."""
    values = {flag.attr: getattr(settings, flag.attr) for flag in FLAGS}
    return list(settings_engine.without_effect(FLAGS, settings_engine.Resolved(values, {})))


def printable(settings: PluginSettings) -> dict[str, Any]:
    """The settings in force in the config file's shape, for the JSON that is printed at the start."""
    tree: dict[str, Any] = {"version": "v1", "flags": {}, "resources": {}, "sharing": {}, "imex": {}}
    for flag in sorted(FLAGS, key=lambda flag: flag.key.count(".")):
        if not flag.key:
            continue
        value = getattr(settings, flag.attr)
        settings_engine.put(tree, flag.key, list(value) if isinstance(value, tuple) else value)
    tree["resources"] = {
        "gpus": [asdict(row) for row in (*settings.gpus, NamePattern(pattern="*", name=names.GPU_RESOURCE))]
    }
    if settings.mig:
        tree["resources"]["mig"] = [asdict(row) for row in settings.mig]
    if settings.sharing is not None:
        tree["sharing"][settings.sharing.kind.value] = {
            "renameByDefault": settings.sharing.rename_by_default,
            "failRequestsGreaterThanOne": settings.sharing.refuses_many,
            "resources": [
                {
                    "name": entry.name,
                    **({"rename": settings.sharing.offered_name(entry)}
                       if settings.sharing.offered_name(entry) != entry.name else {}),
                    "devices": entry.devices.value(),
                    "replicas": entry.replicas,
                }
                for entry in settings.sharing.resources
            ],
        }  # fmt: skip
    return tree
