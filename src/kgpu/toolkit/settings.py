"""Settings of the toolkit role from its environment: the replaced installer's variables, as rows.

Paths are the host's. What is not set is found on the node. Variables about what kgpu does not install (a runtime shim,
hooks, programs) are accepted, with a warning where they ask for anything but what is so anyway.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from kgpu.base.advice import Advice
from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats import names, settings
from kgpu.formats.names import CDI_MANAGEMENT_KIND, CDI_NVIDIA_KIND
from kgpu.formats.settings import Setting, read_list
from kgpu.host.engines.model import NVIDIA_HANDLERS, Engine, EngineOffer, RuntimeHandler

RESTART_MODES: Final = ("signal", "systemd", "none")
MAX_OVERRIDE: Final = 1 << 16
"""Bytes of RUNTIME_CONFIG_OVERRIDE; options of a runtime handler take a few hundred."""
_TRUE: Final = frozenset({"1", "t", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "f", "false", "no", "off"})
_HANDLER: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_ENGINES: Final = {"containerd": Engine.CONTAINERD, "crio": Engine.CRIO, "cri-o": Engine.CRIO, "docker": Engine.DOCKER}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitSettings:
    """``configure``: edit the container engine's config at all; ``why_not`` says why it is left alone.

    ``engine``, ``config``, ``drop_in`` and ``socket`` are None or "" where the node decides; ``drop_in`` "" means the
    main file itself. ``restart`` is signal, systemd or none, "" for what suits the engine. ``runtime`` is the handler's
    name that the RuntimeClass of the policy has. ``control_nodes``: make the driver's control device nodes that are
    missing. ``links``: keep the links in /dev/char to device nodes. ``annotations`` are prefixes that the engine hands
    through.
    """

    configure: bool = True
    why_not: str = ""
    engine: Engine | None = None
    config: str = ""
    drop_in: str | None = None
    socket: str = ""
    restart: str = ""
    runtime: str = "nvidia"
    default: bool = False
    cdi: bool = True
    cdi_dir: str = ""
    annotations: tuple[str, ...] = ()
    runtime_type: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    control_nodes: bool = True
    links: bool = True
    without_effect: tuple[Advice, ...] = ()

    @property
    def handlers(self) -> tuple[str, ...]:
        """The names of the runtime handlers, the policy's own first."""
        return tuple(dict.fromkeys((self.runtime, *NVIDIA_HANDLERS)))

    def wanted(self) -> EngineOffer:
        """What the engine shall offer."""
        usual = EngineOffer()
        return EngineOffer(
            handlers=tuple(RuntimeHandler(name) for name in self.handlers),
            default=self.runtime if self.default else "",
            cdi=self.cdi,
            cdi_dirs=tuple(dict.fromkeys((*usual.cdi_dirs, *filter(None, (self.cdi_dir,))))),
            annotations=self.annotations,
            runtime_type=self.runtime_type or usual.runtime_type,
            options=self.options,
        )


