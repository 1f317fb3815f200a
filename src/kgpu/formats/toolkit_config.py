"""The container toolkit's ``config.toml``: every key with its type and default, read, changed, written.

Promises: what is written reads back to the same settings, and writing twice gives the same bytes; an unknown key, a
wrong type or a value that nothing understands is an error with what was probably meant; no input makes the reader
crash or work for long (size, line and nesting are bounded before tomllib sees them). Keys are written with their
tables, ``nvidia-container-cli.root``. Source of keys, defaults and comments: the toolkit's own default file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.names import CDI_ANNOTATION_PREFIX, CDI_DIR, CDI_NVIDIA_KIND, CDI_STATIC_DIR, DRIVER_INSTALL_DIR
from kgpu.formats.toolkit_values import Value, ValueKind, check_value, read_text, toml

MAX_BYTES: Final = 64 * 1024
MAX_LINE: Final = 4096
MAX_DOTS: Final = 100
"""Per line: tomllib's work grows with the square of the parts of a dotted key."""

DEFAULT_PATH: Final = "/etc/nvidia-container-runtime/config.toml"
CSV_FOLDER: Final = "/etc/nvidia-container-runtime/host-files-for-container.d"
CAPABILITIES: Final = ("compat32", "compute", "display", "graphics", "ngx", "utility", "video")
SETTING_DEFAULTS: Final = "config.toml"


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. ``default`` None: not there unless set. ``sample``: how the emitted file shows it in a comment."""

    name: str
    kind: ValueKind
    default: Value | None = None
    sample: Value | None = None
    choices: tuple[str, ...] = ()


_CLI: Final = "nvidia-container-cli"
_RUNTIME: Final = "nvidia-container-runtime"
_CSV: Final = f"{_RUNTIME}.modes.csv"
_CDI: Final = f"{_RUNTIME}.modes.cdi"
_JIT: Final = f"{_RUNTIME}.modes.jit-cdi"
_LEGACY: Final = f"{_RUNTIME}.modes.legacy"
_HOOK: Final = "nvidia-container-runtime-hook"
_LEVELS: Final = ("trace", "debug", "info", "warning", "warn", "error", "fatal", "panic")
_FEATURES: Final = (
    "allow-cuda-compat-libs-from-container", "allow-ldconfig-from-container", "allow-unknown-oci-spec-fields",
    "disable-cuda-compat-lib-hook", "disable-imex-channel-creation", "ignore-imex-channel-requests",
    "no-additional-gids-for-device-nodes",
)  # fmt: skip
ALLOW_LDCONFIG: Final = "features.allow-ldconfig-from-container"

KEYS: Final = (
    Key("accept-nvidia-visible-devices-as-volume-mounts", ValueKind.BOOL, default=False, sample=False),
    Key("accept-nvidia-visible-devices-envvar-when-unprivileged", ValueKind.BOOL, default=True, sample=True),
    Key("disable-require", ValueKind.BOOL, default=False),
    Key("supported-driver-capabilities", ValueKind.CAPABILITIES, default=",".join(CAPABILITIES), choices=CAPABILITIES),
    Key("swarm-resource", ValueKind.TEXT, default="", sample="DOCKER_RESOURCE_GPU"),
    Key(f"{_CLI}.debug", ValueKind.TEXT, default="", sample="/var/log/nvidia-container-toolkit.log"),
    Key(f"{_CLI}.environment", ValueKind.LIST, default=()),
    Key(f"{_CLI}.ldcache", ValueKind.TEXT, default="", sample="/etc/ld.so.cache"),
    Key(f"{_CLI}.ldconfig", ValueKind.TEXT, default="@/sbin/ldconfig"),
    Key(f"{_CLI}.load-kmods", ValueKind.BOOL, default=True),
    Key(f"{_CLI}.no-cgroups", ValueKind.BOOL, default=False, sample=False),
    Key(f"{_CLI}.no-pivot", ValueKind.BOOL),
    Key(f"{_CLI}.path", ValueKind.TEXT, default="", sample="/usr/bin/nvidia-container-cli"),
    Key(f"{_CLI}.root", ValueKind.TEXT, default="", sample=DRIVER_INSTALL_DIR),
    Key(f"{_CLI}.user", ValueKind.TEXT, default="", sample="root:video"),
    Key(f"{_RUNTIME}.debug", ValueKind.TEXT, default="/dev/null", sample="/var/log/nvidia-container-runtime.log"),
    Key(f"{_RUNTIME}.log-level", ValueKind.TEXT, default="info", choices=_LEVELS),
    Key(f"{_RUNTIME}.mode", ValueKind.TEXT, default="auto", choices=("auto", "cdi", "csv", "jit-cdi", "legacy")),
    Key(f"{_RUNTIME}.runtimes", ValueKind.LIST, default=("runc", "crun")),
    Key(f"{_CDI}.annotation-prefixes", ValueKind.LIST, default=(CDI_ANNOTATION_PREFIX,)),
    Key(f"{_CDI}.default-kind", ValueKind.CDI_KIND, default=CDI_NVIDIA_KIND),
    Key(f"{_CDI}.spec-dirs", ValueKind.LIST, default=(CDI_STATIC_DIR, CDI_DIR)),
    Key(f"{_CSV}.compat-container-root", ValueKind.TEXT),
    Key(f"{_CSV}.mount-spec-path", ValueKind.TEXT, default=CSV_FOLDER),
    Key(f"{_JIT}.nvcdi-disable-hooks", ValueKind.LIST),
    Key(f"{_JIT}.nvcdi-feature-flags", ValueKind.LIST),
    Key(f"{_LEGACY}.cuda-compat-mode", ValueKind.TEXT, default="ldconfig",
        choices=("disabled", "hook", "ldconfig", "mount")),
    Key(f"{_HOOK}.path", ValueKind.TEXT, default=_HOOK),
    Key(f"{_HOOK}.skip-mode-detection", ValueKind.BOOL, default=False),
    Key("nvidia-ctk.path", ValueKind.TEXT, default="nvidia-ctk"),
    *(Key(f"features.{name}", ValueKind.OPTIONAL_BOOL) for name in _FEATURES),
)  # fmt: skip
BY_NAME: Final = {key.name: key for key in KEYS}

# Keys of earlier versions, still in files on nodes. They are read, have no effect, and are not written again.
OBSOLETE: Final = (
    f"{_RUNTIME}.experimental", f"{_RUNTIME}.discover-mode", "features.gds", "features.mofed", "features.nvswitch",
    "features.gdrcopy", "features.no-persistenced", "features.disable-nvsandbox-utils",
)  # fmt: skip
_TABLES: Final = {name.rpartition(".")[0] for name in (*BY_NAME, *OBSOLETE)} | {f"{_RUNTIME}.modes"}


@dataclass(frozen=True, slots=True)
class HostDefaults:
    """What the defaults take from the host: its ldconfig, and the user under which a SUSE runs the driver's tools."""

    ldconfig: str = "@/sbin/ldconfig"
    user: str = ""


