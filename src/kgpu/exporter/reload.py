"""Which metrics are exported: follows a counters file or a ConfigMap, without a gap when it changes.

Errors never empty the metrics: a source that is gone, unreadable or has no valid line leaves the last valid one in
force, and a metric and advice say so. Single invalid lines are reported and left out. Until a ConfigMap has been
valid once the file is in force, and without a file the default set.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.errors import ConfigError, UserError
from kgpu.base.inotify import follow_folders, homes
from kgpu.exporter.counters import (
    LIMIT_BYTES,
    CountedMetric,
    Counters,
    default_counters,
    from_config_map,
    parse_counters,
)
from kgpu.exporter.self_metrics import ConfigState
from kgpu.formats.names import AMD, GAUDI
from kgpu.host.bounded import read_regular

if TYPE_CHECKING:
    from kgpu.exporter.config import ExporterOptions
    from kgpu.exporter.ticks import VendorPage
    from kgpu.kube.informer import Informer
    from kgpu.kube.port import KubeApi

POLL_SECONDS: Final = 5.0
SHIPPED: Final = frozenset({"/etc/dcgm-exporter/default-counters.csv", "/etc/dcgm-exporter/dcp-metrics-included.csv"})
"""Files of the replaced exporter's image with the usual set, which manifests name though nobody has put them there."""
_TOLD: Final = 5


@dataclass(slots=True)
class NamedMetrics:
    """A source of metrics: its last text, the metrics of the last valid one, and why the present is not in force."""

    name: str
    text: str | None = None
    rows: tuple[CountedMetric, ...] | None = None
    problems: int = 0
    error: UserError | None = None

    def take(self, text: str | UserError) -> tuple[Advice, ...]:
        """Take the source's present text. Returns advice about what is new."""
        before = (self.error.one_line() if self.error else "", self.text)
        try:
            if isinstance(text, UserError):
                raise text
            if self.error is None and text == self.text:
                return ()
            parsed = parse_counters(text, self.name)
        except UserError as error:
            self.error = error
            return () if before[0] == error.one_line() else (self._refused(error),)
        self.error = None
        if text == self.text:
            return (self._accepted(parsed),)
        self.text, self.rows, self.problems = text, parsed.rows, len(parsed.problems)
        return (self._accepted(parsed), *self._bad_lines(parsed))

    def _accepted(self, parsed: Counters) -> Advice:
        return Advice(
            subject=self.name, what=f"{len(parsed.rows)} metrics are exported", why=f"{self.name} names them",
            reason="CountersRead",
        )  # fmt: skip

    def _refused(self, error: UserError) -> Advice:
        kept = "the last good metrics stay" if self.rows is not None else "the usual metrics are exported"
        return Advice(
            subject=self.name, what=kept, why=error.what, evidence=(f"expected: {error.expected}",),
            severity=Severity.WARNING, remedy=error.remedy, reason="CountersRefused",
        )  # fmt: skip

    def _bad_lines(self, parsed: Counters) -> tuple[Advice, ...]:
        advice = [
            Advice.from_error(problem, subject=self.name, reason="CountersLine") for problem in parsed.problems[:_TOLD]
        ]
        more = len(parsed.problems) - _TOLD
        if more > 0:
            advice.append(
                Advice(
                    subject=self.name, what=f"{more} more lines are not as they should be", why="",
                    severity=Severity.WARNING, remedy="try it with `kgpu exporter --once -f FILE`",
                    reason="CountersLine",
                )
            )  # fmt: skip
        return tuple(advice)

    def followed(self) -> ConfigState:
        """The source's state, for metrics."""
        return ConfigState(
            source=self.name, current=self.error is None and self.rows is not None, problems=self.problems
        )


