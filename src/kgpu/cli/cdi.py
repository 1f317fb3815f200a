"""``kgpu cdi``: the CDI specs through which containers get their accelerators; here ``generate``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kgpu.base.errors import ConfigError
from kgpu.base.printable import counted
from kgpu.cli._common import ExampleCommand, print_json, run_async
from kgpu.cli._options import help_alone, settled
from kgpu.cli.main import CommandEntry, LazyGroup
from kgpu.formats.names import ENV_HOST_ROOT
from kgpu.formats.settings import FlagShape, Setting

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


def _read_repeated(value: Any, where: str) -> tuple[str, ...]:
    """What is given several times; a variable's words have blanks between them, and every word may be a list."""
    del where
    return tuple(value.split() if isinstance(value, str) else value)


def _read_alone(value: Any, where: str) -> bool:
    """True or false in any of click's spellings, also yes and off."""
    try:
        return bool(click.BOOL.convert(value, None, None))
    except click.BadParameter as error:
        raise ConfigError(f"{where} is {value!r:.40}", "true or false", f"correct {where}") from error


_list = partial(Setting, shape=FlagShape.LIST, read=_read_repeated, default=())
_alone = partial(Setting, shape=FlagShape.ALONE, read=_read_alone, default=False)

OPTIONS: Final = (
    Setting(attr="mode", flag="--mode", aliases=("--discovery-mode",), envs=(f"{_PREFIX}MODE",), metavar="MODE",
            help="What to look for: nvml, management, csv, wsl, gds, gdrcopy, mofed, nvswitch, imex; or auto (the "
            "default)."),
    Setting(attr="driver_root", flag="--driver-root", aliases=("--root",), envs=("NVIDIA_CTK_DRIVER_ROOT",),
            metavar="DIR",
            help="Where the driver is installed or mounted. Default: nvidia-container-cli.root of config.toml, else "
            "/."),
    Setting(attr="dev_root", flag="--dev-root", envs=("NVIDIA_CTK_DEV_ROOT",), metavar="DIR",
            help="The folder that has /dev. Default: the driver root if it has the nodes, else /."),
    Setting(attr="host_driver_root", flag="--host-driver-root", metavar="DIR",
            help="The driver root's path as the container runtime sees it, where that differs."),
    Setting(attr="config", flag="--config", envs=("NVIDIA_CTK_CONFIG",), metavar="FILE",
            help="The container toolkit's config.toml."),
    Setting(attr="output", flag="--output", envs=("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH",), metavar="FILE",
            help="The file to write. Default: standard output."),
    Setting(attr="form", flag="--format", envs=(f"{_PREFIX}OUTPUT_FORMAT",), metavar="yaml|json",
            help="Default: by the file's extension, else yaml."),
    _list(attr="strategies", flag="--device-name-strategy", envs=(f"{_PREFIX}DEVICE_NAME_STRATEGIES",),
          metavar="index|uuid|type-index",
          help="How devices are named; several are possible. Default: index and uuid."),
    Setting(attr="vendor", flag="--vendor", aliases=("--cdi-vendor",), envs=(f"{_PREFIX}VENDOR",), metavar="NAME",
            help="The part of the kind before the slash. Default: the mode's, mostly nvidia.com."),
    Setting(attr="device_class", flag="--class", aliases=("--cdi-class",), envs=(f"{_PREFIX}CLASS",), metavar="NAME",
            help="The part of the kind after the slash. Default: the mode's, such as gpu or imex-channel."),
    _list(attr="device_ids", flag="--device-id", aliases=("--device-ids", "--device", "--devices"),
          envs=(f"{_PREFIX}DEVICE_IDS",), metavar="ID",
          help="Only these: indices, GPU:SLICE, UUIDs, all, or none. Default: all."),
    _alone(attr="no_all_device", flag="--no-all-device", envs=(f"{_PREFIX}NO_ALL_DEVICE",),
           help="Leave out the device named all."),
    _alone(attr="allow_incomplete", flag="--allow-incomplete",
           help="Write the spec although something is missing: without MIG slices that lack nodes, and for the other "
           "devices without what is not there."),
    _list(attr="library_dirs", flag="--library-search-path", envs=(f"{_PREFIX}LIBRARY_SEARCH_PATHS",), metavar="DIR",
          help="Look for libraries only here, inside the driver root."),
    _list(attr="config_dirs", flag="--config-search-path", envs=(f"{_PREFIX}CONFIG_SEARCH_PATHS",), metavar="DIR",
          help="Look for configuration files only here, inside the driver root."),
    _alone(attr="hooks", flag="--hooks",
           help="Write hooks that run nvidia-cdi-hook, instead of mounting files under all their names."),
    Setting(attr="hook_path", flag="--nvidia-cdi-hook-path", aliases=("--nvidia-ctk-path",),
            envs=("NVIDIA_CTK_CDI_HOOK_PATH",), metavar="PATH",
            help="The program that hooks run; implies --hooks. Default: nvidia-cdi-hook in the usual folders."),
    Setting(attr="ldconfig", flag="--ldconfig-path", envs=(f"{_PREFIX}LDCONFIG_PATH",), metavar="PATH",
            help="With hooks: the ldconfig that update-ldcache runs."),
    _list(attr="disabled_hooks", flag="--disable-hook", aliases=("--disable-hooks",),
          envs=(f"{_PREFIX}DISABLED_HOOKS",), metavar="NAME",
          help="With hooks: leave this one out; all leaves out every one that is not enabled."),
    _list(attr="enabled_hooks", flag="--enable-hook", aliases=("--enable-hooks",), envs=(f"{_PREFIX}ENABLED_HOOKS",),
          metavar="NAME", help="With hooks: have this one even if it is disabled."),
    _list(attr="features", flag="--feature-flag", aliases=("--feature-flags",), envs=(f"{_PREFIX}FEATURE_FLAGS",),
          metavar="NAME", help="Switch on a feature, such as enable-explicit-driver-libraries."),
    _list(attr="csv_files", flag="--csv.file", envs=(f"{_PREFIX}CSV_FILES",), metavar="FILE",
          help="Mode csv: the files to read."),
    _list(attr="csv_ignore", flag="--csv.ignore-pattern", envs=(f"{_PREFIX}CSV_IGNORE_PATTERNS",), metavar="PATTERN",
          help="Mode csv: leave out links whose path matches; **/NAME matches by name."),
    Setting(attr="csv_compat", flag="--csv.compat-container-root", envs=(f"{_PREFIX}CSV_CONTAINER_COMPAT_ROOT",),
            metavar="DIR", help="Mode csv, Orin, with hooks: where an image has CUDA's compatibility libraries."),
    Setting(attr="newest", flag="--max-cdi-version", metavar="VERSION",
            help="Write nothing newer. Default: what this node's container engines read."),
    _alone(attr="annotate", flag="--annotate", help="Record the driver version and the boot in the spec."),
    Setting(attr="report", flag="--report", metavar="FILE",
            help="Write what was found and missed, as JSON; - is standard output."),
)  # fmt: skip


