"""Go's booleans, and what is none."""

from __future__ import annotations

import pytest

from kgpu.base.errors import ConfigError
from kgpu.formats.go_flags import read_bool


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