@dataclass(frozen=True, slots=True)
class ToolkitConfig:
    """Settings: ``given`` are those that a file or a person set, all others have their default."""

    given: Mapping[str, Value] = field(default_factory=dict)
    host: HostDefaults = HostDefaults()
    notes: tuple[str, ...] = ()

    def value(self, name: str) -> Value | None:
        """The setting or its default; None for one that has neither. Raises KeyError for a name that is no key."""
        key = BY_NAME[name]
        if name in self.given:
            return self.given[name]
        return {f"{_CLI}.ldconfig": self.host.ldconfig, f"{_CLI}.user": self.host.user}.get(name, key.default)

    def text(self, name: str) -> str:
        """A text setting; "" when unset."""
        value = self.value(name)
        return value if isinstance(value, str) else ""

    def flag(self, name: str) -> bool:
        """A boolean setting; False when unset."""
        return self.value(name) is True

    def items(self, name: str) -> tuple[str, ...]:
        """A list setting; empty when unset."""
        value = self.value(name)
        return value if isinstance(value, tuple) else ()


def parse_config(
    text: str | bytes, *, source: str = SETTING_DEFAULTS, host: HostDefaults | None = None
) -> ToolkitConfig:
    """The settings in a TOML text. Raises ConfigError that names every problem found."""
    data = _toml(text, source)
    problems: list[str] = []
    values: dict[str, Value] = {}
    notes: list[str] = []
    for name, raw in _flat(data):
        key = BY_NAME.get(name)
        if key is not None:
            value, problem = check_value(key.kind, raw, key.choices)
            if value is not None:
                values[name] = value
            problems += [f"{name}: {problem}"] if problem else []
        elif name in OBSOLETE:
            notes.append(f"{source}: {name} has no effect any more; it can be removed")
        else:
            problems.append(_unknown(name))
    config = ToolkitConfig(values, host or HostDefaults(), tuple(notes))
    problems += _contradictions(config)
    if problems:
        shown = problems[:10] + ([f"and {len(problems) - 10} more"] if len(problems) > 10 else [])
        raise ConfigError(
            f"{source}: {'; '.join(shown)}", "the toolkit's config.toml", "correct or remove these settings"
        )
    return config


