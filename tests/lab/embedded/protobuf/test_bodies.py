"""Protobuf bodies as requests bring them: objects, and complaints in the real server's words (seen on v1.35.4)."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from kgpu.lab.embedded.core.model import ApiUser, Call
from kgpu.lab.embedded.http import body
from kgpu.lab.embedded.kinds import Kinds
from kgpu.lab.embedded.protobuf import MEDIA
from kgpu.lab.embedded.status import ApiError, Object
from kgpu.lab.embedded.types.rules import BuiltinRules
from tests.lab.embedded.protobuf.wire import MAGIC, envelope, field, named, varint

CONFIG_MAP = ("v1", "ConfigMap")
QUANTITY = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
PREFIX = "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"


async def taken(data: bytes, want: tuple[str, str] = CONFIG_MAP) -> Object:
    found, repeated = await body.object_of(data, MEDIA, want)
    assert repeated is None
    return body.of_kind(found, want)


def quota(entry: bytes) -> bytes:
    return envelope("v1", "ResourceQuota", named("q") + field(2, field(1, entry)))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty data (<empty>)"),
        (MAGIC, "empty body (6b387300)"),
        (b"k8s", f"{PREFIX} (6b3873)"),
        (b"{}", f"{PREFIX} ({{}})"),
        (b"garbage that is long enough to be cut", f"{PREFIX} ({b'garbage that is long enough to'.hex()} ...)"),
        (MAGIC + b"\xff", "unexpected EOF (6b387300ff)"),
        (MAGIC + b"\x0a\x7f", "unexpected EOF (6b3873000a7f)"),
        (MAGIC + field(2, "ab")[:-1], "unexpected EOF (6b387300120261)"),
        (MAGIC + field(1, 5), "proto: wrong wireType = 0 for field TypeMeta (6b3873000805)"),
        (MAGIC + b"\x04", "proto: Unknown: wiretype end group for non-group (6b38730004)"),
        (MAGIC + b"\x00", "proto: Unknown: illegal tag 0 (wire type 0) (6b38730000)"),
        (MAGIC + b"\x0f\x01", "proto: wrong wireType = 7 for field TypeMeta (6b3873000f01)"),
    ],
)
async def test_an_envelope_that_is_none(data: bytes, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        await taken(data)
    assert caught.value.code == 400
    assert caught.value.message == f"the object provided is unrecognized (must be of type ConfigMap): {words}"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"\xff", "unexpected EOF"),
        (b"\x0a\x7f", "unexpected EOF"),
        (field(1, 5), "proto: wrong wireType = 0 for field ObjectMeta"),
        (field(1, field(1, 7)), "proto: wrong wireType = 0 for field Name"),
        (field(1, field(5, 7)), "proto: wrong wireType = 0 for field UID"),
        (b"\x00", "proto: ConfigMap: illegal tag 0 (wire type 0)"),
        (varint(1 << 34 | 2), "proto: ConfigMap: illegal tag -2147483648 (wire type 17179869186)"),
        (b"\x0c", "proto: ConfigMap: wiretype end group for non-group"),
        (b"\x0f", "proto: wrong wireType = 7 for field ObjectMeta"),
        (varint(77 << 3 | 3) * 2, "unexpected EOF"),
        (varint(77 << 3 | 6), "proto: illegal wireType 6"),
        (b"\xff" * 12, "proto: integer overflow"),
        (b"\x0a" + varint(1 << 63), "proto: negative length found during unmarshaling"),
        (b"\x0a" + varint(1 << 62), "unexpected EOF"),
        (field(2, field(1, 5) + field(2, "x")), "unexpected EOF"),
        (field(2, field(1, "k") + b"\x12\x03ab"), "unexpected EOF"),
        (named("abc")[:-1], "unexpected EOF"),
        (field(1, b"\x0a\x04abc") + named("x"), "unexpected EOF"),
        (field(1, b"\x0a") + named("x"), "unexpected EOF"),
        (varint(77 << 3 | 2) + b"\x03ab", "unexpected EOF"),
        (field(1, varint(77 << 3 | 1) + b"1234567") + named("x"), "unexpected EOF"),
        (varint(77 << 3 | 5) + b"123", "unexpected EOF"),
        (
            varint(77 << 3 | 3) + varint(76 << 3 | 4) + varint(76 << 3 | 4),
            "proto: ConfigMap: wiretype end group for non-group",
        ),
    ],
)
async def test_an_object_that_is_none(raw: bytes, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        await taken(envelope("v1", "ConfigMap", raw))
    assert caught.value.code == 400
    assert caught.value.message == f'ConfigMap in version "v1" cannot be handled as a ConfigMap: {words}'


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (field(1, "cpu") + field(2, field(1, "")), QUANTITY),
        (field(1, "cpu") + field(2, field(1, 7)), "proto: wrong wireType = 0 for field String_"),
    ],
)
async def test_quantities_that_are_none(entry: bytes, words: str) -> None:
    with pytest.raises(ApiError, match="ResourceQuota in version") as caught:
        await taken(quota(entry), ("v1", "ResourceQuota"))
    assert caught.value.message.endswith(words)


async def test_a_quantity_without_text_is_zero() -> None:
    found = await taken(quota(field(1, "cpu")), ("v1", "ResourceQuota"))
    assert found["spec"] == {"hard": {"cpu": "0"}}


@pytest.mark.parametrize(
    ("api_version", "kind", "words"),
    [
        ("v1", "Secret", "converting (v1.Secret) to (core.ConfigMap): unknown conversion"),
        ("apps/v1", "Deployment", "converting (v1.Deployment) to (core.ConfigMap): unknown conversion"),
        ("v1", "Foo", 'no kind "Foo" is registered for version "v1" in scheme "pkg/runtime/scheme.go:111"'),
        (
            "zz/v9",
            "ConfigMap",
            'no kind "ConfigMap" is registered for version "zz/v9" in scheme "pkg/runtime/scheme.go:111"',
        ),
    ],
)
async def test_another_kind(api_version: str, kind: str, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        await taken(envelope(api_version, kind, b""))
    version = api_version.rpartition("/")[2]
    assert caught.value.message == f'{kind} in version "{version}" cannot be handled as a ConfigMap: {words}'


@pytest.mark.parametrize(("api_version", "kind"), [("", ""), ("v1", ""), ("", "ConfigMap"), ("a/b/c", "ConfigMap")])
async def test_the_kind_that_is_wanted_stands_for_one_that_is_not_said(api_version: str, kind: str) -> None:
    found = await taken(envelope(api_version, kind, named("x")))
    assert found == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}


async def test_a_custom_resource_can_not_be_sent_so() -> None:
    with pytest.raises(ApiError, match="does not implement the protobuf marshalling interface"):
        await taken(envelope("example.com/v1", "Thing", named("x")), ("example.com/v1", "Thing"))


async def test_fields_that_are_not_known_are_skipped() -> None:
    group = varint(70 << 3 | 3) + field(1, 5) + varint(2 << 3 | 5) + b"abcd" + varint(70 << 3 | 4)
    unknown = field(77, "x") + varint(78 << 3 | 1) + b"12345678" + field(79, 3) + group
    assert (await taken(envelope("v1", "ConfigMap", unknown + named("x"))))["metadata"] == {"name": "x"}


async def test_a_message_in_parts_is_put_together_and_the_last_scalar_counts() -> None:
    raw = named("old") + field(1, field(3, "ns")) + named("new")
    assert (await taken(envelope("v1", "ConfigMap", raw)))["metadata"] == {"name": "new", "namespace": "ns"}


async def test_texts_need_not_be_text() -> None:
    raw = named("x") + field(2, field(1, "k") + field(2, b"\xff\xfe")) + field(3, field(1, "b") + field(2, b"\xff\xfe"))
    found = await taken(envelope("v1", "ConfigMap", raw))
    assert found["data"] == {"k": "\ufffd\ufffd"}
    assert found["binaryData"] == {"b": "//4="}


async def test_numbers_may_be_packed() -> None:
    group_ids = field(4, varint(1) + varint(300)) + field(4, 7)
    pod = named("p") + field(2, field(14, group_ids))
    found = await taken(envelope("v1", "Pod", pod), ("v1", "Pod"))
    assert found["spec"]["securityContext"]["supplementalGroups"] == [1, 300, 7]


async def test_numbers_have_their_width() -> None:
    spec = field(1, (1 << 33) - 1) + field(5, -3)
    found = await taken(envelope("apps/v1", "Deployment", named("d") + field(2, spec)), ("apps/v1", "Deployment"))
    assert found["spec"] == {"replicas": -1, "minReadySeconds": -3}


async def test_json_inside_has_the_limits_of_json() -> None:
    want = ("apps/v1", "ControllerRevision")

    def revision(text: str) -> bytes:
        return envelope(*want, named("r") + field(2, field(1, text)) + field(3, 1))

    assert (await taken(revision('{"a":[1,null]}'), want))["data"] == {"a": [1, None]}
    assert "data" not in await taken(revision(""), want)
    for text in ("{bad", "[" * 100_000, "[" * 600 + "]" * 600, "1e999", "NaN"):
        with pytest.raises(ApiError) as caught:
            await taken(revision(text), want)
        assert caught.value.code == 400


async def test_the_deepest_json_is_not_too_deep_for_the_rules() -> None:
    text = '{"a":' + "[" * (body.MAX_DEPTH - 2) + "]" * (body.MAX_DEPTH - 2) + "}"
    raw = named("r") + field(2, field(1, text)) + field(3, 1)
    want = ("apps/v1", "ControllerRevision")
    kind = Kinds().of(*want)
    assert kind is not None
    obj = await taken(envelope(*want, raw), want)
    assert BuiltinRules().decode(kind, obj, Call(user=ApiUser("u")))["data"] == json.loads(text)


async def test_messages_in_each_other_end_somewhere() -> None:
    schema = b""
    for _ in range(2000):
        schema = field(29, field(1, "a") + field(2, schema))
    crd = named("x") + field(2, field(7, field(4, field(1, schema))))
    want = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    with pytest.raises(ApiError, match="exceeded max depth"):
        await taken(envelope(*want, crd), want)


@pytest.mark.parametrize("size", [0, 1, 7])
async def test_a_number_that_is_cut(size: int) -> None:
    schema = varint(9 << 3 | 1) + b"12345678"[:size]
    crd = named("x") + field(2, field(7, field(4, field(1, schema)))) + named("y")
    want = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    with pytest.raises(ApiError, match="unexpected EOF"):
        await taken(envelope(*want, crd), want)


async def test_a_large_body_is_decoded_beside_the_loop() -> None:
    raw = named("x") + b"".join(field(2, field(1, f"k{n}") + field(2, "v" * 50)) for n in range(2000))
    assert len(raw) > body.SLOW
    assert len((await taken(envelope("v1", "ConfigMap", raw)))["data"]) == 2000
    with pytest.raises(ApiError, match="unexpected EOF"):
        await taken(envelope("v1", "ConfigMap", raw + b"\x0a"))


CASES: dict[str, Any] = json.loads(resources.files(__package__).joinpath("real.json").read_text())


@pytest.mark.parametrize("name", CASES)
async def test_what_a_real_server_wrote(name: str) -> None:
    encoded, expected = CASES[name]
    assert await taken(bytes.fromhex(encoded), (expected["apiVersion"], expected["kind"])) == expected
