"""Which configuration a node uses: label before default before fallbacks, and errors that name what there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgpu.base.errors import ConfigError
from kgpu.formats.config_choice import Fallback, choose, choose_text, parse_fallbacks

names = st.sampled_from(["default", "a100", "t4", "any", "..data", "..2026"])
fallback_lists = st.lists(st.sampled_from(Fallback), max_size=3)


@pytest.mark.parametrize(
    ("available", "label", "default", "fallbacks", "chosen"),
    [
        (["a", "b"], "a", "b", [], "a"),
        (["a", "b"], "", "b", [], "b"),
        (["default", "b"], "", "", [Fallback.NAMED], "default"),
        (["only"], "", "", [Fallback.NAMED, Fallback.SINGLE], "only"),
        (["only", "..data"], "", "", [Fallback.SINGLE], "only"),
        (["default"], "", "", [Fallback.EMPTY, Fallback.NAMED], None),
        ([], "", "", [Fallback.NAMED, Fallback.SINGLE, Fallback.EMPTY], None),
        (["a", "b"], "", "", [Fallback.SINGLE, Fallback.EMPTY], None),
    ],
)
def test_order(available: list[str], label: str, default: str, fallbacks: list[Fallback], chosen: str | None) -> None:
    assert choose(available, label=label, default=default, fallbacks=fallbacks) == chosen


@pytest.mark.parametrize(
    ("label", "default", "said"),
    [
        ("t5", "", 'names the configuration "t5"'),
        ("a10", "", 'did you mean "a100"'),
        ("", "x", 'the default names the configuration "x"'),
        ("..data", "", "..data"),
        ("", "", "no configuration is chosen"),
    ],
)
def test_what_can_not_be_chosen_is_told(label: str, default: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(["a100", "t4", "..data"], label=label, default=default, fallbacks=[Fallback.NAMED, Fallback.SINGLE])
    assert said in caught.value.what
    assert "a100, t4" in caught.value.expected


def test_without_any_configuration_the_error_says_so() -> None:
    with pytest.raises(ConfigError, match="no configuration is chosen") as caught:
        choose([], fallbacks=[Fallback.SINGLE])
    assert "none at all" in caught.value.expected


@given(st.lists(names, unique=True), st.sampled_from(["", "a100", "x"]), st.sampled_from(["", "t4"]), fallback_lists)
def test_a_choice_is_always_something_available(
    available: list[str], label: str, default: str, fallbacks: list[Fallback]
) -> None:
    try:
        chosen = choose(available, label=label, default=default, fallbacks=fallbacks)
    except ConfigError:
        assert label not in available or not label
    else:
        if chosen is None:
            assert Fallback.EMPTY in fallbacks
        else:
            assert chosen in available
            assert not chosen.startswith("..")
        if label or default:
            assert chosen == (label or default)


@given(st.dictionaries(names, st.text(max_size=5)), st.sampled_from(["", "a100"]), fallback_lists)
def test_choosing_a_text_never_raises(texts: dict[str, str], label: str, fallbacks: list[Fallback]) -> None:
    found = choose_text(texts, "here", label=label, fallbacks=fallbacks)
    assert (found.problem is None) == (not found.problem_text)
    if label and label in texts:
        assert found.text == texts[label]


def test_problems_differ_by_what_they_say() -> None:
    assert choose_text({}, "here", label="a") != choose_text({}, "here", label="b")
    assert choose_text({}, "here", label="a") == choose_text({}, "here", label="a")


def test_fallback_lists() -> None:
    assert parse_fallbacks(" named, single ,") == (Fallback.NAMED, Fallback.SINGLE)
    assert parse_fallbacks("") == ()
    with pytest.raises(ConfigError, match='did you mean "named"'):
        parse_fallbacks("name")
    with pytest.raises(ConfigError, match="not a fallback strategy"):
        parse_fallbacks("xyzzy")
