"""The device plugin's settings: one table of flags, and flag > environment > config file > default over it.

Names, aliases, environment variables and defaults are the replaced program's. Known error texts are kept inside the
three-part messages, because users search for them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from kgpu.base.advice import Advice, Severity
from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats import names
from kgpu.formats.go_flags import read_bool
from kgpu.formats.plugin_config import NamePattern, PluginConfig, Sharing, SharingKind

MIG_STRATEGIES: Final = ("none", "single", "mixed")
LIST_STRATEGIES: Final = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
ID_STRATEGIES: Final = ("uuid", "index")
SHARED_POLICIES: Final = ("distributed", "packed")
DISCOVERY_STRATEGIES: Final = ("auto", "nvml", "tegra")
CDI_FEATURES: Final = (
    "enable-explicit-driver-libraries",
    "disable-nvsandboxutils",
    "enable-coherent-annotations",
    "disable-multiple-csv-devices",
    "no-additional-gids-for-device-nodes",
    "disable-ipc-discoverer",
)


class Kind(enum.Enum):
    """How a flag's text is read."""

    BOOL = "bool"
    TEXT = "text"
    CHOICE = "choice"
    LIST = "list"
    INTS = "ints"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One row: attribute of ``Settings``, flag and aliases, environment in order of precedence, path in the file."""

    attr: str
    flag: str
    kind: Kind
    default: Any
    help: str
    aliases: tuple[str, ...] = ()
    envs: tuple[str, ...]
    key: str = ""
    choices: tuple[str, ...] = ()
    invalid: str = ""  # the known text before a value that is none of the choices
    idle: str = ""  # why another value than the default has no effect; told wherever one is given


FLAGS: Final = (
    Flag(attr="mig_strategy", flag="--mig-strategy", kind=Kind.CHOICE, default="none", choices=MIG_STRATEGIES,
         envs=("MIG_STRATEGY",), key="flags.migStrategy", invalid="unknown MIG strategy: ",
         help="how MIG devices are offered"),
    Flag(attr="fail_on_init_error", flag="--fail-on-init-error", kind=Kind.BOOL, default=True,
         envs=("FAIL_ON_INIT_ERROR",), key="flags.failOnInitError",
         help="end when the driver can't be used at the start, instead of waiting for it"),
    Flag(attr="driver_root", flag="--driver-root", aliases=("--nvidia-driver-root",), kind=Kind.TEXT, default="/",
         envs=("NVIDIA_DRIVER_ROOT",), key="flags.nvidiaDriverRoot", help="the driver's root folder on the host"),
    Flag(attr="dev_root", flag="--dev-root", aliases=("--nvidia-dev-root",), kind=Kind.TEXT, default="",
         envs=("NVIDIA_DEV_ROOT",), key="flags.nvidiaDevRoot",
         help="the folder on the host that holds dev/nvidia*; the driver root when empty"),
    Flag(attr="pass_device_specs", flag="--pass-device-specs", kind=Kind.BOOL, default=False,
         envs=("PASS_DEVICE_SPECS",), key="flags.plugin.passDeviceSpecs", help="name the device nodes to the kubelet"),
    Flag(attr="list_strategies", flag="--device-list-strategy", kind=Kind.LIST, default=("envvar",),
         choices=LIST_STRATEGIES, envs=("DEVICE_LIST_STRATEGY",), key="flags.plugin.deviceListStrategy",
         invalid="invalid --device-list-strategy option: invalid strategy: ",
         help="how containers learn of their devices; several are allowed"),
    Flag(attr="id_strategy", flag="--device-id-strategy", kind=Kind.CHOICE, default="uuid", choices=ID_STRATEGIES,
         envs=("DEVICE_ID_STRATEGY",), key="flags.plugin.deviceIDStrategy",
         invalid="invalid --device-id-strategy option: ", help="what devices are called in containers"),
    Flag(attr="gdrcopy_enabled", flag="--gdrcopy-enabled", kind=Kind.BOOL, default=False, envs=("GDRCOPY_ENABLED",),
         key="flags.gdrcopyEnabled", help="give containers GDRCopy"),
    Flag(attr="gds_enabled", flag="--gds-enabled", kind=Kind.BOOL, default=False, envs=("GDS_ENABLED",),
         key="flags.gdsEnabled", help="give containers GPUDirect Storage"),
    Flag(attr="mofed_enabled", flag="--mofed-enabled", kind=Kind.BOOL, default=False, envs=("MOFED_ENABLED",),
         key="flags.mofedEnabled", help="give containers the Mellanox OFED devices"),
    Flag(attr="cdi_annotation_prefix", flag="--cdi-annotation-prefix", kind=Kind.TEXT,
         default=names.CDI_ANNOTATION_PREFIX, envs=("CDI_ANNOTATION_PREFIX",),
         key="flags.plugin.cdiAnnotationPrefix", help="prefix of CDI annotation keys"),
    Flag(attr="cdi_hook_path", flag="--nvidia-cdi-hook-path", aliases=("--nvidia-ctk-path",), kind=Kind.TEXT,
         default="/usr/bin/nvidia-ctk", envs=("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
         key="flags.plugin.nvidiaCTKPath", idle="kgpu's CDI specs name no hook program",
         help="path on the host of the hook program that CDI specs name; without effect, kgpu's specs have no hooks"),
    Flag(attr="container_driver_root", flag="--driver-root-ctr-path", aliases=("--container-driver-root",),
         kind=Kind.TEXT, default="/driver-root", envs=("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
         key="flags.plugin.containerDriverRoot", help="where this process sees the driver root"),
    Flag(attr="mps_root", flag="--mps-root", kind=Kind.TEXT, default="", envs=("MPS_ROOT",), key="flags.mpsRoot",
         help="the folder on the host for MPS pipes and shared memory"),
    Flag(attr="shared_policy", flag="--shared-devices-allocation-policy", kind=Kind.CHOICE, default="distributed",
         choices=SHARED_POLICIES, envs=("SHARED_DEVICES_ALLOCATION_POLICY",),
         key="flags.plugin.sharedDevicesAllocationPolicy",
         invalid="invalid --shared-devices-allocation-policy option: ",
         help="spread shares over the GPUs, or fill one after the other"),
    Flag(attr="discovery_strategy", flag="--device-discovery-strategy", kind=Kind.CHOICE, default="auto",
         choices=DISCOVERY_STRATEGIES, envs=("DEVICE_DISCOVERY_STRATEGY",), key="flags.deviceDiscoveryStrategy",
         invalid="invalid --device-discovery-strategy option ", help="how devices are found"),
    Flag(attr="imex_channel_ids", flag="--imex-channel-ids", kind=Kind.INTS, default=(), envs=("IMEX_CHANNEL_IDS",),
         key="imex.channelIDs", help="IMEX channels for every container: none, or 0"),
    Flag(attr="imex_required", flag="--imex-required", kind=Kind.BOOL, default=False, envs=("IMEX_REQUIRED",),
         key="imex.required", help="offer nothing while the IMEX channels are missing"),
    Flag(attr="cdi_feature_flags", flag="--cdi-feature-flags", kind=Kind.LIST, default=(), choices=CDI_FEATURES,
         envs=("CDI_FEATURE_FLAGS",), invalid="invalid --cdi-feature-flags option: ",
         idle="the features are those of NVIDIA's generator of CDI specs, and kgpu has its own",
         help="features of NVIDIA's generator of CDI specs; without effect, kgpu has its own"),
    Flag(attr="cdi_disable_hooks", flag="--cdi-disable-hooks", kind=Kind.LIST, default=(),
         envs=("CDI_DISABLE_HOOKS",), help="CDI hooks to leave out, or all; kgpu's specs have none"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is in force. Folders are as given; ``host_dev_root`` applies the rule for an empty ``dev_root``."""

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
        """True when a CDI spec is needed for what the kubelet is answered."""
        return any(strategy.startswith("cdi-") for strategy in self.list_strategies)

    @property
    def only_cdi(self) -> bool:
        """True when containers get their devices through CDI alone."""
        return all(strategy.startswith("cdi-") for strategy in self.list_strategies)


