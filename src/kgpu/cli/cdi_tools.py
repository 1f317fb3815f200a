"""``kgpu cdi list|transform|validate``: look at CDI specs, change them, hold them against the node.

Exit code of validate: 0 when something was checked and nothing is wrong, 3 otherwise, 2 when it could not be tried.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kgpu.base.errors import ConfigError, HostError, HwError
from kgpu.base.printable import counted
from kgpu.cli._common import ExampleCommand, ExampleGroup, output_option, print_json, spec_dir_option
from kgpu.formats.names import CDI_DIR, CDI_STATIC_DIR

if TYPE_CHECKING:
    from kgpu.formats.cdi import Spec
    from kgpu.hw.port import Inventory
    from kgpu.toolkit.flaws import Flaw
    from kgpu.toolkit.validate import Validation

NOT_VALID: Final = 3
SHOWN_ALIKE: Final = 4
_COLORS: Final = {"error": "red", "warning": "yellow"}
LIST_EXAMPLES: Final = """
kgpu cdi list
kgpu cdi list --spec-dir /var/run/cdi
"""
TRANSFORM_EXAMPLES: Final = """
kgpu cdi transform root --from /driver-root --to / --input nvidia.yaml --output /var/run/cdi/nvidia.yaml
kgpu cdi transform root --from / --to /host --relative-to container < nvidia.yaml
"""
VALIDATE_EXAMPLES: Final = """
kgpu cdi validate
kgpu cdi validate nvidia.yaml --spec-only
kgpu cdi validate --host-root /host -o json
"""


def _folders(given: tuple[str, ...], host_root: str = "/") -> tuple[str, ...]:
    named = tuple(part for item in given for part in item.split(",") if part)
    return named or tuple(str(Path(host_root, folder.lstrip("/"))) for folder in (CDI_STATIC_DIR, CDI_DIR))


@click.command("list", cls=ExampleCommand, examples=LIST_EXAMPLES)
@spec_dir_option(f"A folder of specs; later ones win. Default: {CDI_STATIC_DIR} and {CDI_DIR}.")
@output_option()
def list_(folders: tuple[str, ...], output: str) -> None:
    """Print the qualified name of every device that a runtime can resolve, one per line."""
    from kgpu.toolkit.specs import list_found, read_folders

    listing = list_found(read_folders(_folders(folders)))
    for warning in listing.warnings:
        click.echo(f"warning: {warning}", err=True)
    if output == "json":
        print_json({"devices": list(listing.names), "warnings": list(listing.warnings)})
        return
    for name in listing.names:
        click.echo(name)


@click.group(cls=ExampleGroup, examples=TRANSFORM_EXAMPLES)
def transform() -> None:
    """Change a CDI spec."""


@transform.command("root", examples=TRANSFORM_EXAMPLES)
@click.option("--from", "old", default="/", show_default=True, metavar="DIR", help="The root as the spec has it.")
@click.option("--to", "new", default="/", show_default=True, metavar="DIR", help="The root as it shall be.")
@click.option("--input", "source", default="-", show_default=True, metavar="FILE", help="The spec to read; - is stdin.")
@click.option("--output", "target", default="", metavar="FILE", help="The file to write. Default: standard output.")
@click.option(
    "--relative-to",
    type=click.Choice(("host", "container")),
    default="host",
    show_default=True,
    help="Whose paths move: those on the host, or those in the container.",
)
def root(*, old: str, new: str, source: str, target: str, relative_to: str) -> None:
    """Move the root of a spec's paths, for a driver that lies elsewhere on the host or in the container.

    Only whole parts of a path count: /driver does not match /driver-550.
    """
    from kgpu.formats.cdi import dump_spec, validate
    from kgpu.formats.cdi_transform import move, transform_root
    from kgpu.toolkit import config
    from kgpu.toolkit.run import write_spec

    place = config.output(target, "")
    name = "standard input" if source == "-" else source
    moved = transform_root(_spec(source), move(old, new), "container" if relative_to == "container" else "host")
    validate(moved, source=f"{name} after the change")
    if place.path is None:
        click.echo(dump_spec(moved, place.form), nl=place.form == "json")
    else:
        write_spec(moved, place)


def _spec(source: str) -> Spec:
    from kgpu.formats.cdi import parse_spec
    from kgpu.toolkit.specs import MAX_BYTES, read_spec

    if source != "-":
        spec_file = read_spec(source)
        if spec_file.spec is None:
            raise spec_file.problem or AssertionError(source)
        return spec_file.spec
    text = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ConfigError(f"standard input has more than {MAX_BYTES} bytes", "a CDI spec", "give a smaller one")
    return parse_spec(text, source="standard input")


@click.command("validate", cls=ExampleCommand, examples=VALIDATE_EXAMPLES)
@click.argument("files", nargs=-1, metavar="[FILE]...")
@spec_dir_option(f"A folder of specs; later ones win. Default: {CDI_STATIC_DIR} and {CDI_DIR}, unless files are named.")
@click.option("--spec-only", is_flag=True, help="Don't look whether the node has what the specs name.")
@click.option("--host-root", default="/", show_default=True, metavar="DIR", help="The host's / as seen here.")
@click.option(
    "--driver-root",
    "--root",
    default="/",
    show_default=True,
    metavar="DIR",
    envvar="NVIDIA_CTK_DRIVER_ROOT",
    help="Whose driver runs: its /proc counts where it has one.",
)
@output_option()
def validate(
    *, files: tuple[str, ...], folders: tuple[str, ...], spec_only: bool, host_root: str, driver_root: str, output: str
) -> None:
    """Hold CDI specs against CDI's rules and against this node.

    Finds what makes containers fail later: paths that are gone, names that two files have, copies in /etc/cdi that hide
    behind newer specs, device numbers or libraries of another driver, GPUs and MIG slices that are no longer there,
    hooks that endanger the host. Exit code 3 when something is wrong or there was nothing to check.
    """
    from kgpu.toolkit.specs import RealNode, read_folders, read_spec
    from kgpu.toolkit.validate import validate_specs

    for file in files:
        if not Path(file).exists():
            raise HostError(f"there is no file {file}", "a CDI spec", "correct the name")
    places = _folders(folders, host_root) if folders or not files else ()
    spec_files = (*read_folders(places), *(read_spec(file, len(places)) for file in files))
    node = None if spec_only else RealNode(host_root, driver_root)
    inventory, problem = (None, "") if spec_only or not spec_files else _gpus(driver_root)
    result = validate_specs(spec_files, node, static_dirs=_folders((), host_root)[:1], inventory=inventory)
    if problem:
        result = replace(result, notes=(*result.notes, problem))
    if output == "json":
        print_json(_document(result))
    else:
        click.echo("\n".join(_lines(result, places, color=sys.stdout.isatty())))
    if not result.valid:
        raise click.exceptions.Exit(NOT_VALID)


def _gpus(driver_root: str) -> tuple[Inventory | None, str]:
    """The GPUs and slices that there are now, or a note why that is not known."""
    from kgpu.cli.cdi import read_gpus

    try:
        return read_gpus(driver_root), ""
    except HwError as error:
        return None, f"GPUs and MIG slices were not compared: {error.what}"


def _lines(result: Validation, places: tuple[str, ...], *, color: bool) -> list[str]:
    if not result.files:
        return [
            f"there is no CDI spec in {' or '.join(places)}",
            "  to do: make one with `kgpu cdi generate --output FILE`",
        ]
    lines: list[str] = []
    alike: dict[tuple[str, str, str], list[Flaw]] = {}
    for flaw in result.flaws:
        alike.setdefault((str(flaw.severity), flaw.path, flaw.remedy), []).append(flaw)
    for (severity, _, remedy), flaws in alike.items():
        word = click.style(f"{severity}:", fg=_COLORS[severity], bold=True) if color else f"{severity}:"
        lines += [f"{word} {flaw}" for flaw in flaws[:SHOWN_ALIKE]]
        lines += [f"  and {len(flaws) - SHOWN_ALIKE} more like these"] if len(flaws) > SHOWN_ALIKE else []
        lines.append(f"  to do: {remedy}")
    lines += [f"note: {note}" for note in result.notes]
    errors = sum(flaw.severity == "error" for flaw in result.flaws)
    warnings = len(result.flaws) - errors
    state = "valid" if result.valid else counted(errors, "error")
    state += f", {counted(warnings, 'warning')}" if warnings else ""
    lines.append(f"{counted(len(result.files), 'file')}, {counted(len(result.names), 'device')}: {state}")
    return lines


def _document(result: Validation) -> dict[str, object]:
    return {
        "valid": result.valid,
        "files": list(result.files),
        "devices": list(result.names),
        "flaws": [
            {
                "severity": str(flaw.severity),
                "file": flaw.path,
                "where": flaw.where,
                "what": flaw.what,
                "todo": flaw.remedy,
            }
            for flaw in result.flaws
        ],
        "notes": list(result.notes),
    }
