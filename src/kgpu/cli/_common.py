"""What commands share: the help layout with examples, common options, printing data, running a coroutine.

Imports click only; whatever is heavier is imported inside the function that needs it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kgpu.base.errors import ConfigError, UserError
from kgpu.base.problems import obstacle_in

if TYPE_CHECKING:
    from kgpu.deviceplugin.config import PluginSettings
    from kgpu.kube.client import Client

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

MAX_SECONDS: Final = 2**31 - 1  # what an operation's field can hold


class Examples:
    """Mixin: a command whose help ends with examples, one per line, shown as they are typed."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = [line.strip() for line in self.examples.splitlines() if line.strip()]
        if lines:
            formatter.write_paragraph()
            formatter.write("Examples:\n")
            for line in lines:
                formatter.write(f"  {line}\n")
        if isinstance(self, click.Command):
            click.Command.format_epilog(self, ctx, formatter)


class ExampleCommand(Examples, click.Command):
    """``@click.command(cls=ExampleCommand, examples="kgpu version -o json")``; several examples are several lines."""


class GoFlagsCommand(ExampleCommand):
    """A command of a replaced program, which takes flags as Go's parsers do: ``-collectors=FILE``, ``-f=FILE``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from kgpu.formats.go_flags import long_words

        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        spelled = {name.lstrip("-"): _longest(one) for one in options for name in one.opts}
        switches = [_longest(one) for one in options if one.is_flag or one.flag_value is not None]
        return super().parse_args(ctx, long_words(args, {**spelled, **self.meant(args)}, switches))

    def meant(self, args: Sequence[str]) -> Mapping[str, str]:  # noqa: ARG002 - for those that override it
        """What names stand for otherwise than click has them."""
        return {}


def _longest(option: click.Option) -> str:
    """A spelling that can have ``=value`` behind it."""
    return next((name for name in option.opts if name.startswith("--")), option.opts[0])


class ExampleGroup(Examples, click.Group):
    """A group with examples; its subcommands are ``ExampleCommand`` unless they say otherwise."""

    command_class = ExampleCommand


class ListingGroup(ExampleGroup):
    """A group that lists when it is given no command; a word that is none is one that is mistyped."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in {"-h", "--help"}):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def output_option(*forms: str, default: str = "text") -> Callable[[F], F]:
    """``-o/--output`` with the given forms (text and json when none are given); the parameter is ``output``."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(forms or ("text", "json")),
        default=default,
        show_default=True,
        help="How to print the result.",
    )


def root_option(function: F) -> F:
    """``--root DIR`` (also ``--driver-root``): whose driver to use; the parameter is ``root``, "" when not given."""
    return click.option(
        "--root",
        "--driver-root",
        "root",
        metavar="DIR",
        default="",
        envvar=["KGPU_ROOT", "DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"],
        help="Driver root as this process sees it, e.g. a simulated one. Default: this machine's.",
    )(function)


def log_options(function: F) -> F:
    """``--log-level`` and ``--log-format``; parameters of the same names."""
    level = click.option(
        "--log-level",
        type=click.Choice(("debug", "info", "warning", "error")),
        default="info",
        show_default=True,
        envvar="LOG_LEVEL",
        help="The least important records to write.",
    )
    form = click.option(
        "--log-format",
        type=click.Choice(("text", "json")),
        default="text",
        show_default=True,
        envvar="LOG_FORMAT",
        help="Log lines for people, or one JSON object per line.",
    )
    return level(form(function))


def driver_root_here(settings: PluginSettings) -> Path:
    """Where this process finds the driver.

    The usual mount counts only where it is there, else it is the host's own root; a place that was named counts even
    before it is there.
    """
    from kgpu.deviceplugin.config import FLAGS

    usual = next(row.default for row in FLAGS if row.attr == "container_driver_root")
    named = settings.container_driver_root
    return Path(named if named != usual or os.path.isdir(usual) else settings.driver_root)


def with_state(env: Mapping[str, str], root: Path) -> dict[str, str]:
    """The environment with the state file of a simulated driver root, unless it names one already."""
    from kgpu.formats.names import ENV_HW_STATE
    from kgpu.formats.simulated import state_file

    state = state_file(str(root))
    return {**({ENV_HW_STATE: state} if state else {}), **env}


def check_kubeconfig(context: click.Context, path: str | None) -> None:
    """Refuse a ``--kubeconfig`` that was given on the command line and is not there. Raises ConfigError."""
    given = context.get_parameter_source("kubeconfig") is click.core.ParameterSource.COMMANDLINE
    if given and path and not os.path.isfile(os.path.expanduser(path)):
        raise ConfigError(
            f"there is no file {path} to read the connection to the API server from",
            "a kubeconfig file",
            "correct --kubeconfig, or leave it out where the pod's service account is meant",
        )


def print_json(data: object) -> None:
    """Print JSON data, indented, in the order given."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def seconds_of(text: str, flag: str) -> int:
    """A duration in Go's form as whole seconds. Raises ConfigError, also for less than one."""
    from kgpu.formats.duration import parse_duration

    try:
        seconds = parse_duration(text) / 1e9
    except ConfigError as error:
        raise ConfigError(error.what, "a duration such as 90s, 5m or 2h", f"correct {flag}") from error
    if not 1 <= seconds <= MAX_SECONDS:
        raise ConfigError(f"{flag} is {text:.40}", "a duration of at least a second, such as 5m", f"correct {flag}")
    return int(seconds)


def no_namespace(name: str, known: Collection[str], place: str) -> ConfigError:
    """The error for a namespace that there is not; ``place`` is where its name was given."""
    from kgpu.base.printable import one_line
    from kgpu.base.suggest import did_you_mean, one_of

    near = did_you_mean(name, known)
    return ConfigError(
        f"there is no namespace {one_line(name, 63)}" + (f"; {near}" if near else ""),
        one_of(name, known) if known else "a namespace", f"correct {place}: kubectl get namespaces",
    )  # fmt: skip


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. A ``UserError`` that a task group has wrapped comes out as itself."""
    import asyncio

    try:
        return asyncio.run(coroutine)
    except BaseExceptionGroup as group:
        obstacle = obstacle_in(group)
        if obstacle is not None:
            raise obstacle from group
        raise


async def with_api(kubeconfig: str, work: Callable[[Client], Awaitable[T]]) -> T:
    """Do ``work`` with a connection to the API server, which is closed at its end."""
    from kgpu.kube.client import connect

    api = connect(kubeconfig)
    try:
        return await work(api)
    finally:
        await api.close()


def print_error(error: UserError, program: str = "kgpu") -> None:
    """Write the three parts to standard error."""
    click.echo(f"{program}: {error}", file=sys.stderr)


def spec_dir_option(text: str) -> Callable[[F], F]:
    """``--spec-dir DIR``, several times; the parameter is ``folders``. ``text`` is its help."""
    return click.option(
        "--spec-dir", "folders", multiple=True, metavar="DIR", envvar="NVIDIA_CTK_CDI_SPEC_DIRS", help=text
    )
