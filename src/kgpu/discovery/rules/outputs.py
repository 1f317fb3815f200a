"""Which of the rules' labels, annotations, taints and extended resources a Node may get, and why not the others. Pure.

Names are in a vendor's own domain or in node feature discovery's; what is in Kubernetes' own is refused. A name without
a domain gets ``feature.node.kubernetes.io/``. One that is refused takes no other along.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kgpu.base.quantity import Quantity, QuantityError
from kgpu.discovery.features.model import FeatureSet
from kgpu.discovery.rules.model import RuleError, RulesOutcome
from kgpu.discovery.rules.patterns import finds
from kgpu.formats.crd.nodefeatures import RuleTaint
from kgpu.formats.names import NFD_PREFIX, NFD_PROFILE_DOMAIN

LABEL: Final = "label"
ANNOTATION: Final = "annotation"
RESOURCE: Final = "extended resource"
TAINT: Final = "taint"
MAX_ANNOTATION: Final = 1024
EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
DYNAMIC: Final = "@"
_RESERVED: Final = "kubernetes.io"
_OWN: Final = (NFD_PREFIX.rstrip("/"), NFD_PROFILE_DOMAIN)
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_VALUE: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_DOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_SHOWN: Final = 80


class OutputError(RuleError):
    """A name or value that a Node may not get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLimits:
    """What a cluster's administrator allows. Domains are exact, or ``*.suffix``. ``allowed_labels`` is a pattern for
    the name without its domain, "" for any. ``off`` are kinds (``LABEL``, ...) of which a Node gets none at all.
    """

    denied_domains: tuple[str, ...] = ()
    extra_domains: tuple[str, ...] = ()
    allowed_labels: str = ""
    taints: bool = False
    off: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedOutput:
    """What a Node does not get, and why."""

    kind: str
    key: str
    error: RuleError


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutputs:
    """What a Node gets of kgpu's rules."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    extended_resources: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[RuleTaint, ...] = ()
    rejected: tuple[RejectedOutput, ...] = ()


def settle(
    outcome: RulesOutcome, features: FeatureSet, limits: OutputLimits, requested: Mapping[str, str] | None = None
) -> NodeOutputs:
    """What the node gets. ``requested`` are the labels that its NodeFeatures ask for; those of rules win."""
    rejected: list[RejectedOutput] = []
    wanted = {LABEL: {**prefixed(requested or {}), **prefixed(outcome.labels)}}
    wanted |= {ANNOTATION: prefixed(outcome.annotations), RESOURCE: prefixed(outcome.extended_resources)}
    kept: dict[str, dict[str, str]] = {}
    for kind, pairs in wanted.items():
        kept[kind] = {}
        for key, value in sorted(pairs.items()) if kind not in limits.off else ():
            try:
                found = value if kind == ANNOTATION else dynamic(value, features)
                check(kind, key, found, limits)
                kept[kind][key] = found
            except RuleError as error:
                rejected.append(RejectedOutput(kind=kind, key=key, error=error))
    taints = []
    for taint in outcome.taints:
        try:
            check_taint(taint, limits)
            taints.append(taint)
        except RuleError as error:
            rejected.append(RejectedOutput(kind=TAINT, key=taint.key, error=error))
    return NodeOutputs(
        labels=kept[LABEL],
        annotations=kept[ANNOTATION],
        extended_resources=kept[RESOURCE],
        taints=tuple(taints),
        rejected=tuple(rejected),
    )


def prefixed(pairs: Mapping[str, str]) -> dict[str, str]:
    """Each key with a domain; of two that are the same then, the value of the one that had it."""
    found = {NFD_PREFIX + key: value for key, value in pairs.items() if "/" not in key}
    return {**found, **{key: value for key, value in pairs.items() if "/" in key}}


def dynamic(value: str, features: FeatureSet) -> str:
    """The value, ``@domain.feature.element`` replaced by that attribute's. Raises RuleError when there is none."""
    if not value.startswith(DYNAMIC):
        return value
    parts = value[1:].split(".", 2)
    found = features.attributes.get(".".join(parts[:2]), {}).get(parts[2]) if len(parts) == 3 else None
    if found is None:
        raise OutputError(
            f'the value "{value[:_SHOWN]}" names no attribute of the node', "@domain.feature.element of an attribute",
            "see `kgpu features dump` for the node's attributes, or let the rule ask for it by Exists",
        )  # fmt: skip
    return found


