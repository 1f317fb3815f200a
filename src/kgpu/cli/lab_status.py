"""``kgpu lab status``: what a lab looks like right now."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from kgpu.cli._common import ExampleCommand, output_option, print_json
from kgpu.cli._lab import open_lab, up_line, which_lab, whose

ALIKE: Final = 12  # nodes of the same sort that are shown one by one


@click.command("status", cls=ExampleCommand, examples="kgpu lab status\nkgpu lab status -o json")
@which_lab
@output_option()
def status(*, name: str, folder: Path | None, output: str) -> None:
    """Show what runs, how much memory it takes, and the nodes' GPUs. Exit code 3 when the lab is not up."""
    there = open_lab(name, folder)
    report = there.report()
    if output == "json":
        print_json(report)
    else:
        _print_status(report, up_line(there.about, folder))
    if not report["running"]:
        raise click.exceptions.Exit(3)


def _print_status(report: dict[str, Any], up_line: str) -> None:
    if not report["running"]:
        click.echo(f'The lab "{report["name"]}" is not up. Start it with: {up_line}{whose()}')
        return
    profile = f", profile {report['profile']}" if report["profile"] else ""
    click.echo(f'Lab "{report["name"]}": {report["kind"]}{profile}, API {report["api"]}')
    if not report["complete"]:
        click.echo(f"  INCOMPLETE: `up` has not come to its end; this goes on with it: {up_line}")
    if not report.get("answers", True):
        click.echo("  THE API SERVER DOES NOT ANSWER; see its log")
    if report.get("host", {}).get("nodes") and not report["host"]["host"]:
        click.echo(f"  THE HOST OF THE SIMULATED NODES IS DOWN; this starts it again: {up_line}")
    click.echo(f"  logs {report['logs']}")
    if report.get("data"):
        click.echo(f"  objects are kept in {report['data']}")
    few, many = _by_number(report["nodes"])
    for node in few:
        _print_node(node, report["hardware"].get(node["name"], ""))
    for text in many:
        click.echo(text)
    for row in report.get("unhealthy", []):
        device = "driver" if not row["device"] else row["device"] if row["gpu"] is None else f"GPU {row['gpu']}"
        click.echo(f"  unhealthy: {device}, {row['why']}" + (f" ({row['device']})" if row["gpu"] is not None else ""))
    if report.get("agent_problem"):
        click.echo(f"  {report['agent_problem']}")
    click.echo(f"{'PROCESS':26}{'PID':>9}{'RESTARTS':>10}{'RSS MiB':>10}{'PSS MiB':>10}  VERSION")
    for process in report["processes"]:
        sizes = "".join(f"{process.get(key, 0) / 1024:10.1f}" for key in ("rss_kib", "pss_kib"))
        version = report["versions"].get(process["name"], "")
        click.echo(
            f"{process['name']:26}{process['pid'] or '-':>9}{process['restarts']:>10}{sizes}  {version}".rstrip()
        )
    total = sum(process.get("pss_kib", 0) for process in report["processes"]) / 1024
    click.echo(f"{'all':26}{'':>29}{total:10.1f}")


def _by_number(nodes: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Nodes to show each, and a line for every sort of which there are too many."""
    sorts: dict[str, list[dict[str, Any]]] = {}
    for node in nodes:
        offered = ", ".join(f"{count} {name}" for name, count in sorted(node["capacity"].items()))
        sorts.setdefault(offered or "none of that sort", []).append(node)
    few = [node for same in sorts.values() if len(same) <= ALIKE for node in same]
    many = []
    for offers, same in sorts.items():
        if len(same) > ALIKE:
            ready = sum(node["ready"] for node in same)
            whole = sum(node["allocatable"] == node["capacity"] for node in same)
            many.append(f"{len(same)} nodes with {offers}: {ready} Ready, {whole} with all of it allocatable")
    return few, many


def _print_node(node: dict[str, Any], root: str) -> None:
    click.echo(f"Node {node['name']}: {'Ready' if node['ready'] else 'not Ready'} {node.get('problem', '')}".rstrip())
    for resource, capacity in sorted(node.get("capacity", {}).items()):
        click.echo(f"  {resource}: {node['allocatable'].get(resource, '0')} allocatable of {capacity}")
    if root:
        click.echo(f"  simulated driver root {root}")


@click.command("list", cls=ExampleCommand, examples="kgpu lab list\nkgpu lab list -o json")
@output_option()
def list_(*, output: str) -> None:
    """List this user's labs in the usual place (see `--dir` for others), running or not."""
    from kgpu.base.errors import LabError
    from kgpu.lab import find, folders

    rows = []
    for name in folders.names():
        try:
            lab = find.find(name)
            about = lab.about
        except LabError as error:
            rows.append({"name": name, "kind": "?", "running": False, "api": error.one_line()})
            continue
        rows.append({"name": name, "kind": about.kind, "running": lab.running, "api": about.url})
    if output == "json":
        print_json(rows)
        return
    if not rows:
        click.echo("There are no labs." + whose())
    for row in rows:
        click.echo(f"{row['name']:24}{row['kind']:10}{'up' if row['running'] else 'down':6}{row['api']}")
