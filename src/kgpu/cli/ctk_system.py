"""``nvidia-ctk system``: make the driver's control nodes, and the links to device nodes in /dev/char.

Every step is printed; with ``--dry-run`` none is made. What is already right is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from kgpu.base.errors import ConfigError, HostError
from kgpu.cli._common import ExampleCommand, ExampleGroup
from kgpu.cli._options import help_alone, settled
from kgpu.formats.settings import FlagShape, Setting

if TYPE_CHECKING:
    from kgpu.host.dev_nodes import DevFiles, DeviceFileStep

EXAMPLES: Final = """
nvidia-ctk system create-dev-char-symlinks --create-all
nvidia-ctk system create-device-nodes --control-devices --load-kernel-modules
"""
_ROOT_ENVS: Final = ("NVIDIA_DRIVER_ROOT", "DRIVER_ROOT")

_row = partial(Setting, metavar="DIR")
_switch = partial(Setting, shape=FlagShape.SWITCH, default="false")

_LOAD: Final = _switch(attr="load", flag="--load-kernel-modules", envs=("LOAD_KERNEL_MODULES",),
                       help="Load the driver's modules first.")  # fmt: skip
_DRY: Final = _switch(attr="dry_run", flag="--dry-run", envs=("DRY_RUN",), help="Only print what would be done.")
LINK_FLAGS: Final = (
    _row(attr="dev_char", flag="--dev-char-path", envs=("DEV_CHAR_PATH",), default="/dev/char",
         help="The folder of the links."),
    _row(attr="root", flag="--driver-root", aliases=("--root",), envs=_ROOT_ENVS, default="/",
         help="Whose device nodes; its /dev counts if it has any."),
    _switch(attr="every", flag="--create-all", envs=("CREATE_ALL",),
            help="Also for nodes that the driver may yet make."),
    _LOAD,
    _switch(attr="nodes", flag="--create-device-nodes", envs=("CREATE_DEVICE_NODES",),
            help="Make the control nodes first."),
    _DRY,
)  # fmt: skip
NODE_FLAGS: Final = (
    _row(attr="root", flag="--root", aliases=("--driver-root",), envs=("ROOT", *_ROOT_ENVS), default="/",
         help="Whose modprobe to use."),
    _row(attr="dev_root", flag="--dev-root", envs=("NVIDIA_DEV_ROOT", "DEV_ROOT"),
         help="Whose /dev. Default: the root's."),
    _switch(attr="control", flag="--control-devices", help="Make the control nodes."),
    replace(_LOAD, envs=()),
    replace(_DRY, envs=()),
)  # fmt: skip


@click.group(cls=ExampleGroup, examples=EXAMPLES, invoke_without_command=True)
@click.pass_context
def system(ctx: click.Context) -> None:
    """Device nodes, and the links to them in /dev/char."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@system.command("create-dev-char-symlinks", cls=ExampleCommand,
                examples="nvidia-ctk system create-dev-char-symlinks --create-all --dry-run")  # fmt: skip
@settled(LINK_FLAGS, text=help_alone)
def create_dev_char_symlinks(*, dev_char: str, root: str, every: str, load: str, nodes: str, dry_run: str) -> None:
    """Link each NVIDIA device node under its numbers in /dev/char.

    Without the links, a systemctl daemon-reload takes the devices from containers that did not get them through CDI.
    Links of other numbers are replaced; minors are those that the driver says.
    """
    from kgpu.host.dev_files import RealDevFiles, dev_folder, read_facts
    from kgpu.host.dev_nodes import control_nodes, every_node, existing_nodes, join_nodes, plan_links, plan_nodes

    _absolute("--dev-char-path", dev_char)
    _absolute("--driver-root", root)
    dry = _true("--dry-run", dry_run)
    _load(root, load, dry=dry)
    files = RealDevFiles()
    facts = read_facts(root)
    dev = dev_folder(files, root)
    steps: tuple[DeviceFileStep, ...] = ()
    notes: list[str] = []
    if _true("--create-device-nodes", nodes):
        control = control_nodes(facts.majors, dev=dev)
        notes += control.notes
        steps = plan_nodes(files, control.nodes)
        _carry_out(files, steps, dry=dry)
    existing = existing_nodes(files, dev=dev)
    expected = every_node(facts.majors, facts.gpu_minors, facts.cap_minors, dev=dev)
    wanted = join_nodes(existing, expected.nodes) if _true("--create-all", every) else existing
    notes += expected.notes if _true("--create-all", every) else ()
    _say(notes)
    if not wanted:
        click.echo(f"warning: there are no NVIDIA device nodes in {dev}: nothing to link", err=True)
    _carry_out(files, plan_links(files, wanted, dev_char=dev_char.rstrip("/") or "/"), dry=dry)


