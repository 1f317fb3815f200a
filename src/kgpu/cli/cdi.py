"""``kgpu cdi``: the CDI specs through which containers get their accelerators; here ``generate``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kgpu.cli._common import ExampleCommand, print_json, run_async
from kgpu.cli.main import CommandEntry, LazyGroup
from kgpu.formats.names import ENV_HOST_ROOT

if TYPE_CHECKING:
    from kgpu.host.root import DriverRoot
    from kgpu.hw.port import Inventory
    from kgpu.hw.quick import QuickReading
    from kgpu.toolkit.config import GenerateConfig, Output
    from kgpu.toolkit.model import Generated

GENERATE_EXAMPLES: Final = """
kgpu cdi generate --output /var/run/cdi/nvidia.yaml
kgpu cdi generate --mode management --output /var/run/cdi/management.nvidia.com-gpu.yaml
kgpu cdi generate --driver-root /run/nvidia/driver --format json
kgpu cdi generate --device-id 0 --device-id 1:0 --device-name-strategy uuid
kgpu cdi generate --hooks --report - --output nvidia.yaml
"""
ENTRIES: Final = (
    CommandEntry("generate", "kgpu.cli.cdi", "generate", "Write a spec for this node's devices."),
    CommandEntry("list", "kgpu.cli.cdi_tools", "list_", "Print the devices that a runtime can resolve."),
    CommandEntry("transform", "kgpu.cli.cdi_tools", "transform", "Change a spec: move the root of its paths."),
    CommandEntry("validate", "kgpu.cli.cdi_tools", "validate", "Hold specs against CDI's rules and this node."),
)
_PREFIX: Final = "NVIDIA_CTK_CDI_GENERATE_"
ENV_SPEC_DIRS: Final = "NVIDIA_CTK_CDI_SPEC_DIRS"
RUN_DIR: Final = "/run/cdi"
_WITH_GPUS: Final = ("auto", "nvml", "csv")
TEXT, LIST, FLAG = "text", "list", "flag"


@dataclass(frozen=True, slots=True)
class CdiOption:
    """One option: the parameter's name, its spellings, how it is given, its variable, what it means."""

    name: str
    flags: tuple[str, ...]
    shape: str
    metavar: str
    env: str
    help: str


