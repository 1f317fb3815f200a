"""The rows of ``device_table`` with something changed at random: fields gone, of other types, twice, elsewhere."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from tests.lab.embedded.types import device_table
from tests.lab.embedded.types.row import Object, Row

Path: TypeAlias = tuple[str | int, ...]
VALUES: list[Any] = [
    None, "", [], {}, 0, -1, 1, True, False, 3.5, 129, "a", "A_b", "a.b/c", "1Gi", "a" * 70, ["a"], ["a", "a"],
    {"a": "b"}, {"value": "1"}, [{}], [{"name": "x"}],
]  # fmt: skip


def mutants(chance: random.Random, count: int) -> Iterator[Row]:
    """So many of them; all are sent with dryRun, over a row's own object where it is an update."""
    rows = [row for row in device_table.rows() if row.first is None]
    names = sorted({str(key) for row in rows for path in _paths(row.manifest["spec"]) for key in path[-1:]})
    for _ in range(count):
        row = chance.choice(rows)
        if row.patch is None:
            spec = _changed(chance, {"spec": row.manifest["spec"]}, names)
            rest = {key: value for key, value in row.manifest.items() if key != "spec"}
            yield replace(row, manifest={**rest, **spec})
        else:
            yield replace(row, patch=_changed(chance, row.patch, names))


def alike(verdict: list[Any] | tuple[int, Any]) -> list[Any]:
    """A verdict without what need not be the same: the order of errors of maps, empty lists for no list, decoding."""
    code, said = verdict
    if not isinstance(said, str):
        return [code, said]
    if code == 400 or "patch: Invalid value" in said:
        return [code, "can't be decoded"]
    plain = re.sub(r"[\[\]]", "", said.replace("[]", "null"))
    return [code, sorted(plain.split(", "))]


def _paths(value: Any, above: Path = ()) -> Iterator[Path]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield (*above, key)
        yield from _paths(inner, (*above, key))


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _changed(chance: random.Random, whole: Object, names: list[str]) -> Object:
    made = copy.deepcopy(whole)
    for _ in range(chance.choice((1, 1, 2, 3))):
        paths = list(_paths(made))
        if not paths:
            break
        path = chance.choice(paths)
        above, key, value = _at(made, path[:-1]), path[-1], copy.deepcopy(chance.choice(VALUES))
        how = chance.random()
        if how < 0.25:
            del above[key]
        elif how < 0.6:
            above[key] = value
        elif how < 0.8 and isinstance(above[key], dict):
            above[key][chance.choice(names)] = value
        elif isinstance(above, list):
            above.append(copy.deepcopy(above[key]))
        else:
            above[key] = copy.deepcopy(_at(made, chance.choice(paths)))
    return made
