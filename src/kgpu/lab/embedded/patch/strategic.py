"""Strategic merge patch: lists merged by the keys that the type names, with ``$patch`` and the other directives.

Follows the API server's rules for decoded JSON, down to the order of merged lists and its error messages. ``apply``
changes both of its arguments in place.
"""

from __future__ import annotations

from typing import Any, Final

from kgpu.lab.embedded.patch.gotext import go_text, go_type, json_name
from kgpu.lab.embedded.schema import SchemaNode
from kgpu.lab.embedded.status import ApiError, Object, bad_request

DIRECTIVE: Final = "$patch"
RETAIN_KEYS: Final = "$retainKeys"
ORDER: Final = "$setElementOrder"
DELETE_FROM: Final = "$deleteFromPrimitiveList"
_BAD_ORDER: Final = "invalid patch format of setElementOrder list"
_BAD_DELETE: Final = "invalid patch format of primitive list"
_BAD_RETAIN: Final = "invalid patch format of retainKeys"


def apply(live: Object, patch: Any, schema: SchemaNode) -> Object:
    """``live`` with ``patch``; malformed patches are 400, lists of lists 422, everything else that fails 500."""
    if patch is not None and not isinstance(patch, dict):
        raise bad_request(f"json: cannot unmarshal {json_name(patch)} into Go value of type map[string]interface {{}}")
    return _merge_maps(live, patch or {}, schema)


def _failed(message: str) -> ApiError:
    """An error that the server has no better code for."""
    return ApiError(500, "", message)


def _bad_type(wanted: Any, got: Any) -> ApiError:
    return _failed(f"expected a {go_type(wanted)}, but received a {go_type(got)}")


def _no_key(item: Object, key: str) -> ApiError:
    return _failed(f"map: {go_text(item)} does not contain declared merge key: {key}")


def _field(schema: SchemaNode | None, name: str) -> SchemaNode:
    """The field's schema; only types with named fields can hold something to merge."""
    if schema is None or not schema.properties:
        raise _failed("merging an object in json but data type is not struct, instead is: map")
    found = schema.field(name)
    if found is None:
        type_name = schema.name.rpartition(".")[2]
        raise _failed(f'unable to find api field in struct {type_name} for the json field "{name}"')
    return found


def _strategy(schema: SchemaNode) -> str:
    """``merge``, ``replace`` or "": what remains when ``retainKeys`` is taken away."""
    return next((strategy for strategy in schema.patch_strategy if strategy != "retainKeys"), "")


def _merge_maps(live: Object | None, patch: Object, schema: SchemaNode | None) -> Object:
    if DIRECTIVE in patch:
        kind = patch.pop(DIRECTIVE)
        if kind == "replace":
            return patch
        if kind == "delete":
            return {}
        raise _failed(f"unknown patch type: {go_text(kind)} in map: {go_text({DIRECTIVE: kind, **patch})}")
    live = {} if live is None else live
    _retain_keys(live, patch)
    _merge_ordered(live, patch, schema)
    for key, value in patch.items():
        deletes = key.startswith(DELETE_FROM)
        name = _after_slash(key, DELETE_FROM, _BAD_DELETE) if deletes else key
        if value is None:
            live.pop(name, None)
        elif name not in live or type(live[name]) is not type(value):
            if not deletes:
                _take(live, name, value)
        elif isinstance(value, dict):
            field = _field(schema, name)
            live[name] = value if _strategy(field) == "replace" else _merge_maps(live[name], value, field)
        elif isinstance(value, list):
            live[name] = _merge_lists(live[name], value, _field(schema, name), deletes=deletes)
        else:
            live[name] = value
    return live


def _take(live: Object, name: str, value: Any) -> None:
    """Set a field that has no old value to merge with."""
    _drop_nulls(value)
    kept, cleaned = _without_directives(value)
    if kept:
        live[name] = cleaned
    else:
        live.pop(name, None)


def _drop_nulls(value: Any) -> None:
    if isinstance(value, dict):
        for key in [key for key, child in value.items() if child is None]:
            del value[key]
        for child in value.values():
            _drop_nulls(child)
    elif isinstance(value, list):
        for child in value:
            _drop_nulls(child)


def _without_directives(value: Any) -> tuple[bool, Any]:
    if isinstance(value, dict):
        if DIRECTIVE in value:
            return False, None
        cleaned = {key: _without_directives(child) for key, child in value.items()}
        return True, {key: child for key, (kept, child) in cleaned.items() if kept}
    if isinstance(value, list):
        return True, [child for kept, child in map(_without_directives, value) if kept]
    return True, value


def _after_slash(key: str, prefix: str, complaint: str) -> str:
    head, slash, rest = key.partition("/")
    if not slash or head != prefix:
        raise bad_request(complaint)
    return rest


def _retain_keys(live: Object, patch: Object) -> None:
    if RETAIN_KEYS not in patch:
        return
    retained = patch.pop(RETAIN_KEYS)
    if not isinstance(retained, list):
        raise bad_request(_BAD_RETAIN)
    for key, value in patch.items():
        if value is not None and key not in retained and not key.startswith((DELETE_FROM, ORDER)):
            raise bad_request(_BAD_RETAIN)
    for key in [key for key in live if key not in retained]:
        del live[key]


