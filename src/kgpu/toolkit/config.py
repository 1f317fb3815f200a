"""Settings of ``kgpu cdi generate``: mode, names, kind, devices, hooks, features, output.

Checked here, so that a typo never reaches a spec: unknown words are errors with a suggestion, and lists may repeat or
be separated by commas, as the replaced program takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.formats.cdi import FORMATS, VERSIONS, kind_of
from kgpu.formats.names import CDI_DIR, CDI_STATIC_DIR, NVIDIA_DOMAIN
from kgpu.formats.settings import read_list
from kgpu.host.driver.model import Search

STRATEGIES: Final = ("index", "uuid", "type-index")
DEFAULT_STRATEGIES: Final = ("index", "uuid")
SPEC_DIRS: Final = (CDI_STATIC_DIR, CDI_DIR)
AUTO: Final = "auto"
NVML: Final = "nvml"
MODES: Final = (AUTO, "csv", "gdrcopy", "gds", "imex", "management", "mofed", NVML, "nvswitch", "wsl")
ALL: Final = "all"
NONE: Final = "none"
HOOKS: Final = (
    "create-symlinks",
    "enable-cuda-compat",
    "update-ldcache",
    "disable-device-node-modification",
    "update-application-profile",
    "chmod",
)
CSV_FOLDER: Final = "/etc/nvidia-container-runtime/host-files-for-container.d"
CSV_FILES: Final = tuple(f"{CSV_FOLDER}/{name}.csv" for name in ("devices", "drivers", "l4t"))
ORIN_COMPAT: Final = "/usr/local/cuda/compat_orin"

EXPLICIT_LIBRARIES: Final = "enable-explicit-driver-libraries"
COHERENT: Final = "enable-coherent-annotations"
ONE_CSV_DEVICE: Final = "disable-multiple-csv-devices"
NO_GIDS: Final = "no-additional-gids-for-device-nodes"
NO_IPC: Final = "disable-ipc-discoverer"
# What it switched is not used at all: devices are found through NVML.
NO_SANDBOXUTILS: Final = "disable-nvsandboxutils"
FEATURES: Final = (EXPLICIT_LIBRARIES, COHERENT, ONE_CSV_DEVICE, NO_GIDS, NO_IPC, NO_SANDBOXUTILS)
_FEATURE_SPELLINGS: Final = {"disable-nvsandbox-utils": NO_SANDBOXUTILS}


@dataclass(frozen=True, slots=True, kw_only=True)
class HookConfig:
    """Hooks in specs. ``path`` is the helper's on the host: a path, a program's name to look for, or "" for the usual.

    ``enabled`` wins over ``disabled``, which may say ``all``. ``ldconfig`` is handed to the helper as it is.
    """

    path: str = ""
    ldconfig: str = ""
    disabled: frozenset[str] = frozenset()
    enabled: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvConfig:
    """Mode ``csv``: its files (inside the driver root), links to leave out, where the compatibility libraries are."""

    files: tuple[str, ...] = CSV_FILES
    ignore: tuple[str, ...] = ()
    compat_root: str = ORIN_COMPAT


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateConfig:
    """``strategies`` name each device once per entry, in this order.

    ``kind`` is vendor/class; empty, each mode's own, of which ``vendor`` and ``device_class`` replace the halves.
    ``hooks`` None: free of hooks. ``allow_incomplete``: what can't be offered whole is left out with a note, instead of
    being an error. ``newest`` is the newest CDI version that may be written, "" for what the engines need.
    ``annotate`` records the driver version and the boot in the spec.
    """

    kind: str = ""
    strategies: tuple[str, ...] = DEFAULT_STRATEGIES
    all_device: bool = True
    vendor: str = ""
    device_class: str = ""
    mode: str = NVML
    device_ids: tuple[str, ...] = (ALL,)
    features: frozenset[str] = frozenset()
    search: Search = field(default_factory=Search)
    hooks: HookConfig | None = None
    csv: CsvConfig = field(default_factory=CsvConfig)
    allow_incomplete: bool = True
    newest: str = ""
    annotate: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """Where a spec goes (None: standard output) and in which form."""

    path: Path | None
    form: str


def generate_config(
    *,
    vendor: str = "",
    device_class: str = "",
    strategies: Sequence[str] = (),
    all_device: bool = True,
    mode: str = NVML,
    device_ids: Sequence[str] = (),
    features: Sequence[str] = (),
    library_dirs: Sequence[str] = (),
    config_dirs: Sequence[str] = (),
    hooks: HookConfig | None = None,
    csv: CsvConfig | None = None,
    allow_incomplete: bool = True,
    newest: str = "",
    annotate: bool = False,
) -> GenerateConfig:
    """Checked settings. Raises ConfigError; every list may hold comma-separated lists."""
    chosen = split(strategies) or DEFAULT_STRATEGIES
    wanted = tuple(_FEATURE_SPELLINGS.get(word, word) for word in split(features))
    lowered = mode.lower() or AUTO
    checks = (
        ("device name strategy", chosen, STRATEGIES),
        ("mode", (lowered,), MODES),
        ("feature flag", wanted, FEATURES),
        ("CDI version", (newest,) if newest else (), VERSIONS),
    )
    for what, words, known in checks:
        for word in words:
            if word not in known:
                raise unknown(what, word, known)
    kind_of(vendor or NVIDIA_DOMAIN, device_class or "gpu")  # each half is checked, given alone or not
    ids = split(device_ids) or (ALL,)
    return GenerateConfig(
        kind=kind_of(vendor, device_class) if vendor and device_class else "",
        strategies=chosen,
        all_device=all_device and NONE not in ids,
        vendor=vendor,
        device_class=device_class,
        mode=lowered,
        device_ids=ids,
        features=frozenset(wanted),
        search=Search(
            library_dirs=split(library_dirs),
            config_dirs=split(config_dirs),
            ipc=NO_IPC not in wanted,
            explicit_libraries=EXPLICIT_LIBRARIES in wanted,
        ),
        hooks=hooks,
        csv=csv or CsvConfig(),
        allow_incomplete=allow_incomplete,
        newest=newest,
        annotate=annotate,
    )


def hook_config(
    *, path: str = "", ldconfig: str = "", disabled: Sequence[str] = (), enabled: Sequence[str] = ()
) -> HookConfig:
    """Checked settings of hooks. Raises ConfigError on an unknown hook, on enabling ``all``, on a relative path."""
    off, on = split(disabled), split(enabled)
    for word in (*off, *on):
        if word not in (*HOOKS, ALL):
            raise unknown("hook", word, (*HOOKS, ALL))
    if ALL in on:
        raise ConfigError(
            "all hooks can't be enabled at once", f"one of: {', '.join(HOOKS)}", "name the hooks to enable one by one"
        )
    for flag, value in (("--nvidia-cdi-hook-path", path), ("--ldconfig-path", ldconfig)):
        if "/" in value and not value.startswith("/"):
            raise ConfigError(
                f'{flag} "{value}" is a relative path',
                "a path that means the same program wherever the engine starts it",
                "give an absolute path",
            )
    return HookConfig(path=path, ldconfig=ldconfig, disabled=frozenset(off), enabled=frozenset(on))


def csv_config(*, files: Sequence[str] = (), ignore: Sequence[str] = (), compat_root: str = "") -> CsvConfig:
    """Checked settings of mode ``csv``. Raises ConfigError on a file that isn't an absolute path."""
    chosen = split(files) or CSV_FILES
    for path in (*chosen, *((compat_root,) if compat_root else ())):
        if not path.startswith("/"):
            raise ConfigError(f'"{path}" is a relative path', "an absolute path", "correct --csv.file")
    return CsvConfig(files=chosen, ignore=split(ignore), compat_root=compat_root or ORIN_COMPAT)


