"""What holds for all messages: the library's encoding is understood, and no bytes at all are a surprise."""

from __future__ import annotations

import base64
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kgpu.lab.embedded.core.model import ApiUser, Call
from kgpu.lab.embedded.http import body
from kgpu.lab.embedded.kinds import Kinds, schema_data
from kgpu.lab.embedded.protobuf import MEDIA, messages, types
from kgpu.lab.embedded.protobuf.special import SPECIAL
from kgpu.lab.embedded.status import ApiError
from kgpu.lab.embedded.types.rules import BuiltinRules
from tests.budget import tries
from tests.lab.embedded.protobuf import library
from tests.lab.embedded.protobuf.test_bodies import CASES
from tests.lab.embedded.protobuf.wire import MAGIC, envelope

META = "io.k8s.apimachinery.pkg.apis.meta.v1."
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
SERVED = Kinds()
KINDS = [(name, kind) for name, kind in types() if messages.known(types()[name, kind])]
# Examples of the messages whose JSON is not an object: (fields by number, JSON).
EXAMPLES: dict[str, list[tuple[dict[int, Any], Any]]] = {
    f"{META}Time": [
        ({}, None),
        ({1: 0}, "1970-01-01T00:00:00Z"),
        ({1: 1767323045, 2: 999_999_999}, "2026-01-02T03:04:05Z"),
        ({1: -62135596800}, None),
        ({1: -62135596799}, "0001-01-01T00:00:01Z"),
        ({1: 253402300799}, "9999-12-31T23:59:59Z"),
    ],
    f"{META}MicroTime": [
        ({}, None),
        ({1: 1767323045, 2: 6999}, "2026-01-02T03:04:05.000006Z"),
        ({1: -1, 2: 500_000_000}, "1969-12-31T23:59:59.500000Z"),
    ],
    f"{META}FieldsV1": [({}, None), ({1: b'{"f:a":{}}'}, {"f:a": {}})],
    "io.k8s.apimachinery.pkg.runtime.RawExtension": [({}, None), ({1: b"[1,2.5,null]"}, [1, 2.5, None])],
    "io.k8s.apimachinery.pkg.api.resource.Quantity": [({}, "0"), ({1: "1500m"}, "1500m")],
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": [
        ({}, 0), ({1: 0, 2: -7, 3: "x"}, -7), ({1: 1, 2: 5, 3: "25%"}, "25%"), ({1: 1}, ""),
    ],
}  # fmt: skip
EXTENSIONS = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1."
EXAMPLES |= {
    f"{EXTENSIONS}JSON": [({}, None), ({1: b'"a"'}, "a"), ({1: b"0"}, 0)],
    f"{EXTENSIONS}JSONSchemaPropsOrBool": [({}, False), ({1: True}, True), ({1: False}, False)],
    f"{EXTENSIONS}JSONSchemaPropsOrStringArray": [({}, None), ({2: ["a", ""]}, ["a", ""])],
    f"{EXTENSIONS}JSONSchemaPropsOrArray": [({}, None)],
}


def scalar(draw: st.DrawFn, letter: str) -> tuple[Any, Any]:
    """(for the library, as JSON)."""
    if letter == "y":
        raw = draw(st.binary(max_size=4))
        return raw, base64.b64encode(raw).decode()
    if letter == "r":
        value = draw(st.recursive(st.none() | st.integers(0, 9) | st.text(max_size=2), st.lists, max_leaves=3))
        return json.dumps(value).encode(), value
    found = {
        "s": st.text(st.characters(codec="utf-8"), max_size=4), "b": st.booleans(), "i": INT32, "l": INT64,
        "d": st.floats(allow_nan=False, allow_infinity=False),
    }[letter]  # fmt: skip
    value = draw(found)
    return value, value


