"""Counters files: good lines count, bad ones are told with their number, and nothing that is put in breaks the reader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.exporter.counters import LIMIT_LINES, default_counters, from_config_map, parse_counters
from kgpu.exporter.field_table import known_names
from kgpu.exporter.model import Generation, MetricKind

OF_THE_DOCUMENTS = """DCGM_FI_DEV_GPU_UTIL, gauge, GPU utilization (%).
DCGM_FI_DEV_MEM_COPY_UTIL, gauge, Memory utilization (%).
DCGM_FI_DEV_FB_FREE, gauge, Framebuffer memory free (MiB).
DCGM_FI_DEV_FB_USED, gauge, Framebuffer memory used (MiB).
DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (C).
DCGM_FI_DEV_POWER_USAGE, gauge, Power draw (W).
DCGM_FI_DEV_PCIE_TX_THROUGHPUT, gauge, PCIe TX throughput (KB/s).
DCGM_FI_DEV_PCIE_RX_THROUGHPUT, gauge, PCIe RX throughput (KB/s).
DCGM_FI_DEV_XID_ERRORS, gauge, Value of the last XID error.
DCGM_FI_PROF_GR_ENGINE_ACTIVE, gauge, Ratio of time the graphics engine is active.
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE, gauge, Ratio of time the tensor cores are active.
"""


def names(text: str) -> list[str]:
    return [row.name for row in parse_counters(text).rows]


def problem(text: str) -> ConfigError:
    parsed = parse_counters(text + "\nDCGM_FI_DEV_SM_CLOCK, gauge, ok")
    assert [row.name for row in parsed.rows][-1] == "DCGM_FI_DEV_SM_CLOCK"
    (only,) = parsed.problems
    return only


def test_the_file_of_the_documents_is_read_without_a_word():
    parsed = parse_counters(OF_THE_DOCUMENTS)
    assert len(parsed.rows) == 11
    assert parsed.problems == ()
    assert parsed.rows[5].help == "Power draw (W)."


def test_comments_blanks_quotes_and_windows_line_ends():
    text = '\ufeff# a comment\r\n  # another\r\n\r\nDCGM_FI_DEV_DEC_UTIL ,  gauge, "one, two"\r\n'
    (row,) = parse_counters(text).rows
    assert (row.name, row.kind, row.help) == ("DCGM_FI_DEV_DEC_UTIL", MetricKind.GAUGE, "one, two")


def test_the_spelling_of_the_file_is_the_metrics_name():
    text = "dcgm_gpu_temp, gauge, a\nDCGM_FI_DEV_GPU_TEMP, gauge, b\nDCGM_FI_DEV_GPU_TEMP_CELSIUS, gauge, c"
    assert names(text) == ["dcgm_gpu_temp", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"]


@pytest.mark.parametrize(
    ("line", "what", "remedy"),
    [
        (
            "DCGM_FI_DEV_GPU_UTILL, gauge, x",
            'line 1: there is no field "DCGM_FI_DEV_GPU_UTILL"',
            "DCGM_FI_DEV_GPU_UTIL",
        ),
        ("DCGM_FI_DEV_GPU_UTIL, gaugee, x", 'line 1: there is no type "gaugee"', 'did you mean "gauge"?'),
        ("DCGM_FI_DEV_GPU_UTIL, gauge", "line 1: 'DCGM_FI_DEV_GPU_UTIL, gauge' has 2 of 3 columns", "add"),
        ('DCGM_FI_DEV_GPU_UTIL, gauge, "x', "can't be split", "quotes"),
        ("#\nDCGM_FI_DEV_SM_CLOCK, gauge, first", "line 3: DCGM_FI_DEV_SM_CLOCK is there twice", "line 2"),
    ],
)
def test_a_bad_line_is_told_and_the_others_count(line, what, remedy):
    error = problem(line)
    assert what in error.what
    assert remedy in error.remedy


def test_a_comma_in_the_help_is_kept_and_told():
    error = problem("DCGM_FI_DEV_GPU_UTIL, gauge, busy, in percent")
    assert "has a comma" in error.what
    assert parse_counters("DCGM_FI_DEV_GPU_UTIL, gauge, busy, in percent").rows[0].help == "busy, in percent"


def test_a_file_without_a_good_line_is_refused_with_its_first_problem():
    with pytest.raises(ConfigError, match="line 1: there is no field"):
        parse_counters("NO_SUCH_FIELD, gauge, x")
    with pytest.raises(ConfigError, match="names no field"):
        parse_counters("# nothing\n")


def test_files_are_bounded():
    with pytest.raises(ConfigError, match="lines"):
        parse_counters("\n" * (LIMIT_LINES + 1))
    with pytest.raises(ConfigError, match="characters"):
        parse_counters("#" * (2 << 20))
    many = "\n".join(f"NO_SUCH_FIELD_{number}, gauge, x" for number in range(2000)) + "\n" + OF_THE_DOCUMENTS
    assert len(parse_counters(many).problems) == 50
    assert len(parse_counters(many).rows) == 11


@pytest.mark.parametrize("key", ["metrics", "dcgm-metrics.csv", "default-counters.csv", "my-own.csv"])
def test_every_key_of_a_config_map_that_users_know_is_read(key):
    assert from_config_map({key: OF_THE_DOCUMENTS}, "ConfigMap a/b") == (key, OF_THE_DOCUMENTS)


def test_a_config_map_with_both_keys_has_the_programs_own_first():
    assert from_config_map({"default-counters.csv": "a", "dcgm-metrics.csv": "b"}, "x")[0] == "dcgm-metrics.csv"


def test_a_config_map_with_a_misspelt_key_is_told_so():
    with pytest.raises(ConfigError) as caught:
        from_config_map({"metric": "x", "other": "y"}, "ConfigMap a/b")
    assert caught.value.remedy == 'did you mean "metrics"?'


def test_two_generations_can_be_exported_at_once():
    both = [row.name for row in default_counters((Generation.B, Generation.C), extra=False)]
    assert {"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED_BYTES", "DCGM_FI_DEV_FB_CAPACITY_BYTES"} <= set(both)
    assert len(both) == len(set(both))
    assert "DCGM_FI_DEV_FB_CAPACITY_BYTES" not in {row.name for row in default_counters((Generation.B,))}


@given(st.text(max_size=400))
def test_any_text_is_read_or_refused_in_three_parts(text):
    refused, rows = None, ()
    try:
        rows = parse_counters(text).rows
    except ConfigError as error:
        refused = error
    assert rows or (refused is not None and refused.expected and refused.remedy)


HELP = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=40)


@given(st.lists(st.tuples(st.sampled_from(sorted(known_names())), st.sampled_from(list(MetricKind)), HELP), min_size=1,
                max_size=20, unique_by=lambda row: row[0]), st.integers(0, 3))  # fmt: skip
def test_what_is_written_is_read_back(rows, blanks):
    quoted = ['"' + text.replace('"', '""') + '"' for _, _, text in rows]
    lines = [
        f"{name}{' ' * blanks},{' ' * blanks}{kind}, {text}" for (name, kind, _), text in zip(rows, quoted, strict=True)
    ]
    parsed = parse_counters("\n".join(lines))
    assert [(row.name, row.kind) for row in parsed.rows] == [(name, kind) for name, kind, _ in rows]
    wanted = ["".join(char if char.isprintable() else " " for char in text.strip()) for _, _, text in rows]
    assert [row.help for row in parsed.rows] == wanted