def output(path: str, form: str) -> Output:
    """The file and form: an unset form follows the file's extension, and a file gets one when it has neither.

    A form and an extension that contradict each other are an error (the replaced program only warned).
    """
    form = form.lower()
    if form and form not in FORMATS:
        raise unknown("format", form, FORMATS)
    if not path or path == "-":
        return Output(None, form or "yaml")
    if path in {*FORMATS, "text"}:
        raise ConfigError(
            f"--output {path} names the file to write, not its form",
            "a file such as /var/run/cdi/nvidia.yaml",
            f"for the report as JSON use -o json, for the spec's form --format, for a file of that name ./{path}",
        )
    by_extension = {".yaml": "yaml", ".yml": "yaml", ".json": "json"}.get(Path(path).suffix.lower(), "")
    if form and by_extension and form != by_extension:
        raise ConfigError(
            f"--format {form} contradicts the extension of {path}", f"a file that ends in .{form}", "change one of both"
        )
    chosen = form or by_extension or "yaml"
    # Runtimes read *.yaml and *.json only.
    keeps = Path(path).suffix in {".yaml", ".json"}
    return Output(Path(path if keeps else f"{path}.{chosen}"), chosen)


def split(items: Sequence[str]) -> tuple[str, ...]:
    """The words of repeated and comma-separated lists, each once, without blanks around them."""
    return read_list(items, "")


def unknown(what: str, value: str, known: Sequence[str]) -> ConfigError:
    """The error about a word that is not one of the known ones."""
    hint = did_you_mean(value, known)
    return ConfigError(
        f'there is no {what} "{value}"{"; " if hint else ""}{hint}', f"one of: {', '.join(known)}", "choose one"
    )
