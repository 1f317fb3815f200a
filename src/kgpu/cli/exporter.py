"""``kgpu exporter``: what every accelerator does, served as metrics, with the replaced exporter's flags.

``--once`` prints what a scrape would give; what is wrong with the counters file, and flags that do nothing here, go to
standard error. A counters file or web config file that is wrong at the start is an error; later the last good stays.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from kgpu.base.errors import ConfigError, HwError
from kgpu.cli._common import GoFlagsCommand, check_kubeconfig, root_option, run_async
from kgpu.cli._options import options
from kgpu.exporter.config import ExporterOptions, resolve
from kgpu.exporter.options import OPTIONS
from kgpu.formats.exporter_flags import REFUSED, WITHOUT
from kgpu.formats.names import ENV_HOST_ROOT

if TYPE_CHECKING:
    from kgpu.base.advice import Advice
    from kgpu.exporter.counters import CountedMetric
    from kgpu.exporter.model import Family, Users
    from kgpu.hw.port import Reader
    from kgpu.kube.port import KubeApi

F = TypeVar("F", bound=Callable[..., Any])

EXAMPLES: Final = """
kgpu exporter --kubernetes --collect-interval 10000
kgpu exporter --once
kgpu exporter --once --root /run/nvidia/driver --openmetrics
kgpu exporter --once -f my-counters.csv
kgpu exporter --once --kubernetes --compat b,c
"""
BETWEEN: Final = 0.2
"""Seconds between the readings of ``--once``; averages of the driver's need 0.1."""
LOOK_SECONDS: Final = 10.0
"""Between looks whether devices are others; the driver's events tell of most changes at once, and no pod waits here."""


@click.command("exporter", cls=GoFlagsCommand, examples=EXAMPLES)
@root_option
@click.option("--once", is_flag=True, help="Print the current metrics and exit.")
@click.option("--openmetrics", is_flag=True, help="With --once: OpenMetrics instead of Prometheus' plain text.")
@click.option(
    "--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE",
    help="How to reach the API server. Default: in-cluster.",
)  # fmt: skip
@click.option(
    "--host-root", default="/", envvar=ENV_HOST_ROOT, metavar="DIR", show_default=True,
    help="The host's / as this process sees it.",
)  # fmt: skip
@options(OPTIONS)
@options((*WITHOUT, *REFUSED), hidden=True)
@click.pass_context
def exporter(
    ctx: click.Context, /, *, root: str, once: bool, openmetrics: bool, kubeconfig: str, host_root: str, **flags: Any
) -> None:
    """What every accelerator does and for whom, as metrics that Prometheus reads."""
    check_kubeconfig(ctx, kubeconfig)
    choices = resolve(flags, os.environ)
    place = ExporterPlace(root=root, kubeconfig=kubeconfig, host_root=host_root)
    if not once:
        if openmetrics:
            raise ConfigError("--openmetrics is for --once", "scrapers ask for it by themselves", "leave it out")
        run_async(_serve(place, choices))
        return
    for advice in choices.without_effect:
        _echo(advice)
    counters = _counters(choices)
    from kgpu.exporter.render import ExpositionFormat, render

    families = run_async(_look(place, choices, counters))
    sys.stdout.write(render(families, ExpositionFormat.OPENMETRICS if openmetrics else ExpositionFormat.TEXT))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterPlace:
    """Where this exporter is: driver root and host root as it sees them, and how it reaches the API server."""

    root: str
    kubeconfig: str
    host_root: str

    @property
    def has_api_server(self) -> bool:
        return bool(self.kubeconfig or os.environ.get("KUBERNETES_SERVICE_HOST"))

    def api(self) -> KubeApi | None:
        """The API server's client, None where nothing says where it is. Raises KubeError."""
        if not self.has_api_server:
            return None
        from kgpu.kube.client import connect

        return connect(self.kubeconfig)


def _counters(given: ExporterOptions) -> tuple[CountedMetric, ...]:
    """What the counters file asks for, or the usual set; a file that was named has to be good."""
    from kgpu.exporter.reload import CountersSource

    source = CountersSource(given, _echo)
    if source.file_error is not None:
        raise source.file_error
    return source.rows


