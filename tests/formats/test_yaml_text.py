"""What is written without PyYAML reads back the same, by our reader, PyYAML's and any YAML 1.1 reader's rules."""

from __future__ import annotations

from typing import Any

import pytest
import yaml as pyyaml
from hypothesis import given
from hypothesis import strategies as st

from kgpu.formats import yaml
from kgpu.formats.yaml_text import write

# Half of a surrogate pair is no character: no YAML can hold it.
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["", "y", "No", "1e3", "0x1F", "012", "1:30", "2026-01-01", "<<", "~", "-", "- a", "a: b", "a #b", "&a", ".inf",
     "=", "a:", "/x:", " a", "a ", "'", '"', "\\", "---", "nan", "ON", "\x85", "\u2028", "\ufeff", "\U0001f600"]
)  # fmt: skip
values = st.recursive(
    text | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_reads_back_the_same(value: Any) -> None:
    written = write(value)
    assert yaml.load(written) == value
    assert pyyaml.safe_load(written) == value


def test_looks_as_people_write_it() -> None:
    value = {"a": [{"name": "0", "b": {"c": [1, True]}}, {"name": "GPU-1"}], "empty": [], "none": {}, "p": "/dev/x"}
    assert write(value) == (
        "a:\n- name: '0'\n  b:\n    c:\n    - 1\n    - true\n- name: GPU-1\nempty: []\nnone: {}\np: /dev/x\n"
    )


def test_what_yaml_has_no_word_for_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes"):
        write({"a": b"x"})
