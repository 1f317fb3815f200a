"""Patterns mean what RE2 means by them, which the CEL library brings as a yardstick, and none takes long."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from kgpu.discovery.rules.patterns import BUDGET, MAX_SIZE, MAX_TEXT, PatternError, _Search, finds, pattern
from kgpu.lab.embedded.cel.patterns import go_pattern
from tests.budget import tries

PARTS = [
    "a", "b", "k", "S", "1", "-", "_", ".", "^", "$", r"\d", r"\W", r"\s", r"\b", "[a-c]", "[^b-]", "[[:alpha:]1]",
    "[^[^:digit:]]", "(", "(?:", "(?i)", "(?i:", "(?-i)", "(?m)", "(?s)", ")", "|", "*", "+", "?", "{2}", "{1,3}",
    "{,2}", "{2,}", "*?", r"\Q.", r"\E", r"\x41", r"\x{42}", r"\101", r"\.", r"\pL", r"\p{Lu}", r"\P{N}", r"\A", r"\z",
    "[", "]", r"\n", "(?P<n>", "(?<m>", r"\1", r"[\d-]", "[]a]", r"[a-\d]", "\\", "(?=a)", "**", "{1001}", "(?i",
    r"[\W\d]", "(?U)", "(?U:", r"\Z", "é", r"\_", "[[:foo:]]", "(?)",
]  # fmt: skip
TEXTS = ["a", "b", "c", "k", "K", "\u212a", "s", "S", "A", "1", "-", "_", " ", "\n", "\\", "é", "É"]


def ours(text: str, element: str) -> object:
    try:
        return finds(text, element)
    except PatternError:
        return "refused"


def re2(text: str, element: str) -> object:
    try:
        return go_pattern(text).found_in(element)
    except ValueError:
        return "refused"


@tries(2000)
@given(
    st.lists(st.sampled_from(PARTS), max_size=6).map("".join), st.lists(st.sampled_from(TEXTS), max_size=6).map("".join)
)
@example("](?i)+?", "1\\ s")
@example("{2}", "")
@example(r"\E", "")
@example("(?i)[k-s]", "\u212a\u017f")
@example("x*(?i)*", "x")
def test_patterns_find_what_re2_finds(text, element):
    assert ours(text, element) == re2(text, element)


@pytest.mark.parametrize(
    ("text", "element", "found"),
    [
        (r"^(10de|1002)$", "10de", True), (r"^(10de|1002)$", "10dea", False), ("mlx5_[0-9]+", "mlx5_12", True),
        (r"^5\.(4|15)\.", "5.15.0-91-generic", True), (r"\B", "1éc", False), ("(?i)intel", "GenuineINTEL", True),
        ("", "", True), ("a{0}", "b", True),
    ],
)  # fmt: skip
def test_patterns_as_people_write_them(text, element, found):
    assert finds(text, element) is found


@pytest.mark.parametrize(
    "text", [r"(a)\1", "(?=a)", "(?<!a)", "a++", "a**", "(", ")", "[", "[b-a]", "*", r"\C", r"\p{Greek}", "a{1001}", "a{2,1}",
             "(?P<a>x)(?P<a>y)", "(?P<>x)", r"\x{110000}", r"\xg1", r"\q", "x" * 1001, "((a{50}){50}){50}", "(" * 150]
)  # fmt: skip
def test_what_can_not_be_searched_for_is_refused_with_its_reason(text):
    with pytest.raises(PatternError) as refused:
        pattern(text)
    assert refused.value.what
    assert refused.value.expected
    assert refused.value.remedy


@pytest.mark.parametrize("text", ["(a*)*b", "(a|aa)+$", "(a+a+)+y", "(.*)(.*)(.*)(.*)(.*)z", "(?:a?){200}a{200}b"])
def test_a_hostile_pattern_ends(text):
    """None of these ends with a backtracking search before the sun burns out."""
    search = _Search(pattern(text).steps, "a" * (MAX_TEXT - 1) + "!")
    assert ended(search) in {False, f"a search that takes more than {BUDGET} steps"}
    assert search.left >= -MAX_SIZE


def ended(search):
    try:
        return search.run()
    except PatternError as error:
        return error.what


def test_a_long_element_is_refused():
    with pytest.raises(PatternError, match="5000 characters"):
        finds("a", "b" * 5000)


@tries(300)
@given(st.text(max_size=30), st.text(max_size=30))
def test_anything_is_searched_for_or_refused(text, element):
    assume(not any(0xD800 <= ord(char) <= 0xDFFF for char in text + element))
    assert ours(text, element) in {True, False, "refused"}
