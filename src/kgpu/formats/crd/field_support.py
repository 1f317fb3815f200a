"""What this version does with each field: the one table of the reference, the chart's notes and ``kgpu status``.

The rows come from the structs, where a field says that it is ``unbuilt``, ``ignored`` or ``deprecated``; whatever says
nothing is in force. ``decode`` finds the same in a manifest.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from kgpu.formats.crd.decode import IMAGE, SWITCH
from kgpu.formats.crd.fields import SchemaField, rows


class FieldSupport(enum.StrEnum):
    """Whether this version implements a field."""

    IN_FORCE = "in force"
    NOT_YET = "nothing yet"
    NEVER = "nothing, on purpose"
    NOTHING = "nothing"
    DEPRECATED = "in force, deprecated"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecPart:
    """A field or section, and all in it that has no row of its own. ``path`` has dots and is below ``spec``.

    ``says`` is why, or what to use instead; "" for what is in force.
    """

    path: str
    does: FieldSupport
    says: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A field of which nothing comes yet. ``quiet`` are its values that ask for nothing; ``switches`` are those of the
    sections around it, with what each is when it is not given: one that is off asks for nothing.
    """

    path: str
    says: str
    quiet: tuple[Any, ...]
    switches: tuple[tuple[str, bool], ...]


@functools.cache
def parts(struct: type[msgspec.Struct]) -> tuple[SpecPart, ...]:
    """One row for each top-level section or field, and one for each nested field whose support differs."""
    return tuple(part for row in rows(struct) for part in (_part(row.name, row), *_within(row.name, row)))


def _part(path: str, row: SchemaField) -> SpecPart:
    for does, says in (
        (FieldSupport.NEVER if row.for_good else FieldSupport.NOT_YET, row.unbuilt),
        (FieldSupport.NOTHING, row.ignored),
        (FieldSupport.DEPRECATED, row.deprecated),
    ):
        if says:
            return SpecPart(path=path, does=does, says=says)
    return SpecPart(path=path, does=FieldSupport.IN_FORCE)


def _within(path: str, row: SchemaField) -> Iterator[SpecPart]:
    if row.unbuilt or row.ignored or not row.type.struct:
        return
    for inner in rows(row.type.struct):
        part = _part(f"{path}.{inner.name}", inner)
        if part.does is not FieldSupport.IN_FORCE:
            yield part
        yield from _within(part.path, inner)


@functools.cache
def unbuilt(struct: type[msgspec.Struct]) -> tuple[Leaf, ...]:
    """Every single field that is not implemented yet, except those that only name an image."""
    return tuple(_leaves(struct, "", "", on=False, switches=()))


def _leaves(
    struct: type[msgspec.Struct], above: str, says: str, *, on: bool, switches: tuple[tuple[str, bool], ...]
) -> Iterator[Leaf]:
    for row in rows(struct):
        path = f"{above}{row.name}"
        within, is_on = (row.unbuilt, bool(row.usual)) if row.unbuilt else (says, on)
        inner = row.type.struct
        if inner:
            switch = bool(within) and any(field.name == SWITCH for field in rows(inner))
            around = (*switches, (f"{path}.{SWITCH}", is_on)) if switch else switches
            yield from _leaves(inner, f"{path}.", within, on=is_on, switches=around)
        elif within and row.name not in IMAGE:
            quiet = (row.default, *row.usual, *((True,) if row.name == SWITCH and is_on else ()))
            yield Leaf(path=path, says=within, quiet=quiet, switches=switches)


def instead(struct: type[msgspec.Struct], path: str) -> str:
    """What there is instead of a field that ``decode`` found to be unbuilt; ``path`` begins with ``spec.``."""
    wanted = path.removeprefix("spec.")
    return next((leaf.says for leaf in unbuilt(struct) if leaf.path == wanted), "")
