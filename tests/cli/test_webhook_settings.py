"""The operator's settings of its webhook, from the environment that the chart makes."""

from __future__ import annotations

from typing import Any

import pytest

from kgpu.base.errors import ConfigError
from kgpu.cli.operator import RUN, webhook_of
from kgpu.formats.settings import resolve
from kgpu.notifications.payload import PayloadFormat


def given(**env: str) -> dict[str, Any]:
    return dict(resolve(RUN, flags={}, env=env).values)


def test_off_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert webhook_of(given()) is None
    assert capsys.readouterr().err == ""


def test_what_the_chart_sets_counts() -> None:
    webhook = webhook_of(
        given(
            KGPU_WEBHOOK_URL="https://hooks.example.com/x", KGPU_WEBHOOK_TOKEN="abc", KGPU_WEBHOOK_SECRET="hook",
            KGPU_WEBHOOK_MIN_SEVERITY="warning", KGPU_WEBHOOK_FORMAT="Text", KGPU_CLUSTER_NAME="prod",
        )
    )  # fmt: skip
    assert webhook is not None
    assert (webhook.url, webhook.authorization) == ("https://hooks.example.com/x", "Bearer abc")
    assert (webhook.min_severity, webhook.format, webhook.cluster) == ("warning", PayloadFormat.TEXT, "prod")


def test_a_secret_that_is_not_there_is_told_and_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert webhook_of(given(KGPU_WEBHOOK_SECRET="hook")) is None
    assert "the Secret hook has no key url" in capsys.readouterr().err


def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="URL is not valid"):
        webhook_of(given(KGPU_WEBHOOK_URL="hooks.example.com"))


def test_url_and_token_have_no_flag() -> None:
    assert [row.attr for row in RUN if not row.flag] == ["webhook_url", "webhook_token", "webhook_secret"]
