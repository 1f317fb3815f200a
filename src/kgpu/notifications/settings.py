"""Where notifications go, as the admin sets it. URL and token are secrets: no message and no repr shows them."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from kgpu.base.advice import Severity
from kgpu.base.errors import ConfigError
from kgpu.base.suggest import did_you_mean
from kgpu.notifications.payload import PayloadFormat

MAX_URL: Final = 2048
MAX_TOKEN: Final = 8192
_MAX_CLUSTER: Final = 100
_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")
_SEVERITIES: Final = (Severity.INFO, Severity.WARNING)
_URL_EXPECTED: Final = "an address such as https://hooks.example.com/kgpu"
_PLACES: Final = "operations.notifications.webhook of the chart, or the key url of its Secret"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """``url`` has no user and password; ``authorization`` is the value of that header, "" for none."""

    url: str = field(repr=False)
    authorization: str = field(default="", repr=False)
    min_severity: Severity = Severity.INFO
    format: PayloadFormat = PayloadFormat.CLOUD_EVENTS
    cluster: str = ""

    @property
    def place(self) -> str:
        """The webhook for messages: its path and query may be what lets somebody in."""
        return place_of(self.url)


def place_of(url: str) -> str:
    """Scheme, host and port of a valid URL."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port is not None else ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"


def read_webhook(
    url: str, *, token: str = "", min_severity: str = "info", form: str = "CloudEvents", cluster: str = "",
    place: str = _PLACES,
) -> WebhookSettings:  # fmt: skip
    """Read the settings of a webhook. A Secret's values may end with a newline. ``place`` is where the URL is set, for
    whoever has to correct it. Raises ConfigError.
    """
    url, token = url.strip(), token.strip()
    bare, own = _without_credentials(url, place)
    if len(token) > MAX_TOKEN or (token and not _VISIBLE.fullmatch(token)):
        raise ConfigError(
            "the webhook's token can't be sent", f"at most {MAX_TOKEN} ASCII characters without blanks",
            "correct the key token of the Secret",
        )  # fmt: skip
    if token and own:
        raise ConfigError(
            "the webhook has both a token and a user in its URL", "one of them", "take one of them out of the Secret"
        )
    return WebhookSettings(
        url=bare, authorization=f"Bearer {token}" if token else own,
        min_severity=Severity(_one_of(min_severity, [str(word) for word in _SEVERITIES], "minSeverity")),
        format=PayloadFormat(_one_of(form, [str(word) for word in PayloadFormat], "format")),
        cluster=_cluster(cluster),
    )  # fmt: skip


def _without_credentials(url: str, place: str) -> tuple[str, str]:
    """The URL without user and password, and the header that says the same. Raises ConfigError without its text."""
    parts = _parts(url)
    if parts is None or len(url) > MAX_URL or not _VISIBLE.fullmatch(url):
        raise ConfigError("the webhook's URL is not valid", _URL_EXPECTED, f"correct {place}")
    user, at, address = parts.netloc.rpartition("@")
    if not at:
        return url, ""
    name, _, password = user.partition(":")
    encoded = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
    return parts._replace(netloc=address).geturl(), f"Basic {encoded}"


def _parts(url: str) -> SplitResult | None:
    """The parts of an http or https URL, None for anything else."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and port != 0 and not parts.fragment
    return parts if usable else None


def _one_of(value: str, words: list[str], key: str) -> str:
    if value in words:
        return value
    raise ConfigError(
        f"operations.notifications.webhook.{key} is {value[:40]!r}", f"one of: {', '.join(words)}",
        did_you_mean(value[:40], words) or "correct it",
    )  # fmt: skip


def _cluster(name: str) -> str:
    if len(name) > _MAX_CLUSTER or not name.isprintable():
        raise ConfigError(
            f"operations.notifications.cluster is {name[:40]!r}",
            f"at most {_MAX_CLUSTER} characters without line ends", "correct it",
        )  # fmt: skip
    return name
