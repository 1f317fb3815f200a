"""``kgpu status``: nodes, operands and drivers of a cluster, what is not ready, why, and what to do; on one screen."""

from __future__ import annotations

import io
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import click

from kgpu.base.printable import counted
from kgpu.cli import _complete
from kgpu.cli._common import ExampleCommand, check_kubeconfig, output_option, print_json, run_async
from kgpu.cli._status_table import JUDGE, MOST_ROWS, node_rows, node_table, short
from kgpu.formats.names import NVIDIA

if TYPE_CHECKING:
    from rich.console import Console

    from kgpu.cli._status_operations import NodeOperations
    from kgpu.cli._status_tenant import TenantStatus
    from kgpu.cli._status_vendors import VendorNode
    from kgpu.operator.field_rows import FieldRow
    from kgpu.operator.overview import Overview, ShownProblem, UpgradeRow
    from kgpu.operator.watching import WatchedCluster

EXAMPLES: Final = """
kgpu status
kgpu status -o json
kgpu status --kubeconfig ~/.kube/config --namespace gpu-operator
"""
NOT_READY: Final = 3
MOST_PROBLEMS: Final = 10
PIPE_WIDTH: Final = 10_000

# States of driver upgrades, as kgpu.operator.upgrades has them.
_RUNS: Final = "upgrade-done"
_REQUIRED: Final = "upgrade-required"
_FAILED: Final = "upgrade-failed"


@click.command("status", cls=ExampleCommand, examples=EXAMPLES)
@click.option("--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server.")
@click.option(
    "-n", "--namespace", default="", metavar="NS", shell_complete=_complete.namespaces,
    help="The operator's namespace (default: where one is found); for who may not list nodes, the one to show.",
)  # fmt: skip
@output_option()
@click.pass_context
def status(context: click.Context, *, kubeconfig: str, namespace: str, output: str) -> None:
    """Show nodes, operands and drivers; what is not ready, why, and what to do.

    Nodes with accelerators are shown whoever offers them: kgpu's operator, agents on their own, or another plugin.
    Needs no more than rights to read. Who may not list nodes sees the pods and quotas of a namespace: of -n, else of
    the kubeconfig's context. Exit code 0: all is ready; 3: something is not.
    """
    check_kubeconfig(context, kubeconfig)
    found = run_async(_look(kubeconfig, namespace))
    if not isinstance(found, tuple):
        _tell_tenant(found, output)
        return
    overview, operations, others = found
    if output == "json":
        import msgspec

        rows = [msgspec.to_builtins(node) | {"works": node.works} for node in others]
        print_json({**msgspec.to_builtins(overview), **operations.as_data(), "accelerator_nodes": rows})
    else:
        import time

        click.echo(render(overview, width=_width(), others=others), nl=False)
        click.echo("".join(f"{line}\n" for line in operations.lines(time.time())), nl=False)
    if not is_ready(overview, others):
        raise click.exceptions.Exit(NOT_READY)


def _tell_tenant(found: TenantStatus, output: str) -> None:
    if output == "json":
        print_json(found.data())
    else:
        click.echo(found.text())
    if not found.ready:
        raise click.exceptions.Exit(NOT_READY)


async def _look(
    kubeconfig: str, namespace: str
) -> tuple[Overview, NodeOperations, tuple[VendorNode, ...]] | TenantStatus:  # fmt: skip
    """The cluster; of a namespace what its owner may see, where nodes may not be listed."""
    from kgpu.cli._status_operations import read_operations
    from kgpu.cli._status_tenant import may_list_nodes, read_tenant
    from kgpu.cli._status_vendors import read_vendor_nodes
    from kgpu.kube.client import connect
    from kgpu.kube.port import KubeRefusedError

    api = connect(kubeconfig)
    try:
        try:
            overview = await read(api, namespace)
        except KubeRefusedError as error:
            if error.code != HTTPStatus.FORBIDDEN or await may_list_nodes(api):
                raise
            return await read_tenant(api, namespace or api.namespace)
        return overview, await read_operations(api, overview.namespace), await read_vendor_nodes(api)
    finally:
        await api.close()