def _echo(advice: Advice) -> None:
    if advice.severity.notable:
        click.echo(f"kgpu exporter: {advice.one_line()}", err=True)


async def _look(
    place: ExporterPlace, options: ExporterOptions, counters: tuple[CountedMetric, ...]
) -> tuple[Family, ...]:
    """The families of one moment: of two readings, since rates and averages are over the time between two."""
    import asyncio
    import time

    from kgpu.exporter.model import Users
    from kgpu.exporter.reload import vendor_page
    from kgpu.exporter.ticks import Ticks
    from kgpu.hw.open import open_reader
    from kgpu.hw.verdicts import VerdictFile, verdicts_path

    ticks = Ticks(options.settings(hostname=_hostname(), counters=counters), xid_text=_xid_text)
    try:
        reader = open_reader(driver_root=Path(place.root) if place.root else None)
        try:
            inventory = await reader.inventory()
            for pause in (0.0, BETWEEN):
                await asyncio.sleep(pause)
                ticks.read(time.monotonic(), inventory, await reader.readings(ticks.keys))
            users = await _users(place, options, reader)
        finally:
            await reader.close()
    except HwError:
        if not options.fake_gpus:
            raise
        users = Users()
    ticks.page = vendor_page(ticks.inventory.vendor, options, _echo)
    verdicts = VerdictFile(verdicts_path(place.host_root, os.environ)).read()
    ticks.judged(verdicts.gpus if verdicts else None)
    outcome = ticks.families(0.0, users)
    for advice in outcome.advice:
        _echo(advice)
    return outcome.families


async def _users(place: ExporterPlace, options: ExporterOptions, reader: Reader) -> Users:
    """Return who uses which GPU; a source that can't be read is reported."""
    from kgpu.exporter.reload import asks_pods
    from kgpu.exporter.users.open import open_users

    api = place.api() if options.kubernetes else None
    users = open_users(
        options,
        reader,
        tell=_echo,
        api=api,
        node=os.environ.get("NODE_NAME", ""),
        host_root=Path(place.host_root),
        driver_root=Path(place.root) if place.root else None,
        facts=asks_pods(options),
    )
    try:
        usage = await users.current()
    finally:
        await users.close()
        if api is not None:
            await api.close()
    if usage.holdings is None:
        click.echo("kgpu exporter: pods are not shown", err=True)
    return usage


def _hostname() -> str:
    return os.environ.get("NODE_NAME") or socket.gethostname()


def _xid_text(code: int) -> str:
    from kgpu.formats.xid.catalogue import short_name

    return short_name(code)


async def _serve(place: ExporterPlace, options: ExporterOptions) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP looks at every file at once."""
    import asyncio
    import logging
    import signal

    from kgpu.agent.shared_reader import SharedReader
    from kgpu.base.log import configure, log_advice
    from kgpu.base.supervise import stop_on_signals
    from kgpu.exporter.context import make_context
    from kgpu.exporter.run import Exporter
    from kgpu.hw.open import open_reader

    configure(level="debug" if options.debug else "info", form=options.log_format)
    log = logging.getLogger("kgpu.exporter")
    for advice in options.without_effect:
        log_advice(log, advice)

    async def open_now() -> Reader:
        return open_reader(driver_root=Path(place.root) if place.root else None, poll=LOOK_SECONDS)

    reader = SharedReader(open_now)
    api = place.api()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        context = make_context(
            options,
            reader.view(),
            report=lambda record: log_advice(log, record),
            api=api,
            node=os.environ.get("NODE_NAME", ""),
            host_root=place.host_root,
            driver_root=Path(place.root) if place.root else None,
            on_address=lambda address: log.info("serving at %s", address),
        )
        served = Exporter(context)
        if served.counters.file_error is not None:
            raise served.counters.file_error
        loop.add_signal_handler(signal.SIGHUP, served.reload)
        with stop_on_signals(stop, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            async with asyncio.TaskGroup() as group:
                task = group.create_task(served.run())
                await stop.wait()
                task.cancel()
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        await reader.close()
        if api is not None:
            await api.close()
