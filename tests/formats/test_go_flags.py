"""Go's booleans, and what is none; flags in each of Go's spellings."""

from __future__ import annotations

import pytest

from kgpu.base.errors import ConfigError
from kgpu.formats.go_flags import long_words, read_bool


@pytest.mark.parametrize("value", [True, "1", "t", "T", "true", "TRUE", "True"])
def test_true(value: object) -> None:
    assert read_bool(value, "--x") is True


@pytest.mark.parametrize("value", [False, "", "0", "f", "F", "false", "FALSE", "False"])
def test_false(value: object) -> None:
    assert read_bool(value, "--x") is False


@pytest.mark.parametrize("value", ["yes", "tRUE", " true", "2", None])
def test_neither(value: object) -> None:
    with pytest.raises(ConfigError, match=r"--x: .* is not a boolean"):
        read_bool(value, "--x")


KNOWN = {"f": "--collectors", "collectors": "--collectors", "k": "--kubernetes", "kubernetes": "--kubernetes"}


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (["-f", "x"], ["--collectors=x"]),
        (["-f=x"], ["--collectors=x"]),
        (["--f=x"], ["--collectors=x"]),
        (["-collectors", "x"], ["--collectors=x"]),
        (["--collectors", ""], ["--collectors="]),
        (["-f", "-k"], ["--collectors=-k"]),
        (["-f"], ["--collectors"]),
        (["-k", "-f", "x"], ["--kubernetes", "--collectors=x"]),
        (["-kubernetes=false"], ["--kubernetes=false"]),
        (["--other", "-x", "word"], ["--other", "-x", "word"]),
        (["f", "--", "-f"], ["f", "--", "-f"]),
        ([], []),
    ],
)
def test_flags_in_each_spelling(words: list[str], made: list[str]) -> None:
    assert long_words(words, KNOWN, ["--kubernetes"]) == made
    assert long_words(made, KNOWN, ["--kubernetes"]) == made
