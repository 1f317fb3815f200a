"""Parts of the cells of many kinds: ages, labels, selectors, shortened lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

from kgpu.base.times import moment_of
from kgpu.lab.embedded.status import Object

Cell: TypeAlias = Callable[[Object, datetime], Any]
NONE: Final = "<none>"
UNKNOWN: Final = "<unknown>"
UNSET: Final = "<unset>"


def duration(seconds: float) -> str:
    """A duration in at most two units, coarser for longer ones: ``5s``, ``3m20s``, ``5h``, ``2d3h``, ``3y40d``."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    years = days // 365
    if whole < 120:
        return f"{max(whole, 0)}s"
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    return _two(years, "y", days % 365, "d") if years < 8 else f"{years}y"


def _two(large: int, unit: str, small: int, subunit: str) -> str:
    return f"{large}{unit}{small}{subunit}" if small else f"{large}{unit}"


def since(text: Any, now: datetime) -> str:
    """The time since then, as ``duration`` shows it."""
    when = moment_of(text)
    return UNKNOWN if when is None else duration((now - when).total_seconds())


def value_at(obj: Any, path: str, default: Any = None) -> Any:
    """The value at a path of fields with dots between them; ``default`` for null and absent."""
    for name in path.split("."):
        if not isinstance(obj, Mapping):
            return default
        obj = obj.get(name)
    return default if obj is None else obj


def at(path: str, default: Any = "") -> Cell:
    """A cell that shows one field."""
    names = path.split(".")

    def cell(obj: Object, _now: datetime) -> Any:
        value: Any = obj
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
            if value is None:
                return default
        return value

    return cell


def count(*paths: str) -> Cell:
    """A cell with the number of entries in lists or maps."""
    return lambda obj, _now: sum(len(value_at(obj, path, ())) for path in paths)


def name(obj: Object, _now: datetime) -> str:
    return str(obj["metadata"].get("name", ""))


def age(obj: Object, now: datetime) -> str:
    return since(obj["metadata"].get("creationTimestamp"), now)


def created(obj: Object, _now: datetime) -> str:
    return str(obj["metadata"].get("creationTimestamp", ""))


def labels(path: str) -> Cell:
    """A cell that shows a map as ``a=b,c=d``."""
    return lambda obj, _now: label_text(value_at(obj, path, {}))


def label_text(label_map: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={label_map[key]}" for key in sorted(label_map)) or NONE


_WORDS: Final = {"In": "{} in ({})", "NotIn": "{} notin ({})", "Exists": "{}", "DoesNotExist": "!{}"}


def selector_text(label_selector: Mapping[str, Any] | None) -> str:
    """A label selector as kubectl takes it; "" when it selects everything."""
    if label_selector is None:
        return ""
    parts = [(key, f"{key}={value}") for key, value in (label_selector.get("matchLabels") or {}).items()]
    for requirement in label_selector.get("matchExpressions") or ():
        words = _WORDS.get(requirement.get("operator"))
        if words is None:
            return "<error>"
        parts.append(
            (requirement["key"], words.format(requirement["key"], ",".join(sorted(requirement.get("values") or ()))))
        )
    return ",".join(text for _, text in sorted(parts, key=lambda part: part[0]))


def selector(path: str) -> Cell:
    return lambda obj, _now: selector_text(value_at(obj, path)) or NONE


def joined(path: str, field: str) -> Cell:
    """A cell that shows one field of every item of a list, with commas."""
    return lambda obj, _now: ",".join(str(item.get(field, "")) for item in value_at(obj, path, ()))


def shortened(items: Sequence[str], limit: int = 3, *, total: int | None = None, nothing: str = "") -> str:
    """The first items, and how many more there are."""
    text = ",".join(items[:limit])
    left = (len(items) if total is None else total) - limit
    return f"{text} + {left} more..." if left > 0 and len(items) >= limit else text or nothing


def condition_is_true(conditions: Iterable[Mapping[str, Any]], kind: str) -> bool:
    """Whether the (first) condition of the type is True."""
    return next((condition.get("status") == "True" for condition in conditions if condition.get("type") == kind), False)
