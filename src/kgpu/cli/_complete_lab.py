"""What a shell offers behind TAB for labs: their names, their nodes, scenarios to play and machines to simulate.

All of it lies in files. Whatever goes wrong offers nothing: whoever types is never shown an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

Offer = Callable[["click.Context", "click.Parameter", str], "list[str]"]


def _offered(names: Callable[[click.Context], Iterable[str]]) -> Offer:
    def offer(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        del param
        try:
            return [name for name in names(ctx) if name.startswith(incomplete)]
        except Exception:
            return []  # the shell would put an error into the line

    return offer


def _labs(ctx: click.Context) -> Iterable[str]:
    from kgpu.lab import folders

    del ctx
    return folders.names()


def _nodes(ctx: click.Context) -> Iterable[str]:
    from kgpu.lab import find, folders

    lab = find.find(*folders.chosen(ctx.params.get("name"), ctx.params.get("folder"), os.environ))
    return sorted(machine.node for machine in lab.hardware())


def _scenarios(ctx: click.Context) -> Iterable[str]:
    from kgpu.lab.scenarios import model

    del ctx
    return model.bundled()


def _profiles(ctx: click.Context) -> Iterable[str]:
    from kgpu.hw.simulator import machines

    del ctx
    return machines.names()


labs, nodes, scenarios, profiles = _offered(_labs), _offered(_nodes), _offered(_scenarios), _offered(_profiles)