def set_values(config: ToolkitConfig, settings: Sequence[str], *, separator: str = ":") -> ToolkitConfig:
    """The config after ``key=value`` settings, in order.

    A boolean's key alone means true; a list is split at ``separator``, at commas when that is not in it; a feature
    takes ``nil``, which removes it. Raises ConfigError.
    """
    values = dict(config.given)
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = name.strip()
        key = BY_NAME.get(name)
        if key is None:
            raise ConfigError(f"--set {name:.100}: {_unknown(name)}", "a key of config.toml", "correct the key")
        if key.kind is ValueKind.OPTIONAL_BOOL and text == "nil":
            values.pop(name, None)
            continue
        raw, problem = read_text(key.kind, text if equals else None, separator)
        value, refused = (None, problem) if problem else check_value(key.kind, raw, key.choices)
        if value is None:
            raise ConfigError(f"--set {setting:.200}: {refused}", f"{key.kind} for {name}", "correct the value")
        values[name] = value
    changed = ToolkitConfig(values, config.host, config.notes)
    problems = _contradictions(changed)
    if problems:
        raise ConfigError(f"--set: {'; '.join(problems)}", "settings that fit together", "correct the values")
    return changed


def dump_config(config: ToolkitConfig) -> str:
    """The file's text: every setting by name, tables in order; what is unset and optional as ``#key = sample``."""
    by_table: dict[str, list[str]] = {table: [] for table in sorted(_TABLES, key=lambda table: table.split("."))}
    for key in sorted(KEYS, key=lambda key: key.name):
        table, _, name = key.name.rpartition(".")
        line = _line(config, key, name)
        by_table[table] += [line] if line else []
    lines = list(by_table.pop(""))
    for table, content in by_table.items():
        # A table is shown when it has settings, or when tables with settings lie below it.
        if content or any(rest.startswith(f"{table}.") and below for rest, below in by_table.items()):
            lines += ["", f"[{table}]", *content]
    return "\n".join(lines) + "\n"


def _line(config: ToolkitConfig, key: Key, name: str) -> str:
    value = config.value(key.name)
    if key.sample is not None and value == key.default and (key.name not in config.given or value == ""):
        return f"#{name} = {toml(key.sample)}"
    # A key without a default says nothing when it is off.
    off = key.default is None and key.kind is ValueKind.BOOL and value is False
    return "" if value is None or off else f"{name} = {toml(value)}"


def _contradictions(config: ToolkitConfig) -> list[str]:
    ldconfig = config.text(f"{_CLI}.ldconfig")
    if not ldconfig or ldconfig.startswith("@") or config.flag(ALLOW_LDCONFIG):
        return []
    return [f"{_CLI}.ldconfig: {ldconfig:.100} would be the container's own program, run as root; @ means the host's"]


def _unknown(name: str) -> str:
    if name and name in _TABLES:
        return f"{name}: this is a table of settings and no value"
    hint = did_you_mean(name[:100], BY_NAME)
    if not hint:
        leaf = name.rpartition(".")[2]
        home = next((key for key in BY_NAME if key.rpartition(".")[2] == leaf), "")
        hint = f'did you mean "{home}"?' if home else ""
    return f'unknown key "{name[:100]}"' + (f"; {hint}" if hint else "")


def _flat(data: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values; what lies in a table that isn't known is named once, by the table."""
    for key, value in data.items():
        name = f"{above}{key}"
        if "." in key:
            yield f'{above}"{key}"', value  # a quoted key with dots in it is not the nested one
        elif isinstance(value, dict) and name in _TABLES:
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _toml(text: str | bytes, source: str) -> dict[str, Any]:
    remedy = "correct the file"
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{source} has more than {MAX_BYTES} bytes", "a config.toml", "make it smaller")
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8 (byte {error.start})", "TOML in UTF-8", remedy) from error
    for number, line in enumerate(re.split(r"\r?\n", decoded), 1):
        if len(line) > MAX_LINE or line.count(".") > MAX_DOTS:
            raise ConfigError(
                f"{source}, line {number} has more than {MAX_LINE} characters or {MAX_DOTS} dots",
                "short lines",
                "write lists over several lines",
            )
    try:
        return tomllib.loads(decoded)
    except RecursionError as error:
        raise ConfigError(f"{source} is nested too deeply", "TOML of a few levels", remedy) from error
    except ValueError as error:
        raise ConfigError(f"{source} is not TOML: {str(error)[:200]}", "well-formed TOML", remedy) from error