def is_ready(overview: Overview, others: tuple[VendorNode, ...]) -> bool:
    """Whether all works. Agents of their own, and plugins of others, need no operator of kgpu: without one only nodes
    count.
    """
    return (overview.ready or is_alone(overview, others)) and all(node.works for node in _left(overview, others))


def is_alone(overview: Overview, others: tuple[VendorNode, ...]) -> bool:
    """Whether nodes give their devices to pods without an operator of kgpu: there is no policy and no sign of one, and
    none of NVIDIA's GPUs wait for somebody who offers them.
    """
    giving = {node.name for node in others if node.vendor == NVIDIA and node.works}
    waiting = any(node.vendor == NVIDIA and node.name not in giving for node in overview.nodes)
    return bool(others) and not (overview.policy or overview.installed or overview.drivers or waiting)


def _left(overview: Overview, others: tuple[VendorNode, ...]) -> tuple[VendorNode, ...]:
    """Those of ``others`` that the operator does not judge: what it says of a node counts, and is not said twice."""
    judged = {(node.name, node.vendor) for node in overview.nodes if node.operands}
    return tuple(node for node in others if (node.name, node.vendor) not in judged)


async def read(api: WatchedCluster, namespace: str) -> Overview:
    """How the cluster is doing. Raises KubeError when Nodes can't be read, ConfigError for a wrong namespace."""
    from kgpu.operator.cluster_reading import read_cluster
    from kgpu.operator.overview import overview

    looked = await read_cluster(api, namespace)
    return overview(looked.observed, looked.settings, operator=looked.operator, unread=looked.unread)


def render(found: Overview, *, width: int, color: bool | None = None, others: tuple[VendorNode, ...] = ()) -> str:
    """The screen as text; colours only where the terminal has them. Remedies are never broken: they are pasted."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, force_terminal=_is_terminal() if color is None else color)
    with console.capture() as capture:
        _show(console, found, others)
    return "\n".join(line.rstrip() for line in capture.get().split("\n"))


def _show(console: Console, overview: Overview, others: tuple[VendorNode, ...]) -> None:
    from rich.text import Text

    alone = is_alone(overview, others)
    if alone:
        works = sum(node.works for node in others)
        headline = f"{works} of {len(others)} nodes give their devices to pods; no operator of kgpu runs them"
        console.print(Text(headline, style="bold green" if works == len(others) else "bold red"))
    else:
        console.print(Text(overview.headline, style="bold green" if overview.ready else "bold red"))
        place = f", layout {overview.layout}, namespace {overview.namespace}" if overview.installed else ""
        console.print(Text(f"{overview.operator}{place}", style="dim"))
    if rows := node_rows(overview, others):
        operands = [row.name for row in overview.operands] or [JUDGE]
        table = node_table(rows, operands)
        if console.measure(table, options=console.options.update(width=PIPE_WIDTH)).maximum > console.width:
            table = node_table(rows, operands, narrow=True)
        console.print(table)
    rest = max(0, overview.other_nodes - len({node.name for node in others} - {node.name for node in overview.nodes}))
    if rest:
        are = "is" if rest == 1 else "are"
        console.print(Text(f"{counted(rest, 'other node')} {are} not known to have accelerators", style="dim"))
    unused = [row.title for row in overview.operands if row.reason == "NotProvided"]
    off = [row.title for row in overview.operands if row.reason == "Disabled"]
    for words, titles in (("not provided by kgpu yet", unused), ("switched off", off)):
        if titles:
            console.print(Text(f"{words}: {', '.join(titles)}", style="dim"))
    for driver in overview.drivers:
        style = "green" if driver.state == "ready" else "yellow"
        line = f"NVIDIADriver {driver.name}: {driver.state or 'no state yet'}, {counted(driver.nodes, 'node')}"
        console.print(Text(line + (f"; {driver.message}" if driver.state != "ready" else ""), style=style))
    _upgrades(console, overview.upgrades)
    _fields(console, overview.fields)
    _problems(console, (*(() if alone else overview.problems), *_of_vendors(_left(overview, others))))
    for line in overview.unread:
        console.print(Text(f"not known: {line}", style="yellow"))


def _of_vendors(nodes: tuple[VendorNode, ...]) -> tuple[ShownProblem, ...]:
    """What is wrong with other vendors' devices, one row for all nodes with the same."""
    from kgpu.operator.overview import ShownProblem

    groups: dict[tuple[str, bool], list[VendorNode]] = {}
    for node in nodes:
        for problem in node.problems:
            groups.setdefault((problem.what, problem.stops), []).append(node)
    return tuple(
        ShownProblem(what=what, remedy=f"kgpu doctor node {rows[0].name}", nodes=tuple(row.name for row in rows))
        for (what, _), rows in sorted(groups.items(), key=lambda row: (not row[0][1], row[0][0]))
    )