OPTIONS: Final = (
    CdiOption("mode", ("--mode", "--discovery-mode"), TEXT, "MODE", f"{_PREFIX}MODE",
              "What to look for: nvml, management, csv, wsl, gds, gdrcopy, mofed, nvswitch, imex; or "
              "auto (the default)."),
    CdiOption("driver_root", ("--driver-root", "--root"), TEXT, "DIR", "NVIDIA_CTK_DRIVER_ROOT",
              "Where the driver is installed or mounted. Default: nvidia-container-cli.root of config.toml, else /."),
    CdiOption("dev_root", ("--dev-root",), TEXT, "DIR", "NVIDIA_CTK_DEV_ROOT",
              "The folder that has /dev. Default: the driver root if it has the nodes, else /."),
    CdiOption("host_driver_root", ("--host-driver-root",), TEXT, "DIR", "",
              "The driver root's path as the container runtime sees it, where that differs."),
    CdiOption("config", ("--config",), TEXT, "FILE", "NVIDIA_CTK_CONFIG", "The container toolkit's config.toml."),
    CdiOption("output", ("--output",), TEXT, "FILE", "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH",
              "The file to write. Default: standard output."),
    CdiOption("form", ("--format",), TEXT, "yaml|json", f"{_PREFIX}OUTPUT_FORMAT",
              "Default: by the file's extension, else yaml."),
    CdiOption("strategies", ("--device-name-strategy",), LIST, "index|uuid|type-index",
              f"{_PREFIX}DEVICE_NAME_STRATEGIES",
              "How devices are named; several are possible. Default: index and uuid."),
    CdiOption("vendor", ("--vendor", "--cdi-vendor"), TEXT, "NAME", f"{_PREFIX}VENDOR",
              "The part of the kind before the slash. Default: the mode's, mostly nvidia.com."),
    CdiOption("device_class", ("--class", "--cdi-class"), TEXT, "NAME", f"{_PREFIX}CLASS",
              "The part of the kind after the slash. Default: the mode's, such as gpu or imex-channel."),
    CdiOption("device_ids", ("--device-id", "--device-ids", "--device", "--devices"), LIST, "ID",
              f"{_PREFIX}DEVICE_IDS",
              "Only these: indices, GPU:SLICE, UUIDs, all, or none. Default: all."),
    CdiOption("no_all_device", ("--no-all-device",), FLAG, "", f"{_PREFIX}NO_ALL_DEVICE",
              "Leave out the device named all."),
    CdiOption("allow_incomplete", ("--allow-incomplete",), FLAG, "", "",
              "Write the spec although something is missing: without MIG slices that lack nodes, and for "
              "the other devices "
              "without what is not there."),
    CdiOption("library_dirs", ("--library-search-path",), LIST, "DIR", f"{_PREFIX}LIBRARY_SEARCH_PATHS",
              "Look for libraries only here, inside the driver root."),
    CdiOption("config_dirs", ("--config-search-path",), LIST, "DIR", f"{_PREFIX}CONFIG_SEARCH_PATHS",
              "Look for configuration files only here, inside the driver root."),
    CdiOption("hooks", ("--hooks",), FLAG, "", "",
              "Write hooks that run nvidia-cdi-hook, instead of mounting files under all their names."),
    CdiOption("hook_path", ("--nvidia-cdi-hook-path", "--nvidia-ctk-path"), TEXT, "PATH", "NVIDIA_CTK_CDI_HOOK_PATH",
              "The program that hooks run; implies --hooks. Default: nvidia-cdi-hook in the usual folders."),
    CdiOption("ldconfig", ("--ldconfig-path",), TEXT, "PATH", f"{_PREFIX}LDCONFIG_PATH",
              "With hooks: the ldconfig that update-ldcache runs."),
    CdiOption("disabled_hooks", ("--disable-hook", "--disable-hooks"), LIST, "NAME", f"{_PREFIX}DISABLED_HOOKS",
              "With hooks: leave this one out; all leaves out every one that is not enabled."),
    CdiOption("enabled_hooks", ("--enable-hook", "--enable-hooks"), LIST, "NAME", f"{_PREFIX}ENABLED_HOOKS",
              "With hooks: have this one even if it is disabled."),
    CdiOption("features", ("--feature-flag", "--feature-flags"), LIST, "NAME", f"{_PREFIX}FEATURE_FLAGS",
              "Switch on a feature, such as enable-explicit-driver-libraries."),
    CdiOption("csv_files", ("--csv.file",), LIST, "FILE", f"{_PREFIX}CSV_FILES", "Mode csv: the files to read."),
    CdiOption("csv_ignore", ("--csv.ignore-pattern",), LIST, "PATTERN", f"{_PREFIX}CSV_IGNORE_PATTERNS",
              "Mode csv: leave out links whose path matches; **/NAME matches by name."),
    CdiOption("csv_compat", ("--csv.compat-container-root",), TEXT, "DIR", f"{_PREFIX}CSV_CONTAINER_COMPAT_ROOT",
              "Mode csv, Orin, with hooks: where an image has CUDA's compatibility libraries."),
    CdiOption("newest", ("--max-cdi-version",), TEXT, "VERSION", "",
              "Write nothing newer. Default: what this node's container engines read."),
    CdiOption("annotate", ("--annotate",), FLAG, "", "", "Record the driver version and the boot in the spec."),
    CdiOption("report", ("--report",), TEXT, "FILE", "",
              "Write what was found and missed, as JSON; - is standard output."),
)  # fmt: skip


