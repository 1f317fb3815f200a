"""Click options from rows of settings (``kgpu.formats.settings``)."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import click

from kgpu.formats.settings import FlagShape, Setting, resolve, without_effect

F = TypeVar("F", bound=Callable[..., Any])

# The rows decide precedence, so no option has a default or a variable of click's. A switch may stand alone or have a
# value, as in Go: --gds-enabled, --gds-enabled=false.
SHAPES: Final[Mapping[FlagShape, dict[str, Any]]] = {
    FlagShape.TEXT: {"default": None, "metavar": "VALUE"},
    FlagShape.SWITCH: {"default": None, "is_flag": False, "flag_value": "true", "metavar": "BOOL"},
    FlagShape.ALONE: {"default": None, "is_flag": True},
    FlagShape.LIST: {"multiple": True, "metavar": "VALUE"},
}


def help_of(row: Setting) -> str:
    """What it means, and the variables that say the same."""
    return f"{row.help}  [env: {', '.join(row.envs)}]"


def help_with_default(row: Setting) -> str:
    """What it means, and what counts without it, as click shows that."""
    return f"{row.help}  [default: {row.default}]" if row.default else row.help


def help_alone(row: Setting) -> str:
    """What it means, and no more."""
    return row.help


def help_naming_variables(row: Setting) -> str:
    """What it means, and the variables that say the same, as click shows them."""
    return f"{row.help}  [env var: {', '.join(row.envs)}]"


def help_with_variables(row: Setting) -> str:
    """What it means, the variables that say the same, and what counts without them, as click shows that."""
    default = f"; default: {row.default}" if row.default else ""
    return f"{row.help}  [env var: {', '.join(row.envs)}{default}]"


def option(
    row: Setting, *, names: Iterable[str] = (), parameter: str = "", text: str = "", **changes: Any
) -> click.Option:
    """One option. ``names`` are those of its flags that are free, by default all; ``text`` is its help."""
    words = [*(tuple(names) or row.flags), parameter or row.attr]
    return click.Option(words, help=text or help_of(row), **{**_shape(row), **changes})


def options(rows: Iterable[Setting], *, text: Callable[[Setting], str] = help_of, **changes: Any) -> Callable[[F], F]:
    """A decorator that adds an option for each row that has a flag, in their order; ``text`` makes its help."""
    every = tuple(row for row in rows if row.flag)

    def add(function: F) -> F:
        for row in reversed(every):
            function = click.option(*row.flags, row.attr, help=text(row), **{**_shape(row), **changes})(function)
        return function

    return add


def checked_by_click(row: Setting, **shape: Any) -> Callable[[F], F]:
    """A decorator for an option of a type of click's, which reads flag, variable and default by itself."""
    (variable,) = row.envs
    return click.option(
        *row.flags, row.attr, envvar=variable, default=row.default, show_envvar=True, help=row.help, **shape
    )


def settled(rows: Iterable[Setting], *, text: Callable[[Setting], str] = help_with_default) -> Callable[[F], F]:
    """A decorator that adds the options, and calls the function with the resolved values: flag, variable or default.

    A warning on standard error names each option that was given and has no effect.
    """
    every = tuple(rows)

    def add(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            flags = {row.attr: given.pop(row.attr, None) for row in every}
            resolved = resolve(every, flags=flags, env=os.environ)
            for advice in without_effect(every, resolved):
                click.echo(f"warning: {advice.one_line()}", err=True)
            return function(*args, **given, **resolved.values)

        return options(every, text=text)(call)  # type: ignore[return-value]

    return add


def _shape(row: Setting) -> dict[str, Any]:
    shape = SHAPES[row.shape]
    return {**shape, "metavar": row.metavar} if row.metavar else shape