class CountersSource:
    """The metrics in force. ``changed`` is called when they or the state of a source change."""

    def __init__(
        self, options: ExporterOptions, report: AdviceSink, *, api: Callable[[], KubeApi] | None = None
    ) -> None:
        self._usual = default_counters(options.compat, extra=options.extra_fields)
        self._report = report
        self._api = api
        self._path: Path | None = None
        self._file: NamedMetrics | None = None
        self._map: NamedMetrics | None = None
        self._config_map = options.config_map
        self.changed: Callable[[], object] = lambda: None
        if options.collectors and (options.collectors_given or os.path.exists(options.collectors)):
            self._path = Path(options.collectors)
            self._file = NamedMetrics(f"file {options.collectors}")
        if options.config_map is not None:
            self._map = NamedMetrics("ConfigMap {}/{}".format(*options.config_map))
        self.reload()

    @property
    def rows(self) -> tuple[CountedMetric, ...]:
        """The metrics in force."""
        for source in (self._map, self._file):
            if source is not None and source.rows is not None:
                return source.rows
        return self._usual

    def followed(self) -> tuple[ConfigState, ...]:
        """Every source, for metrics."""
        return tuple(source.followed() for source in (self._map, self._file) if source is not None)

    @property
    def file_error(self) -> UserError | None:
        """Why the file is not in force."""
        return self._file.error if self._file else None

    def reload(self) -> None:
        """Read the file now."""
        if self._path is None or self._file is None:
            return
        if str(self._path) in SHIPPED and not self._path.exists():
            self._file.error, self._file.rows = None, self._file.rows or self._usual
            return
        self._take(self._file, _read(self._path))

    async def run(self) -> None:
        """Follow file and ConfigMap until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._path is not None:
                group.create_task(self._follow_file(self._path))
            if self._config_map is not None and self._map is not None:
                group.create_task(self._follow_map(self._map, *self._config_map))

    def _take(self, source: NamedMetrics, text: str | UserError) -> None:
        news = source.take(text)
        for advice in news:
            self._report(advice)
        if news:
            self.changed()

    async def _follow_file(self, path: Path) -> None:
        await follow_folders(lambda: homes(path), self.reload, seconds=POLL_SECONDS)

    async def _follow_map(self, source: NamedMetrics, namespace: str, name: str) -> None:
        from kgpu.kube.informer import Informer, Scope
        from kgpu.kube.port import CONFIG_MAPS, Selector

        if self._api is None:
            self._take(source, _no_api(source.name))
            return
        informer = Informer(self._api(), Scope(CONFIG_MAPS, namespace, Selector.named(name)))
        async with asyncio.TaskGroup() as group:
            group.create_task(informer.run())
            revision = -1
            while True:
                text = _text(informer, namespace, name, source.name)
                if text is not None:
                    self._take(source, text)
                revision = await informer.changed(revision)


def vendor_page(vendor: str, options: ExporterOptions, report: AdviceSink) -> VendorPage | None:
    """What the page has besides for the GPUs of this vendor; nothing of it is loaded elsewhere."""
    if vendor == AMD:
        from kgpu.exporter.vendors.amd.page import RocmPage

        return RocmPage(options.amd_config, report, options.amd_health_socket)
    if vendor == GAUDI:
        from kgpu.exporter.vendors.gaudi.page import GaudiPage

        return GaudiPage(own_port=options.gaudi_port)
    return None


def asks_pods(options: ExporterOptions) -> bool:
    """Whether a vendor's configuration needs uids or labels of pods."""
    if not os.path.exists(options.amd_config):
        return False
    from kgpu.exporter.vendors.amd import follow

    return follow.asks_pods(options.amd_config)


def _read(path: Path) -> str | UserError:
    try:
        raw, _ = read_regular(path, LIMIT_BYTES, what="a counters file: FIELD, type, help on each line")
        return raw.decode()
    except UserError as error:
        return error
    except UnicodeDecodeError as error:
        return ConfigError(f"{path} is no UTF-8 text: {error.reason}", "lines of FIELD, type, help", "correct it")


def _text(informer: Informer, namespace: str, name: str, where: str) -> str | UserError | None:
    """The ConfigMap's counters; None while nothing is known of it."""
    if not informer.synced.is_set():
        return informer.error
    config_map = informer.objects.get((namespace, name))
    if config_map is None:
        return ConfigError(f"{where} does not exist", "a ConfigMap with counters under the key metrics", "create it")
    data = config_map.get("data")
    texts = {str(key): str(text) for key, text in data.items()} if isinstance(data, dict) else {}
    try:
        return from_config_map(texts, where)[1]
    except ConfigError as error:
        return error


def _no_api(where: str) -> ConfigError:
    return ConfigError(
        f"{where} can't be read: nothing says where the API server is",
        "a pod with a service account, or KUBECONFIG",
        "give --kubeconfig, or use a counters file",
    )
