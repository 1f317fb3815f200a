"""The webhook's settings as the admin gives them."""

from __future__ import annotations

import pytest

from kgpu.base.advice import Severity
from kgpu.base.errors import ConfigError
from kgpu.notifications.payload import PayloadFormat
from kgpu.notifications.settings import read_webhook

URL = "https://hooks.example.com:8443/services/T0/B0/pathsecret?key=querysecret"


def test_the_usual() -> None:
    read = read_webhook(f"{URL}\n")
    assert (read.url, read.authorization, read.min_severity) == (URL, "", Severity.INFO)
    assert read.format is PayloadFormat.CLOUD_EVENTS
    assert read.place == "https://hooks.example.com:8443"


def test_a_token_becomes_the_header() -> None:
    assert read_webhook("http://hooks.example.com", token="tokensecret\n").authorization == "Bearer tokensecret"


def test_user_and_password_leave_the_url_for_the_header() -> None:
    read = read_webhook("https://ann:pass%40word@[2001:db8::1]:444/x?y=z")
    assert read.url == "https://[2001:db8::1]:444/x?y=z"
    assert read.authorization == "Basic YW5uOnBhc3NAd29yZA=="
    assert read.place == "https://[2001:db8::1]:444"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://hooks.example.com/secret", "hooks.example.com/secret", "https://", "https:///secret",
        "https://hooks.example.com:99999/secret", "https://hooks.example.com:0/secret", "https://[::1/secret",
        "https://hooks.example.com/secret here", "https://hooks.example.com/secret\r\nX: y", "https://hooks.exämple/secret",
        "https://hooks.example.com/secret#part", "https://hooks.example.com/" + "secret" * 400, "file:///etc/secret",
    ],
)  # fmt: skip
def test_what_is_no_url_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigError, match="URL is not valid") as caught:
        read_webhook(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("token", ["token secret", "token\nsecret", "secretä", "secret" * 2000])
def test_what_can_be_no_header_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(ConfigError, match="token can't be sent") as caught:
        read_webhook(URL, token=token)
    assert "secret" not in str(caught.value)


def test_one_way_to_be_let_in() -> None:
    with pytest.raises(ConfigError, match="both a token and a user"):
        read_webhook("https://ann:word@hooks.example.com", token="abc")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"min_severity": "warn"}, 'did you mean "warning"'),
        ({"min_severity": "error"}, "one of: info, warning"),
        ({"form": "cloudevents"}, "one of: CloudEvents, Text"),
        ({"cluster": "a\nb"}, "notifications.cluster"),
        ({"cluster": "a" * 101}, "at most 100 characters"),
    ],
)
def test_what_else_is_wrong_is_told(more: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_webhook(URL, **more)
    assert said in caught.value.one_line()


def test_a_repr_shows_no_secret() -> None:
    shown = repr(read_webhook(URL, token="tokensecret"))
    assert "secret" not in shown