def check(kind: str, key: str, value: str, limits: OutputLimits) -> None:
    """Raises RuleError for what the Node may not get; ``key`` has its domain."""
    _check_name(kind, key)
    _check_domain(kind, key, limits)
    if kind == LABEL:
        _check_label(key, value, limits)
    elif kind == ANNOTATION and len(value) > MAX_ANNOTATION:
        raise OutputError(
            f"the annotation {key} has {len(value)} characters", f"at most {MAX_ANNOTATION}", "make its value shorter"
        )
    elif kind == RESOURCE:
        _check_quantity(key, value)


def check_taint(taint: RuleTaint, limits: OutputLimits, *, allowed: bool | None = None) -> None:
    """Raises RuleError for a taint that the Node may not get; ``allowed``: whether taints are, in place of limits'."""
    if "/" not in taint.key:
        raise OutputError(f'the taint "{taint.key[:_SHOWN]}" has no domain', "a key such as example.com/special",
                          "put a domain before it")  # fmt: skip
    _check_name(TAINT, taint.key)
    _check_domain(TAINT, taint.key, limits)
    if taint.effect not in EFFECTS:
        raise OutputError(
            f'the taint {taint.key} has the effect "{taint.effect[:_SHOWN]}"', f"one of {', '.join(EFFECTS)}",
            "correct `effect`",
        )  # fmt: skip
    if not _VALUE.fullmatch(taint.value):
        raise OutputError(f"the taint {taint.key} has an illegal value", *_LEGAL_VALUE)
    if not (limits.taints if allowed is None else allowed):
        raise OutputError(f"the taint {taint.key} is not set", "taints of rules that are allowed", "allow them")


_LEGAL_VALUE: Final = (
    "at most 63 letters, digits, - _ and ., a letter or digit at both ends", "make another value of it"
)  # fmt: skip


def _check_name(kind: str, key: str) -> None:
    domain, _, name = key.rpartition("/")
    if not (_NAME.fullmatch(name) and len(domain) <= 253 and _DOMAIN.fullmatch(domain)):
        raise OutputError(
            f'"{key[:_SHOWN]}" is no name of a {kind}', "domain/name, which has at most 63 letters, digits, - _ and .",
            "correct the name",
        )  # fmt: skip


def _check_domain(kind: str, key: str, limits: OutputLimits) -> None:
    domain = key.partition("/")[0]
    if is_allowed(domain, limits if kind == LABEL else OutputLimits()):
        return
    raise OutputError(
        f"the {kind} {key} is in the domain {domain}, which is not allowed", f"a vendor's own domain, or {_OWN[0]}",
        "use another domain" + (", or allow it by extraLabelNs" if kind == LABEL else ""),
    )  # fmt: skip


def is_allowed(domain: str, limits: OutputLimits) -> bool:
    """Whether names in the domain may be given to Nodes."""
    if any(_within(domain, one) for one in limits.extra_domains):
        return True
    if any(_within(domain, one) for one in limits.denied_domains):
        return False
    if any(domain == one or domain.endswith("." + one) for one in _OWN):
        return True
    return domain != _RESERVED and not domain.endswith("." + _RESERVED)


def _within(domain: str, pattern: str) -> bool:
    return domain.endswith(pattern[1:]) if pattern.startswith("*.") else domain == pattern


def _check_label(key: str, value: str, limits: OutputLimits) -> None:
    if not _VALUE.fullmatch(value):
        raise OutputError(f'the label {key} has the illegal value "{value[:_SHOWN]}"', *_LEGAL_VALUE)
    if limits.allowed_labels and not finds(limits.allowed_labels, key.rpartition("/")[2]):
        raise OutputError(f"the label {key} is on no list of allowed ones", f"what {limits.allowed_labels} matches",
                          "use another name, or change labelWhiteList")  # fmt: skip


def _check_quantity(key: str, value: str) -> None:
    try:
        Quantity.parse(value)
    except QuantityError as error:
        raise OutputError(
            f'the extended resource {key} has the value "{value[:_SHOWN]}"', "a quantity such as 4", "correct the value"
        ) from error


def static_flaws(pairs: Mapping[str, str], kind: str) -> Iterator[RuleError]:
    """What is wrong with a rule's own names and values, whatever a cluster allows; dynamic values are not known."""
    for key, value in prefixed(pairs).items():
        try:
            if value.startswith(DYNAMIC) and kind != ANNOTATION:
                if len(value.split(".", 2)) != 3:
                    dynamic(value, FeatureSet())
                _check_name(kind, key)
                _check_domain(kind, key, OutputLimits())
            else:
                check(kind, key, value, OutputLimits())
        except RuleError as error:
            yield error
