"""``kgpu usage``: what GPUs were used for and what that cost, from what agents have recorded, or from a file."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import click

from kgpu.base.errors import ConfigError
from kgpu.cli import _prometheus
from kgpu.cli._common import ExampleCommand, check_kubeconfig, output_option, print_json, run_async
from kgpu.cli._recordings import recorded, window

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgpu.usage.plan import UsageReport
    from kgpu.usage.price_file import PriceList
    from kgpu.usage.prices import PriceBook
    from kgpu.usage.recording import UsageRecording
    from kgpu.usage.render import EnergyTariff
    from kgpu.usage.segments import Timeline

EXAMPLES: Final = """
kgpu usage --since 7d
kgpu usage --from usage.jsonl
kgpu usage --from usage.jsonl --since 7d --by owner
kgpu usage --from usage.jsonl --by label:team --idle weighted --prices prices.csv
kgpu usage --from usage.jsonl --since 2026-07-01 --until 2026-08-01 -o csv > july.csv
kgpu usage --from usage.jsonl --by node -o json | jq '.rows[] | select(.kind == "idle")'
kgpu usage --from usage.jsonl --tariff 0.22 --pue 1.4
kgpu usage --prometheus http://localhost:9090 --since 30d --by label:team
"""
# As kgpu.usage.plan and its parts have them: help and completion come without importing those.
IDLE_WORDS: Final = ("separate", "weighted", "even", "platform")
BASIS_WORDS: Final = ("held", "busy")
SHARING_WORDS: Final = ("present", "reserve", "usage")
NODE_PRICE_WORDS: Final = ("gpu-inclusive", "split")
NOTHING: Final = 3


@click.command("usage", cls=ExampleCommand, examples=EXAMPLES)
@click.option(
    "--from",
    "file",
    default="",
    metavar="FILE",
    help="A recording to read in place of the cluster's; - is standard input.",
)
@_prometheus.options
@click.option("--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server.")
@click.option("--context", "kube_context", default="", metavar="NAME", help="The kubeconfig's context to use.")
@click.option(
    "--prices",
    default="",
    metavar="FILE",
    help="Your prices, CSV or YAML; they go before kgpu's own. Default: the cluster's list.",
)
@click.option("--since", default="", metavar="TIME", help="From when: 2026-07-20T08:00:00Z, or 7d before its end.")
@click.option("--until", default="", metavar="TIME", help="Until when, written the same way.")
@click.option("--by", default="namespace", show_default=True, metavar="WHAT",
              help="What rows are about: namespace, node, pool, product, owner, or label:KEY.")  # fmt: skip
@click.option("--idle", type=click.Choice(IDLE_WORDS), default="separate", show_default=True,
              help="Who pays for GPUs that nobody held: a row of its own, or the pool's holders.")  # fmt: skip
@click.option("--basis", type=click.Choice(BASIS_WORDS), default="held", show_default=True,
              help="What holders pay: all that they held, or of it the busy time.")  # fmt: skip
@click.option("--sharing", type=click.Choice(SHARING_WORDS), default="present", show_default=True,
              help="What tenants of a time-sliced GPU pay: all of it, their replicas, or by busy time.")  # fmt: skip
@click.option("--node-price", type=click.Choice(NODE_PRICE_WORDS), default="gpu-inclusive", show_default=True,
              help="What of a node's price its GPUs carry: all, or without processors and memory.")  # fmt: skip
@click.option("--tariff", default="", metavar="AMOUNT", help="What a kWh costs; adds what power costs.")
@click.option("--pue", default="", show_default="1", metavar="FACTOR",
              help="With --tariff: the building's power over the machines'.")  # fmt: skip
@output_option("table", "csv", "json", default="table")
@click.pass_context
def usage(
    context: click.Context, /, *, file: str, kubeconfig: str, kube_context: str, prices: str, since: str, until: str,
    by: str, idle: str, basis: str, sharing: str, node_price: str, tariff: str, pue: str, output: str,
    **asked: Any,
) -> None:  # fmt: skip
    """Show what GPUs were used for, what was wasted, and what each of it cost.

    Every GPU's time is somebody's: who held it, `__idle__` while nobody did, `__down__` while it could not be used,
    `__unknown__` while it was not watched. The costs of all rows sum to what the GPUs cost. It is read from the
    Deployment kgpu-usage where there is one, else from the nodes' agents; both need the Helm value usage.enabled. With
    --prometheus it is read from what a Prometheus has scraped of the agents, by default of the last 7d, and no cluster
    is asked: not for its price list either. Exit code 3: there is nothing in that time.
    """
    from kgpu.usage import render
    from kgpu.usage.recording import read

    _prometheus.check(context, asked, file)
    energy = _energy(tariff, pue)
    listed = moments = None
    if file:
        recording = read(file)
    elif _prometheus.wanted(asked):
        scraped = run_async(_prometheus.recorded(asked, since, until))
        recording, moments = scraped.recording, (scraped.begin_us, scraped.end_us)
    else:
        check_kubeconfig(context, kubeconfig)
        recording, listed = run_async(recorded(kubeconfig, kube_context, since, priced=not prices))
    book = _book(prices, node_price, listed)
    rows = _prometheus.as_scraped(by) if moments else by
    asked_for = {"by": rows, "idle": idle, "basis": basis, "sharing": sharing}
    found = _report(recording, book, lambda times: moments or window(times, since, until), **asked_for)
    found = replace(found, advice=(*found.advice, *energy.advice(found)))
    for advice in found.advice:
        click.echo(f"note: {advice.one_line()}", err=True)
    if output == "json":
        print_json(render.as_data(found, by, energy))
    elif output == "csv":
        click.echo(render.as_csv(found, energy), nl=False)
    else:
        for line in render.as_table(found, by, energy):
            click.echo(line)
    if not found.rows:
        click.echo(f"note: {render.nothing_there(found)}", err=True)
        context.exit(NOTHING)


def _report(
    recording: UsageRecording, book: PriceBook, moments: Callable[[Timeline], tuple[int | None, int | None]], *,
    by: str, idle: str, basis: str, sharing: str,
) -> UsageReport:  # fmt: skip
    """Divide. Raises ConfigError."""
    from kgpu.usage.grouping import grouping
    from kgpu.usage.plan import IdlePolicy, UsageWish, report
    from kgpu.usage.segments import timeline
    from kgpu.usage.shares import Basis, SharingMode

    rows = grouping(by, recording.labels)
    times = timeline(recording)
    begin, end = moments(times)
    wish = UsageWish(
        grouping=rows, begin_us=begin, end_us=end, idle=IdlePolicy(idle), basis=Basis(basis),
        sharing=SharingMode(sharing),
    )  # fmt: skip
    return report(times, book, wish)


def _book(path: str, node_price: str, listed: PriceList | None) -> PriceBook:
    """Kgpu's prices, with a person's before them, else the cluster's. Raises ConfigError."""
    from kgpu.usage.price_file import read_prices
    from kgpu.usage.prices import NodePriceRule, PriceBook

    return PriceBook(read_prices(path) if path else listed, rule=NodePriceRule(node_price))


def _energy(tariff: str, pue: str) -> EnergyTariff:
    """What power costs. Raises ConfigError."""
    from kgpu.usage.render import EnergyTariff

    if pue and not tariff:
        raise ConfigError(
            f"--pue {pue[:40]} alone changes nothing", "--tariff beside it: it is a factor of what power costs",
            "add --tariff AMOUNT, what a kWh costs, or leave --pue out",
        )  # fmt: skip
    return EnergyTariff(
        _number(tariff, "--tariff", "an amount per kWh, such as 0.22", Fraction(0)) if tariff else None,
        _number(pue or "1", "--pue", "a factor from 1 to 10, such as 1.4", Fraction(1), Fraction(10)),
    )


def _number(text: str, flag: str, expected: str, least: Fraction, most: Fraction = Fraction(10**6)) -> Fraction:
    try:
        found = Fraction(text) if len(text) <= 20 and "/" not in text and "e" not in text.lower() else None
    except ValueError:
        found = None
    if found is None or not least <= found <= most:
        raise ConfigError(f"{flag} {text[:40]!r} can't be", expected, f"correct {flag}")
    return found
