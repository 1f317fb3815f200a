"""What alerts, recorded series and dashboards consist of. Rows are in ``alerts``, ``records``, ``boards``.

``AlertAdjustment`` is what a person changes of one alert; reading one names what is wrong with it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean

Object: TypeAlias = dict[str, Any]


class RuleGroup(enum.StrEnum):
    """A group of rules, evaluated together."""

    GPUS = "gpu.rules"
    """What the documents and their readers know: temperature, memory, utilisation, Xids."""
    HEALTH = "kgpu.health"
    """What calls for a person."""
    EXPORTER = "kgpu.exporter"
    """Whether metrics can be trusted."""
    OPERATOR = "nvidia-gpu-operator-metrics"
    OPENSHIFT = "kgpu.openshift"
    """What is in the way of OpenShift's driver toolkit."""
    OPERATIONS = "kgpu.operations"
    """Changes of nodes that a person has to look at."""
    NODES = "nvidia-node-status-exporter-alerts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert. ``expr`` may have ``{threshold}``; ``lasting`` is how long it has to hold.

    ``summary`` and ``remedy`` are Prometheus templates: what is wrong, and what to do; they may have ``{threshold}``
    and ``{for}`` too.
    """

    name: str
    group: RuleGroup
    expr: str
    summary: str
    remedy: str
    lasting: str
    severity: str
    threshold: float | None = None

    def filled(self, text: str) -> str:
        """A text of the row with the threshold and duration in force."""
        threshold = "" if self.threshold is None else f"{self.threshold:g}"
        return text.replace("{threshold}", threshold).replace("{for}", self.lasting)

    def rule(self) -> Object:
        """As a rules file has it."""
        return {
            "alert": self.name,
            "expr": self.filled(self.expr),
            "for": self.lasting,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.filled(self.summary), "description": self.filled(self.remedy)},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRule:
    """One recorded series; ``what`` says what it is, for people."""

    name: str
    expr: str
    what: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def rule(self) -> Object:
        """As a rules file has it."""
        rule: Object = {"record": self.name, "expr": self.expr}
        return rule | ({"labels": dict(self.labels)} if self.labels else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertAdjustment:
    """What differs from the row; a field is None where nothing does. ``enabled`` False leaves the alert out."""

    enabled: bool = True
    threshold: float | None = None
    lasting: str | None = None
    severity: str | None = None

    def of(self, alert: Alert) -> Alert:
        """The alert with these changes."""
        return replace(
            alert,
            threshold=alert.threshold if self.threshold is None else self.threshold,
            lasting=self.lasting or alert.lasting,
            severity=self.severity or alert.severity,
        )


KEYS: Final = ("enabled", "threshold", "for", "severity")
DURATION: Final = re.compile(r"([0-9]+y)?([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?", re.ASCII)
"""Prometheus' durations; an empty text is none."""
_SEVERITY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}", re.ASCII)


def read_adjustment(alert: Alert, settings: Mapping[str, Any], where: str) -> AlertAdjustment:
    """One alert's entry, as values and flags have it. ``where`` says which, for the message. Raises ConfigError."""
    for key in settings:
        if key not in KEYS:
            raise ConfigError(
                f'{where} has no "{str(key)[:40]}"', f"one of {', '.join(KEYS)}",
                did_you_mean(str(key)[:40], KEYS) or "remove it",
            )  # fmt: skip
    enabled, threshold = settings.get("enabled", True), settings.get("threshold")
    lasting, severity = settings.get("for"), settings.get("severity")
    if not isinstance(enabled, bool):
        raise _wrong(where, "enabled", enabled, "true or false")
    if threshold is not None:
        if alert.threshold is None:
            raise ConfigError(f"{where}: this alert has no threshold", "enabled, for or severity", "remove threshold")
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not abs(threshold) < 1e15:
            raise _wrong(where, "threshold", threshold, f"a number such as {alert.threshold:g}")
    if lasting is not None and not (isinstance(lasting, str) and lasting and DURATION.fullmatch(lasting)):
        raise _wrong(where, "for", lasting, f"a duration such as {alert.lasting}")
    if severity is not None and not (isinstance(severity, str) and _SEVERITY.fullmatch(severity)):
        raise _wrong(where, "severity", severity, f"a word such as {alert.severity}")
    return AlertAdjustment(enabled=enabled, threshold=threshold, lasting=lasting, severity=severity)


def _wrong(where: str, key: str, value: Any, expected: str) -> ConfigError:
    return ConfigError(f"{where}.{key} is {str(value)[:60]!r}", expected, "correct it")
