"""The text parser against prometheus_client's, and against text that is none."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kgpu.base.printable import printable
from kgpu.top.parse import MOST_CHARACTERS, LabelSets, NotMetricsError, samples
from kgpu.top.tables import WANTED
from tests.budget import tries

NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True)
VALUES = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\n\x85\u2028\u2029\x0b\x0c\x1c\x1d\x1e"), max_size=12
)
NUMBERS = st.floats(allow_nan=True) | st.integers(-(10**9), 10**9)


class Everything:
    def __contains__(self, name: object) -> bool:
        return True


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@tries(150)
@given(st.lists(st.tuples(NAMES, st.dictionaries(NAMES, VALUES, max_size=4), NUMBERS), max_size=6))
def test_it_reads_what_prometheus_own_parser_reads(rows) -> None:
    lines = []
    for name, labels, number in rows:
        inside = ",".join(f'{key}="{escaped(value)}"' for key, value in labels.items())
        lines.append(f"{name}{{{inside}}} {number!r}" if inside else f"{name} {number!r}")
    text = "\n".join([*lines, ""])
    oracle = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    expected = [
        (one.name, {key: printable(value) for key, value in one.labels.items()}, one.value)
        for one in oracle
        if not math.isnan(one.value)
    ]
    assert [(name, dict(labels), value) for name, labels, value in samples(text, Everything(), LabelSets())] == expected


@pytest.mark.parametrize(
    "line",
    [
        "<html>", "kgpu_gpu_up", "kgpu_gpu_up{", 'kgpu_gpu_up{a="b" 1', 'kgpu_gpu_up{a="b"}', 'kgpu_gpu_up{a="b"} one',
        "kgpu_gpu_up{a=b} 1", 'kgpu_gpu_up{a="b",a="c"} 1', 'kgpu_gpu_up{a="b} 1', 'kgpu_gpu_up{a="b"} 1_000',
        'kgpu_gpu_up{a="b"} 1 2 3', 'kgpu_gpu_up{"a"="b"} 1', '{"kind":"Status"}', "other", "an other 1 {",
        'kgpu_gpu_up{1a="b"} 1', 'kgpu_gpu_up{a="b" c="d"} 1',
    ],
)  # fmt: skip
def test_a_line_that_is_no_metric_is_told_with_its_number(line) -> None:
    with pytest.raises(NotMetricsError, match="line 2 is no metric"):
        list(samples(f"# HELP x y\n{line}\n", WANTED, LabelSets()))


def test_escapes_times_and_control_characters() -> None:
    text = 'kgpu_gpu_up{a="x\\"\\\\\\n}{ 1",b="\x1b[2J"} 1 1700000000000\nkgpu_gpu_up{} NaN\nkgpu_gpu_up +Inf\n'
    found = [(dict(labels), value) for _, labels, value in samples(text, WANTED, LabelSets())]
    assert found == [({"a": 'x"\\�}{ 1', "b": "�[2J"}, 1.0), ({}, math.inf)]


def test_what_is_remembered_is_bounded() -> None:
    known = LabelSets()
    big = "x" * (MOST_CHARACTERS // 4)
    for number in range(9):
        list(samples(f'kgpu_gpu_up{{a="{number}{big}"}} 1\n', WANTED, known))
    assert sum(map(len, known._made)) <= MOST_CHARACTERS


def test_a_value_of_a_million_digits_is_read_in_one_pass() -> None:
    """A page of 100 kB kept ``kgpu top`` for minutes."""
    with pytest.raises(NotMetricsError):
        list(samples(f"kgpu_gpu_up {'1' * 1_000_000}x\n", WANTED, LabelSets()))
