"""``nvidia-ctk config``: print the toolkit's config.toml, whole and with its comments, after the changes asked for."""

from __future__ import annotations

import os
import stat
from typing import Final

import click

from kgpu.base.errors import ConfigError, HostError
from kgpu.cli._common import ExampleCommand, ExampleGroup

EXAMPLES: Final = """
nvidia-ctk config --set nvidia-container-runtime.mode=cdi --in-place
nvidia-ctk config --set features.ignore-imex-channel-requests --output config.toml
nvidia-ctk config default
"""


@click.group(cls=ExampleGroup, examples=EXAMPLES, invoke_without_command=True)
@click.option("--config-file", "--config", "-c", "path", default="", metavar="FILE",
              help="The file to read. Default: the one that the toolkit uses.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="KEY[=VALUE]",
              help="Change a setting; may be given several times. A boolean's key alone means true.")  # fmt: skip
@click.option("--set-list-separator", "separator", default=":", hidden=True, help="What divides a list's items.")
@click.option("--in-place", "-i", is_flag=True, help="Write the result to the file that was read.")
@click.option("--output", "-o", "output", default="", metavar="FILE", help="Default: standard output.")
@click.pass_context
def config(
    ctx: click.Context, *, path: str, settings: tuple[str, ...], separator: str, in_place: bool, output: str
) -> None:
    """Print the toolkit's config.toml, after the changes of --set. Unknown keys and wrong values are errors."""
    from kgpu.formats.toolkit_config import dump_config, set_values
    from kgpu.host.toolkit_files import config_path, read_config

    if ctx.invoked_subcommand is not None:
        return
    if in_place and output:
        raise ConfigError("--in-place and --output are both given", "one place to write to", "leave one of them out")
    file = path or config_path(os.environ)
    before = read_config(file)
    for note in before.notes:
        click.echo(f"note: {note}", err=True)
    _write(dump_config(set_values(before, settings, separator=separator)), file if in_place else output)


@config.command("default", cls=ExampleCommand, examples="nvidia-ctk config default --output config.toml")
@click.option("--output", "-o", "output", default="", metavar="FILE", help="Default: standard output.")
def default(output: str) -> None:
    """Print the default config.toml of this system."""
    _default(output)


@config.command("create-default", hidden=True, cls=ExampleCommand, examples="nvidia-ctk config create-default")
@click.option("--output", "-o", "output", default="", metavar="FILE", help="Default: standard output.")
def create_default(output: str) -> None:
    """The same as default."""
    _default(output)


@config.command("generate-default", hidden=True, cls=ExampleCommand, examples="nvidia-ctk config generate-default")
@click.option("--output", "-o", "output", default="", metavar="FILE", help="Default: standard output.")
def generate_default(output: str) -> None:
    """The same as default."""
    _default(output)


def _default(output: str) -> None:
    from kgpu.formats.toolkit_config import ToolkitConfig, dump_config
    from kgpu.host.toolkit_files import host_defaults

    _write(dump_config(ToolkitConfig(host=host_defaults())), output)


def _write(text: str, target: str) -> None:
    """Atomically, under the file's own permissions, and through a link to what it names."""
    from kgpu.base.files import write_atomic

    if target in {"", "-"}:
        click.echo(text, nl=False)
        return
    place = os.path.realpath(target)
    try:
        mode = stat.S_IMODE(os.stat(place).st_mode) if os.path.isfile(place) else 0o644
        write_atomic(place, text, mode=mode)
    except OSError as error:
        raise HostError(
            f"{target} can't be written: {error.strerror}", "a file that this user may write", "choose another place"
        ) from error
