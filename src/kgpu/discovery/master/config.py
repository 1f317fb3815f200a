"""Settings of node feature discovery's master that are in effect, as its config file and Helm values name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.discovery.rules.outputs import OutputLimits
from kgpu.discovery.rules.patterns import finds

KEYS: Final = ("denyLabelNs", "extraLabelNs", "labelWhiteList", "enableTaints")


def read_limits(given: Mapping[str, Any], where: str) -> OutputLimits:
    """Raises ConfigError for what has no effect, and for values that are none."""
    for key in given:
        if key not in KEYS:
            raise ConfigError(
                f"{where}: {key} has no effect", ", ".join(KEYS), did_you_mean(key, KEYS) or f"take it out of {where}"
            )
    pattern = given.get("labelWhiteList") or ""
    taints = given.get("enableTaints", False)
    if not isinstance(pattern, str):
        raise ConfigError(f"{where}: labelWhiteList is no text", "a regular expression", f"correct {where}")
    if not isinstance(taints, bool):
        raise ConfigError(f"{where}: enableTaints is {taints!r}", "true or false", f"correct {where}")
    if pattern:
        finds(pattern, "")  # a wrong one is told at the start
    return OutputLimits(
        denied_domains=_domains(given.get("denyLabelNs"), "denyLabelNs", where),
        extra_domains=_domains(given.get("extraLabelNs"), "extraLabelNs", where),
        allowed_labels=pattern,
        taints=taints,
    )


def _domains(value: Any, key: str, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, Iterable) or isinstance(value, str) or not all(isinstance(one, str) for one in value):
        raise ConfigError(f"{where}: {key} is no list of domains", "[example.com, '*.example.org']", f"correct {where}")
    return tuple(value)
