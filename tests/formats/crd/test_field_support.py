"""The table of what this version does with each field, and the reader of manifests: both say the same of every field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kgpu.formats.crd import decode, field_support
from kgpu.formats.crd.clusterpolicy import ClusterPolicySpec
from kgpu.formats.crd.field_support import FieldSupport, Leaf
from kgpu.formats.crd.fields import SchemaField, rows
from kgpu.formats.crd.nvidiadriver import NVIDIADriverSpec

KINDS = {"clusterpolicy": ClusterPolicySpec, "nvidiadriver": NVIDIADriverSpec}
LEAVES = [(kind, leaf) for kind, struct in KINDS.items() for leaf in field_support.unbuilt(struct)]


def named(kind: str, **values: Any) -> tuple[str, ...]:
    """What the reader says is not built in a manifest with these values, by dotted path."""
    spec: dict[str, Any] = {}
    for path, value in values.items():
        place = spec
        *above, last = path.split(".")
        for name in above:
            place = place.setdefault(name, {})
        place[last] = value
    found = getattr(decode, kind)({"metadata": {"name": "x"}, "spec": spec})
    assert not found.problem
    return tuple(found.unbuilt)


def row_of(struct: type[msgspec.Struct], path: str) -> SchemaField:
    *above, last = path.split(".")
    for name in above:
        inner = next(row for row in rows(struct) if row.name == name).type.struct
        assert inner is not None
        struct = inner
    return next(row for row in rows(struct) if row.name == last)


def asking(row: SchemaField, leaf: Leaf) -> Any:
    """A value of its type that is not a quiet one; None where there is none."""
    kind = row.type
    if kind.items:
        return [{"name": "x"}] if kind.items.struct else ["x"]
    if kind.values:
        return {"a": "1"}
    if kind.enum:
        return next((one for one in kind.enum if one and one not in leaf.quiet), None)
    choices = {bool: (True,), int: (7, 8)}.get(kind.scalar or str, ("text",)) if not kind.int_or_string else ("7%",)
    return next((one for one in choices if one not in leaf.quiet), None)


@pytest.mark.parametrize(("kind", "leaf"), LEAVES, ids=[f"{kind}-{leaf.path}" for kind, leaf in LEAVES])
def test_the_reader_names_what_the_table_has_and_is_quiet_where_it_is(kind: str, leaf: Leaf) -> None:
    on = {path: True for path, _ in leaf.switches if path != leaf.path}
    value = asking(row_of(KINDS[kind], leaf.path), leaf)
    if value is not None:
        assert f"spec.{leaf.path}" in named(kind, **on, **{leaf.path: value})
    for quiet in (one for one in leaf.quiet if one not in (None, {}, ())):
        assert f"spec.{leaf.path}" not in named(kind, **on, **{leaf.path: quiet})
    off = {path: False for path, _ in leaf.switches}
    if value is not None and off and leaf.path not in off:
        assert named(kind, **off, **{leaf.path: value}) == ()
    assert field_support.instead(KINDS[kind], f"spec.{leaf.path}") == leaf.says != ""


@pytest.mark.parametrize("struct", KINDS.values(), ids=KINDS)
def test_every_field_has_a_row_of_its_own_or_is_in_one(struct: type[msgspec.Struct]) -> None:
    parts = {part.path: part for part in field_support.parts(struct)}
    assert [row.name for row in rows(struct)] == [path for path in parts if "." not in path]
    for leaf in field_support.unbuilt(struct):
        above = [leaf.path.rsplit(".", cut)[0] for cut in range(leaf.path.count(".") + 1)]
        nearest = next(parts[path] for path in (leaf.path, *above) if path in parts)
        assert nearest.does in (FieldSupport.NOT_YET, FieldSupport.NEVER)
        assert nearest.says == leaf.says


def test_the_table_says_what_there_is_instead() -> None:
    parts = {part.path: part for part in field_support.parts(ClusterPolicySpec)}
    assert parts["devicePlugin"].does is FieldSupport.IN_FORCE
    assert (parts["migManager"].does, parts["psp"].does) == (FieldSupport.IN_FORCE, FieldSupport.NOTHING)
    never = {path for path, part in parts.items() if part.does is FieldSupport.NEVER}
    assert {"sandboxWorkloads", "vgpuManager", "vfioManager", "kataSandboxDevicePlugin", "ccManager"} <= never
    assert field_support.instead(ClusterPolicySpec, "spec.devicePlugin.enabled") == ""
