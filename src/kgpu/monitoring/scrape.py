"""How Prometheus scrapes the exporters: by ServiceMonitor or PodMonitor, with TLS and a password where they want that.

The keys are those of the Prometheus operator's endpoints. Secrets are named, never given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean

SERVICE: Final = "ServiceMonitor"
POD: Final = "PodMonitor"
HTTP: Final = "http"
HTTPS: Final = "https"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """What is wanted: ``kind`` of object, and what its endpoint has beside port, path and times."""

    kind: str = SERVICE
    endpoint: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _KeyedMap:
    """A mapping with these keys; all of them, or one, or any number of them where nothing is said."""

    keys: Mapping[str, Any]
    needs: str = ""  # all | one


_TEXT: Final = "a text"
_SWITCH: Final = "true or false"
_KEY: Final = _KeyedMap({"name": _TEXT, "key": _TEXT}, "all")
_FROM: Final = _KeyedMap({"secret": _KEY, "configMap": _KEY}, "one")
_SHAPE: Final = _KeyedMap(
    {
        "kind": (SERVICE, POD),
        "scheme": (HTTP, HTTPS),
        "tlsConfig": _KeyedMap(
            {"ca": _FROM, "cert": _FROM, "keySecret": _KEY, "serverName": _TEXT, "insecureSkipVerify": _SWITCH}
        ),
        "basicAuth": _KeyedMap({"username": _KEY, "password": _KEY}, "all"),
    }
)


def read_scrape(settings: Mapping[str, Any], where: str = "scrape") -> Scrape:
    """Read a person's settings; an empty key counts as absent. Raises ConfigError."""
    wanted = {key: value for key, value in settings.items() if value not in (None, "", {})}
    _check(wanted, _SHAPE, where)
    tls = wanted.get("tlsConfig")
    if tls and wanted.get("scheme") == HTTP:
        raise ConfigError(f"{where} has a tlsConfig and the scheme http", "the scheme https", "correct one of them")
    endpoint: dict[str, Any] = {key: wanted[key] for key in ("scheme", "tlsConfig", "basicAuth") if key in wanted}
    if tls:
        endpoint["scheme"] = HTTPS
    if endpoint.get("scheme") == HTTP:
        del endpoint["scheme"]
    return Scrape(kind=wanted.get("kind", SERVICE), endpoint=endpoint)


def _check(value: Any, shape: Any, where: str) -> None:
    if isinstance(shape, _KeyedMap):
        _check_map(value, shape, where)
    elif shape is _SWITCH:
        _want(isinstance(value, bool), value, where, _SWITCH)
    elif shape is _TEXT:
        _want(isinstance(value, str) and value != "", value, where, _TEXT)
    else:
        _want(value in shape, value, where, f"one of: {', '.join(shape)}")


def _check_map(value: Any, shape: _KeyedMap, where: str) -> None:
    _want(isinstance(value, Mapping), value, where, f"a mapping with: {', '.join(shape.keys)}")
    for key, inner in value.items():
        if key not in shape.keys:
            hint = did_you_mean(str(key)[:80], shape.keys)
            raise ConfigError(
                f'{where}: there is no key "{str(key)[:80]}"', f"one of: {', '.join(shape.keys)}", hint or "remove it"
            )
        _check(inner, shape.keys[key], f"{where}.{key}")
    if shape.needs == "all" and len(value) < len(shape.keys):
        missing = ", ".join(key for key in shape.keys if key not in value)
        raise ConfigError(f"{where} has no {missing}", " and ".join(shape.keys), "add it")
    if shape.needs == "one" and len(value) != 1:
        raise ConfigError(f"{where} has {len(value)} sources", f"one of: {', '.join(shape.keys)}", "keep one of them")


def _want(good: bool, value: Any, where: str, expected: str) -> None:
    if not good:
        raise ConfigError(f"{where} is {str(value)[:60]!r}", expected, "correct it")
