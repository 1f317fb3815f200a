"""Device selectors: the replaced exporter's grammar, and refusals in three parts for everything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.exporter.devices import DeviceSelector, parse_selector


def chosen(text: str, many: int = 12) -> tuple[list[int], list[int]]:
    selector = parse_selector(text)
    return [n for n in range(many) if selector.gpu(n)], [n for n in range(many) if selector.instance(n)]


@pytest.mark.parametrize(
    ("text", "gpus", "instances"),
    [
        ("g", list(range(12)), []),
        ("g:-1", list(range(12)), []),
        ("i", [], list(range(12))),
        ("g:0", [0], []),
        ("g:0,2-4", [0, 2, 3, 4], []),
        ("i:1-2,7", [], [1, 2, 7]),
        (" g:0 + i:3 ", [0], [3]),
    ],
)
def test_selectors(text, gpus, instances):
    assert chosen(text) == (gpus, instances)


def test_flexible_takes_everything():
    assert parse_selector("f") == DeviceSelector()
    assert chosen("f") == (list(range(12)), list(range(12)))


@pytest.mark.parametrize(
    "text",
    ["", "x", "f:0", "g:", "g:a", "g:1-", "g:-3", "g:3-1", "g:0+g:1", "g:0-999999999", "f+g", "g:\u0661", "g:1--2"],
)
def test_everything_else_is_refused_and_names_the_flag(text):
    with pytest.raises(ConfigError) as caught:
        parse_selector(text, "--devices")
    assert caught.value.what.startswith("--devices: ")
    assert caught.value.expected
    assert caught.value.remedy == "correct --devices"


@given(st.text(alphabet="fgi:,-+0123456789 \n", max_size=20))
def test_any_text_is_a_selector_or_refused(text):
    try:
        selector = parse_selector(text)
    except ConfigError:
        return
    assert selector.flexible or selector.gpus != selector.instances or selector.gpus.all


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), min_size=1, max_size=8))
def test_ranges_are_what_they_say(pairs):
    text = ",".join(f"{low}-{low + more}" if more else str(low) for low, more in pairs)
    wanted = {number for low, more in pairs for number in range(low, low + more + 1)}
    assert parse_selector(f"g:{text}").gpus.ids == wanted
