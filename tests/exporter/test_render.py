"""The text in both formats, judged by Prometheus' own parsers; hostile label values and helps come back unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.exporter.labels import Texts
from kgpu.exporter.model import Family, MetricKind, SeriesSample
from kgpu.exporter.render import ExpositionFormat, escape, negotiate, render
from tests.exporter.made import read_both

ANY = st.text(st.characters(blacklist_categories=("Cs",)), max_size=30)


def family(
    *labels: tuple[tuple[str, str], ...], name: str = "m", kind: MetricKind = MetricKind.GAUGE, text: str = "Help."
) -> Family:
    texts = Texts()
    return Family(name, kind, text, tuple(SeriesSample(texts.text(pairs), str(n)) for n, pairs in enumerate(labels)))


def test_exact_text():
    one = family((("gpu", "0"), ("pod", 'a"b')), (), text="A\\B\nC")
    assert render([one]) == ('# HELP m A\\\\B\\nC\n# TYPE m gauge\nm{gpu="0",pod="a\\"b"} 0\nm 1\n')
    assert render([one], ExpositionFormat.OPENMETRICS) == (
        '# TYPE m gauge\n# HELP m A\\\\B\\nC\nm{gpu="0",pod="a\\"b"} 0\nm 1\n# EOF\n'
    )


def test_nothing_is_nothing():
    empty = Family("m", MetricKind.GAUGE, "Help.", ())
    assert render([empty]) == ""
    assert render([empty], ExpositionFormat.OPENMETRICS) == "# EOF\n"


@given(st.lists(ANY, min_size=1, max_size=5, unique=True), ANY)
def test_any_label_value_comes_back_in_both_formats(values, text):
    one = family(*((("pod", value), ("gpu", "0")) for value in values), text=text)
    for samples in read_both([one]):
        assert [labels["pod"] for _, labels, _ in samples] == values
        assert [value for _, _, value in samples] == list(range(len(values)))


def test_what_utf8_can_not_carry_is_replaced():
    assert escape("a\ud800b") == "a?b"
    render([family((("pod", "a\ud800b"),))]).encode()


def test_a_metric_has_one_name_in_both_formats():
    families = [
        family((), name="DCGM_FI_DEV_PCIE_REPLAY_COUNTER", kind=MetricKind.COUNTER),
        family((), name="kgpu_errors_total", kind=MetricKind.COUNTER),
        family((), name="old", kind=MetricKind.HISTOGRAM),
    ]
    written = render(families, ExpositionFormat.OPENMETRICS)
    lines = [[line for line in text.splitlines() if line[0] != "#"] for text in (render(families), written)]
    assert lines[0] == lines[1] == ["DCGM_FI_DEV_PCIE_REPLAY_COUNTER 0", "kgpu_errors_total 0", "old 0"]
    assert [name for name, _, _ in read_both(families)[1]] == [one.name for one in families]
    assert "# TYPE DCGM_FI_DEV_PCIE_REPLAY_COUNTER unknown\n" in written
    assert "# TYPE kgpu_errors counter\n" in written
    assert "# TYPE old unknown\n" in written
    assert "# TYPE DCGM_FI_DEV_PCIE_REPLAY_COUNTER counter\n" in render(families)


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", ExpositionFormat.TEXT),
        ("*/*", ExpositionFormat.TEXT),
        ("text/html", ExpositionFormat.TEXT),
        (
            "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4",
            ExpositionFormat.OPENMETRICS,
        ),
        ("application/openmetrics-text;version=1.0.0;q=0.2,text/plain;q=0.4", ExpositionFormat.TEXT),
        ("application/openmetrics-text; version=2.0.0, text/plain", ExpositionFormat.TEXT),
        ("application/openmetrics-text;q=nan,text/plain;q=x", ExpositionFormat.TEXT),
    ],
)
def test_the_scraper_chooses(accept, form):
    assert negotiate(accept) is form


@given(st.text(max_size=60))
def test_any_accept_header_gets_a_format(accept):
    assert negotiate(accept) in set(ExpositionFormat)
