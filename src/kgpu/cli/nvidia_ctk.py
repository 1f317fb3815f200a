"""``nvidia-ctk``: the command line of the NVIDIA Container Toolkit's admin program, over kgpu's own parts.

Kept: commands, flags, variables, data on stdout and messages on stderr, exit code 1 for every error, and that a hook
with an unknown name is a warning. No hook is carried out here: a hook runs as root for every container, next to
content of its image, and ``hook`` only hands over to the toolkit's own small program where that is installed.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

import click

from kgpu.base.errors import HostError, UserError
from kgpu.cli._common import ExampleCommand
from kgpu.cli.main import CommandEntry, LazyGroup
from kgpu.formats.names import ENV_HOOK_DEBUG
from kgpu.toolkit.hooks import FOLDERS, HELPER

ENTRIES: Final = (
    CommandEntry("cdi", "kgpu.cli.nvidia_ctk", "cdi", "Write, list and change CDI specs."),
    CommandEntry("runtime", "kgpu.cli.nvidia_ctk", "runtime", "Configure container engines."),
    CommandEntry("config", "kgpu.cli.ctk_config", "config", "Print or change the toolkit's config.toml."),
    CommandEntry("system", "kgpu.cli.ctk_system", "system", "Device nodes, and the links to them in /dev/char."),
    CommandEntry("info", "kgpu.cli.nvidia_ctk", "info", "What of the toolkit is on this node."),
    CommandEntry("hook", "kgpu.cli.nvidia_ctk", "hook", "Hand over to nvidia-cdi-hook."),
)
CDI_ENTRIES: Final = (
    CommandEntry("generate", "kgpu.cli.cdi", "generate", "Write a spec for this node's devices."),
    CommandEntry("list", "kgpu.cli.cdi_tools", "list_", "Print the devices that a runtime can resolve."),
    CommandEntry("transform", "kgpu.cli.cdi_tools", "transform", "Change a spec: move the root of its paths."),
    CommandEntry("validate", "kgpu.cli.cdi_tools", "validate", "Hold specs against CDI's rules and this node."),
)
RUNTIME_ENTRIES: Final = (
    CommandEntry("configure", "kgpu.cli.runtime", "peer", "Add the NVIDIA runtime to an engine's config."),
)
EXAMPLES: Final = """
nvidia-ctk cdi generate --output /var/run/cdi/nvidia.yaml
nvidia-ctk runtime configure --runtime containerd --dry-run
nvidia-ctk config --set nvidia-container-runtime.mode=cdi --in-place
"""
HOOKS: Final = (
    "create-symlinks", "update-ldcache", "enable-cuda-compat", "disable-device-node-modification",
    "update-application-profile", "chmod", "noop",
)  # fmt: skip
# Never $PATH: an engine may run a hook with the environment of the container's image.
HOOK_PLACES: Final = tuple(f"{folder}/{HELPER}" for folder in FOLDERS)


@click.group(
    "nvidia-ctk",
    cls=LazyGroup,
    entries=ENTRIES,
    examples=EXAMPLES,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--debug", "-d", is_flag=True, envvar=ENV_HOOK_DEBUG, help="Say more on standard error.")
@click.option("--quiet", is_flag=True, envvar="NVIDIA_CTK_QUIET", help="Say nothing but errors; wins over --debug.")
@click.option("--config", "config_file", default="", metavar="FILE", envvar="NVIDIA_CTK_CONFIG",
              help="The toolkit's config.toml; for cdi generate.")  # fmt: skip
@click.pass_context
def nvidia_ctk(ctx: click.Context, *, debug: bool, quiet: bool, config_file: str) -> None:
    """The NVIDIA Container Toolkit's command line: CDI specs, engine configs, config.toml, device nodes."""
    ctx.obj = {"config": config_file, "debug": debug and not quiet}
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    elif quiet:
        # Errors are written after the command has ended, when standard error is itself again.
        nowhere = ctx.with_resource(open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - closed with the context
        ctx.with_resource(contextlib.redirect_stderr(nowhere))


@click.group(cls=LazyGroup, entries=CDI_ENTRIES, examples="nvidia-ctk cdi generate", invoke_without_command=True)
@click.pass_context
def cdi(ctx: click.Context) -> None:
    """CDI specs, through which containers get their devices."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    elif ctx.invoked_subcommand == "generate":
        about = ctx.obj or {}
        ctx.obj = {**about, "driver_root": _driver_root(about.get("config", ""))}


def _driver_root(config: str) -> str:
    """The driver root that config.toml names. A broken file is an error only when it was asked for."""
    from kgpu.host.toolkit_files import config_path, read_config

    try:
        return read_config(config or config_path(os.environ)).text("nvidia-container-cli.root") or "/"
    except UserError as error:
        if config:
            raise
        click.echo(f"warning: {error.one_line()}", err=True)
        return "/"


@click.group(
    cls=LazyGroup, entries=RUNTIME_ENTRIES, examples="nvidia-ctk runtime configure", invoke_without_command=True
)
@click.pass_context
def runtime(ctx: click.Context) -> None:
    """The container engines' configs."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@click.command(cls=ExampleCommand, examples="nvidia-ctk info")
def info() -> None:
    """What of the toolkit is on this node: config.toml, hook program, spec folders with their devices."""
    from kgpu import __version__
    from kgpu.formats.names import CDI_DIR, CDI_STATIC_DIR
    from kgpu.host.toolkit_files import config_path
    from kgpu.toolkit.specs import list_found, read_folders

    path = config_path(os.environ)
    specs = read_folders((CDI_STATIC_DIR, CDI_DIR))
    listing = list_found(specs)
    rows = (
        ("version", f"kgpu {__version__}"),
        ("config", path if os.path.isfile(path) else f"{path} is not there: defaults"),
        ("hook program", hook_program() or "none: specs must be free of hooks"),
        ("CDI specs", ", ".join(spec.path for spec in specs) or "none"),
        ("CDI devices", str(len(listing.names))),
    )
    for label, text in rows:
        click.echo(f"{label + ':':<14}{text}")
    for warning in listing.warnings:
        click.echo(f"warning: {warning}", err=True)


def hook_program() -> str:
    """The toolkit's own hook program, "" when it isn't installed in one of its places."""
    return next((path for path in HOOK_PLACES if os.path.isfile(path) and os.access(path, os.X_OK)), "")


@click.command(
    cls=ExampleCommand,
    examples="nvidia-ctk hook create-symlinks --link libcuda.so.1::/usr/lib64/libcuda.so",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,  # options are the hook's
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="NAME [ARGUMENT]...")
@click.pass_context
def hook(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Hand an OCI hook over to nvidia-cdi-hook.

    A hook with an unknown name is a warning, because specs may be newer than the program; a known one without the
    program is an error, because containers must not start without what their spec promises.
    """
    if words in {("-h",), ("--help",)}:
        click.echo(ctx.get_help())
        return
    program = hook_program()
    name = words[0] if words else ""
    if program:
        debug = bool((ctx.obj or {}).get("debug"))
        # Nothing of the environment is handed on: it may be that of a container's image.
        os.execve(program, [os.path.basename(program), *words], {ENV_HOOK_DEBUG: "true" if debug else "false"})  # noqa: S606
    if name not in HOOKS:
        problem = f'there is no hook "{name:.100}"' if name else "no hook is named"
        click.echo(f"warning: {problem}; nothing is done", err=True)
        return
    raise HostError(
        f"nvidia-cdi-hook is not installed, so the hook {name} can't be carried out",
        f"the program at {', '.join(HOOK_PLACES[:-1])}{' or ' if HOOK_PLACES[1:] else ''}{''.join(HOOK_PLACES[-1:])}",
        "install it, or generate the CDI spec again without hooks: `kgpu cdi generate --output FILE`",
    )
