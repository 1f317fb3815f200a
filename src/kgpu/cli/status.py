"""``kgpu status``: nodes, operands and drivers of a cluster, what is not ready, why, and what to do; on one screen."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import click

from kgpu.cli import _complete
from kgpu.cli._common import ExampleCommand, check_kubeconfig, output_option, print_json, run_async
from kgpu.formats.operands import BY_NAME

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from kgpu.cli._status_operations import NodeOperations
    from kgpu.operator.field_rows import FieldRow
    from kgpu.operator.overview import NodeOverview, Overview, ShownProblem, UpgradeRow
    from kgpu.operator.watching import WatchedCluster

EXAMPLES: Final = """
kgpu status
kgpu status -o json
kgpu status --kubeconfig ~/.kube/config --namespace gpu-operator
"""
NOT_READY: Final = 3
MOST_ROWS: Final = 15
MOST_PROBLEMS: Final = 10
MOST_NAME: Final = 48
PIPE_WIDTH: Final = 10_000

# States of driver upgrades, as kgpu.operator.upgrades has them.
_RUNS: Final = "upgrade-done"
_REQUIRED: Final = "upgrade-required"
_FAILED: Final = "upgrade-failed"

# How a cell looks.
_CELLS: Final = {
    "works": ("ok", "green"),
    "fails": ("FAIL", "bold red"),
    "waits": ("wait", "yellow"),
    "off": ("-", "dim"),
}
_JUDGE: Final = "health"
_BADNESS: Final = ("fails", "waits", "off", "works")


@click.command("status", cls=ExampleCommand, examples=EXAMPLES)
@click.option("--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server.")
@click.option(
    "-n", "--namespace", default="", metavar="NS", help="The operator's namespace. Default: where one is found.",
    shell_complete=_complete.namespaces,
)  # fmt: skip
@output_option()
@click.pass_context
def status(context: click.Context, *, kubeconfig: str, namespace: str, output: str) -> None:
    """Show nodes, operands and drivers; what is not ready, why, and what to do.

    Needs no more than rights to read. Exit code 0: all is ready; 3: something is not.
    """
    check_kubeconfig(context, kubeconfig)
    overview, operations = run_async(_look(kubeconfig, namespace))
    if output == "json":
        import msgspec

        print_json({**msgspec.to_builtins(overview), **operations.as_data()})
    else:
        import time

        click.echo(render(overview, width=_width()), nl=False)
        click.echo("".join(f"{line}\n" for line in operations.lines(time.time())), nl=False)
    if not overview.ready:
        raise click.exceptions.Exit(NOT_READY)


async def _look(kubeconfig: str, namespace: str) -> tuple[Overview, NodeOperations]:
    from kgpu.cli._status_operations import read_operations
    from kgpu.kube.client import connect

    api = connect(kubeconfig)
    try:
        overview = await read(api, namespace)
        return overview, await read_operations(api, overview.namespace)
    finally:
        await api.close()


async def read(api: WatchedCluster, namespace: str) -> Overview:
    """How the cluster is doing. Raises KubeError when Nodes can't be read, ConfigError for a wrong namespace."""
    from kgpu.operator.cluster_reading import read_cluster
    from kgpu.operator.overview import overview

    looked = await read_cluster(api, namespace)
    return overview(looked.observed, looked.settings, operator=looked.operator, unread=looked.unread)


def render(found: Overview, *, width: int, color: bool | None = None) -> str:
    """The screen as text; colours only where the terminal has them. Remedies are never broken: they are pasted."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, force_terminal=_is_terminal() if color is None else color)
    with console.capture() as capture:
        _show(console, found)
    return "\n".join(line.rstrip() for line in capture.get().split("\n"))


def _show(console: Console, overview: Overview) -> None:
    from rich.text import Text

    console.print(Text(overview.headline, style="bold green" if overview.ready else "bold red"))
    place = f", layout {overview.layout}" if overview.layout else ""
    console.print(Text(f"{overview.operator}{place}, namespace {overview.namespace}", style="dim"))
    if overview.nodes:
        table = _nodes(overview)
        if console.measure(table, options=console.options.update(width=PIPE_WIDTH)).maximum > console.width:
            table = _nodes(overview, narrow=True)
        console.print(table)
    others = "node is" if overview.other_nodes == 1 else "nodes are"
    rest = f"{overview.other_nodes} other {others} not known to have NVIDIA GPUs"
    if overview.other_nodes:
        console.print(Text(rest, style="dim"))
    unused = [row.title for row in overview.operands if row.reason == "NotProvided"]
    off = [row.title for row in overview.operands if row.reason == "Disabled"]
    for words, titles in (("not provided by kgpu yet", unused), ("switched off", off)):
        if titles:
            console.print(Text(f"{words}: {', '.join(titles)}", style="dim"))
    for driver in overview.drivers:
        style = "green" if driver.state == "ready" else "yellow"
        line = f"NVIDIADriver {driver.name}: {driver.state or 'no state yet'}, {driver.nodes} nodes"
        console.print(Text(line + (f"; {driver.message}" if driver.state != "ready" else ""), style=style))
    _upgrades(console, overview.upgrades)
    _fields(console, overview.fields)
    _problems(console, overview.problems)
    for line in overview.unread:
        console.print(Text(f"not known: {line}", style="yellow"))


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
        console.print(Text(f"  {_short(row.node)}: {change}: {state}{by}"))
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
    return f"{'node' if len(nodes) == 1 else 'nodes'} {', '.join(map(_short, nodes[:5]))}{more}: "


def _short(name: str) -> str:
    """A Node's name may have 253 characters; the end is what tells machines of one make apart."""
    return name if len(name) <= MOST_NAME else f"{name[: MOST_NAME // 2]}…{name[-(MOST_NAME // 2 - 1) :]}"


