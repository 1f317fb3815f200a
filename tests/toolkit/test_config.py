"""Settings of `kgpu cdi generate`: strategies, file names and forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgpu.base.errors import ConfigError
from kgpu.toolkit.config import csv_config, generate_config, output


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


def test_kind_is_whole_only_when_both_halves_are_given() -> None:
    assert generate_config(vendor="a.com", device_class="bb").kind == "a.com/bb"
    assert generate_config(vendor="a.com").kind == ""
    assert generate_config(device_class="bb").device_class == "bb"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "nvmm"}, 'there is no mode "nvmm"; did you mean "nvml"'),
        ({"features": ["enable-coherent-annotation"]}, 'did you mean "enable-coherent-annotations"'),
        ({"newest": "0.9"}, 'there is no CDI version "0.9"'),
        ({"vendor": "a b"}, "not a CDI vendor"),
        ({"device_class": "-"}, "not a CDI class"),
        ({"library_dirs": ["usr/lib"]}, "library search path"),
        ({"config_dirs": ["etc"]}, "config search path"),
    ],
)
def test_bad_words_are_explained(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        generate_config(**options)


def test_none_means_no_all_device_and_lists_are_cut_at_commas() -> None:
    config = generate_config(device_ids=["0, 1:0", "none"], features=["disable-nvsandbox-utils,disable-ipc-discoverer"])
    assert config.device_ids == ("0", "1:0", "none")
    assert not config.all_device
    assert config.features == {"disable-nvsandboxutils", "disable-ipc-discoverer"}
    assert not config.search.ipc
    assert generate_config(mode="IMEX").mode == "imex"


def test_csv_paths_are_absolute() -> None:
    assert csv_config(files=["/a.csv,/b.csv"]).files == ("/a.csv", "/b.csv")
    with pytest.raises(ConfigError, match="relative path"):
        csv_config(files=["a.csv"])
