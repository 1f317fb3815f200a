"""Sets of field paths in the form that managedFields have on the wire (FieldsV1).

A set is nested dictionaries by path element: ``f:NAME`` a field, ``k:{...}`` a list item by its keys, ``v:VALUE`` an
item of a set, ``i:N`` one by position. A path is in the set if it has no children, or a ``"."`` among them. The empty
dictionary is the empty set at the top and means "this, and nothing below it" elsewhere.

Sets are values: every function makes new dictionaries where something differs and shares the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

import msgspec

Fields: TypeAlias = dict[str, Any]
Path: TypeAlias = tuple[str, ...]

HERE: Final = "."
LEAF: Final[Fields] = {}  # never changed
_ESCAPES: Final = str.maketrans(
    {"<": r"\u003c", ">": r"\u003e", "&": r"\u0026", "\u2028": r"\u2028", "\u2029": r"\u2029"}
)


def member(node: Fields) -> bool:
    """Whether the path that leads to ``node`` is in the set."""
    return not node or HERE in node


def union(left: Fields, right: Fields) -> Fields:
    """The union of two whole sets."""
    result = dict(left)
    for key, node in right.items():
        result[key] = _join(result[key], node) if key in result else node
    return result


def _join(left: Fields, right: Fields) -> Fields:
    if left is right or not right:
        return left if member(left) else {HERE: LEAF, **left}
    if not left:
        return right if HERE in right else {HERE: LEAF, **right}
    return union(left, right)


def difference(left: Fields, right: Fields) -> Fields:
    """The paths of ``left`` that are not in ``right``; paths above or below those of ``right`` stay."""
    return _kept(left, right, _without)


def _without(node: Fields, removed: Fields) -> Fields | None:
    """``node`` without ``removed``, both at the same path; None if nothing is left."""
    stays = member(node) and not member(removed)
    below = difference({key: child for key, child in node.items() if key != HERE}, removed)
    return ({HERE: LEAF, **below} if below else LEAF) if stays else below or None


def without_below(left: Fields, right: Fields) -> Fields:
    """``left`` without the paths of ``right`` and everything below them."""
    return _kept(left, right, _without_all)


def _without_all(node: Fields, removed: Fields) -> Fields | None:
    if member(removed):
        return None
    below = without_below({key: child for key, child in node.items() if key != HERE}, removed)
    return ({HERE: LEAF, **below} if below else LEAF) if member(node) else below or None


def intersection(left: Fields, right: Fields) -> Fields:
    """The paths in both sets."""
    result: Fields = {}
    few, many = (left, right) if len(left) < len(right) else (right, left)
    for key, node in few.items():
        counterpart = many.get(key)
        if counterpart is None or key == HERE:
            continue
        below = intersection(node, counterpart)
        if member(node) and member(counterpart):
            result[key] = {HERE: LEAF, **below} if below else LEAF
        elif below:
            result[key] = below
    return result


def _kept(left: Fields, right: Fields, shrink: Callable[[Fields, Fields], Fields | None]) -> Fields:
    if not right or left.keys().isdisjoint(right):
        return left
    result: Fields = {}
    for key, node in left.items():
        removed = right.get(key)
        if removed is None:
            result[key] = node
        elif key != HERE:
            kept = shrink(node, removed)
            if kept is not None:
                result[key] = kept
    return result


def covers(big: Fields, small: Fields) -> bool:
    """Whether all of ``small`` is in ``big``."""
    return big == small or not difference(small, big)


def of_paths(paths: Iterable[Path]) -> Fields:
    """The set of these paths of field names."""
    result: Fields = {}
    for path in paths:
        node = LEAF
        for name in reversed(path):
            node = {f"f:{name}": node}
        result = union(result, node)
    return result


def paths(fields: Fields) -> Iterator[Path]:
    """All paths in the set as tuples of elements, in the order in which the server lists them."""
    for key in sorted(fields, key=_order):
        if key != HERE and member(fields[key]):
            yield (key,)
    for key in sorted(fields, key=_order):
        for path in paths(fields[key]) if key != HERE else ():
            yield (key, *path)


def path_text(path: Path) -> str:
    """A path as messages show it: ``.spec.containers[name="a"].image``."""
    return "".join(map(_described, path))


@functools.lru_cache(4096)
def _described(element: str) -> str:
    kind, rest = element[0], element[2:]
    if kind == "f":
        return f".{rest}"
    if kind == "i":
        return f"[{rest}]"
    value = msgspec.json.decode(rest)
    if kind == "v":
        return f"[={_shown(value)}]"
    return f"[{','.join(f'{name}={_shown(value[name])}' for name in sorted(value))}]"


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()


_RANK: Final = {"f": 0, "k": 1, "v": 2, "i": 3, HERE: -1}


@functools.lru_cache(4096)
def _order(element: str) -> tuple[Any, ...]:
    """Sorts as the server does: fields by name, keys by their fields, values numbers before text before booleans."""
    kind, rest = element[0], element[2:]
    if kind in ("f", HERE):
        return _RANK[kind], rest
    value = msgspec.json.decode(rest)
    if kind == "k":
        return _RANK[kind], tuple((name, _value_order(value[name])) for name in sorted(value))
    return _RANK.get(kind, 4), _value_order(value)


def _value_order(value: Any) -> tuple[int, Any]:
    if isinstance(value, bool):
        return 2, value
    if isinstance(value, int | float):
        return 0, value
    return (1, value) if isinstance(value, str) else (3, _shown(value))


def value_element(value: Any) -> str:
    """The element of an item of a set."""
    return "v:" + (_text(value) if isinstance(value, str) else _shown(value))


def key_element(keys: dict[str, Any]) -> str:
    """The element of an item of a list with keys."""
    shown = (
        f"{_text(name)}:{_text(value) if isinstance(value, str) else _shown(value)}"
        for name, value in sorted(keys.items())
    )
    return f"k:{{{','.join(shown)}}}"


@functools.lru_cache(4096)
def _text(value: str) -> str:
    return _shown(value).translate(_ESCAPES)


def parsed(fields: Any) -> Fields | None:
    """A set from outside, its elements spelt as this module spells them; None when it can't be read."""
    try:
        found = _parsed(fields)
    except ValueError:
        return None
    return {key: node for key, node in found.items() if key != HERE}


def _parsed(fields: Any) -> Fields:
    if not isinstance(fields, dict):
        raise ValueError(fields)  # noqa: TRY004 - caught as one with what the decoder raises
    result: Fields = {}
    for key, node in fields.items():
        element = key if key == HERE else _canonical(key)
        if element is not None:
            result[element] = _parsed(node) if key != HERE else LEAF
    return LEAF if result.keys() == {HERE} else result


@functools.lru_cache(4096)
def _canonical(element: str) -> str | None:
    """The element as this module spells it; None for one of an unknown kind, which is ignored."""
    if len(element) < 2 or element[1] != ":":
        raise ValueError(element)
    kind, rest = element[0], element[2:]
    if kind not in _RANK:
        return None
    if kind == "i":
        return f"i:{int(rest)}"
    if kind == "f":
        return element
    value = msgspec.json.decode(rest)
    if kind == "v":
        return value_element(value)
    if not isinstance(value, dict):
        raise ValueError(element)  # noqa: TRY004
    return key_element(value)
