"""Rules as files and objects: which alerts are wanted and how, and the groups that Prometheus loads.

``adjusted`` applies a person's settings to the rows; everything else formats the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.monitoring.alerts import ALERTS
from kgpu.monitoring.model import Alert, Object, RuleGroup, read_adjustment
from kgpu.monitoring.records import RECORDS

NAME: Final = "kgpu-gpu-alerts"
"""The name of the PrometheusRule for the exporter's metrics."""
RECORDING: Final = "kgpu.records"
OF_EXPORTER: Final = (RuleGroup.GPUS, RuleGroup.HEALTH, RuleGroup.EXPORTER)
"""The groups that watch what exporters say."""
_BY_NAME: Final = {alert.name: alert for alert in ALERTS}


def adjusted(adjustments: Mapping[str, Any], where: str = "alerts") -> tuple[Alert, ...]:
    """Return the wanted alerts; ``adjustments`` has an entry per alert that differs from its row. Raises
    ConfigError.
    """
    wishes = {}
    for name, entry in adjustments.items():
        alert = _BY_NAME.get(name)
        if alert is None:
            hint = did_you_mean(str(name)[:80], _BY_NAME)
            raise ConfigError(
                f'{where}: there is no alert "{str(name)[:80]}"', "a name that `kgpu monitoring rules` prints",
                hint or "correct the name, or remove it",
            )  # fmt: skip
        if not isinstance(entry, Mapping):
            raise ConfigError(
                f"{where}.{name} is {str(entry)[:60]!r}", "settings such as {threshold: 90, for: 10m}", "correct it"
            )
        wishes[name] = read_adjustment(alert, entry, f"{where}.{name}")
    alerts = []
    for alert in ALERTS:
        wish = wishes.get(alert.name)
        if wish is None:
            alerts.append(alert)
        elif wish.enabled:
            alerts.append(wish.of(alert))
    return tuple(alerts)


def groups(
    wanted: Iterable[Alert], *, of: Iterable[RuleGroup] = tuple(RuleGroup), records: bool = True
) -> list[Object]:
    """The groups of a rules file; those without rules are left out."""
    alerts = list(wanted)
    filled: list[Object] = [{"name": RECORDING, "rules": [record.rule() for record in RECORDS]}] if records else []
    for group in of:
        rules = [alert.rule() for alert in alerts if alert.group is group]
        if rules:
            filled.append({"name": str(group), "rules": rules})
    return filled


def prometheus_rule(wanted: Iterable[Alert], *, namespace: str, labels: Mapping[str, str]) -> Object:
    """All groups as one object of the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": NAME, **({"namespace": namespace} if namespace else {}), "labels": dict(labels)},
        "spec": {"groups": groups(wanted)},
    }
