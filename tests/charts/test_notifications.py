"""Where the operator of the chart posts notifications; the Secret's values stand nowhere in the objects."""

from __future__ import annotations

from typing import Any

import pytest

from tests.charts.conftest import Chart, Made

WEBHOOK = "operations.notifications.webhook"


def variables(made: Made) -> dict[str, Any]:
    pod = made.one("Deployment", "gpu-operator")["spec"]["template"]["spec"]
    return {row["name"]: row.get("value", row.get("valueFrom")) for row in pod["containers"][0]["env"]}


def from_secret(key: str) -> dict[str, Any]:
    return {"secretKeyRef": {"name": "hook", "key": key, "optional": True}}


def test_off_is_the_default(chart: Chart) -> None:
    assert not [name for name in variables(chart()) if "WEBHOOK" in name or "CLUSTER_NAME" in name]


def test_a_url_in_the_values(chart: Chart) -> None:
    url = f"{WEBHOOK}.url=https://hooks.example.com/kgpu"
    made = variables(chart(url, f"{WEBHOOK}.minSeverity=warning", "operations.notifications.cluster=prod"))
    assert made["KGPU_WEBHOOK_URL"] == "https://hooks.example.com/kgpu"
    assert (made["KGPU_WEBHOOK_MIN_SEVERITY"], made["KGPU_WEBHOOK_FORMAT"]) == ("warning", "CloudEvents")
    assert made["KGPU_CLUSTER_NAME"] == "prod"
    assert "KGPU_WEBHOOK_TOKEN" not in made
    assert "notifications" not in made["KGPU_OPERATIONS_CONFIG"]


def test_url_and_token_of_a_secret(chart: Chart) -> None:
    made = variables(chart(f"{WEBHOOK}.secretName=hook"))
    assert made["KGPU_WEBHOOK_URL"] == from_secret("url")
    assert made["KGPU_WEBHOOK_TOKEN"] == from_secret("token")
    assert made["KGPU_WEBHOOK_SECRET"] == "hook"


def test_a_url_in_the_values_and_the_token_of_a_secret(chart: Chart) -> None:
    made = variables(chart(f"{WEBHOOK}.url=http://receiver:8080", f"{WEBHOOK}.secretName=hook"))
    assert made["KGPU_WEBHOOK_URL"] == "http://receiver:8080"
    assert made["KGPU_WEBHOOK_TOKEN"] == from_secret("token")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("url=hooks.example.com", "an address such as"),
        ("secretName=My_Secret", "a name in lower case"),
        ("minSeverity=error", "minSeverity"),
        ("format=Slack", "format"),
        ("token=abc", "token"),
    ],
)
def test_what_is_wrong_is_refused(chart: Chart, value: str, said: str) -> None:
    made = chart(f"{WEBHOOK}.{value}")
    assert made.code != 0
    assert said in made.error