def _nodes(overview: Overview, *, narrow: bool = False) -> Table:
    """A column for each operand; ``narrow``: one for all, which names those that do not work."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    heads = {
        row.name: BY_NAME[row.name].heading or row.name
        for row in overview.operands
        if any(row.name in node.operands for node in overview.nodes)
    }
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("GPU node", overflow="fold")
    for head in ("GPUs", "product", "driver", *([] if narrow else ["CUDA"])):
        table.add_column(head, overflow="fold")
    for head in ("operands",) if narrow else heads.values():
        table.add_column(head, no_wrap=not narrow)
    groups = _alike(overview.nodes)
    for names, node in groups[:MOST_ROWS]:
        name = _short(names[0]) + (f" (+{len(names) - 1} alike)" if len(names) > 1 else "")
        cells = {head: Text(*_cell(node, operand)) for operand, head in heads.items()}
        style = "" if node.ready else "red"
        name += ("" if node.ready else " (not Ready)") + (" (opted out)" if node.opted_out else "")
        driver = f"{node.driver} ({node.driver_source})" if node.driver_source and not narrow else node.driver or "-"
        rest: list[str | Text] = [_in_short(cells)] if narrow else [node.cuda or "-", *cells.values()]
        table.add_row(Text(name, style=style), _gpus(node), node.product or "-", driver, *rest)
    if len(groups) > MOST_ROWS:
        table.caption = f"and {sum(len(names) for names, _ in groups[MOST_ROWS:])} more nodes"
    return table


def _cell(node: NodeOverview, operand: str) -> tuple[str, str]:
    """How an operand is on a node; where the one that judges GPUs works, what it says of them."""
    cell = node.operands.get(operand, "off")
    if operand == _JUDGE and cell == "works" and node.gpus_bad:
        return f"{node.gpus_bad} ILL", "bold red"
    if operand == _JUDGE and cell == "works" and node.gpus_to_look_at:
        return f"{node.gpus_to_look_at} look", "yellow"
    return _CELLS[cell]


def _in_short(cells: dict[str, Text]) -> Text:
    """``validated FAIL, health 1 ILL, 6 ok``."""
    from rich.text import Text

    good = {_CELLS["works"][0], _CELLS["off"][0]}
    parts = [Text(f"{head} ").append_text(cell) for head, cell in cells.items() if cell.plain not in good]
    works = sum(cell.plain == _CELLS["works"][0] for cell in cells.values())
    if works:
        parts.append(Text(f"{'all ' if not parts else ''}{works} ok", style="green"))
    return Text(", ").join(parts)


def _alike(nodes: Iterable[NodeOverview]) -> list[tuple[list[str], NodeOverview]]:
    """Nodes that look the same but for their names, the worst first."""
    import msgspec

    groups: dict[bytes, tuple[list[str], NodeOverview]] = {}
    for node in nodes:
        fields = msgspec.to_builtins(node)
        fields.pop("name")
        groups.setdefault(msgspec.json.encode(fields, order="sorted"), ([], node))[0].append(node.name)
    return sorted(groups.values(), key=lambda group: (_worst(group[1]), group[0]))


def _worst(node: NodeOverview) -> int:
    if node.gpus_bad:
        return 0
    return min((_BADNESS.index(cell) for cell in node.operands.values()), default=len(_BADNESS))


def _gpus(node: NodeOverview) -> str:
    from kgpu.formats.names import GPU_RESOURCE, NVIDIA_DOMAIN

    shown = []
    for name, one in node.resources.items():
        short = "" if name == GPU_RESOURCE else f" {name.removeprefix(f'{NVIDIA_DOMAIN}/')}"
        shown.append(f"{one.allocatable}/{one.capacity}{short}")
    return ", ".join(shown) or "none yet"


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