def _upgrades(console: Console, upgrades: tuple[UpgradeRow, ...]) -> None:
    """The nodes that do not run the driver that is asked for yet; nothing where all do."""
    from rich.text import Text

    late = [row for row in upgrades if row.state != _RUNS]
    if not late:
        return
    failed, waiting = sum(row.state == _FAILED for row in late), sum(row.waits for row in late)
    required = sum(row.state == _REQUIRED and not row.waits for row in late)
    counts = (
        (len(late) - failed - waiting - required, "under way"),
        (required, "to come"),
        (waiting, "waiting for approval"),
        (failed, "failed"),
    )
    said = ", ".join(f"{count} {words}" for count, words in counts if count)
    done = len(upgrades) - len(late)
    head = f"Driver upgrades: {done} of {len(upgrades)} nodes run the driver that is asked for; {said}:"
    console.print(Text(head, style="red" if failed else "yellow"))
    for row in sorted(late, key=lambda row: (row.state == _REQUIRED, row.state != _FAILED, row.node))[:MOST_ROWS]:
        state = "waits for approval" if row.waits else row.state
        by = f" ({row.operation})" if row.operation else ""
        change = row.wanted if row.running == row.wanted else f"{row.running or 'no driver'} → {row.wanted}"
        console.print(Text(f"  {short(row.node)}: {change}: {state}{by}"))
    if len(late) > MOST_ROWS:
        console.print(Text(f"  and {len(late) - MOST_ROWS} more; kgpu status -o json has them all", style="dim"))


def _fields(console: Console, fields: tuple[FieldRow, ...]) -> None:
    """Fields that ask for what kgpu can't do; nothing waits for them."""
    from rich.text import Text

    if not fields:
        return
    many = "field asks" if len(fields) == 1 else "fields ask"
    console.print(Text(f"{len(fields)} {many} for what this version can't do:", style="yellow"))
    for row in fields[:MOST_PROBLEMS]:
        console.print(Text(f"  {row.object} {row.field}: {row.instead}"))
    if len(fields) > MOST_PROBLEMS:
        console.print(Text(f"  and {len(fields) - MOST_PROBLEMS} more; kgpu status -o json has them all", style="dim"))


def _problems(console: Console, problems: tuple[ShownProblem, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    for problem in problems[:MOST_PROBLEMS]:
        mark, style = ("!", "yellow") if problem.warning else ("…", "cyan") if problem.passing else ("✘", "bold red")
        row = Table.grid(padding=(0, 1, 0, 0))  # so that further lines stand below the first one's words
        row.add_row(Text(mark, style=style), Text(_where(problem.nodes) + problem.what))
        console.print(row)
        if problem.remedy:
            console.print(Text.assemble("    ", ("to do: ", "bold"), problem.remedy), soft_wrap=True)
    if len(problems) > MOST_PROBLEMS:
        console.print(Text(f"and {len(problems) - MOST_PROBLEMS} more; kgpu status -o json has them all", style="dim"))


def _where(nodes: tuple[str, ...]) -> str:
    if not nodes:
        return ""
    more = f" (+{len(nodes) - 5} more)" if len(nodes) > 5 else ""
    return f"{'node' if len(nodes) == 1 else 'nodes'} {', '.join(map(short, nodes[:5]))}{more}: "


def _is_terminal() -> bool:
    import sys

    return sys.stdout.isatty()


def _width() -> int:
    """A program that reads the output has no lines of its own to break: it gets them whole."""
    import os
    import shutil

    if not _is_terminal() and not os.environ.get("COLUMNS"):
        return PIPE_WIDTH
    return shutil.get_terminal_size((120, 40)).columns
