"""Fields that are in a body twice: which are told of, in which order, and how many."""

from __future__ import annotations

import pytest

from kgpu.lab.embedded.duplicate_fields import MOST, Repeated, operations, warnings, words, yaml_lines
from kgpu.lab.embedded.kinds import schema_data
from kgpu.lab.embedded.schema import SchemaNode
from kgpu.lab.embedded.strict import Members

POD = SchemaNode({"$ref": "io.k8s.api.core.v1.Pod"}, schema_data())


def test_a_type_tells_of_both_kinds_as_it_meets_them() -> None:
    spec = Members(
        [("bogus", 1), ("hostNetwork", True), ("hostNetwork", False), ("bogus", Members([("a", 1), ("a", 2)]))]
    )
    found = Repeated(Members([("spec", spec), ("spec", spec)])).typed(POD, [])
    assert found == ['unknown field "spec.bogus"', 'duplicate field "spec.hostNetwork"', 'duplicate field "spec"']


def test_what_decodes_itself_is_not_looked_into() -> None:
    twice = Members([("f:a", Members()), ("f:a", Members())])
    managed = Members([("managedFields", [Members([("fieldsV1", twice)])])])
    assert Repeated(Members([("metadata", managed), ("kind", "Pod"), ("kind", "Pod")])).typed(POD, []) == [
        'duplicate field "kind"'
    ]


def test_without_a_type_every_level_counts() -> None:
    inner = Members([("a", 1), ("a", 2), ("a", 3)])
    found = Repeated(Members([("x", [inner, inner]), ("x", inner)])).untyped()
    assert found == [
        'duplicate field "x[0].a"', 'duplicate field "x[1].a"', 'duplicate field "x"', 'duplicate field "x.a"'
    ]  # fmt: skip


def test_a_decoder_stops_to_note_them() -> None:
    many = Members([(str(number // 2), 0) for number in range(1000)])
    assert len(Repeated(many).untyped()) == MOST


def test_a_type_decodes_what_comes_again_over_what_was_there() -> None:
    first = Members([("a", 1), ("b", Members([("x", 1)])), ("c", [Members([("k", 1)]), 2])])
    again = Members([("a", 2), ("b", Members([("y", 2)])), ("c", [Members([("l", 3)])])])
    found = Repeated(Members([("spec", first), ("spec", again)])).merged({"spec": "the last"})
    assert found == {"spec": {"a": 2, "b": {"x": 1, "y": 2}, "c": [{"k": 1, "l": 3}]}}
    assert Repeated(lines=("line 1",)).merged({"a": 1}) == {"a": 1}


def test_yaml_tells_of_lines() -> None:
    lines = yaml_lines([(3, "a"), (4, 7), (5, True), (6, None)])
    found = Repeated(lines=lines).typed(POD, ['unknown field "x"'])
    assert words(found) == (
        'strict decoding error: yaml: unmarshal errors:\n  line 3: key "a" already set in map\n'
        "  line 4: key 7 already set in map\n  line 5: key true already set in map\n"
        '  line 6: key <nil> already set in map, unknown field "x"'
    )
    assert warnings(found) == [*lines, 'unknown field "x"']
    assert warnings([Repeated(lines=lines).applied()]) == list(lines)


@pytest.mark.parametrize(
    ("patch", "told"),
    [
        ([{"op": "add", "path": "/a", "value": {"x": 1}}], []),
        ([{"op": "test"}, {"op": "add", "comment": 1}], ['unknown field "[1].comment"']),
        (
            [Members([("op", "add"), ("value", Members([("b", 1), ("b", 2)])), ("op", "add")])],
            ['duplicate field "[0].value.b"', 'duplicate field "[0].op"'],
        ),
    ],
)
def test_a_json_patch_has_a_type_of_its_own(patch: list[object], told: list[str]) -> None:
    assert operations(patch) == told
