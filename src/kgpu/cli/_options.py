"""Click options from rows of settings (``kgpu.formats.settings``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import click

from kgpu.formats.settings import FlagShape, Setting

F = TypeVar("F", bound=Callable[..., Any])

# The rows decide precedence, so no option has a default or a variable of click's. A switch may stand alone or have a
# value, as in Go: --gds-enabled, --gds-enabled=false.
SHAPES: Final[Mapping[FlagShape, dict[str, Any]]] = {
    FlagShape.TEXT: {"default": None, "metavar": "VALUE"},
    FlagShape.SWITCH: {"default": None, "is_flag": False, "flag_value": "true", "metavar": "BOOL"},
    FlagShape.LIST: {"multiple": True, "metavar": "VALUE"},
}


def option(
    row: Setting, *, names: Iterable[str] = (), parameter: str = "", text: str = "", **changes: Any
) -> click.Option:
    """One option. ``names`` are those of its flags that are free, by default all; ``text`` is its help."""
    words = [*(tuple(names) or row.flags), parameter or row.attr]
    return click.Option(words, help=text or help_of(row), **{**SHAPES[row.shape], **changes})


def options(rows: Iterable[Setting], **changes: Any) -> Callable[[F], F]:
    """A decorator that adds an option for each row, in their order."""
    every = tuple(rows)

    def add(function: F) -> F:
        for row in reversed(every):
            shape = {**SHAPES[row.shape], **changes}
            function = click.option(*row.flags, row.attr, help=help_of(row), **shape)(function)
        return function

    return add


def help_of(row: Setting) -> str:
    """What it means, and the variables that say the same."""
    return f"{row.help}  [env: {', '.join(row.envs)}]"
