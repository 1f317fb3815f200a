"""``kgpu logs OPERAND``: what does an operand's work, on one node or all, and what it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from kgpu.base.printable import counted, one_line
from kgpu.cli import _operand
from kgpu.cli._common import ExampleCommand, check_kubeconfig, run_async, seconds_of, with_api
from kgpu.cli._rights import LOGS, needing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgpu.kube.client import Client
    from kgpu.workloads.logs import LogLine, LogWish
    from kgpu.workloads.pods import ServingPod
    from kgpu.workloads.rows import Workload

EXAMPLES: Final = """
kgpu logs device-plugin
kgpu logs device-plugin --node gpu-1 -f
kgpu logs toolkit --node gpu-1 --previous
kgpu logs operator --since 10m --tail -1
kgpu logs agent -o json | jq -r 'select(.line | test("MIG")) | .line'
"""


@click.command("logs", cls=ExampleCommand, examples=EXAMPLES)
@_operand.which_pods
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written, until interrupted.")
@click.option(
    "--tail",
    type=click.IntRange(min=-1),
    default=100,
    show_default=True,
    metavar="LINES",
    help="How many lines of each pod; -1: all.",
)
@click.option("--since", default="", metavar="TIME", help="Only what is younger, e.g. 10m.")
@click.option("-p", "--previous", is_flag=True, help="What the container wrote before its last restart.")
@click.option("-c", "--container", default="", metavar="NAME", help="Another container than the one that matters now.")
@_operand.which_cluster
@click.pass_context
def logs(
    context: click.Context, *, operand: str, node: str, follow: bool, tail: int, since: str, previous: bool,
    container: str, namespace: str, kubeconfig: str, output: str,
) -> None:  # fmt: skip
    """Show what does an operand's work and what it writes: its own pods, or the agent's where that does all of it.

    OPERAND is a name as in `kgpu status` (device-plugin, gfd, toolkit, dcgm-exporter …), a DaemonSet's, or agent,
    operator, usage-history. While a pod is being prepared, its log is that of the container that prepares it.
    """
    from kgpu.base.errors import ConfigError
    from kgpu.workloads.logs import LogWish
    from kgpu.workloads.rows import workload

    if follow and previous:
        raise ConfigError("--follow and --previous exclude each other", "one of them", "leave one out")
    check_kubeconfig(context, kubeconfig)
    row = workload(operand)
    wish = LogWish(
        container=container, previous=previous, tail=tail, since=seconds_of(since, "--since") if since else 0
    )  # fmt: skip

    async def work(api: Client) -> None:
        await _show(api, row, wish, namespace=namespace, node=node, follow=follow, output=output)

    run_async(with_api(kubeconfig, work))


async def _show(
    api: Client, row: Workload, wish: LogWish, *, namespace: str, node: str, follow: bool, output: str
) -> None:  # fmt: skip
    from contextlib import aclosing

    from kgpu.kube.pod_logs import PodLogs
    from kgpu.workloads.find import find
    from kgpu.workloads.logs import followed, written

    async with needing(LOGS, api):
        found = await find(api, row, namespace=namespace, node=node)
    _tell_whose(row, found.pods)
    source = PodLogs(api)
    lines = followed(source, found.pods, wish) if follow else written(source, found.pods, wish)
    async with needing(LOGS, api), aclosing(lines):
        async for line in lines:
            _print(line, output, marked=len(found.pods) > 1)


def _tell_whose(row: Workload, pods: Sequence[ServingPod]) -> None:
    shared = sum(pod.shared for pod in pods)
    if shared:
        where = "" if shared == len(pods) else f" on {counted(shared, 'node')}"
        click.echo(f"note: the agent does the work of the {row.title}{where}: its whole log", err=True)


def _print(line: LogLine, output: str, *, marked: bool) -> None:
    if line.note:
        click.echo(one_line(f"note: {line.pod.shown}: {line.text}"), err=True)
    elif output == "json":
        import json

        pod = line.pod
        click.echo(
            json.dumps(
                {"node": pod.node, "namespace": pod.namespace, "pod": pod.name, "container": line.container,
                 "line": line.text}
            )
        )  # fmt: skip
    else:
        click.echo(f"[{line.pod.shown}] {line.text}" if marked else line.text)