class _Printed(click.Choice[str]):
    """How the report is printed; NVIDIA's program has no ``-o``, many others mean the file by it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if "." in str(value) or "/" in str(value):
            raise ConfigError(
                f"-o {value}: -o says how the report is printed",
                "-o text or -o json",
                f"name the spec's file with --output {value}",
            )
        return super().convert(value, param, ctx)


@click.group(cls=LazyGroup, entries=ENTRIES, examples="kgpu cdi generate\nkgpu cdi list\nkgpu cdi validate")
def cdi() -> None:
    """Write, list, change and check the CDI specs through which containers get their devices."""


@click.command("generate", cls=ExampleCommand, examples=GENERATE_EXAMPLES)
@settled(OPTIONS, text=help_alone)
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
    if isinstance(about, Mapping):  # called as a subcommand of nvidia-ctk, whose own option and default these are
        flags |= {name: flags[name] or about.get(name, "") for name in ("config", "driver_root")}
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
    """The driver root: as given, else from the toolkit's configuration, else the host's own root."""
    if options["driver_root"]:
        return str(options["driver_root"])
    from kgpu.host.toolkit_files import config_path, read_config

    path = options["config"] or config_path(os.environ)
    if not options["config"] and not os.path.exists(path):
        return "/"
    if not os.path.exists(path):
        raise ConfigError(f"{path} is not there", "the container toolkit's config.toml", "correct --config")
    return read_config(path).text("nvidia-container-cli.root") or "/"


def _check_folders(driver_root: str, given: Mapping[str, Any]) -> None:
    """Raises ConfigError for a root that is not there: every file in it would be reported as missing, one by one."""
    flag = "--driver-root" if given["driver_root"] else "nvidia-container-cli.root of the container toolkit's config"
    for name, folder in ((flag, driver_root), ("--dev-root", given["dev_root"])):
        if folder and not os.path.isdir(folder):
            state = "is no folder" if os.path.exists(folder) else "is not there"
            expected = "the folder in which the driver is installed or mounted"
            raise ConfigError(f"{folder} {state}", expected, f"correct {name}")


@contextlib.contextmanager
def _early_reading(mode: str, root: str) -> Iterator[QuickReading | None]:
    """Starts reading the GPUs before anything else is imported, as that takes longest."""
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
        click.echo(f"{path}: {counted(number, 'device')} of {spec.kind}", err=True)


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
