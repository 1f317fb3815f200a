"""What differs between two objects of a type, and which fields an object sets: as sets of field paths."""

from __future__ import annotations

from typing import Any, Final

from kgpu.lab.embedded.patch.fieldset import HERE, LEAF, Fields
from kgpu.lab.embedded.patch.shape import MergeRule, MergeShape
from kgpu.lab.embedded.patch.values import same

_ABSENT: Final[Any] = object()
_SAME: Final[tuple[Fields | None, Fields | None]] = (None, None)


def compared(shape: MergeShape, old: Any, new: Any) -> tuple[Fields, Fields]:
    """``(touched, removed)``: the paths that ``new`` adds or changes, and those that it no longer has."""
    touched, removed = _compare(shape, old, new)
    return touched or {}, removed or {}


def _compare(shape: MergeShape, old: Any, new: Any) -> tuple[Fields | None, Fields | None]:
    """The two sets below this path; LEAF for the path itself, None for nothing."""
    if _equal(shape, old, new):
        return _SAME
    old_each, new_each = _each(shape, old), _each(shape, new)
    if isinstance(old, dict) and isinstance(new, dict) and old_each:
        return _compare_maps(shape, old, new)
    if isinstance(old, list) and isinstance(new, list) and old_each:
        return _compare_lists(shape, old, new)
    # Of a different form: the old one's parts go, the new one's come. A null takes the other side's form.
    removed = _below(all_paths(shape, old)) if old_each and old else None
    if new is None and removed:
        return None, removed
    touched = all_paths(shape, new) if new_each else LEAF
    if old is None and new_each and new:
        touched = _below(touched)
    return touched, removed


def _equal(shape: MergeShape, old: Any, new: Any) -> bool:
    # Only in a type that allows any value can 1 become true.
    return bool(old == new) and (not shape.open or same(old, new))


def _each(shape: MergeShape, value: Any) -> bool:
    """Whether the value is merged part by part."""
    if isinstance(value, dict):
        return shape.map is MergeRule.EACH
    return isinstance(value, list) and shape.list is MergeRule.EACH


def _below(node: Fields) -> Fields:
    return {key: child for key, child in node.items() if key != HERE}


def all_paths(shape: MergeShape, value: Any) -> Fields:
    """A path and all paths below it."""
    if not value or not _each(shape, value):
        return LEAF
    result: Fields = {HERE: LEAF}
    if isinstance(value, dict):
        fields, values = shape.fields, shape.values
        for name, child in value.items():
            result["f:" + name] = all_paths(fields.get(name) or values or shape.child(name), child)
        return result
    for item in value:
        element = shape.element(item)
        # Items with the same keys are one path and nothing below it.
        result[element] = LEAF if element in result else all_paths(shape.item, item)
    return result


def _compare_maps(shape: MergeShape, old: Fields, new: Fields) -> tuple[Fields | None, Fields | None]:
    touched: Fields = {}
    removed: Fields = {}
    for name, value in new.items():
        before = old.get(name, _ABSENT)
        if before is _ABSENT:
            touched["f:" + name] = all_paths(shape.child(name), value)
        elif before is not value and not _equal(shape.child(name), before, value):
            changed, gone = _compare(shape.child(name), before, value)
            if changed is not None:
                touched["f:" + name] = changed
            if gone is not None:
                removed["f:" + name] = gone
    for name, value in old.items():
        if name not in new:
            removed["f:" + name] = all_paths(shape.child(name), value)
    return touched or None, removed or None


def _compare_lists(shape: MergeShape, old: list[Any], new: list[Any]) -> tuple[Fields | None, Fields | None]:
    touched: Fields = {}
    removed: Fields = {}
    olds, news = _by_element(shape, old), _by_element(shape, new)
    for element in [*olds, *(element for element in news if element not in olds)]:
        before, after = olds.get(element, []), news.get(element, [])
        changed: Fields | None = None
        gone: Fields | None = None
        if len(before) <= 1 and len(after) <= 1:
            if not before:
                changed = all_paths(shape.item, after[0])
            elif not after:
                gone = all_paths(shape.item, before[0])
            else:
                changed, gone = _compare(shape.item, before[0], after[0])
        elif len(before) > 1 and len(after) > 1:
            changed = LEAF if before != after else None
        elif len(before) > 1:
            changed = all_paths(shape.item, after[0]) if after else None
            gone = LEAF
        else:
            gone = all_paths(shape.item, before[0]) if before else None
            changed = LEAF
        if changed is not None:
            touched[element] = changed
        if gone is not None:
            removed[element] = gone
    return touched or None, removed or None


def _by_element(shape: MergeShape, items: list[Any]) -> dict[str, list[Any]]:
    by_element: dict[str, list[Any]] = {}
    for item in items:
        by_element.setdefault(shape.element(item), []).append(item)
    return by_element


def field_set(shape: MergeShape, value: Any) -> Fields:
    """Every field and item in the object: what its applier owns."""
    return _field_set(shape, value)[0]


def _field_set(shape: MergeShape, value: Any) -> tuple[Fields, bool]:
    """The set below this path, and whether the value itself can be owned."""
    if value is None:
        return LEAF, True
    if not _each(shape, value):
        return LEAF, True
    result: Fields = {}
    if isinstance(value, dict):
        if not value:
            return LEAF, True
        for name, child in value.items():
            below, owned = _field_set(shape.child(name), child)
            if owned or name not in shape.fields:
                result["f:" + name] = {HERE: LEAF, **below} if below else LEAF
            elif below:
                result["f:" + name] = below
        return result, False
    for item in value:
        element = shape.element(item)
        below = LEAF if element in result else _field_set(shape.item, item)[0]
        result[element] = {HERE: LEAF, **below} if below else LEAF
    return result, False