def _bool(text: str, name: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE | _FALSE:
        return word in _TRUE
    raise _wrong(name, text, "true or false")


def _not(text: str, name: str) -> bool:
    return not _bool(text, name)


def _engine(text: str, name: str) -> Engine:
    found = _ENGINES.get(text.strip().lower())
    if found is None:
        raise _wrong(name, text, "containerd, crio or docker", known=tuple(_ENGINES))
    return found


def _restart(text: str, name: str) -> str:
    word = text.strip().lower()
    if word not in RESTART_MODES:
        raise _wrong(name, text, "signal, systemd or none", known=RESTART_MODES)
    return word


def _path(text: str, name: str) -> str:
    path = text.strip()
    if not path.startswith("/") or ".." in path.split("/") or set(path) & set("\0\n"):
        raise _wrong(name, text, "an absolute path on the host without `..`")
    return path


def _path_or_none(text: str, name: str) -> str:
    return _path(text, name) if text.strip() else ""


def _socket(text: str, name: str) -> str:
    return _path(text.strip().removeprefix("unix://"), name)


def _handler(text: str, name: str) -> str:
    word = text.strip()
    if not _HANDLER.fullmatch(word):
        raise _wrong(name, text, "the name of a runtime handler: lower-case letters, digits and dashes")
    return word


def _text(text: str, name: str) -> str:
    del name
    return text.strip()


def _control(text: str, name: str) -> bool:
    words = read_list(text, name)
    unknown = [word for word in words if word not in {"control", "none"}]
    if unknown:
        raise _wrong(name, unknown[0], "control, or none", known=("control", "none"))
    return "control" in words


def _options(text: str, name: str) -> Mapping[str, Any]:
    if not text.strip():
        return {}
    try:
        found = json.loads(text) if len(text) <= MAX_OVERRIDE else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _wrong(name, text, 'a JSON object of a handler\'s options, such as {"options": {"SystemdCgroup": true}}')
    return found


OPTIONS: Final = (
    Setting(attr="configure", envs=("NO_RUNTIME_CONFIG",), read=_not, default="false", reads_default=True,
            help="true: the engine's config is left alone, and what it lacks is told."),
    Setting(attr="engine", envs=("RUNTIME",), read=_engine, default=None,
            help="The engine: containerd, crio or docker. Default: the kubelet's."),
    Setting(attr="config", envs=("RUNTIME_CONFIG", "CONTAINERD_CONFIG", "DOCKER_CONFIG", "CRIO_CONFIG"), read=_path,
            help="The engine's main config file. Default: where it is found."),
    Setting(attr="drop_in", envs=("RUNTIME_DROP_IN_CONFIG",), read=_path_or_none, default=None, empty_counts=True,
            help="kgpu's own file beside the main one; empty: the main file is edited. Default: the engine's usual."),
    Setting(attr="socket", envs=("RUNTIME_SOCKET", "CONTAINERD_SOCKET", "DOCKER_SOCKET", "CRIO_SOCKET"), read=_socket,
            help="The engine's socket. Default: where it is found."),
    Setting(attr="restart", envs=("RUNTIME_RESTART_MODE", "CONTAINERD_RESTART_MODE", "DOCKER_RESTART_MODE"),
            read=_restart,
            help="How the engine is made to read a changed config: signal, systemd, or none, with which the node waits "
            "for somebody to restart it. Default: signal; for CRI-O systemd."),
    Setting(attr="runtime", envs=("NVIDIA_RUNTIME_NAME", "CONTAINERD_RUNTIME_CLASS", "DOCKER_RUNTIME_NAME"),
            read=_handler, default="nvidia",
            help="The first handler's name; the operator gives operator.runtimeClass."),
    Setting(attr="default", read=_bool, default=False,
            envs=("NVIDIA_RUNTIME_SET_AS_DEFAULT", "CONTAINERD_SET_AS_DEFAULT", "DOCKER_SET_AS_DEFAULT"),
            help="true: it becomes the engine's default handler."),
    Setting(attr="cdi", envs=("RUNTIME_ENABLE_CDI",), read=_bool, default=True,
            help="Turn the engine's CDI on; false: it is left as it is."),
    Setting(attr="cdi_dir", envs=("CDI_OUTPUT_DIR",), read=_path,
            help="One more folder in which the engine looks for CDI specs."),
    Setting(attr="annotations", envs=("NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES",), read=read_list,
            default=(), help="Prefixes of the annotations that the engine hands through to the handlers."),
    Setting(attr="runtime_type", envs=("CONTAINERD_RUNTIME_TYPE",), read=_text,
            help="The handlers' type. Default: that of the engine's default runtime."),
    Setting(attr="options", envs=("RUNTIME_CONFIG_OVERRIDE", "CONTAINERD_RUNTIME_CONFIG_OVERRIDE"), read=_options,
            default=MappingProxyType({}),
            help='More keys of the handlers, as JSON: {"options": {"SystemdCgroup": true}}.'),
    Setting(attr="links", envs=(names.ENV_NO_DEVICE_LINKS,), read=_not, default="false", reads_default=True,
            help="true: no links to device nodes are made in /dev/char."),
    Setting(attr="control_nodes", envs=("CREATE_DEVICE_NODES",), read=_control, default="control", reads_default=True,
            empty_counts=True, help="control: the driver's control nodes are made where they are missing; none: not."),
)  # fmt: skip


def _lower(text: str, name: str) -> str:
    del name
    return text.strip().lower()


def _without(why: str, *envs: str, usual: tuple[str, ...] = ()) -> Setting:
    return Setting(attr=envs[0].lower(), envs=envs, read=_lower, idle=why, usual=usual)


_CDI: Final = "containers get their devices through CDI"
_NO_SHIM: Final = "kgpu installs no container runtime of its own: the engine's runs with CDI"
_NO_HOOK: Final = "kgpu's CDI specs have no hooks"
_NOTHING: Final = "kgpu installs no programs on the host"
_IN_FILES: Final = "the engine's config is read from its files"
_NO_NRI: Final = f"only the NRI plugin hears containers' variables and mounts, and {names.ENV_NRI_ENABLED} is not true"

OF_NRI: Final = (
    _without(_NO_NRI, names.ENV_ACCEPT_BY_ENV, usual=("true",)),
    _without(_NO_NRI, names.ENV_ACCEPT_BY_MOUNTS, usual=("false",)),
)
"""Variables of the replaced installer that are settings of the NRI plugin, and change nothing without it."""

WITHOUT: Final = (
    _without(_CDI, "NVIDIA_CONTAINER_RUNTIME_MODE", usual=("auto", "cdi", "jit-cdi")),
    _without(_CDI, "CDI_ENABLED", "ENABLE_CDI", usual=("true", "1", "t")),
    _without("CRI-O injects CDI devices itself, without hooks", "CRIO_CONFIG_MODE", usual=("config",)),
    _without("CRI-O injects CDI devices itself, without hooks", "CRIO_HOOKS_DIR"),
    _without("CRI-O injects CDI devices itself, without hooks", "CRIO_HOOK_FILENAME"),
    _without("the version of containerd's config is found", "CONTAINERD_USE_LEGACY_CONFIG", usual=("false",)),
    _without("kgpu's specs are of the kinds nvidia.com/gpu and management.nvidia.com/gpu", "CDI_KIND",
             usual=(CDI_MANAGEMENT_KIND, CDI_NVIDIA_KIND)),
    _without(_NO_SHIM, "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND",
             usual=(CDI_MANAGEMENT_KIND, CDI_NVIDIA_KIND)),
    _without(_NO_SHIM, "NVIDIA_CONTAINER_RUNTIME_DEBUG"),
    _without(_NO_SHIM, "NVIDIA_CONTAINER_RUNTIME_LOG_LEVEL"),
    _without(_NO_SHIM, "NVIDIA_CONTAINER_RUNTIME_RUNTIMES"),
    _without(_NO_SHIM, "NVIDIA_CONTAINER_CLI_DEBUG"),
    _without(_NO_HOOK, "NVIDIA_CONTAINER_RUNTIME_HOOK_SKIP_MODE_DETECTION", usual=("true",)),
    *OF_NRI,
    _without(_NOTHING, "TOOLKIT_INSTALL_DIR", "ROOT", usual=("/usr/local/nvidia",)),
    _without(_NOTHING, "TOOLKIT_SOURCE_ROOT"),
    _without(_NOTHING, "TOOLKIT_PACKAGE_TYPE", usual=("auto",)),
    _without(_NOTHING, "TOOLKIT_PID_FILE", "PID_FILE"),
    _without(_NOTHING, "TOOLKIT_DEBUG", usual=("false",)),
    _without(_NOTHING, "NO_DAEMON", usual=("false",)),
    _without(_NO_SHIM, "NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES"),
    _without("the host's files are written where the agent sees the host", "HOST_ROOT_MOUNT", usual=(names.HOST_ROOT,)),
    _without("paths are the host's everywhere", "RUNTIME_DROP_IN_CONFIG_HOST_PATH"),
    _without(_IN_FILES, "RUNTIME_CONFIG_SOURCES", "RUNTIME_CONFIG_SOURCE", usual=("file",)),
    _without(_IN_FILES, "RUNTIME_EXECUTABLE_PATH"),
)  # fmt: skip
"""Variables of the replaced installer that change nothing here."""


def toolkit_settings(env: Mapping[str, str], *, nri: bool = False) -> ToolkitSettings:
    """The settings in an environment. ``nri``: the NRI plugin gives devices, so the engine's config is left alone.

    Raises ConfigError, which names the variable.
    """
    resolved = settings.resolve(OPTIONS, env=env)
    values = dict(resolved.values)
    config = resolved.given.get("config")
    if values["engine"] is None and config is not None and config.where != "RUNTIME_CONFIG":
        values["engine"] = _ENGINES[config.where.partition("_")[0].lower()]
    if not values["configure"]:
        values["why_not"] = "NO_RUNTIME_CONFIG says so"
    elif nri:
        values |= {"configure": False, "why_not": "the NRI plugin gives containers their devices"}
    rows = [row for row in WITHOUT if not (nri and row in OF_NRI)]
    idle = tuple(settings.without_effect(rows, settings.resolve(rows, env=env)))
    return ToolkitSettings(**values, without_effect=idle)


def _wrong(name: str, text: str, expected: str, *, known: tuple[str, ...] = ()) -> ConfigError:
    hint = did_you_mean(text.strip().lower(), known) if known else ""
    return ConfigError(
        f'{name} is "{text:.80}"{"; " if hint else ""}{hint}',
        expected,
        f"correct {name} (spec.toolkit.env in the ClusterPolicy)",
    )
