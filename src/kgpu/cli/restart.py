"""``kgpu restart OPERAND``: new pods for what does an operand's work, on one node or all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from kgpu.base.printable import counted
from kgpu.cli import _operand
from kgpu.cli._common import (
    ExampleCommand,
    check_kubeconfig,
    print_json,
    run_async,
    seconds_of,
    with_api,
)
from kgpu.cli._rights import RESTART, needing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgpu.kube.client import Client
    from kgpu.workloads.pods import ServingPod
    from kgpu.workloads.restart import Restarting
    from kgpu.workloads.rows import Workload

EXAMPLES: Final = """
kgpu restart device-plugin
kgpu restart device-plugin --node gpu-1
kgpu restart operator --no-wait
kgpu restart dcgm-exporter --timeout 10m -o json
"""


@click.command("restart", cls=ExampleCommand, examples=EXAMPLES)
@_operand.which_pods
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the new pods are ready.")
@click.option("--timeout", default="5m", show_default=True, metavar="TIME", help="How long to wait.")
@_operand.which_cluster
@click.pass_context
def restart(
    context: click.Context, *, operand: str, node: str, wait: bool, timeout: str, namespace: str, kubeconfig: str,
    output: str,
) -> None:  # fmt: skip
    """Restart what does an operand's work, on all nodes one after the other or on one, and wait until it is ready.

    Where the agent does the work of all operands, it is the agent that is restarted. Containers that have GPUs keep
    them. A driver is not restarted by this.
    """
    from kgpu.workloads.restart import check
    from kgpu.workloads.rows import workload

    check_kubeconfig(context, kubeconfig)
    row = workload(operand)
    check(row, node)
    seconds = seconds_of(timeout, "--timeout") if wait else 0
    tell = (lambda _: None) if output == "json" else click.echo

    async def work(api: Client) -> dict[str, Any]:
        async with needing(RESTART, api):
            return await _restart(api, row, node=node, namespace=namespace, seconds=seconds, tell=tell)

    done = run_async(with_api(kubeconfig, work))
    if output == "json":
        print_json(done)


async def _restart(
    api: Client, row: Workload, *, node: str, namespace: str, seconds: float, tell: Callable[[str], None]
) -> dict[str, Any]:  # fmt: skip
    import time

    from kgpu.workloads.find import find
    from kgpu.workloads.restart import parts

    begin = time.monotonic()
    found = await find(api, row, namespace=namespace, node=node, changes=True)
    those = parts(row, found)
    if node:
        await _one_by_one(api, row, found.pods, seconds, tell)
    else:
        for part in those:
            await _all(api, part, row, seconds, tell)
    return {
        "operand": row.name, "namespace": found.namespace, "workloads": [part.name for part in those],
        "nodes": sorted({pod.node for pod in found.pods if pod.node}), "waited": seconds > 0,
        "seconds": round(time.monotonic() - begin, 1),
    }  # fmt: skip


async def _all(api: Client, part: Restarting, row: Workload, seconds: float, tell: Callable[[str], None]) -> None:
    import asyncio
    import datetime as dt

    from kgpu.base.clock import SystemClock
    from kgpu.workloads.find import find
    from kgpu.workloads.restart import begin, follow, late

    of_all = f", which does the work of the {row.title} and of others" if part.row is not row else ""
    tell(f"restarting {part.shown}{of_all}: {counted(len(part.pods), 'pod')}")
    await begin(api, part, dt.datetime.now(dt.UTC))
    if not seconds:
        return
    try:
        async with asyncio.timeout(seconds):
            async for now in follow(api, part, SystemClock()):
                old = ", and old ones have not ended" if now.new >= now.wanted and not now.done else ""
                tell(f"  {now.new} of {now.wanted} new ready{old}")
    except TimeoutError:
        found = await find(api, row, namespace=part.namespace, changes=True)
        raise late(row, found.pods, seconds) from None


async def _one_by_one(
    api: Client, row: Workload, pods: Sequence[ServingPod], seconds: float, tell: Callable[[str], None]
) -> None:  # fmt: skip
    import asyncio

    from kgpu.base.clock import SystemClock
    from kgpu.workloads.restart import late, remove, replaced

    for pod in pods:
        tell(f"restarting pod {pod.namespace}/{pod.name} on {pod.node}")
        await remove(api, pod)
        if not seconds:
            continue
        try:
            async with asyncio.timeout(seconds):
                new = await replaced(api, row, pod, SystemClock())
        except TimeoutError:
            raise late(row, pods, seconds) from None
        tell(f"  {new.name} is ready")
