"""Settings of node feature discovery's master that are in effect, as its config file and Helm values name them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.discovery.master.model import USUAL, MasterSettings
from kgpu.discovery.rules.outputs import ANNOTATION, LABEL, RESOURCE, OutputLimits
from kgpu.discovery.rules.patterns import finds
from kgpu.fit.read import label_selector
from kgpu.fit.selectors import LabelSelector

KINDS: Final = (("disableLabels", LABEL), ("disableExtendedResources", RESOURCE), ("disableAnnotations", ANNOTATION))
"""A key of ``restrictions``, and the kind of outputs that it switches off."""
GROUPS: Final = "NodeFeatureGroupAPI"
_INSTANCE: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


def read_master(given: Mapping[str, Any], namespace: str, where: str) -> MasterSettings:
    """Raises ConfigError for what has no effect, and for values that are none."""
    read = _read(given, _ROWS, where)
    restrictions = read.get("restrictions", {})
    off = frozenset(kind for key, kind in KINDS if restrictions.get(key))
    limits = OutputLimits(
        denied_domains=read.get("denyLabelNs", ()),
        extra_domains=read.get("extraLabelNs", ()),
        allowed_labels=read.get("labelWhiteList", ""),
        taints=read.get("enableTaints", False) and not restrictions.get("disableTaints", False),
        off=off,
    )
    return MasterSettings(
        namespace=namespace,
        limits=limits,
        overwrite=restrictions.get("allowOverwrite", True),
        foreign_labels=not restrictions.get("denyNodeFeatureLabels", False),
        namespaces=restrictions.get("nodeFeatureNamespaceSelector"),
        instance=read.get("instance", ""),
        groups=read.get("featureGates", {}).get(GROUPS, False),
    )


def read_instance(value: Any, where: str) -> str:
    """The name of an instance, "" for none. Raises ConfigError."""
    if value == "":
        return ""
    if not isinstance(value, str) or not _INSTANCE.fullmatch(value) or value == USUAL:
        expected = f'at most 63 small letters, digits, - and ., other than "{USUAL}"'
        raise ConfigError(f"{where} is {_shown(value)}", expected, "give the instance another name")
    return value


def _read(given: Any, rows: Mapping[str, _Reader], where: str) -> dict[str, Any]:
    """What is given, each value by its row; an empty one counts as not given."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} is {_shown(given)}", f"a mapping of {', '.join(rows)}", f"correct {where}")
    for key in given:
        if key not in rows:
            expected, hint = ", ".join(rows), did_you_mean(str(key), rows)
            raise ConfigError(f"{where}: {key} has no effect", expected, hint or f"take it out of {where}")
    return {key: rows[key](value, f"{where}: {key}") for key, value in given.items() if value is not None}


def _restrictions(value: Any, where: str) -> dict[str, Any]:
    return _read(value, _RESTRICTIONS, where)


def _gates(value: Any, where: str) -> dict[str, Any]:
    return _read(value, {GROUPS: _switch}, where)


def _switch(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{where} is {_shown(value)}", "true or false", f"correct {where}")
    return value


def _pattern(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{where} is no text", "a regular expression", f"correct {where}")
    if value:
        finds(value, "")  # a wrong one is told at the start
    return value


def _domains(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str) or not all(isinstance(one, str) for one in value):
        raise ConfigError(f"{where} is no list of domains", "[example.com, '*.example.org']", f"correct {where}")
    return tuple(value)


def _selector(value: Any, where: str) -> LabelSelector:
    known = ("matchLabels", "matchExpressions")
    selector = label_selector(value)
    problem = selector.error or ("" if isinstance(value, Mapping) and value.keys() <= {*known} else "it has other keys")
    if problem:
        raise ConfigError(f"{where} can't be used: {problem}", f"a label selector: {' and '.join(known)}",
                          f"correct {where}")  # fmt: skip
    return selector


def _shown(value: Any) -> str:
    return repr(value)[:60]


_Reader = Callable[[Any, str], Any]
_RESTRICTIONS: Final[Mapping[str, _Reader]] = {
    **{key: _switch for key, _ in KINDS},
    "disableTaints": _switch,
    "allowOverwrite": _switch,
    "denyNodeFeatureLabels": _switch,
    "nodeFeatureNamespaceSelector": _selector,
}
_ROWS: Final[Mapping[str, _Reader]] = {
    "denyLabelNs": _domains,
    "extraLabelNs": _domains,
    "labelWhiteList": _pattern,
    "enableTaints": _switch,
    "restrictions": _restrictions,
    "instance": read_instance,
    "featureGates": _gates,
}
