"""Settings of `kgpu cdi generate`: strategies, file names and forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.base.errors import ConfigError
from kgpu.toolkit.config import generate_config, output


def test_strategies_repeat_or_come_as_a_list() -> None:
    config = generate_config(vendor="nvidia.com", device_class="gpu", strategies=["uuid,index", "uuid"])
    assert config.strategies == ("uuid", "index")
    assert generate_config(vendor="nvidia.com", device_class="gpu", strategies=[]).strategies == ("index", "uuid")


def test_misspelt_strategy_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match='did you mean "type-index"'):
        generate_config(vendor="nvidia.com", device_class="gpu", strategies=["typeindex"])


@pytest.mark.parametrize(
    ("path", "form", "expected"),
    [
        ("", "", (None, "yaml")),
        ("-", "json", (None, "json")),
        ("a.json", "", (Path("a.json"), "json")),
        ("a.yaml", "yaml", (Path("a.yaml"), "yaml")),
        ("a.yml", "", (Path("a.yml.yaml"), "yaml")),
        ("a", "json", (Path("a.json"), "json")),
    ],
)
def test_form_and_extension(path: str, form: str, expected: tuple[Path | None, str]) -> None:
    found = output(path, form)
    assert (found.path, found.form) == expected


def test_contradiction_of_form_and_extension_is_an_error() -> None:
    with pytest.raises(ConfigError, match="contradicts"):
        output("a.json", "yaml")


def test_unknown_form_is_an_error() -> None:
    with pytest.raises(ConfigError, match='did you mean "json"'):
        output("", "jsn")
