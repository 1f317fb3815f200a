"""Merging an applied configuration into an object, and removing fields from one.

Both return new values that share unchanged parts with their arguments.
"""

from __future__ import annotations

from typing import Any, Final

from kgpu.lab.embedded.patch.fieldset import HERE, LEAF, Fields, member
from kgpu.lab.embedded.patch.shape import MergeRule, MergeShape, ShapeError

_ABSENT: Final[Any] = object()


def merged(shape: MergeShape, live: Any, applied: Any) -> Any:
    """``live`` with ``applied`` over it: nothing is removed, lists with keys are merged item by item."""
    if isinstance(applied, dict) or (applied is None and isinstance(live, dict)):
        below = live if isinstance(live, dict) else {}
        if shape.map is MergeRule.EACH and (applied or below):
            return _merged_maps(shape, below, applied or {})
    elif isinstance(applied, list) or (applied is None and isinstance(live, list)):
        items = live if isinstance(live, list) else []
        if shape.list is MergeRule.EACH and (applied or items):
            return _merged_lists(shape, items, applied or [])
    return applied


def _merged_maps(shape: MergeShape, live: dict[str, Any], applied: dict[str, Any]) -> dict[str, Any]:
    result = dict(live)
    for name, value in applied.items():
        result[name] = merged(shape.child(name), live[name], value) if name in live else value
    return result


def _merged_lists(shape: MergeShape, live: list[Any], applied: list[Any]) -> list[Any]:
    """The applied items in their order; live ones that are not applied stay near where they were."""
    wanted: dict[str, Any] = {}
    for item in applied:
        element = shape.element(item)
        if element in wanted:
            raise ShapeError(f"duplicate entries for key {element}")
        wanted[element] = item
    olds = [shape.element(item) for item in live]
    # An item that occurs more than once is replaced, not merged.
    live_by_element = {
        element: item if olds.count(element) == 1 else _ABSENT for element, item in zip(olds, live, strict=True)
    }
    order = list(wanted)
    shared = [element for element in order if element in live_by_element]
    result: list[Any] = []
    done: set[str] = set()
    left = right = 0

    def take(element: str) -> None:
        done.add(element)
        old, new = live_by_element.get(element, _ABSENT), wanted[element]
        result.append(new if old is _ABSENT else merged(shape.item, old, new))

    while left < len(olds) or right < len(order):
        if left < len(olds) and right < len(order):
            if olds[left] == order[right]:
                take(order[right])
                left, right = left + 1, right + 1
                shared = shared[1:]
                continue
            if olds[left] in wanted and shared and shared[0] != olds[left]:
                left += 1  # applied, but later in the order
                continue
        if left < len(olds):
            if olds[left] not in wanted:
                result.append(live[left])
                left += 1
                continue
            if olds[left] in done:
                left += 1
        if right < len(order):
            take(order[right])
            if shared and shared[0] == order[right]:
                shared = shared[1:]
            right += 1
    return result


def without(shape: MergeShape, value: Any, fields: Fields) -> Any:
    """``value`` without the fields and items in the set; None if nothing is left."""
    if isinstance(value, dict) and value:
        if shape.map is not MergeRule.EACH:
            return None
        kept: dict[str, Any] = {}
        for name, inner in value.items():
            node = fields.get("f:" + name)
            if node is None:
                kept[name] = inner
            elif not member(node):
                kept[name] = without(shape.child(name), inner, node)
        return kept or None
    if isinstance(value, list) and value:
        if shape.list is not MergeRule.EACH:
            return None
        items: list[Any] = []
        for item in value:
            node = fields.get(shape.element(item))
            if node is None:
                items.append(item)
            elif not member(node):
                items.append(without(shape.item, item, node))
        return items or None
    return value if not isinstance(value, dict | list) else None


def with_named(shape: MergeShape | None, fields: Fields) -> Fields:
    """The set with the named fields above its paths added, which are not owned themselves."""
    result: Fields = {}
    for key, node in fields.items():
        if key == HERE or not node:
            result[key] = node
            continue
        below: MergeShape | None = None
        named = False
        if shape is not None and key.startswith("f:") and shape.map is not MergeRule.NO:
            named = key[2:] in shape.fields
            below = shape.fields.get(key[2:]) or shape.values
        elif shape is not None and key.startswith("k:") and shape.list is not MergeRule.NO:
            below = shape.item
        named_below = with_named(below, node)
        result[key] = {HERE: LEAF, **named_below} if named and HERE not in named_below else named_below
    return result