@system.command("create-device-nodes", cls=ExampleCommand,
                examples="nvidia-ctk system create-device-nodes --control-devices --load-kernel-modules")  # fmt: skip
@settled(NODE_FLAGS, text=help_alone)
def create_device_nodes(*, root: str, dev_root: str, control: str, load: str, dry_run: str) -> None:
    """Make the driver's control nodes, with the majors that the kernel gave; nodes of other numbers are replaced."""
    from kgpu.host.dev_files import RealDevFiles, read_facts
    from kgpu.host.dev_nodes import control_nodes, plan_nodes

    _absolute("--root", root)
    _absolute("--dev-root", dev_root or root)
    dry = _true("--dry-run", dry_run)
    _load(root, load, dry=dry)
    if not _true("--control-devices", control):
        click.echo("note: no nodes are made without --control-devices", err=True)
        return
    wanted = control_nodes(read_facts(root).majors, dev=f"{(dev_root or root).rstrip('/')}/dev")
    _say(wanted.notes)
    if not wanted.nodes and dry and _true("--load-kernel-modules", load):
        click.echo("note: which nodes would be made is known when the modules are loaded", err=True)
        return
    if not wanted.nodes:
        raise HostError(
            "no device node can be made: the kernel has no NVIDIA driver",
            "nvidia and nvidia-uvm in /proc/devices",
            "load the driver, or add --load-kernel-modules",
        )
    files = RealDevFiles()
    _carry_out(files, plan_nodes(files, wanted.nodes), dry=dry)


def _load(root: str, asked: str, *, dry: bool) -> None:
    from kgpu.host.dev_files import load_commands, load_modules

    if not _true("--load-kernel-modules", asked):
        return
    if dry:
        for command in load_commands(root):
            click.echo(f"would run {command}")
    else:
        load_modules(root)


def _carry_out(files: DevFiles, steps: Sequence[DeviceFileStep], *, dry: bool) -> None:
    from kgpu.host.dev_nodes import DeviceFileAction, apply

    for step in steps:
        if step.changes:
            click.echo(f"{'would ' if dry else ''}{step}")
        elif step.action is DeviceFileAction.SKIP:
            click.echo(f"warning: {step}", err=True)
    if dry:
        return
    try:
        apply(files, steps)
    except OSError as error:
        place = f" {error.filename}" if isinstance(error.filename, str) else ""
        raise HostError(
            f"a device file can't be made:{place} {error.strerror}",
            "the right to make nodes and links",
            "run it as root",
        ) from error


def _say(notes: Iterable[str]) -> None:
    for note in notes:
        click.echo(f"warning: {note}", err=True)


def _absolute(flag: str, path: str) -> None:
    if not path.startswith("/") or ".." in path.split("/"):
        raise ConfigError(f'{flag} "{path}" is not an absolute path', "a path from /, without ..", f"correct {flag}")


def _true(flag: str, text: str) -> bool:
    """As Go's flags and their variables take it. Raises ConfigError."""
    known = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False, "": False}
    if text.lower() not in known:
        raise ConfigError(f"{flag} is {text!r:.40}", "true or false", f"correct {flag}")
    return known[text.lower()]
