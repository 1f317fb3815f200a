"""``kgpu quota``: who may have how many accelerators, who has them, and what no quota counts."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

import click

from kgpu.base.printable import one_line
from kgpu.cli import _complete
from kgpu.cli._cluster_objects import objects_of, seen_in
from kgpu.cli._common import ExampleCommand, check_kubeconfig, no_namespace, output_option, print_json, run_async

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kgpu.doctor.snapshot import Snapshot
    from kgpu.quota.model import NamespaceUse, QuotaFinding

EXAMPLES: Final = """
kgpu quota
kgpu quota ml
kgpu quota --from usage.jsonl
kgpu quota --snapshot cluster.tar.gz -o json | jq '.gaps'
"""
RULES: Final = ("QTA-05", "QTA-06", "QTA-07")
"""The doctor's about quotas that count nothing, or not all, and LimitRanges that give GPUs to everybody."""
FOUND: Final = 3


@click.command("quota", cls=ExampleCommand, examples=EXAMPLES)
@click.argument("namespace", default="", metavar="[NAMESPACE]", shell_complete=_complete.namespaces)
@click.option("--from", "file", default="", metavar="FILE", help="A usage recording: adds what is busy and what idle.")
@click.option("--snapshot", default="", metavar="FILE", help="Ask an archive of `kgpu collect` or a dump, no cluster.")
@click.option("--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server.")
@output_option()
@click.pass_context
def quota(context: click.Context, *, namespace: str, file: str, snapshot: str, kubeconfig: str, output: str) -> None:
    """Show what quotas allow of accelerators of all vendors, what pods hold and wait for, and what is not counted.

    For who may not read the whole cluster it is the namespace of the kubeconfig's context. HARD and USED are those of
    the quota that leaves least; BUSY and IDLE are GPUs on average over the recording, of the whole namespace. Reads,
    and changes nothing. Exit code 3: some quota counts nothing or can be passed by.
    """
    from kgpu.quota import render
    from kgpu.quota.plan import READS, QuotaBook, gaps, rows

    check_kubeconfig(context, kubeconfig)
    use = _use(file) if file else None
    cluster, namespace = run_async(seen_in(snapshot, kubeconfig, READS, namespace, how="kgpu quota NAMESPACE"))
    book = QuotaBook(objects_of(cluster, READS))
    # Who may not list namespaces sees none of one that is empty.
    if namespace and namespace not in book.spaces() and (snapshot or "Namespace" in cluster.listed):
        raise no_namespace(namespace, book.spaces(), "the name")
    found = rows(book, namespace), gaps(book, namespace), tuple(_findings(cluster, namespace))
    for gap in () if snapshot else cluster.missing:
        click.echo(one_line(f"note: not seen: {gap.what} ({gap.why})"), err=True)
    if output == "json":
        print_json(render.as_data(*found, use))
    else:
        click.echo(render.as_text(*found, use))
    context.exit(FOUND if found[1] or found[2] else 0)


def _findings(cluster: Snapshot, namespace: str) -> Iterator[QuotaFinding]:
    """What the doctor's rules say."""
    from kgpu.doctor.rules import by_id
    from kgpu.quota.model import QuotaFinding

    for name in RULES:
        for finding in by_id()[name].check(cluster):
            if not namespace or finding.subject.namespace == namespace:
                remedy = tuple(map(str, finding.remedy))
                yield QuotaFinding(id=name, namespace=finding.subject.namespace, cause=finding.cause, remedy=remedy)


def _use(path: str) -> Mapping[str, NamespaceUse]:
    """How many GPUs each namespace held and used on average. Raises RecordingError."""
    from kgpu.quota.model import NamespaceUse
    from kgpu.usage.grouping import grouping
    from kgpu.usage.plan import UsageWish, report
    from kgpu.usage.prices import PriceBook
    from kgpu.usage.recording import read
    from kgpu.usage.segments import timeline
    from kgpu.usage.shares import PayerKind

    found = report(timeline(read(path)), PriceBook(), UsageWish(grouping=grouping("namespace", ())))
    length = max(1, found.end_us - found.begin_us)
    return {
        row.name: NamespaceUse(
            held=Fraction(row.sums.held_us, length),
            busy=Fraction(row.sums.busy_us, length) if row.sums.watched_us else None,
        )
        for row in found.rows
        if row.kind is PayerKind.HELD
    }
