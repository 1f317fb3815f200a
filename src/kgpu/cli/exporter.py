"""``kgpu exporter``: one look at what every accelerator does, as metrics, with the replaced exporter's flags.

``--once`` prints what a scrape would give; what is wrong with the counters file, and flags that do nothing here, go to
standard error.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kgpu.base.errors import ConfigError, HwError, KubeletError
from kgpu.cli._common import ExampleCommand, root_option, run_async
from kgpu.exporter.config import Given, attr_of, resolve
from kgpu.exporter.options import OPTIONS, WITHOUT

if TYPE_CHECKING:
    from kgpu.exporter.counters import Counter
    from kgpu.exporter.model import Look
    from kgpu.kubelet.pod_resources import Holding

F = TypeVar("F", bound=Callable[..., Any])

EXAMPLES: Final = """
kgpu exporter --once
kgpu exporter --once --root /run/nvidia/driver --openmetrics
kgpu exporter --once -f my-counters.csv
kgpu exporter --once --kubernetes --compat b,c
"""
COUNTERS_LIMIT: Final = 1 << 20
_SWITCH: Final[dict[str, Any]] = {"is_flag": False, "flag_value": "true", "metavar": "BOOL"}
_VALUE: Final[dict[str, Any]] = {"metavar": "VALUE"}


def _options(function: F) -> F:
    """An option per row of the tables, which decide precedence: there is no default or envvar here."""
    for silent in reversed(WITHOUT):
        shape = _SWITCH if silent.is_flag else _VALUE
        names = (silent.flag, *silent.aliases, attr_of(silent.flag))
        function = click.option(*names, default=None, hidden=True, **shape)(function)
    for row in reversed(OPTIONS):
        shape = _SWITCH if row.is_flag else _VALUE
        text = f"{row.help}  [env: {', '.join(row.envs)}]"
        function = click.option(row.flag, *row.aliases, row.attr, default=None, help=text, **shape)(function)
    return function


@click.command("exporter", cls=ExampleCommand, examples=EXAMPLES)
@root_option
@click.option("--once", is_flag=True, help="Print the metrics of this moment and end.")
@click.option("--openmetrics", is_flag=True, help="With --once: OpenMetrics instead of Prometheus' plain text.")
@_options
def exporter(*, root: str, once: bool, openmetrics: bool, **flags: Any) -> None:
    """What every accelerator does and for whom, as metrics that Prometheus reads."""
    given = resolve(flags, os.environ)
    for note in given.notes:
        click.echo(f"kgpu exporter: {note}", err=True)
    if not once:
        raise ConfigError("metrics can't be served by this command yet", "--once, for one look", "give --once")
    counters = _counters(given)
    from kgpu.exporter.own import Figures
    from kgpu.exporter.plan import Memory, plan
    from kgpu.exporter.render import Format, render

    look = run_async(_look(root, given))
    memory = Memory()
    settings = given.settings(hostname=os.environ.get("NODE_NAME") or socket.gethostname(), counters=counters)
    planned = plan(look, settings, memory)
    figures = Figures()
    figures.count(planned)
    own = figures.families(memory.texts) if settings.own_metrics else ()
    for decision in planned.decisions:
        click.echo(f"kgpu exporter: {decision.one_line()}", err=True)
    sys.stdout.write(render((*planned.families, *own), Format.OPENMETRICS if openmetrics else Format.TEXT))


def _counters(given: Given) -> tuple[Counter, ...] | None:
    """What the counters file asks for; None where none was named and the usual place has none."""
    from kgpu.exporter.counters import parse_counters
    from kgpu.host.bounded import read_regular

    if not given.collectors_given and not os.path.exists(given.collectors):
        return None
    raw, _ = read_regular(given.collectors, COUNTERS_LIMIT, what="a counters file: FIELD, type, help on each line")
    parsed = parse_counters(raw.decode("utf-8", "replace"), given.collectors)
    for problem in parsed.problems:
        click.echo(f"kgpu exporter: {problem.one_line()}", err=True)
    return parsed.rows


async def _look(root: str, given: Given) -> Look:
    from kgpu.exporter.facts import gather
    from kgpu.exporter.model import Look, Tick
    from kgpu.hw.open import open_reader
    from kgpu.hw.port import Inventory, Vendor

    try:
        reader = open_reader(driver_root=Path(root) if root else None)
        try:
            inventory = await reader.inventory()
            values = gather(inventory, await reader.readings())
        finally:
            await reader.close()
    except HwError:
        if not given.fake_gpus:
            raise
        inventory, values = Inventory(vendor=Vendor.NVIDIA, driver_version=""), {}
    held = await _held(given) if given.kubernetes else ()
    return Look(inventory=inventory, now=Tick(values=values), holdings=held)


async def _held(given: Given) -> tuple[Holding, ...] | None:
    """Who holds what; None, and a word about it, where the kubelet does not tell."""
    from kgpu.kubelet.pod_resources import PodResources

    try:
        return await PodResources(Path(given.pod_resources)).holdings()
    except KubeletError as error:
        click.echo(f"kgpu exporter: pods are not shown: {error.one_line()}", err=True)
        return None
