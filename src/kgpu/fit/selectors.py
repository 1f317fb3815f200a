"""Label and node selectors, taints and tolerations, matched as the API server's own libraries match them.

What can't be parsed matches nothing, and says why in ``error``: the scheduler ignores parse errors in the same way,
which leaves a user with a selector that never matches and no word about it. Rules: apimachinery's labels package and
component-helpers' nodeaffinity package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from kgpu.formats import names

Labels: TypeAlias = Mapping[str, str]

_INT64: Final = range(-(2**63), 2**63)
_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_PREFIX: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*", re.ASCII)


def integer(text: str) -> int | None:
    """As Go's ParseInt with base 10 and 64 bits; None for what it refuses."""
    if not _INTEGER.fullmatch(text) or len(text) > 30:
        return None
    number = int(text)
    return number if number in _INT64 else None


def is_label_key(key: str) -> bool:
    """A qualified name: an optional DNS prefix and a name."""
    prefix, slash, name = key.rpartition("/")
    return bool(_NAME.fullmatch(name)) and (not slash or (len(prefix) <= 253 and bool(_PREFIX.fullmatch(prefix))))


def is_label_value(value: str) -> bool:
    return not value or bool(_NAME.fullmatch(value))


def _above(label: str, values: tuple[str, ...]) -> bool:
    have, bound = integer(label), integer(values[0]) if values else None
    return have is not None and bound is not None and have > bound


def _below(label: str, values: tuple[str, ...]) -> bool:
    have, bound = integer(label), integer(values[0]) if values else None
    return have is not None and bound is not None and have < bound


_Operator: TypeAlias = tuple[Callable[[str, tuple[str, ...]], bool], bool]
"""Does a label that is there match, does one that is missing match."""
_OPERATORS: Final[Mapping[str, _Operator]] = {
    "In": (lambda found, values: found in values, False),
    "NotIn": (lambda found, values: found not in values, True),
    "Exists": (lambda _found, _values: True, False),
    "DoesNotExist": (lambda _found, _values: False, True),
    "Gt": (_above, False),
    "Lt": (_below, False),
}
_NO_OPERATOR: Final[_Operator] = (lambda _found, _values: False, False)
LABEL_OPERATORS: Final = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})
NODE_OPERATORS: Final = frozenset(_OPERATORS)
FIELD_OPERATORS: Final = frozenset({"In", "NotIn"})


@dataclass(frozen=True, slots=True)
class Requirement:
    """One comparison with a label. One that ``problem`` rejects matches nothing, or is never evaluated."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Labels) -> bool:
        present, missing = _OPERATORS.get(self.operator, _NO_OPERATOR)
        label = labels.get(self.key)
        return missing if label is None else present(label, self.values)

    def __str__(self) -> str:
        return (
            f"{self.key} {self.operator} [{', '.join(self.values)}]" if self.values else f"{self.key} {self.operator}"
        )


def problem(key: str, operator: str, values: tuple[str, ...], allowed: frozenset[str] = NODE_OPERATORS) -> str:
    """Why the parser rejects a requirement, "" when it does not."""
    if operator not in allowed:
        return f"operator {operator!r} is not one of {', '.join(sorted(allowed))}"
    if not is_label_key(key):
        return f"{key!r} is not a label key"
    if operator in ("In", "NotIn") and not values:
        return f"{operator} needs values"
    if operator in ("Exists", "DoesNotExist") and values:
        return f"{operator} takes no values"
    if operator in ("Gt", "Lt") and (len(values) != 1 or integer(values[0]) is None):
        return f"{operator} needs one integer, not {list(values)}"
    wrong = [value for value in values if not is_label_value(value)]
    return f"{wrong[0]!r} can't be a label's value" if wrong else ""


def field_problem(key: str, operator: str, values: tuple[str, ...]) -> str:
    """The same for a requirement on a node's fields."""
    if operator not in FIELD_OPERATORS:
        return f"operator {operator!r} on the field {key} is not one of In, NotIn"
    return "" if len(values) == 1 else f"{operator} on the field {key} needs one value"


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A label selector: every requirement holds. ``nothing`` matches nothing at all, as an absent selector does."""

    requirements: tuple[Requirement, ...] = ()
    nothing: bool = False
    error: str = ""

    @property
    def everything(self) -> bool:
        """True for ``{}``."""
        return not self.requirements and not self.nothing

    def matches(self, labels: Labels) -> bool:
        if self.nothing:
            return False
        for requirement in self.requirements:  # noqa: SIM110 - the hottest loop, a generator costs twice
            if not requirement.matches(labels):
                return False
        return True

    def adding(self, extra: tuple[Requirement, ...]) -> LabelSelector:
        """With further requirements; nothing stays nothing."""
        return self if self.nothing or not extra else LabelSelector((*extra, *self.requirements))

    def __str__(self) -> str:
        return "nothing" if self.nothing else ", ".join(map(str, self.requirements)) or "everything"


NOTHING: Final = LabelSelector(nothing=True)
EVERYTHING: Final = LabelSelector()


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """One of a node selector's terms; one with an ``error`` never matches."""

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()
    error: str = ""

    def matches(self, labels: Labels, name: str) -> bool:
        return not self.error and self.first_miss(labels, name) is None

    def first_miss(self, labels: Labels, name: str) -> Requirement | None:
        """The first requirement that the node does not meet."""
        for requirement in self.expressions:
            if not requirement.matches(labels):
                return requirement
        if name:
            for requirement in self.fields:
                if not requirement.matches({NAME_FIELD: name}):
                    return requirement
        return None

    def names(self) -> frozenset[str] | None:
        """The node names that this term can match at all, None for any."""
        names: frozenset[str] | None = None
        for requirement in self.fields:
            if requirement.key == NAME_FIELD and requirement.operator == "In":
                these = frozenset(requirement.values)
                names = these if names is None else names & these
        return names


NAME_FIELD: Final = "metadata.name"


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: str = ""

    @property
    def hard(self) -> bool:
        """True for the effects that keep new pods away."""
        return self.effect in ("NoSchedule", "NoExecute")

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


UNSCHEDULABLE: Final = Taint(names.TAINT_UNSCHEDULABLE, "", "NoSchedule")


@dataclass(frozen=True, slots=True)
class PodToleration:
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """The comparing operators Lt and Gt tolerate nothing: they are behind a gate that is off by default."""
        if (self.effect and self.effect != taint.effect) or (self.key and self.key != taint.key):
            return False
        return self.operator == "Exists" or (self.operator in ("", "Equal") and self.value == taint.value)


def tolerated(taint: Taint, tolerations: tuple[PodToleration, ...]) -> bool:
    return any(toleration.tolerates(taint) for toleration in tolerations)