def resolve(config: PluginConfig, *, overrides: Mapping[str, Any], env: Mapping[str, str]) -> Settings:
    """Flag > environment > file > default, validated. Raises ConfigError with the known texts."""
    values: dict[str, Any] = {}
    for flag in FLAGS:
        values[flag.attr] = _value(flag, config, overrides, env)
    settings = Settings(**values, gpus=config.gpus, mig=config.mig, sharing=config.sharing)
    _check_together(settings)
    return settings


def _value(flag: Flag, config: PluginConfig, overrides: Mapping[str, Any], env: Mapping[str, str]) -> Any:
    if flag.attr in overrides:
        return _checked(flag, _READ[flag.kind](overrides[flag.attr], flag.flag), flag.flag)
    for name in flag.envs:
        # An empty text can't be a choice; everywhere else a variable that is set counts, as with the replaced program.
        if name in env and not (flag.kind is Kind.CHOICE and not env[name].strip()):
            return _checked(flag, _READ[flag.kind](env[name], name), name)
    if flag.key in config.flags:
        return _checked(flag, _READ[flag.kind](config.flags[flag.key], flag.key), flag.key)
    return flag.default


def _read_list(value: Any, where: str) -> tuple[str, ...]:
    del where
    items = value.split(",") if isinstance(value, str) else [part for item in value for part in str(item).split(",")]
    return tuple(dict.fromkeys(text for item in items if (text := item.strip())))