class _Printed(click.Choice[str]):
    """How the report is printed; NVIDIA's program has no ``-o``, many others mean the file by it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from kgpu.base.errors import ConfigError

        if "." in str(value) or "/" in str(value):
            raise ConfigError(
                f"-o {value}: -o says how the report is printed",
                "-o text or -o json",
                f"name the spec's file with --output {value}",
            )
        return super().convert(value, param, ctx)


def _options(function: Callable[..., None]) -> Callable[..., None]:
    shapes: dict[str, dict[str, Any]] = {
        TEXT: {"default": ""},
        LIST: {"multiple": True},
        FLAG: {"is_flag": True},
    }
    for row in reversed(OPTIONS):
        more = shapes[row.shape] | ({"metavar": row.metavar} if row.metavar else {})
        function = click.option(*row.flags, row.name, envvar=row.env or None, help=row.help, **more)(function)
    return function


@click.group(cls=LazyGroup, entries=ENTRIES, examples="kgpu cdi generate\nkgpu cdi list\nkgpu cdi validate")
def cdi() -> None:
    """Write, list, change and check the CDI specs through which containers get their devices."""


@click.command("generate", cls=ExampleCommand, examples=GENERATE_EXAMPLES)
@_options
@click.option(
    "-o",
    "printed",
    type=_Printed(("text", "json")),
    default="text",
    show_default=True,
    help="Print what was found as text on standard error, or as JSON on standard output.",
)
@click.pass_obj
def generate(about: object, /, *, printed: str, **flags: Any) -> None:
    """Write a CDI spec for this node's devices: GPUs and MIG slices, or what --mode names.

    Specs have no hooks unless asked for: each file is mounted under every name that programs look for. What was looked
    for in vain, and what that breaks, is told; a device that can't be offered whole is an error.
    """
    as_json = printed == "json" or flags["report"] == "-"
    if isinstance(about, Mapping):  # called as a subcommand of nvidia-ctk, whose own option it is
        flags["config"] = flags["config"] or about.get("config", "")
    where = _driver_root(flags)
    _check_folders(where, flags)
    with _early_reading(flags["mode"], where) as quick:
        from kgpu.host.root import DriverRoot, Tree
        from kgpu.toolkit.config import output
        from kgpu.toolkit.run import IncompleteError
        from kgpu.toolkit.run import generate as run

        config, target = _config(flags), output(flags["output"], flags["form"])
        root = DriverRoot.at(where, dev=flags["dev_root"], driver_host=flags["host_driver_root"])
        host = Tree.at(os.environ.get(ENV_HOST_ROOT) or "/", "/")
        try:
            generated = run(lambda: _read(root, quick), root, config, engines=_engines(config, host), host=host)
        except IncompleteError as error:
            if error.generated is not None:
                _tell(error.generated, as_json, flags["report"], [])
            raise
    _finish(generated, target, as_json, flags["report"])


def _config(options: Mapping[str, Any]) -> GenerateConfig:
    from kgpu.toolkit import config as settings

    hooks = None
    if options["hooks"] or options["hook_path"]:
        hooks = settings.hook_config(
            path=options["hook_path"],
            ldconfig=options["ldconfig"],
            disabled=options["disabled_hooks"],
            enabled=options["enabled_hooks"],
        )
    elif options["enabled_hooks"]:
        click.echo("note: --enable-hook has no effect without --hooks", err=True)
    return settings.generate_config(
        vendor=options["vendor"],
        device_class=options["device_class"],
        strategies=options["strategies"],
        all_device=not options["no_all_device"],
        mode=options["mode"] or settings.AUTO,
        device_ids=options["device_ids"],
        features=options["features"],
        library_dirs=options["library_dirs"],
        config_dirs=options["config_dirs"],
        hooks=hooks,
        csv=settings.csv_config(
            files=options["csv_files"], ignore=options["csv_ignore"], compat_root=options["csv_compat"]
        ),
        allow_incomplete=options["allow_incomplete"],
        newest=options["newest"],
        annotate=options["annotate"],
    )  # fmt: skip


def _driver_root(options: Mapping[str, Any]) -> str:
    """As given, else as the toolkit's configuration says, else the host's own root."""
    if options["driver_root"]:
        return str(options["driver_root"])
    from kgpu.host.toolkit_files import config_path, read_config

    path = options["config"] or config_path(os.environ)
    if not options["config"] and not os.path.exists(path):
        return "/"
    if not os.path.exists(path):
        from kgpu.base.errors import ConfigError

        raise ConfigError(f"{path} is not there", "the container toolkit's config.toml", "correct --config")
    return read_config(path).text("nvidia-container-cli.root") or "/"


def _check_folders(driver_root: str, given: Mapping[str, Any]) -> None:
    """Raises ConfigError for a root that is not there: every file in it would be reported as missing, one by one."""
    flag = "--driver-root" if given["driver_root"] else "nvidia-container-cli.root of the container toolkit's config"
    for name, folder in ((flag, driver_root), ("--dev-root", given["dev_root"])):
        if folder and not os.path.isdir(folder):
            from kgpu.base.errors import ConfigError

            state = "is no folder" if os.path.exists(folder) else "is not there"
            expected = "the folder in which the driver is installed or mounted"
            raise ConfigError(f"{folder} {state}", expected, f"correct {name}")


@contextlib.contextmanager
def _early_reading(mode: str, root: str) -> Iterator[QuickReading | None]:
    """Starts reading the GPUs before anything else is imported: it takes longest."""
    if (mode or "auto").lower() not in _WITH_GPUS or not os.path.isdir(root):
        yield None
        return
    from kgpu.hw.quick import QuickReading

    with QuickReading(os.path.abspath(root)) as quick:
        yield quick


def _read(root: DriverRoot, quick: QuickReading | None) -> Inventory:
    inventory = quick.inventory() if quick is not None else None
    if inventory is not None:
        return inventory
    from kgpu.hw.open import open_reader

    async def read() -> Inventory:
        reader = open_reader(driver_root=root.files.here)
        try:
            return await reader.inventory()
        finally:
            await reader.close()

    return run_async(read())


def read_gpus(driver_root: str) -> Inventory:
    """The GPUs of the driver under this root, as they are now. Raises HwError."""
    from kgpu.host.root import DriverRoot

    with _early_reading("nvml", driver_root) as quick:
        return _read(DriverRoot.at(driver_root), quick)


def _engines(config: GenerateConfig, host: Any) -> Any:
    from kgpu.toolkit.cdi_support import find_engines

    return () if config.newest else find_engines(host)


def _finish(generated: Generated, target: Output, as_json: bool, report: str) -> None:
    from kgpu.formats.cdi import dump_spec
    from kgpu.toolkit.run import write_specs

    files = [str(path) for path in write_specs(generated, target)]
    if not files and not as_json:
        texts = (dump_spec(spec, target.form) for spec in generated.specs.values())
        click.echo("".join(text if text.endswith("\n") else f"{text}\n" for text in texts), nl=False)
    if files:
        generated = _with_twins(generated, files)
    _tell(generated, as_json, report, files)
    for path, spec in zip(files, generated.specs.values(), strict=False):
        number = len(spec.devices)
        click.echo(f"{path}: {number} device{'' if number == 1 else 's'} of {spec.kind}", err=True)


def _with_twins(generated: Generated, files: list[str]) -> Generated:
    """With notes about other files of runtimes' folders, when it is one of them that was written to."""
    from kgpu.toolkit.config import SPEC_DIRS, split

    folder = os.path.realpath(os.path.dirname(os.path.abspath(files[0])))
    folders = split((os.environ.get(ENV_SPEC_DIRS, ""),)) or SPEC_DIRS
    if folder not in {os.path.realpath(place) for place in (*folders, RUN_DIR)}:
        return generated
    if folder == RUN_DIR and not any(os.path.realpath(place) == RUN_DIR for place in folders):
        folders = (*folders, RUN_DIR)
    written = dict(zip(map(os.path.realpath, files), generated.specs.values(), strict=True))
    if not any(_others(place, written) for place in folders):
        return generated
    from dataclasses import replace

    from kgpu.toolkit.report import twin_notes
    from kgpu.toolkit.specs import read_folders

    return replace(generated, notes=(*generated.notes, *twin_notes(files, read_folders(folders, known=written))))


def _others(folder: str, written: Mapping[str, object]) -> bool:
    """Whether the folder has specs beside those written. Nothing more is imported where it has none."""
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    specs = (name for name in names if name.endswith((".yaml", ".yml", ".json")))
    return any(os.path.realpath(os.path.join(folder, name)) not in written for name in specs)


def _tell(generated: Generated, as_json: bool, report: str, files: list[str]) -> None:
    """The report where it was asked for, and lines for people on standard error."""
    from kgpu.toolkit.report import as_data, as_lines, write_report

    data = as_data(generated, files)
    if report and report != "-":
        write_report(data, Path(report))
    if as_json:
        print_json(data)
        return
    for line in as_lines(generated):
        click.echo(line, err=True)
