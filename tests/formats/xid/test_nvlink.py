"""NVLink errors: what their words mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats.xid import nvlink
from kgpu.formats.xid.buckets import Bucket
from kgpu.formats.xid.nvlink5_rows import rules


@pytest.mark.parametrize(
    "rule", list(rules()), ids=lambda rule: f"{rule.xid}-{rule.units[-1]}-{rule.reason}-{rule.status}"
)
def test_every_row_is_found_under_each_of_its_names(rule) -> None:
    for unit in rule.units:
        info = (rule.reason or 0) << 20 | 0x1C6
        text = f"{unit} Nonfatal XC0 i0 Link 03 (0x{info:08x} 0x{rule.status or 0:08x} 0x0 0x0)"
        found = nvlink.read(rule.xid, text)
        assert found is not None
        assert (found.bucket, found.investigate, found.link, found.known) == (rule.immediate, rule.investigate, 3, True)


@pytest.mark.parametrize(
    ("info", "bucket"), [(0x0C2, "IGNORE"), (0x4C2, "RESET_GPU"), (0x06, "IGNORE"), (0x86, "RESET_GPU")]
)
def test_an_error_that_was_raised_to_fatal(info: int, bucket: str) -> None:
    found = nvlink.read(145, f"pid=1, name=a, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x{info:08x} 0x00000001 0x0)")
    assert found is not None
    assert found.bucket == bucket


def test_several_bits_are_as_bad_as_the_worst() -> None:
    found = nvlink.read(144, "SAW_MVB Fatal XC0 i0 Link 00 (0x00000001 0x00000006)")
    assert found is not None
    assert found.bucket is Bucket.RESET_GPU


@pytest.mark.parametrize(("word", "bucket"), [("Fatal", Bucket.RESET_GPU), ("Nonfatal", Bucket.XID_154_EVAL)])
def test_what_the_table_does_not_have_goes_by_the_lines_own_word(word: str, bucket: Bucket) -> None:
    found = nvlink.read(149, f"NETIR_NEW_THING {word} XC0 i0 Link -1 (0x3f000000 0x00000001)")
    assert found is not None
    assert (found.bucket, found.known, found.link) == (bucket, False, None)


@pytest.mark.parametrize(
    ("words", "bucket"),
    [
        ((0x1, 0, 0, 0, 0, 0, 0), Bucket.IGNORE),
        ((0x40800001, 0, 0, 0, 0x100000, 0, 0), Bucket.IGNORE),
        ((0x2, 0, 0, 0, 0, 0, 0), Bucket.WORKFLOW_NVLINK_ERR),
        ((0x1, 0, 0x10000, 0, 0, 0, 0), Bucket.WORKFLOW_NVLINK_ERR),
        ((0, 0, 0, 0, 0, 0, 0), Bucket.WORKFLOW_NVLINK_ERR),
        ((0x4, 0, 0, 0, 0, 0, 0), Bucket.WORKFLOW_NVLINK_ERR),
    ],
)
def test_registers_of_xid_74(words: tuple[int, ...], bucket: Bucket) -> None:
    said = ", ".join(f"0x{word:x}" for word in words)
    found = nvlink.read(74, f"NVLink: fatal error detected on link 14({said})")
    assert found is not None
    assert (found.bucket, found.link) == (bucket, 14)


@given(code=st.sampled_from([74, *range(144, 151)]), text=st.text(max_size=120))
def test_any_text_is_answered(code: int, text: str) -> None:
    nvlink.read(code, text)


def test_other_xids_have_no_such_words() -> None:
    assert nvlink.read(13, "SAW_MVB Fatal XC0 i0 Link 00 (0x00000001 0x00000002)") is None
    assert nvlink.read(149, "nothing of the kind") is None
