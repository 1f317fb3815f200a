"""Follows the configuration file of AMD's exporter: the last good settings stay, and every change is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from kgpu.base.advice import Advice, AdviceSink, Severity
from kgpu.base.errors import ConfigError, UserError
from kgpu.base.inotify import follow_folders, homes
from kgpu.exporter.self_metrics import ConfigState
from kgpu.exporter.vendors.amd.config import LIMIT_BYTES, parse
from kgpu.exporter.vendors.amd.settings import RocmConfig
from kgpu.formats.names import ROCM_METRICS_CONFIG
from kgpu.host.bounded import read_regular

POLL_SECONDS: Final = 5.0


class RocmConfigFile:
    """The settings in force. ``changed`` is called when they, or the file's state, are others than before."""

    def __init__(self, path: str, report: AdviceSink) -> None:
        self._path = Path(path)
        self._report = report
        self._told = ""
        self._told_missing = False
        self._text: str | None = None
        self._error: UserError | None = None
        self._first: RocmConfig | None = None
        self.there = False
        self.config = RocmConfig()
        self.changed: Callable[[], object] = lambda: None
        self.look()
        self._first = self.config

    @property
    def first(self) -> RocmConfig:
        """As it was when the exporter began: what can't change any more."""
        return self._first or self.config

    def look(self) -> None:
        """Read the file now. Without one everything is as it is by default."""
        before = (self.config, self._error, self.there)
        self.there = self._path.exists()
        if self.there:
            self._told_missing = False
        elif str(self._path) != ROCM_METRICS_CONFIG and not self._told_missing:  # that one need not be there
            self._told_missing = True
            self._report(_missing(str(self._path)))
        try:
            self._take(_read(self._path) if self.there else "{}")
        except UserError as error:
            self._refuse(error)
        if (self.config, self._error, self.there) != before:
            self.changed()

    async def run(self) -> None:
        """Follow the file until cancelled."""
        await follow_folders(lambda: homes(self._path), self.look, seconds=POLL_SECONDS)

    def followed(self) -> ConfigState | None:
        """The file's state, for metrics; None without one."""
        return ConfigState(source=f"file {self._path}", current=self._error is None) if self.there else None

    def _take(self, text: str) -> None:
        if text == self._text and self._error is None:
            return
        self.config, told = parse(text, str(self._path))
        self._text, self._error, self._told = text, None, ""
        for advice in told:
            self._report(advice)
        for what, now, then in (
            ("ServerPort", self.config.port, self.first.port),
            ("what pods are asked for", self.config.asks_pods, self.first.asks_pods),
        ):
            if now != then:
                self._report(_later(str(self._path), what))

    def _refuse(self, error: UserError) -> None:
        self._error = error
        if error.one_line() != self._told:
            self._told = error.one_line()
            self._report(Advice.from_error(error, subject=str(self._path), reason="RocmConfigRefused"))


def port_too_late(where: str) -> Advice:
    """That the page is on another port already."""
    return _later(where, "ServerPort")


def asks_pods(path: str) -> bool:
    """Whether the file, as it is, needs uids or labels of pods; one that is refused is told when it is followed."""
    silent = RocmConfigFile(path, lambda advice: None)  # noqa: ARG005
    return silent.config.asks_pods


def _missing(where: str) -> Advice:
    return Advice(
        subject=where, what="everything is measured as it is without a configuration", why="there is no such file",
        severity=Severity.WARNING, reason="RocmConfigMissing",
        remedy="correct --amd-metrics-config, or put the file there: it is followed from then on",
    )  # fmt: skip


def _later(where: str, what: str) -> Advice:
    return Advice(
        subject=where, what=f"{what} stays as it was", why="it can't change while the exporter runs",
        severity=Severity.WARNING, remedy="restart the exporter", reason="RocmConfigLater",
    )  # fmt: skip


def _read(path: Path) -> str:
    try:
        raw, _ = read_regular(path, LIMIT_BYTES, what="the configuration of AMD's metrics exporter")
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8 text: {error.reason}", "a JSON object", "correct it") from error