def filled(draw: st.DrawFn, into: Any, name: str, depth: int) -> Any:
    """Fill a message of the library; the answer is its JSON."""
    if name in SPECIAL:
        given, expected = draw(st.sampled_from(EXAMPLES[name]))
        for number, value in given.items():
            if isinstance(value, list):
                getattr(into, f"f{number}").extend(value)
            else:
                setattr(into, f"f{number}", value)
        into.SetInParent()
        return expected
    into.SetInParent()
    expected = {}
    fields = messages.message(name).fields
    for number in draw(st.lists(st.sampled_from(sorted(fields)), unique=True, max_size=4)) if fields else ():
        row, key = fields[number], f"f{number}"
        if not row.letter and depth > 4:
            continue
        if row.many == "%":
            found = expected[row.json] = {}
            for name_ in draw(st.lists(st.text(max_size=2), unique=True, max_size=2)):
                if row.letter:
                    getattr(into, key)[name_], found[name_] = scalar(draw, row.letter)
                else:
                    found[name_] = filled(draw, getattr(into, key)[name_], row.message, depth + 1)
            if not found:
                del expected[row.json]
        elif row.many:
            items = []
            for _ in range(draw(st.integers(1, 2))):
                if row.letter:
                    value, plain = scalar(draw, row.letter)
                    getattr(into, key).append(value)
                    items.append(plain)
                else:
                    items.append(filled(draw, getattr(into, key).add(), row.message, depth + 1))
            expected[row.json] = items
        elif row.letter:
            value, plain = scalar(draw, row.letter)
            setattr(into, key, value)
            if plain or not row.droppable:
                expected[row.json] = plain
        else:
            inner = filled(draw, getattr(into, key), row.message, depth + 1)
            if not row.json:
                expected |= inner
            elif inner is not None:
                expected[row.json] = inner
    return expected.get("", []) if messages.message(name).is_list else expected


@st.composite
def objects(draw: st.DrawFn) -> tuple[tuple[str, str], bytes, Any]:
    """((apiVersion, kind), encoded by the library, JSON)."""
    want = draw(st.sampled_from(KINDS))
    made: Any = library.new(types()[want])
    expected = filled(draw, made, types()[want], 0)
    return want, made.SerializePartialToString(), expected


def reader(text: bytes) -> Any:
    return json.loads(text)


@tries(300)
@given(objects())
def test_the_library_s_encoding_is_understood(found: tuple[tuple[str, str], bytes, Any]) -> None:
    want, encoded, expected = found
    assert messages.read(encoded, types()[want], reader) == expected


async def judged(data: bytes, want: tuple[str, str]) -> None:
    """As a request would be: an object that the kind's rules can work on, or an ApiError."""
    kind, refused = SERVED.of(*want), None
    try:
        found, _ = await body.object_of(data, MEDIA, want)
        obj = body.of_kind(found, want)
        if kind is not None:
            BuiltinRules().decode(kind, obj, Call(user=ApiUser("u")))
    except ApiError as error:
        refused = error
    assert refused is None or (refused.code == 400 and refused.message)


BYTES = st.binary(max_size=60)


@tries(400)
@given(st.sampled_from(KINDS), st.one_of(BYTES, BYTES.map(lambda raw: MAGIC + raw)), st.booleans())
async def test_any_bytes(want: tuple[str, str], data: bytes, wrapped: bool) -> None:
    await judged(envelope(*want, data) if wrapped else data, want)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[tuple[str, str], bytes]:
    if draw(st.booleans()):
        want, raw, _ = draw(objects())
        data = envelope(*want, raw)
    else:
        encoded, obj = CASES[draw(st.sampled_from(sorted(CASES)))]
        want, data = (obj["apiVersion"], obj["kind"]), bytes.fromhex(encoded)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(4, len(data)))
        cut = draw(st.sampled_from((0, 1, 1, 5, len(data))))
        data = data[:at] + draw(st.binary(max_size=3)) + data[at + cut :]
    return want, data


@tries(400)
@given(damaged())
async def test_damaged_objects(found: tuple[tuple[str, str], bytes]) -> None:
    await judged(found[1], found[0])


def names(message: str) -> set[str]:
    """JSON names, with those of embedded messages."""
    found = set()
    for row in messages.message(message).fields.values():
        found |= {row.json} if row.json else names(row.message)
    return found


def test_messages_have_the_fields_of_their_schemas() -> None:
    head = {"apiVersion", "kind"}
    known = {name: schema_data().get(name, {}).get("properties") for name in messages._table()}
    expected = {name: set(properties) - head for name, properties in known.items() if properties}
    assert len(expected) > 400
    assert {name: names(name) - head for name in expected} == expected


def test_every_kind_that_is_written_has_a_message() -> None:
    written = {"create", "update"}
    wanted = {body.expected_type(kind, {}) for kind in Kinds() if written & {*kind.verbs}}
    for kind in Kinds():
        wanted |= {body.expected_type(kind, row) for row in kind.subresources.values() if written & {*row["verbs"]}}
    # Of a stream, not of an object.
    wanted = {want for want in wanted if not want[1].endswith("Options")}
    assert len(wanted) > 50
    assert {want for want in wanted if not messages.known(types()[want])} == set()
