"""What the toolkit role is told by its environment: the replaced installer's variables, as rows, checked as a whole.

Paths are the host's. What is not told is found on the node. Variables that only concern files that kgpu does not
install (a runtime shim, hooks) are accepted and named in ``ignored`` when they ask for something else than CDI.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.host.engines.model import NVIDIA_HANDLERS, Engine, Handler, Wanted

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
    missing. ``annotations`` are prefixes that the engine hands through.
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
    ignored: tuple[str, ...] = ()

    @property
    def handlers(self) -> tuple[str, ...]:
        """The names of the runtime handlers, the policy's own first."""
        return tuple(dict.fromkeys((self.runtime, *NVIDIA_HANDLERS)))

    def wanted(self) -> Wanted:
        """What the engine shall offer."""
        usual = Wanted()
        return Wanted(
            handlers=tuple(Handler(name) for name in self.handlers),
            default=self.runtime if self.default else "",
            cdi=self.cdi,
            cdi_dirs=tuple(dict.fromkeys((*usual.cdi_dirs, *filter(None, (self.cdi_dir,))))),
            annotations=self.annotations,
            runtime_type=self.runtime_type or usual.runtime_type,
            options=self.options,
        )


Read = Callable[[str, str], Any]
"""Takes the variable's name and its text; raises ConfigError."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One setting: the field, the variables that give it (the first that is set counts), and how it is read."""

    field: str
    names: tuple[str, ...]
    read: Read


def _bool(name: str, text: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE | _FALSE:
        return word in _TRUE
    raise _wrong(name, text, "true or false")


def _not(name: str, text: str) -> bool:
    return not _bool(name, text)


def _engine(name: str, text: str) -> Engine:
    found = _ENGINES.get(text.strip().lower())
    if found is None:
        raise _wrong(name, text, "containerd, crio or docker", known=tuple(_ENGINES))
    return found


def _restart(name: str, text: str) -> str:
    word = text.strip().lower()
    if word not in RESTART_MODES:
        raise _wrong(name, text, "signal, systemd or none", known=RESTART_MODES)
    return word


def _path(name: str, text: str) -> str:
    path = text.strip()
    if not path.startswith("/") or ".." in path.split("/") or set(path) & set("\0\n"):
        raise _wrong(name, text, "an absolute path on the host without `..`")
    return path


def _path_or_none(name: str, text: str) -> str:
    return _path(name, text) if text.strip() else ""


def _socket(name: str, text: str) -> str:
    return _path(name, text.strip().removeprefix("unix://"))


def _handler(name: str, text: str) -> str:
    word = text.strip()
    if not _HANDLER.fullmatch(word):
        raise _wrong(name, text, "the name of a runtime handler: lower-case letters, digits and dashes")
    return word


def _words(_name: str, text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _text(_name: str, text: str) -> str:
    return text.strip()


def _control(name: str, text: str) -> bool:
    words = _words(name, text)
    unknown = [word for word in words if word not in {"control", "none"}]
    if unknown:
        raise _wrong(name, unknown[0], "control, or none", known=("control", "none"))
    return "control" in words


def _options(name: str, text: str) -> Mapping[str, Any]:
    if not text.strip():
        return {}
    try:
        found = json.loads(text) if len(text) <= MAX_OVERRIDE else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _wrong(name, text, 'a JSON object of a handler\'s options, such as {"options": {"SystemdCgroup": true}}')
    return found


_ROWS: Final = (
    _Row("configure", ("NO_RUNTIME_CONFIG",), _not),
    _Row("engine", ("RUNTIME",), _engine),
    _Row("config", ("RUNTIME_CONFIG", "CONTAINERD_CONFIG", "DOCKER_CONFIG", "CRIO_CONFIG"), _path),
    _Row("drop_in", ("RUNTIME_DROP_IN_CONFIG",), _path_or_none),
    _Row("socket", ("RUNTIME_SOCKET", "CONTAINERD_SOCKET", "DOCKER_SOCKET", "CRIO_SOCKET"), _socket),
    _Row("restart", ("RUNTIME_RESTART_MODE", "CONTAINERD_RESTART_MODE", "DOCKER_RESTART_MODE"), _restart),
    _Row("runtime", ("NVIDIA_RUNTIME_NAME", "CONTAINERD_RUNTIME_CLASS", "DOCKER_RUNTIME_NAME"), _handler),
    _Row(
        "default",
        ("NVIDIA_RUNTIME_SET_AS_DEFAULT", "CONTAINERD_SET_AS_DEFAULT", "DOCKER_SET_AS_DEFAULT"),
        _bool,
    ),
    _Row("cdi", ("RUNTIME_ENABLE_CDI",), _bool),
    _Row("cdi_dir", ("CDI_OUTPUT_DIR",), _path),
    _Row("annotations", ("NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES",), _words),
    _Row("runtime_type", ("CONTAINERD_RUNTIME_TYPE",), _text),
    _Row("options", ("RUNTIME_CONFIG_OVERRIDE", "CONTAINERD_RUNTIME_CONFIG_OVERRIDE"), _options),
    _Row("control_nodes", ("CREATE_DEVICE_NODES",), _control),
)
# Variables whose only meaning is about the replaced runtime shim: the values that kgpu does as they say, and why others
# have no effect.
_SHIM: Final = (
    ("NVIDIA_CONTAINER_RUNTIME_MODE", ("", "auto", "cdi", "jit-cdi"), "containers get their devices through CDI"),
    ("CRIO_CONFIG_MODE", ("", "config"), "CRI-O injects CDI devices itself, without hooks"),
    ("CONTAINERD_USE_LEGACY_CONFIG", ("", "false"), "the version of containerd's config is found"),
)
_MAY_BE_EMPTY: Final = frozenset({"drop_in", "control_nodes"})


def toolkit_settings(env: Mapping[str, str], *, nri: bool = False) -> ToolkitSettings:
    """The settings in an environment. ``nri``: the NRI plugin gives devices, so the engine's config is left alone.

    Raises ConfigError, which names the variable.
    """
    found: dict[str, Any] = {}
    for row in _ROWS:
        name = next((name for name in row.names if name in env and (env[name] or row.field in _MAY_BE_EMPTY)), None)
        if name is not None:
            found[row.field] = row.read(name, env[name])
            if row.field == "config" and name != row.names[0] and "engine" not in found:
                found["engine"] = _ENGINES[name.partition("_")[0].lower()]
    if not found.get("configure", True):
        found["why_not"] = "NO_RUNTIME_CONFIG says so"
    elif nri:
        found |= {"configure": False, "why_not": "the NRI plugin gives containers their devices"}
    ignored = tuple(
        f"{name}={env[name]} has no effect: {why}"
        for name, done, why in _SHIM
        if env.get(name, "").strip().lower() not in done
    )
    return ToolkitSettings(**found, ignored=ignored)


def _wrong(name: str, text: str, expected: str, *, known: tuple[str, ...] = ()) -> ConfigError:
    hint = did_you_mean(text.strip().lower(), known) if known else ""
    return ConfigError(
        f'{name} is "{text:.80}"{"; " if hint else ""}{hint}',
        expected,
        f"correct {name} (spec.toolkit.env in the ClusterPolicy)",
    )
