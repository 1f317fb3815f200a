"""Pure: what rows of a report are about: a namespace, node, pool, product, owner, or the value of a label. A table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from kgpu.base.errors import ConfigError
from kgpu.base.printable import one_line
from kgpu.base.suggest import did_you_mean
from kgpu.formats.usage import RecordedHolder

LABEL: Final = "label:"
NO_LABEL: Final = "(no label)"
UNKNOWN_PRODUCT: Final = "(unknown product)"


@dataclass(frozen=True, slots=True)
class UsagePlace:
    """Where time was: what does not depend on who held it."""

    node: str
    pool: str
    product: str


OfHolder: TypeAlias = Callable[[RecordedHolder], str]
OfPlace: TypeAlias = Callable[[UsagePlace], str]

BY_HOLDER: Final[Mapping[str, OfHolder]] = {
    "namespace": lambda holder: holder.namespace,
    "owner": lambda holder: f"{holder.namespace}/{holder.owner or f'Pod/{holder.pod}'}",
}
BY_PLACE: Final[Mapping[str, OfPlace]] = {
    "node": lambda place: place.node,
    "pool": lambda place: place.pool,
    "product": lambda place: place.product or UNKNOWN_PRODUCT,
}
WORDS: Final = (*BY_HOLDER, *BY_PLACE, f"{LABEL}KEY")


@dataclass(frozen=True, slots=True)
class Grouping:
    """By what rows are made: of holders, or of places; of those idle and down rows have a name, too."""

    of_holder: OfHolder | None = None
    of_place: OfPlace | None = None

    def name(self, place: UsagePlace, holder: RecordedHolder | None) -> str:
        """The row's name; "" for time that nobody held where rows are about holders."""
        if self.of_place is not None:
            return self.of_place(place)
        return self.of_holder(holder) if holder is not None and self.of_holder is not None else ""


def grouping(by: str, labels: Sequence[str]) -> Grouping:
    """What ``--by`` asks for; ``labels`` are those that the recording has. Raises ConfigError."""
    if by.startswith(LABEL):
        key = by.removeprefix(LABEL)
        if key not in labels:
            raise ConfigError(
                f'the recording has no label "{one_line(key, 80)}"',
                f"one of: {one_line(', '.join(labels), 200)}" if labels else "a recording with labels of pods",
                did_you_mean(key, labels) or "choose another --by, or record with that label",
            )
        return Grouping(of_holder=lambda holder: holder.labels.get(key, "") or NO_LABEL)
    if by not in BY_HOLDER and by not in BY_PLACE:
        raise ConfigError(
            f'there are no rows by "{one_line(by, 80)}"', f"one of: {', '.join(WORDS)}",
            did_you_mean(by, (*BY_HOLDER, *BY_PLACE)) or "correct --by",
        )  # fmt: skip
    return Grouping(of_holder=BY_HOLDER.get(by), of_place=BY_PLACE.get(by))
