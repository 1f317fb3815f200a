"""``kgpu monitoring``: what is printed can be loaded, and what is wrong is explained."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kgpu.base.errors import ConfigError
from kgpu.cli.monitoring import monitoring
from kgpu.formats import yaml


def printed(*words: str) -> str:
    result = CliRunner().invoke(monitoring, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_rules_in_every_form() -> None:
    groups = yaml.load(printed("rules"))["groups"]
    assert json.loads(printed("rules", "-o", "json"))["groups"] == groups
    made = yaml.load(printed("rules", "-o", "object", "-n", "monitoring", "--label", "release=kube-prometheus"))
    assert made["spec"]["groups"] == groups
    assert made["metadata"]["labels"] == {"release": "kube-prometheus"}
    listed = [line.partition(":")[0] for line in printed("rules", "-o", "list").splitlines()]
    assert listed == [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]


def test_rules_as_they_are_wanted() -> None:
    words = ("--set", "GPUIdle.threshold=7.5", "--set", "GPUIdle.for=2h", "--set", "GPULost.enabled=false")
    lines = printed("rules", "-o", "list", *words).splitlines()
    (idle,) = (line for line in lines if line.startswith("GPUIdle:"))
    assert idle.startswith("GPUIdle: warning after 2h, threshold 7.5")
    assert idle.endswith("< 7.5")
    assert not any(line.startswith("GPULost") for line in lines)


def test_dashboards() -> None:
    names = [line.partition(":")[0] for line in printed("dashboards").splitlines()]
    for name in names:
        assert json.loads(printed("dashboards", name))["panels"]
    maps = printed("dashboards", "-o", "object").split("---\n")
    assert [yaml.load(one)["metadata"]["labels"] for one in maps] == [{"grafana_dashboard": "1"}] * len(names)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("rules", "--set", "GPUIdle"), "ALERT.KEY=VALUE"),
        (("rules", "--set", "GPUIdle.threshold=x"), "a number such as 5"),
        (("rules", "--set", "GPUIdel.for=1h"), 'did you mean "GPUIdle"'),
        (("rules", "-o", "object", "--label", "x"), "KEY=VALUE"),
        (("dashboards", "gpu-device"), 'did you mean "gpu-devices"'),
    ],
)
def test_what_is_wrong_is_explained(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(monitoring, words, catch_exceptions=False)
    assert says in str(caught.value)
