"""The binary answer's few fields, made here byte by byte as the format's rules say, and bytes that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.kube.protobuf_answer import MAGIC, read, read_status


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def answer(obj: bytes) -> bytes:
    return MAGIC + field(1, field(1, b"v1") + field(2, b"Node")) + field(2, obj) + field(3, b"") + field(4, b"")


FIXED = varint(9 << 3 | 1) + bytes(8) + varint(10 << 3 | 5) + bytes(4)


@given(name=st.text(max_size=300), version=st.integers(min_value=0), other=st.binary(max_size=300))
def test_name_and_version_among_other_fields(name: str, version: int, other: bytes) -> None:
    metadata = b"".join(
        [field(1, name.encode()), field(2, other), FIXED, field(5, b"u"), field(6, str(version).encode()), field(7, 3)]
    )
    found = read(answer(field(1, metadata) + field(2, other) + field(3, other)))
    assert found == {"metadata": {**({"name": name} if name else {}), "uid": "u", "resourceVersion": str(version)}}


def test_a_refusals_words() -> None:
    status = field(1, b"") + field(2, b"Failure") + field(3, b"Apply failed with 1 conflict") + field(4, b"Conflict")
    assert read_status(answer(status + field(6, 409))) == {
        "message": "Apply failed with 1 conflict",
        "reason": "Conflict",
    }


@given(st.binary(max_size=200))
def test_any_other_bytes_are_a_value_error_or_nothing(raw: bytes) -> None:
    for text in (raw, MAGIC + raw, answer(raw), answer(field(1, raw))):
        try:
            found = read(text)
        except ValueError:
            continue
        assert set(found) == {"metadata"}


@pytest.mark.parametrize("cut", [b"\x0a\x05ab", b"\x08", b"\x09abc", b"\x0b", b"\x80" * 11])
def test_what_is_cut_off_or_unknown_is_refused(cut: bytes) -> None:
    with pytest.raises(ValueError, match=r"cut off|kind|too long"):
        read(answer(field(1, cut)))