def _read_ints(value: Any, where: str) -> tuple[int, ...]:
    try:
        return tuple(int(item) for item in _read_list(value, where))
    except ValueError as problem:
        raise ConfigError(f"{where}: {value!r} is not a list of numbers", "e.g. 0", f"correct {where}") from problem


_READ: Final[Mapping[Kind, Callable[[Any, str], Any]]] = {
    Kind.BOOL: read_bool,
    Kind.TEXT: lambda value, _where: str(value),
    Kind.CHOICE: lambda value, _where: str(value).strip(),
    Kind.LIST: _read_list,
    Kind.INTS: _read_ints,
}


def _checked(flag: Flag, value: Any, where: str) -> Any:
    if flag.choices:
        for item in value if isinstance(value, tuple) else (value,):
            if item not in flag.choices:
                raise ConfigError(
                    f"{where}: {flag.invalid}{item}",
                    f"one of {', '.join(flag.choices)}",
                    did_you_mean(item, flag.choices) or f"correct {where}",
                )
    if flag.attr == "list_strategies" and not value:
        raise ConfigError(f"{where}: {flag.invalid}", f"one of {', '.join(flag.choices)}", f"correct or unset {where}")
    if flag.attr == "imex_channel_ids" and value not in {(), (0,)}:
        found = " ".join(map(str, value))
        raise ConfigError(
            f"{where}: invalid IMEX channel IDs: invalid IMEX config: channelIDs must be [] or [0]; found [{found}]",
            "no channel, or channel 0",
            f"correct {where}",
        )
    return value


def _check_together(settings: Settings) -> None:
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


def without_effect(settings: Settings) -> list[Advice]:
    """What was asked for and changes nothing."""
    return [
        Advice(
            subject=flag.flag,
            what=f"{flag.flag} has no effect",
            why=flag.idle,
            evidence=(f"{flag.flag}: {getattr(settings, flag.attr)!r}",),
            severity=Severity.WARNING,
            remedy=f"take {' or '.join(filter(None, (flag.flag, *flag.envs, flag.key)))} out",
            reason="SettingWithoutEffect",
        )
        for flag in FLAGS
        if flag.idle and getattr(settings, flag.attr) != flag.default
    ]


def printable(settings: Settings) -> dict[str, Any]:
    """The settings in force in the config file's shape, for the JSON that is printed at the start."""
    tree: dict[str, Any] = {"version": "v1", "flags": {}, "resources": {}, "sharing": {}, "imex": {}}
    for flag in sorted(FLAGS, key=lambda flag: flag.key.count(".")):
        if not flag.key:
            continue
        *folders, leaf = flag.key.split(".")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        value = getattr(settings, flag.attr)
        place[leaf] = list(value) if isinstance(value, tuple) else value
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