def _merge_ordered(live: Object, patch: Object, schema: SchemaNode | None) -> None:
    """Merge the lists that have a ``$setElementOrder``."""
    for directive in [key for key in patch if key.startswith(ORDER)]:
        order = patch.pop(directive)
        if not isinstance(order, list):
            raise _bad_type([], order)
        name = _after_slash(directive, ORDER, _BAD_ORDER)
        old, new = live.get(name), patch.get(name)
        for side in (key for key in (live, patch) if name in key):
            if not isinstance(side[name], list):
                raise _bad_type([], side[name])
        field = _field(schema, name)
        key = field.patch_merge_key
        _check_order(new or [], order, key)
        if old is None and new is None:
            continue
        if new is None:
            merged = old or []
        elif old is None:
            merged = _without_directives(new)[1]
        else:
            merged = _merge_lists(old, new, field, deletes=False)
        inside, outside = _parted(merged, order, key)
        _element_type(old or [], new or [])
        live[name] = _ordered(inside, outside, order, old or [], key)
        patch.pop(name, None)


def _check_order(items: list[Any], order: list[Any], key: str) -> None:
    """The patch's items must appear in the order list, in its order."""
    if not items or not order:
        return
    kept = [item for item in items if not (isinstance(item, dict) and DIRECTIVE in item)]
    position = 0
    for item in kept:
        wanted = _key_of(item, key)
        while position < len(order) and _key_of(order[position], key) != wanted:
            position += 1
        if position == len(order):
            raise _failed(
                f"The order in patch list:\n{go_text(items)}\n doesn't match {ORDER} list:\n{go_text(order)}\n"
            )
        position += 1


def _key_of(item: Any, key: str) -> Any:
    if not key:
        return item
    if not isinstance(item, dict):
        raise _bad_type({}, item)
    if key not in item:
        raise _no_key(item, key)
    return item[key]


def _element_type(*lists: list[Any]) -> type:
    """The one type of all elements."""
    types = {type(item) for items in lists for item in items}
    if list in types:
        message = "the server rejected our request due to an error in our request"
        raise ApiError(422, "Invalid", message, {})
    if len(types) > 1:
        raise _failed(f"list element types are not identical: {go_text(list(lists))}")
    if not types:
        raise _failed("no elements in any of the given slices")
    return types.pop()


def _merge_lists(live: list[Any], patch: list[Any], schema: SchemaNode, *, deletes: bool) -> list[Any]:
    if not deletes and _strategy(schema) != "merge":
        return patch
    if not live and not patch:
        return live
    key = schema.patch_merge_key
    if _element_type(live, patch) is not dict:
        if deletes:
            return [item for item in live if item not in patch]
        merged = _distinct(live + patch)
        inside, outside = _parted(merged, patch, "")
        return _ordered(inside, outside, patch, live, "")
    if not key:
        raise _failed("cannot merge lists without merge key for struct")
    items, patch = _apply_item_directives(live, patch, key)
    original = list(items)
    for item in patch:
        wanted = _key_of(item, key)
        position = _find(items, wanted, key)
        if position >= 0:
            items[position] = _merge_maps(items[position], item, schema.items)
            continue
        # The real server reuses the room of deleted items in the list whose order counts below.
        if len(items) < len(live):
            live[len(items)] = item
        items.append(item)
    inside, outside = _parted(items, patch, key)
    return _ordered(inside, outside, patch, original, key)


def _apply_item_directives(live: list[Any], patch: list[Any], key: str) -> tuple[list[Any], list[Any]]:
    """Both lists after the directives in items with ``$patch``.

    Later items of ``live`` move up over deleted ones, and its end stays as it was: the real server orders lists by it.
    """
    rest: list[Any] = []
    replace = False
    end = len(live)
    for item in patch:
        kind = item.get(DIRECTIVE, rest)
        if kind is rest:
            rest.append(item)
        elif kind == "delete":
            wanted = _key_of(item, key)
            while (position := _find(live[:end], wanted, key)) >= 0:
                live[position : end - 1] = live[position + 1 : end]
                end -= 1
        elif kind == "replace":
            replace = True
        elif kind == "merge":
            raise _failed("merging lists cannot yet be specified in the patch")
        else:
            raise _failed(f"unknown patch type: {go_text(kind)} in map: {go_text(item)}")
    return (rest, []) if replace else (live[:end], rest)


def _distinct(items: list[Any]) -> list[Any]:
    return [item for position, item in enumerate(items) if item not in items[:position]]


def _find(items: list[Any], wanted: Any, key: str) -> int:
    """The index of the item with this merge key (or of this item, for scalars), or -1."""
    for position, item in enumerate(items):
        if (item.get(key) if key else item) == wanted:
            return position
    return -1


def _parted(items: list[Any], by: list[Any], key: str) -> tuple[list[Any], list[Any]]:
    """The items that are in ``by``, and the others."""
    inside: list[Any] = []
    outside: list[Any] = []
    for item in items:
        (inside if _find(by, _key_of(item, key), key) >= 0 else outside).append(item)
    return inside, outside


def _ordered(inside: list[Any], outside: list[Any], order: list[Any], live: list[Any], key: str) -> list[Any]:
    """The patch's items in the order it asks for, the live object's own between them where they were before."""
    inside = _sorted_by(inside, order, key)
    outside = _sorted_by(outside, live, key)
    result: list[Any] = []
    while inside and outside:
        left = _find(live, _key_of(outside[0], key), key)
        right = _find(live, _key_of(inside[0], key), key)
        result.append(outside.pop(0) if 0 <= left < right else inside.pop(0))
    return result + inside + outside


def _sorted_by(items: list[Any], order: list[Any], key: str) -> list[Any]:
    for item in order if key else ():
        _key_of(item, key)
    return sorted(items, key=lambda item: _find(order, _key_of(item, key), key))
